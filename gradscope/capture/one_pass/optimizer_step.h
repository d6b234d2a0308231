/* The sums of one optimizer step, for one instruction set: included by instruction_set.h, with
 * TARGET and SET as there.
 *
 * A row of elements is computed in float32, as PyTorch computes it. Its sums are taken in float64:
 * no finite float32 and none of its squares leaves that range.
 */

#define ROW 1024
#define LANES 8

/* Adds up a row, and its squares. */
TARGET static void NAMED(row, float32, SET)(const float *a, int64_t count, double *total,
                                            double *squares) {
    double sums[LANES] = {0}, products[LANES] = {0};
#define STEP(i, lane)                                                                              \
    double value = a[i];                                                                           \
    sums[lane] += value;                                                                           \
    products[lane] += value * value
    EACH(STEP, 0, count)
#undef STEP
    FOLD(sums)
    FOLD(products)
    *total += sums[0];
    *squares += products[0];
}

TARGET static double NAMED(squares, float32, SET)(const float *a, int64_t count) {
    double products[LANES] = {0};
#define STEP(i, lane)                                                                              \
    double value = a[i];                                                                           \
    products[lane] += value * value
    EACH(STEP, 0, count)
#undef STEP
    FOLD(products)
    return products[0];
}

/* Adds the squares of two rows, and their products, to the sums of a step. */
TARGET static void NAMED(pair, float32, SET)(const float *moved, const float *gradient,
                                             int64_t count, double *sums) {
    double own[LANES] = {0}, products[LANES] = {0}, others[LANES] = {0};
#define STEP(i, lane)                                                                              \
    double one = moved[i], other = gradient[i];                                                    \
    own[lane] += one * one;                                                                        \
    products[lane] += one * other;                                                                 \
    others[lane] += other * other
    EACH(STEP, 0, count)
#undef STEP
    FOLD(own)
    FOLD(products)
    FOLD(others)
    sums[MOVED] += own[0];
    sums[ALONG] += products[0];
    sums[GRADIENT] += others[0];
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
