/* Eight numbers of a tensor in one read of its memory; `capture/reductions.py` says what they are.
 *
 * Plain C without Python's headers, called through ctypes: one library serves every version of
 * Python. It needs a compiler that knows GCC's attributes, as clang does. Sums within a block of
 * 2,048 elements have the precision of the elements, and float32 at the least; sums over blocks are
 * taken in float64.
 */
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef _WIN32
#define EXPORT __declspec(dllexport)
#else
#include <pthread.h>
#define EXPORT __attribute__((visibility("default")))
#endif

#define INTERFACE 4            /* one_pass/__init__.py expects this number */
#define BLOCK 2048
#define PIECE (1 << 18)        /* elements that a thread takes at a time */
#define FOR_A_THREAD (1 << 20) /* elements that are worth one thread more */

struct sums {
    double total, squares, low, high;
    int64_t zeros, nan, inf;
};

/* Adds `count` elements to `sums`: see passes.h. */
typedef void pass_function(const void *memory, int64_t count, double pilot, double scale,
                           struct sums *sums);

struct kind {
    int64_t width; /* bytes of an element */
    /* Largest magnitudes whose squares neither overflow nor sink below what WIDE resolves. */
    double least, most;
    pass_function *all, *shifted, *survey, *scaled;
};

static inline float of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float of_bfloat16(uint16_t bits) { return of_bits((uint32_t)bits << 16); }

/* Integers and one subtraction: vectorized by every compiler, and right where the processor takes
 * subnormal floats for zero. */
static inline float of_float16(uint16_t bits) {
    uint32_t magnitude = (uint32_t)(bits & 0x7fff) << 13;
    uint32_t normal = magnitude + (112u << 23), special = magnitude + (224u << 23);
    /* Below 2^-14 a half has no exponent: 2^-14 lends it one. */
    uint32_t subnormal = bits_of(of_bits(magnitude + (113u << 23)) - 0x1p-14f);
    uint32_t found = magnitude >= (31u << 23) ? special : normal;
    found = magnitude < (1u << 23) ? subnormal : found;
    return of_bits(found | (uint32_t)(bits & 0x8000) << 16);
}

/* The numbers of an optimizer's update; one_pass/__init__.py has the equation. */
struct formula {
    float slope, shift, scale, eps;
    float sign;  /* of the gradient */
    float decay; /* what of the weight is added to the gradient */
    float taken; /* what share of the weight the step takes off */
};

/* A step of one parameter. NULL: there is none. */
struct step {
    const float *weight, *gradient, *first, *second;
    /* NULL: the weight before the step follows from the formula. Otherwise the formula gives
     * UNROUNDED, if it is there. */
    const float *before;
    int64_t all;         /* 0: UNROUNDED alone */
    struct formula formula;
};

/* one_pass/__init__.py names these in the same order. */
enum {
    WAS,            /* squares of the weight before the step */
    MOVED,          /* squares of dw */
    CHANGED,        /* elements that are another than before */
    ALONG,          /* -dw times the gradient */
    GRADIENT,       /* squares of the gradient */
    REST,           /* squares of the part of dw that is not decay that the step takes off */
    FIRST,          /* squares of the first moment */
    SECOND,         /* the second moment */
    SECOND_SQUARES, /* its squares */
    UNROUNDED,      /* squares of dw before the weight's dtype rounds it */
    STEP_SUMS
};

/* Logits [rows, keys] of attention, the rows of a head after each other. */
struct attention {
    const double *logits;
    int64_t keys;
    const int64_t *places; /* the positions of the rows of a head */
    int64_t queries;       /* rows of a head */
    double masked;         /* a logit that is not larger is masked */
    int64_t causal;        /* a row sees the keys up to its own position */
};

/* For each row: visible keys, largest logit, largest weight, entropy, weight of the first key, weight
 * of the keys after its own position. */
#define ATTENTION_FIGURES 6
#define HEAD_FIGURES 8
/* Root mean square, kurtosis, share added, cosine to the input. */
#define RESIDUAL_FIGURES 4

typedef double doubles __attribute__((vector_size(32)));
typedef int64_t longs __attribute__((vector_size(32)));
typedef double loose_doubles __attribute__((vector_size(32), aligned(8), may_alias));
typedef float loose_floats __attribute__((vector_size(16), aligned(4), may_alias));

#include "lanes.h"

/* A test defines COMMON_ONLY. */
#if (defined(__x86_64__) || defined(__i386__)) && !defined(COMMON_ONLY)
#include <immintrin.h>
#define CHOICE 1
#define TARGET __attribute__((target("avx2,fma")))
#define SET avx2
/* gcc splits what it makes of __builtin_convertvector in halves. */
#define DOUBLES(a) ((doubles)_mm256_cvtps_pd(_mm_loadu_ps(a)))
#include "instruction_set.h"
#endif
#define TARGET /* what the compiler takes for granted: SSE2, NEON */
#define SET common
#define DOUBLES(a) __builtin_convertvector(*(const loose_floats *)(a), doubles)
#include "instruction_set.h"

static const struct kind *kinds(void) {
#ifdef CHOICE
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return kinds_of_avx2;
#endif
    return kinds_of_common;
}

/* The function of this name for this processor. */
#ifdef CHOICE
#define CHOSEN(name) (kinds() == kinds_of_avx2 ? name##_avx2 : name##_common)
#else
#define CHOSEN(name) name##_common
#endif

/* The sums over a parameter's step. */
EXPORT void gradscope_step(const struct step *step, int64_t count, double *sums) {
    memset(sums, 0, STEP_SUMS * sizeof *sums);
    CHOSEN(step_float32)(step, count, sums);
}

/* ATTENTION_FIGURES numbers for each row: `found` is [figures, rows]. */
EXPORT void gradscope_attention(const struct attention *attention, int64_t rows, double *found) {
    CHOSEN(rows_attention)(attention, rows, found);
}

/* Rows [ATTENTION_FIGURES, samples, heads, queries] as gradscope_attention makes them. */
struct heads {
    const double *rows;
    int64_t samples, heads, queries;
    double masked; /* a logit that is not larger is masked */
    double uneven; /* a larger product of a row's largest weight and its keys: weights differ */
    int64_t safe;  /* a row without a visible key has zeros instead of NaN */
};

/* For each head: largest logit, means of the rows' entropy, least entropy, means of the entropy's
 * share of the largest possible, of the weight of the first key, of the weight of later keys; shares
 * of rows without a visible key, and of lost rows. NaN is unknown. */
EXPORT void gradscope_heads(const struct heads *h, double *found) {
    int64_t of_head = h->samples * h->queries, all = of_head * h->heads;
    int shifted = !h->safe, uneven = 0;
    for (int64_t head = 0; head < h->heads; head++) {
        double largest = -INFINITY, least = INFINITY, sums[4] = {0};
        double counted = 0, unseen = 0, unknown = 0;
        for (int64_t i = 0; i < of_head; i++) {
            int64_t sample = i / h->queries, query = i % h->queries;
            const double *row = h->rows + (sample * h->heads + head) * h->queries + query;
            double visible = row[0], most = row[all], share = row[2 * all], entropy = row[3 * all];
            int lost = isnan(share) && !(h->safe && most == -INFINITY);
            if (isfinite(most) && most > h->masked && most > largest) largest = most;
            shifted &= most == 0 || visible == 0;
            uneven |= share * visible > h->uneven;
            unseen += visible == 0;
            unknown += lost;
            if (visible <= 1 || lost) continue;
            counted++;
            least = entropy < least ? entropy : least;
            sums[0] += entropy;
            sums[1] += entropy / log(visible);
            sums[2] += row[4 * all];
            sums[3] += row[5 * all];
        }
        double figures[HEAD_FIGURES] = {
            isinf(largest) ? NAN : largest, sums[0] / counted,   isinf(least) ? NAN : least,
            sums[1] / counted,              sums[2] / counted,   sums[3] / counted,
            unseen / (double)of_head,       unknown / (double)of_head,
        };
        for (int i = 0; i < HEAD_FIGURES; i++) found[i * h->heads + head] = figures[i];
    }
    /* Where the script has taken the largest off each row, as gpt-oss does, it is not known. Logits
     * that are all zero have equal weights. */
    if (shifted && uneven)
        for (int64_t head = 0; head < h->heads; head++) found[head] = NAN;
}

/* The figures of a residual stream: `count` elements of a block's output, and of its input or NULL.
 * RESIDUAL_FIGURES numbers. */
EXPORT void gradscope_residual(const double *made, const double *given, int64_t count,
                               double *found) {
    CHOSEN(figures_residual)(made, given, count, found);
}

/* Elements in memory: `rank` axes with the last innermost, or, with none, `count` in a row. */
struct source {
    const char *data;
    int64_t count, width;
    int rank;
    const int64_t *sizes, *strides; /* strides in elements */
};

/* Copies `count` elements from the `first` on, in the order of the axes, to one row. */
static void gather(const struct source *s, int64_t first, int64_t count, char *row) {
    int64_t index[64]; /* PyTorch's tensors have no more axes */
    int inner = s->rank - 1;
    const char *from = s->data;
    for (int axis = inner; axis >= 0; axis--) {
        index[axis] = first % s->sizes[axis];
        first /= s->sizes[axis];
        from += index[axis] * s->strides[axis] * s->width;
    }
    while (count) {
        int64_t step = s->strides[inner] * s->width, run = s->sizes[inner] - index[inner];
        run = run < count ? run : count;
        if (step == s->width)
            memcpy(row, from, run * step);
        else
            for (int64_t i = 0; i < run; i++) memcpy(row + i * s->width, from + i * step, s->width);
        row += run * s->width;
        from += run * step;
        count -= run;
        index[inner] += run;
        for (int axis = inner; axis && index[axis] == s->sizes[axis]; axis--) {
            index[axis] = 0;
            index[axis - 1]++;
            from += (s->strides[axis - 1] - s->sizes[axis] * s->strides[axis]) * s->width;
        }
    }
}

struct pass {
    struct source source;
    pass_function *function;
    double pilot, scale;
};

static void piece(const struct pass *pass, int64_t number, struct sums *sums) {
    const struct source *s = &pass->source;
    int64_t first = number * PIECE, end = first + PIECE < s->count ? first + PIECE : s->count;
    *sums = (struct sums){.low = INFINITY, .high = -INFINITY};
    if (!s->rank) {
        pass->function(s->data + first * s->width, end - first, pass->pilot, pass->scale, sums);
        return;
    }
    double block[BLOCK];
    for (; first < end; first += BLOCK) {
        int64_t count = end - first < BLOCK ? end - first : BLOCK;
        gather(s, first, count, (char *)block);
        pass->function(block, count, pass->pilot, pass->scale, sums);
    }
}

/* A pass that several threads share. Whoever leaves last frees it: a thread that the system starts
 * late finds no piece left, and no thread waits for it. */
struct job {
    struct pass pass;
    int64_t pieces;
    struct sums *results;
#ifndef _WIN32
    pthread_mutex_t lock;
    pthread_cond_t finished;
    int64_t next, done, holders;
#endif
};

static void free_job(struct job *job) {
    free(job->results);
    free(job);
}

#ifdef _WIN32
static void work(struct job *job, int helpers) {
    (void)helpers;
    for (int64_t i = 0; i < job->pieces; i++) piece(&job->pass, i, job->results + i);
}

static void leave(struct job *job) { free_job(job); }
#else
/* Takes pieces until none is left. The lock is held on entry and on return. */
static void take(struct job *job) {
    while (job->next < job->pieces) {
        int64_t mine = job->next++;
        pthread_mutex_unlock(&job->lock);
        piece(&job->pass, mine, job->results + mine);
        pthread_mutex_lock(&job->lock);
        job->done++;
    }
    if (job->done == job->pieces) pthread_cond_signal(&job->finished);
}

static void leave(struct job *job) {
    pthread_mutex_lock(&job->lock);
    int last = --job->holders == 0;
    pthread_mutex_unlock(&job->lock);
    if (!last) return;
    pthread_mutex_destroy(&job->lock);
    pthread_cond_destroy(&job->finished);
    free_job(job);
}

static void *help(void *argument) {
    struct job *job = argument;
    pthread_mutex_lock(&job->lock);
    take(job);
    pthread_mutex_unlock(&job->lock);
    leave(job);
    return NULL;
}

static void work(struct job *job, int helpers) {
    pthread_mutex_init(&job->lock, NULL);
    pthread_cond_init(&job->finished, NULL);
    job->next = job->done = 0;
    job->holders = 1;
    pthread_attr_t detached;
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    pthread_mutex_lock(&job->lock);
    for (pthread_t thread; helpers > 0; helpers--)
        if (pthread_create(&thread, &detached, help, job) == 0) job->holders++;
    take(job);
    while (job->done < job->pieces) pthread_cond_wait(&job->finished, &job->lock);
    pthread_mutex_unlock(&job->lock);
    pthread_attr_destroy(&detached);
}
#endif

/* One pass over the source, the same to the last bit with any number of threads. 0: no memory. */
static int run(struct pass pass, int threads, struct sums *sums) {
    int64_t pieces = (pass.source.count + PIECE - 1) / PIECE;
    if (pieces == 1) {
        piece(&pass, 0, sums);
        return 1;
    }
    struct job *job = malloc(sizeof *job);
    struct sums *results = malloc(pieces * sizeof *results);
    if (!job || !results) {
        free(job);
        free(results);
        return 0;
    }
    int64_t worth = pass.source.count / FOR_A_THREAD;
    job->pass = pass;
    job->pieces = pieces;
    job->results = results;
    work(job, (int)(worth < threads ? worth : threads) - 1);
    *sums = results[0];
    for (const struct sums *part = results + 1; part < results + pieces; part++) {
        sums->total += part->total;
        sums->squares += part->squares;
        sums->zeros += part->zeros;
        sums->nan += part->nan;
        sums->inf += part->inf;
        sums->low = part->low < sums->low ? part->low : sums->low;
        sums->high = part->high > sums->high ? part->high : sums->high;
    }
    leave(job);
    return 1;
}

/* In float64, over the finite elements, scaled by the largest magnitude. */
static int exact(struct pass pass, const struct kind *kind, int threads, double copies,
                 double *numbers) {
    struct sums found, sums, about;
    pass.function = kind->survey;
    if (!run(pass, threads, &found)) return 0;
    double n = (double)(pass.source.count - found.nan - found.inf);
    double scale = fmax(fabs(found.low), fabs(found.high));
    pass.function = kind->scaled;
    pass.scale = scale == 0 || isinf(scale) ? 1 : scale;
    pass.pilot = 0;
    if (!run(pass, threads, &sums)) return 0;
    pass.pilot = sums.total / n;
    if (!run(pass, threads, &about)) return 0;
    numbers[0] = sqrt(sums.squares) * pass.scale * sqrt(copies);
    numbers[1] = fmin(fmax(pass.pilot * pass.scale, found.low), found.high);
    numbers[2] = sqrt(about.squares / n) * pass.scale;
    numbers[3] = found.low;
    numbers[4] = found.high;
    numbers[5] = (double)found.zeros * copies;
    numbers[6] = (double)found.nan * copies;
    numbers[7] = (double)found.inf * copies;
    return 1;
}

EXPORT int gradscope_interface(void) { return INTERFACE; }

EXPORT const char *gradscope_instruction_set(void) {
#ifdef CHOICE
    return kinds() == kinds_of_common ? "SSE2" : "AVX2";
#elif defined(__x86_64__)
    return "SSE2";
#elif defined(__aarch64__)
    return "NEON";
#else
    return "the compiler's own";
#endif
}

/* norm mean std min max zeros nan inf of the source, each element of which stands for `copies`. 0: no
 * memory for the partial sums. */
static int numbers_of(struct source source, int number, double copies, int threads,
                      double *numbers) {
    const struct kind *kind = kinds() + number;
    source.width = kind->width;
    struct pass pass = {source, kind->all, 0, 1};
    struct sums sums;
    if (!run(pass, threads, &sums)) return 0;
    double count = (double)source.count, most = fmax(-sums.low, sums.high);
    int finite = isfinite(sums.total) && isfinite(sums.squares);
    if (finite && sums.zeros == source.count) {
        memset(numbers, 0, 8 * sizeof *numbers);
        numbers[5] = count * copies;
        return 1;
    }
    if (!finite || !(kind->least < most && most < kind->most))
        return exact(pass, kind, threads, copies, numbers);
    double mean = sums.total / count, variance = sums.squares / count - mean * mean;
    if (mean * mean > 25 * variance) {
        struct sums about;
        pass.function = kind->shifted;
        pass.pilot = mean;
        if (!run(pass, threads, &about)) return 0;
        double shift = about.total / count;
        variance = about.squares / count - shift * shift;
    }
    numbers[0] = sqrt(sums.squares) * sqrt(copies);
    /* The mean may leave the bounds by a rounding; a constant tensor must not look otherwise. */
    numbers[1] = fmin(fmax(mean, sums.low), sums.high);
    numbers[2] = sqrt(fmax(variance, 0));
    numbers[3] = sums.low;
    numbers[4] = sums.high;
    numbers[5] = (double)sums.zeros * copies;
    numbers[6] = numbers[7] = 0;
    return 1;
}

/* The numbers of `count` > 0 elements that lie in a row. */
EXPORT int gradscope_row(const void *data, int64_t count, int kind, int threads, double *numbers) {
    return numbers_of((struct source){.data = data, .count = count}, kind, 1, threads, numbers);
}

/* The same of a tensor with so many axes, strides in elements, each element standing for several. */
EXPORT int gradscope_axes(const void *data, int64_t count, int kind, int threads, double copies,
                          int rank, const int64_t *sizes, const int64_t *strides,
                          double *numbers) {
    struct source source = {data, count, 0, rank, sizes, strides};
    return numbers_of(source, kind, copies, threads, numbers);
}
