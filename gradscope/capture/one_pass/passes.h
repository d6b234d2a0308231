/* The passes over elements of one stored type, for one instruction set.
 *
 * Included once for each pair of the two, with
 *   NAME(x)  the name of x for this pair
 *   TARGET   the attribute that selects the instruction set
 *   STORED   the type in memory, which may lie at any address
 *   WIDE     the type that sums within a block have
 *   READ(x)  a stored element as WIDE
 *   LANES    elements that are added side by side
 */

typedef STORED NAME(loose) __attribute__((aligned(1), may_alias));

/* Sums, extremes and zeros. Extremes pass over NaN; it shows in the sums. */
TARGET static void NAME(all)(const void *memory, int64_t count, double pilot, double scale,
                             struct sums *sums) {
    const NAME(loose) *x = memory;
    WIDE low[LANES], high[LANES];
    (void)pilot, (void)scale;
    for (int lane = 0; lane < LANES; lane++) low[lane] = INFINITY, high[lane] = -INFINITY;
    for (int64_t begin = 0; begin < count; begin += BLOCK) {
        int64_t end = begin + BLOCK < count ? begin + BLOCK : count;
        WIDE total[LANES] = {0}, squares[LANES] = {0};
        COUNT zeros[LANES] = {0};
#define STEP(i, lane)                                                                              \
    WIDE value = READ(x[i]);                                                                       \
    total[lane] += value;                                                                          \
    squares[lane] += value * value;                                                                \
    low[lane] = value < low[lane] ? value : low[lane];                                             \
    high[lane] = value > high[lane] ? value : high[lane];                                          \
    zeros[lane] += value == 0
        EACH(STEP, begin, end)
#undef STEP
        FOLD(total)
        FOLD(squares)
        FOLD(zeros)
        sums->total += total[0];
        sums->squares += squares[0];
        sums->zeros += zeros[0];
    }
    for (int lane = 0; lane < LANES; lane++) {
        sums->low = low[lane] < sums->low ? low[lane] : sums->low;
        sums->high = high[lane] > sums->high ? high[lane] : sums->high;
    }
}

/* Sums of the differences to a pilot, for a variance that the mean dwarfs. */
TARGET static void NAME(shifted)(const void *memory, int64_t count, double pilot, double scale,
                                 struct sums *sums) {
    const NAME(loose) *x = memory;
    WIDE mean = (WIDE)pilot;
    (void)scale;
    for (int64_t begin = 0; begin < count; begin += BLOCK) {
        int64_t end = begin + BLOCK < count ? begin + BLOCK : count;
        WIDE total[LANES] = {0}, squares[LANES] = {0};
#define STEP(i, lane)                                                                              \
    WIDE value = READ(x[i]) - mean;                                                                \
    total[lane] += value;                                                                          \
    squares[lane] += value * value
        EACH(STEP, begin, end)
#undef STEP
        FOLD(total)
        FOLD(squares)
        sums->total += total[0];
        sums->squares += squares[0];
    }
}

/* Extremes of the finite elements, and the counts of zeros, NaN and Inf. */
TARGET static void NAME(survey)(const void *memory, int64_t count, double pilot, double scale,
                                struct sums *sums) {
    const NAME(loose) *x = memory;
    double low[LANES], high[LANES];
    (void)pilot, (void)scale;
    for (int lane = 0; lane < LANES; lane++) low[lane] = INFINITY, high[lane] = -INFINITY;
    for (int64_t begin = 0; begin < count; begin += BLOCK) {
        int64_t end = begin + BLOCK < count ? begin + BLOCK : count;
        int64_t zeros[LANES] = {0}, nan[LANES] = {0}, inf[LANES] = {0};
#define STEP(i, lane)                                                                              \
    double value = READ(x[i]);                                                                     \
    int finite = fabs(value) <= DBL_MAX;                                                           \
    double least = finite ? value : INFINITY, most = finite ? value : -INFINITY;                   \
    low[lane] = least < low[lane] ? least : low[lane];                                             \
    high[lane] = most > high[lane] ? most : high[lane];                                            \
    zeros[lane] += value == 0;                                                                     \
    nan[lane] += value != value;                                                                   \
    inf[lane] += fabs(value) > DBL_MAX
        EACH(STEP, begin, end)
#undef STEP
        FOLD(zeros)
        FOLD(nan)
        FOLD(inf)
        sums->zeros += zeros[0];
        sums->nan += nan[0];
        sums->inf += inf[0];
    }
    for (int lane = 0; lane < LANES; lane++) {
        sums->low = low[lane] < sums->low ? low[lane] : sums->low;
        sums->high = high[lane] > sums->high ? high[lane] : sums->high;
    }
}

/* Sums, in float64, of the finite elements divided by a scale, about a pilot. */
TARGET static void NAME(scaled)(const void *memory, int64_t count, double pilot, double scale,
                                struct sums *sums) {
    const NAME(loose) *x = memory;
    for (int64_t begin = 0; begin < count; begin += BLOCK) {
        int64_t end = begin + BLOCK < count ? begin + BLOCK : count;
        double total[LANES] = {0}, squares[LANES] = {0};
#define STEP(i, lane)                                                                              \
    double value = READ(x[i]);                                                                     \
    double part = fabs(value) <= DBL_MAX ? value / scale - pilot : 0;                              \
    total[lane] += part;                                                                           \
    squares[lane] += part * part
        EACH(STEP, begin, end)
#undef STEP
        FOLD(total)
        FOLD(squares)
        sums->total += total[0];
        sums->squares += squares[0];
    }
}

#undef NAME
#undef STORED
#undef WIDE
#undef COUNT
#undef READ
#undef LANES
