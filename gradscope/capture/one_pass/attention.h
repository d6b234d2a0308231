/* The figures of rows of attention logits, for one instruction set: included by instruction_set.h,
 * with TARGET and SET as there.
 *
 * e^x is computed here, because the compiler does not vectorize libm's: x = n ln 2 + r, and the
 * Taylor polynomial of e^r to the 13th degree, whose error is 4e-18 for |r| <= ln 2 / 2.
 */

#define LANES 4
#define LOWEST -708.0 /* below, e^x counts as 0 */
#define ROUNDER 0x1.8p52
#define EVERY(x) ((doubles){(x), (x), (x), (x)})

/* Adds e^(x - most) and its product with x - most to the sums, over a part of a row. */
TARGET static void NAMED(exponentials, attention, SET)(const double *x, int64_t count, double most,
                                                       double *total, double *weighted) {
    static const double terms[] = {1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880,
                                   1.0 / 40320,     1.0 / 5040,     1.0 / 720,     1.0 / 120,
                                   1.0 / 24,        1.0 / 6,        1.0 / 2,       1.0,
                                   1.0};
    doubles sums = {0}, products = {0};
    for (int64_t at = 0; at < count; at += LANES) {
        doubles given = EVERY(-INFINITY);
        if (at + LANES <= count)
            given = *(const loose_doubles *)(x + at);
        else
            for (int lane = 0; at + lane < count; lane++) given[lane] = x[at + lane];
        doubles below = given - most;
        longs seen = below >= LOWEST;
        below = (doubles)((longs)below & seen); /* 0 where e^x is 0 */
        doubles n = below * 0x1.71547652b82fep+0 + ROUNDER;
        longs power = (longs)n << 52;
        n -= ROUNDER;
        doubles rest = below - n * 0x1.62e42feep-1 - n * 0x1.a39ef35793c76p-33;
        doubles value = EVERY(1.0 / 6227020800);
        for (int i = 0; i < 13; i++) value = value * rest + terms[i];
        value = (doubles)(((longs)value + power) & seen);
        sums += value;
        products += value * below;
    }
    *total += (sums[0] + sums[2]) + (sums[1] + sums[3]);
    *weighted += (products[0] + products[2]) + (products[1] + products[3]);
}

/* The figures of one row, of which `place` is the position. */
TARGET static void NAMED(row, attention, SET)(const struct attention *a, const double *x,
                                              int64_t place, double *figures[]) {
    int64_t keys = a->causal && place + 1 < a->keys ? place + 1 : a->keys;
    int64_t own = place + 1 < keys ? place + 1 : keys;
    doubles high = EVERY(-INFINITY);
    longs visible = {0}, nan = {0};
    int64_t at = 0;
    for (; at + LANES <= keys; at += LANES) {
        doubles given = *(const loose_doubles *)(x + at);
        longs larger = given > high;
        high = (doubles)(((longs)given & larger) | ((longs)high & ~larger));
        visible += given <= a->masked; /* -1 where it is */
        nan |= given != given;
    }
    for (int lane = 0; at + lane < keys; lane++) {
        double given = x[at + lane];
        high[lane] = given > high[lane] ? given : high[lane];
        visible[lane] -= given <= a->masked;
        nan[lane] |= given != given;
    }
    double most = high[0];
    for (int lane = 1; lane < LANES; lane++) most = high[lane] > most ? high[lane] : most;
    double total = 0, weighted = 0, later = 0;
    int unknown = (nan[0] | nan[1] | nan[2] | nan[3]) != 0;
    if (unknown) most = NAN;
    if (unknown || isinf(most)) {
        total = later = NAN;
    } else {
        NAMED(exponentials, attention, SET)(x, own, most, &total, &weighted);
        NAMED(exponentials, attention, SET)(x + own, keys - own, most, &later, &weighted);
        total += later;
    }
    double first = 0;
    if (keys) NAMED(exponentials, attention, SET)(x, 1, most, &first, &(double){0});
    *figures[0] = (double)(keys + visible[0] + visible[1] + visible[2] + visible[3]);
    *figures[1] = most;
    *figures[2] = 1 / total;
    *figures[3] = log(total) - weighted / total;
    *figures[4] = first / total;
    *figures[5] = later / total;
}

TARGET static void NAMED(rows, attention, SET)(const struct attention *a, int64_t rows,
                                               double *found) {
    for (int64_t i = 0; i < rows; i++) {
        double *figures[ATTENTION_FIGURES];
        for (int figure = 0; figure < ATTENTION_FIGURES; figure++)
            figures[figure] = found + figure * rows + i;
        NAMED(row, attention, SET)(a, a->logits + i * a->keys, a->places[i % a->queries], figures);
    }
}

#undef LANES
#undef LOWEST
#undef ROUNDER
#undef EVERY
