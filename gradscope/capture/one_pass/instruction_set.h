/* All kinds of elements for one instruction set: TARGET is its attribute, SET its
 * name, DOUBLES(a) four floats at an address as doubles. */

#define PASTE(x, kind, set) x##_##kind##_##set
#define NAMED(x, kind, set) PASTE(x, kind, set)
#define KIND(width, kind, least, most)                                                             \
    {width, least, most, NAMED(all, kind, SET), NAMED(shifted, kind, SET),                         \
     NAMED(survey, kind, SET), NAMED(scaled, kind, SET)}

#define NAME(x) NAMED(x, float32, SET)
#define STORED float
#define WIDE float
#define COUNT int32_t
#define READ(x) (x)
#define LANES 32
#include "passes.h"

#define NAME(x) NAMED(x, float64, SET)
#define STORED double
#define WIDE double
#define COUNT int64_t
#define READ(x) (x)
#define LANES 16
#include "passes.h"

#define NAME(x) NAMED(x, bfloat16, SET)
#define STORED uint16_t
#define WIDE float
#define COUNT int32_t
#define READ(x) of_bfloat16(x)
#define LANES 32
#include "passes.h"

#define NAME(x) NAMED(x, float16, SET)
#define STORED uint16_t
#define WIDE float
#define COUNT int32_t
#define READ(x) of_float16(x)
#define LANES 32
#include "passes.h"

/* In the order that one_pass/__init__.py numbers them. */
static const struct kind NAMED(kinds, of, SET)[] = {
    KIND(4, float32, 1e-12, 1e15),
    KIND(8, float64, 1e-130, 1e130),
    KIND(2, bfloat16, 1e-12, 1e15),
    KIND(2, float16, 1e-12, 1e15),
};

#include "optimizer_step.h"
#include "attention.h"
#include "residual.h"

#undef PASTE
#undef NAMED
#undef KIND
#undef TARGET
#undef SET
#undef DOUBLES
