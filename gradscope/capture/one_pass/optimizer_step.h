/* The sums of one optimizer step, for one instruction set: included by instruction_set.h, with
 * TARGET and SET as there.
 *
 * A row of elements is computed in float32, as PyTorch computes it. Its sums are taken in float64:
 * no finite float32 and none of its squares leaves that range.
 */

#define ROW 1024
#define LANES 8
/* Sums of vectors stay in registers; those of an array of lanes do not, with gcc. DOUBLES are four
 * floats as doubles. */
/* Adds the elements after the last full LANES to the lanes of LOW and HIGH, and folds all. */
#define REST_OF(at, count, low, high, term)                                                        \
    for (int lane = 0; at + lane < (count); lane++) {                                              \
        int64_t i = at + lane;                                                                     \
        if (lane < 4)                                                                              \
            low[lane] += (term);                                                                   \
        else                                                                                       \
            high[lane - 4] += (term);                                                              \
    }                                                                                              \
    low += high;                                                                                   \
    double low##_sum = (low[0] + low[2]) + (low[1] + low[3])

/* Sums of a row go to two vectors, so that LANES additions are on their way at once; of several rows
 * in one loop, more are. */
#define SUM(name) doubles name = {0}, name##_more = {0}
#define ADD(name, low, high) name += low, name##_more += high
#define TAIL(name, term) REST_OF(at, count, name, name##_more, term)

TARGET static double NAMED(squares, float32, SET)(const float *a, int64_t count) {
    SUM(own);
    int64_t at = 0;
    for (; at + LANES <= count; at += LANES) {
        doubles low = DOUBLES(a + at), high = DOUBLES(a + at + 4);
        ADD(own, low * low, high * high);
    }
    TAIL(own, (double)a[i] * a[i]);
    return own_sum;
}

/* Adds the sums over a row of moments. */
TARGET static void NAMED(moments, float32, SET)(const float *first, const float *second,
                                                int64_t count, double *sums) {
    SUM(one);
    SUM(two);
    SUM(squares);
    int64_t at = 0;
    for (; at + LANES <= count; at += LANES) {
        doubles low = DOUBLES(first + at), high = DOUBLES(first + at + 4);
        ADD(one, low * low, high * high);
        low = DOUBLES(second + at), high = DOUBLES(second + at + 4);
        ADD(two, low, high);
        ADD(squares, low * low, high * high);
    }
    TAIL(one, (double)first[i] * first[i]);
    TAIL(two, (double)second[i]);
    TAIL(squares, (double)second[i] * second[i]);
    sums[FIRST] += one_sum;
    sums[SECOND] += two_sum;
    sums[SECOND_SQUARES] += squares_sum;
}

/* Adds the sums over a row of a step: -dw, the weight before it, the gradient, and -dw without
 * decay. */
TARGET static void NAMED(changes, float32, SET)(const float *moved, const float *was,
                                                const float *gradient, const float *rest,
                                                int64_t count, double *sums) {
    SUM(own);
    SUM(weight);
    SUM(along);
    SUM(slope);
    SUM(left);
    int64_t at = 0;
    for (; at + LANES <= count; at += LANES) {
        doubles low = DOUBLES(moved + at), high = DOUBLES(moved + at + 4);
        doubles low_slope = DOUBLES(gradient + at), high_slope = DOUBLES(gradient + at + 4);
        ADD(own, low * low, high * high);
        ADD(along, low * low_slope, high * high_slope);
        ADD(slope, low_slope * low_slope, high_slope * high_slope);
        low = DOUBLES(was + at), high = DOUBLES(was + at + 4);
        ADD(weight, low * low, high * high);
        low = DOUBLES(rest + at), high = DOUBLES(rest + at + 4);
        ADD(left, low * low, high * high);
    }
    TAIL(own, (double)moved[i] * moved[i]);
    TAIL(weight, (double)was[i] * was[i]);
    TAIL(along, (double)moved[i] * gradient[i]);
    TAIL(slope, (double)gradient[i] * gradient[i]);
    TAIL(left, (double)rest[i] * rest[i]);
    sums[MOVED] += own_sum;
    sums[WAS] += weight_sum;
    sums[ALONG] += along_sum;
    sums[GRADIENT] += slope_sum;
    sums[REST] += left_sum;
}

/* -dw of `count` elements, from the state. Rows that the formula does not read are zero. */
TARGET static void NAMED(update, float32, SET)(const struct formula *f, const float *weight,
                                               const float *gradient, const float *first,
                                               const float *second, int64_t count, float *moved) {
    float slope = f->slope, shift = f->shift, scale = f->scale, eps = f->eps;
    float sign = f->sign, decay = f->decay, taken = f->taken;
    if (decay != 0) {
        for (int64_t i = 0; i < count; i++) {
            float size = scale * sqrtf(second[i]) + eps;
            /* The weight before the step is the one after it less dw: this is solved for dw. */
            float pull = slope / size;
            pull = pull / (1 - pull * decay);
            moved[i] = first[i] * shift / size * (1 + pull * decay) +
                       pull * (sign * gradient[i] + decay * weight[i]);
        }
        return;
    }
    slope *= sign;
    for (int64_t i = 0; i < count; i++)
        moved[i] = (slope * gradient[i] + shift * first[i]) / (scale * sqrtf(second[i]) + eps);
    if (taken != 0)
        for (int64_t i = 0; i < count; i++)
            moved[i] = (moved[i] + taken * weight[i]) / (1 - taken);
}

/* Adds the sums over the first `end` elements of a step. */
TARGET static void NAMED(step, float32, SET)(const struct step *step, int64_t end, double *sums) {
    static const float zeros[ROW];
    float moved[ROW], was[ROW], rest[ROW];
    float taken = step->formula.taken;
    int has_formula = step->formula.slope != 0 || step->formula.shift != 0;
    for (int64_t at = 0; at < end; at += ROW) {
        int64_t count = end - at < ROW ? end - at : ROW;
        const float *weight = step->weight + at;
        const float *gradient = step->gradient ? step->gradient + at : zeros;
        const float *first = step->first ? step->first + at : zeros;
        const float *second = step->second ? step->second + at : zeros;
        if (!step->before || has_formula) {
            NAMED(update, float32, SET)(&step->formula, weight, gradient, first, second, count,
                                        moved);
            sums[UNROUNDED] += NAMED(squares, float32, SET)(moved, count);
            if (!step->all) continue;
        }
        if (step->before) {
            const float *before = step->before + at;
            for (int64_t i = 0; i < count; i++) moved[i] = before[i] - weight[i], was[i] = before[i];
        } else {
            /* As the step rounded it. */
            for (int64_t i = 0; i < count; i++) {
                was[i] = moved[i] + weight[i];
                moved[i] = was[i] - weight[i];
            }
        }
        int32_t changed = 0;
        for (int64_t i = 0; i < count; i++) changed += moved[i] != 0;
        sums[CHANGED] += changed;
        if (taken != 0)
            for (int64_t i = 0; i < count; i++) rest[i] = moved[i] * (1 - taken) - weight[i] * taken;
        NAMED(changes, float32, SET)(moved, was, gradient, taken != 0 ? rest : zeros, count, sums);
        NAMED(moments, float32, SET)(first, second, count, sums);
    }
}

#undef ROW
#undef LANES
#undef REST_OF
#undef SUM
#undef ADD
#undef TAIL
