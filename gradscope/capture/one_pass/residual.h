/* The figures of rows of a residual stream, for one instruction set: included by instruction_set.h,
 * with TARGET and SET as there.
 */

#define LANES 4
#define READ(a) (*(const loose_doubles *)(a))
#define FOLDED(a) ((a[0] + a[2]) + (a[1] + a[3]))

TARGET static void NAMED(figures, residual, SET)(const double *made, const double *given,
                                                 int64_t count, double *found) {
    int64_t aligned = count - count % LANES;
    doubles total = {0}, second = {0}, fourth = {0}, own = {0}, change = {0}, both = {0}, before = {0};
    for (int64_t i = 0; i < aligned; i += LANES) total += READ(made + i);
    for (int64_t i = aligned; i < count; i++) total[i - aligned] += made[i];
    double mean = FOLDED(total) / (double)count;
    for (int64_t i = 0; i < count; i += LANES) {
        doubles x = {mean, mean, mean, mean}, was = {0}, seen = {0};
        if (i < aligned)
            x = READ(made + i), seen += 1;
        else
            for (int lane = 0; i + lane < count; lane++) x[lane] = made[i + lane], seen[lane] = 1;
        if (given && i < aligned)
            was = READ(given + i);
        else if (given)
            for (int lane = 0; i + lane < count; lane++) was[lane] = given[i + lane];
        doubles square = (x - mean) * (x - mean);
        second += square, fourth += square * square;
        x *= seen;
        own += x * x, both += x * was, before += was * was;
        change += (x - was) * (x - was);
    }
    double n = (double)count, squares = FOLDED(own), spread = FOLDED(second) / n;
    found[0] = sqrt(squares / n);
    found[1] = FOLDED(fourth) / n / (spread * spread);
    found[2] = given ? sqrt(FOLDED(change)) / sqrt(squares) : NAN;
    found[3] = given ? FOLDED(both) / (sqrt(squares) * sqrt(FOLDED(before))) : NAN;
}

#undef LANES
#undef READ
#undef FOLDED
