/* The sums of one optimizer step, for one instruction set: included by instruction_set.h, with
 * TARGET and SET as there.
 *
 * A row of elements is computed in float32, as PyTorch computes it. Its sums are taken in float64:
 * no finite float32 and none of its squares leaves that range.
 */

#define ROW 1024
#define LANES 8
/* Four floats as doubles. Sums of such vectors stay in registers; those of an array of lanes do not,
 * with gcc. The lanes and their order are the same. */
#define WIDE(a) __builtin_convertvector(*(const loose_floats *)(a), doubles)
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

/* Adds up a row, and its squares. */
TARGET static void NAMED(row, float32, SET)(const float *a, int64_t count, double *total,
                                            double *squares) {
    doubles sums = {0}, more = {0}, products = {0}, others = {0};
    int64_t at = 0;
    for (; at + LANES <= count; at += LANES) {
        doubles low = WIDE(a + at), high = WIDE(a + at + 4);
        sums += low, more += high;
        products += low * low, others += high * high;
    }
    REST_OF(at, count, sums, more, (double)a[i]);
    REST_OF(at, count, products, others, (double)a[i] * a[i]);
    *total += sums_sum;
    *squares += products_sum;
}

TARGET static double NAMED(squares, float32, SET)(const float *a, int64_t count) {
    doubles products = {0}, others = {0};
    int64_t at = 0;
    for (; at + LANES <= count; at += LANES) {
        doubles low = WIDE(a + at), high = WIDE(a + at + 4);
        products += low * low, others += high * high;
    }
    REST_OF(at, count, products, others, (double)a[i] * a[i]);
    return products_sum;
}

/* Adds the squares of two rows, and their products, to the sums of a step. */
TARGET static void NAMED(pair, float32, SET)(const float *moved, const float *gradient,
                                             int64_t count, double *sums) {
    doubles own = {0}, own_more = {0}, along = {0}, along_more = {0}, other = {0}, other_more = {0};
    int64_t at = 0;
    for (; at + LANES <= count; at += LANES) {
        doubles low = WIDE(moved + at), high = WIDE(moved + at + 4);
        doubles low_other = WIDE(gradient + at), high_other = WIDE(gradient + at + 4);
        own += low * low, own_more += high * high;
        along += low * low_other, along_more += high * high_other;
        other += low_other * low_other, other_more += high_other * high_other;
    }
    REST_OF(at, count, own, own_more, (double)moved[i] * moved[i]);
    REST_OF(at, count, along, along_more, (double)moved[i] * gradient[i]);
    REST_OF(at, count, other, other_more, (double)gradient[i] * gradient[i]);
    sums[MOVED] += own_sum;
    sums[ALONG] += along_sum;
    sums[GRADIENT] += other_sum;
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
    int told = step->formula.slope != 0 || step->formula.shift != 0;
    for (int64_t at = 0; at < end; at += ROW) {
        int64_t count = end - at < ROW ? end - at : ROW;
        const float *weight = step->weight + at;
        const float *gradient = step->gradient ? step->gradient + at : zeros;
        const float *first = step->first ? step->first + at : zeros;
        const float *second = step->second ? step->second + at : zeros;
        if (!step->before || told) {
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
        sums[WAS] += NAMED(squares, float32, SET)(was, count);
        NAMED(pair, float32, SET)(moved, gradient, count, sums);
        if (taken != 0) {
            for (int64_t i = 0; i < count; i++) rest[i] = moved[i] * (1 - taken) - weight[i] * taken;
            sums[REST] += NAMED(squares, float32, SET)(rest, count);
        }
        if (step->first) sums[FIRST] += NAMED(squares, float32, SET)(first, count);
        if (step->second)
            NAMED(row, float32, SET)(second, count, sums + SECOND, sums + SECOND_SQUARES);
    }
}

#undef ROW
#undef LANES
#undef WIDE
#undef REST_OF
