/* Loops over elements in LANES sums side by side.
 *
 * Each lane has sums of its own, in source order, so no flag has to allow the compiler to
 * reassociate: it vectorizes the loops over lanes, and NaN, Inf and signed zeros keep their meaning.
 */

/* Runs STEP(i, lane) for each element i from `begin` up to `end`. */
#define EACH(STEP, begin, end)                                                                     \
    int64_t at = (begin);                                                                          \
    for (; at + LANES <= (end); at += LANES)                                                       \
        for (int lane = 0; lane < LANES; lane++) {                                                 \
            STEP(at + lane, lane);                                                                 \
        }                                                                                          \
    for (int lane = 0; at < (end); at++, lane++) {                                                 \
        STEP(at, lane);                                                                            \
    }

/* Adds the lanes up in their first. */
#define FOLD(lanes)                                                                                \
    for (int half = LANES / 2; half; half /= 2)                                                    \
        for (int lane = 0; lane < half; lane++) lanes[lane] += lanes[lane + half];
