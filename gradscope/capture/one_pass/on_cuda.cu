// The eight numbers of a tensor on a CUDA device, in one read: norm, mean, std, min, max, zeros,
// NaN, Inf. Compiled at run time by NVRTC, which comes with PyTorch; `on_cuda.py` launches it.
//
// All sums are in double: of float32 and shorter dtypes no square overflows there. The sums for the
// variance are of differences from the first element, a sample of the tensor: so the cancellation
// in Σd² − (Σd)²/n costs at most a factor n of double's rounding, however far the mean is from 0.

typedef long long int64;
typedef unsigned long long uint64;

#define THREADS 256
#define QUANTITIES 8  // sums of a block, as doubles; a count up to 2^53 is exact
#define BITS_OF_INFINITY 0x7f800000u

__device__ float from_bits(unsigned bits) { return __uint_as_float(bits); }

// KIND 0: float32, 1: bfloat16, 2: float16.
template <int KIND> __device__ float of_half(unsigned short bits);
template <> __device__ float of_half<1>(unsigned short bits) {
  return from_bits((unsigned)bits << 16);
}
template <> __device__ float of_half<2>(unsigned short bits) {
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(bits));
  return wide;
}

template <int KIND> __device__ float element(const void *data, int64 at) {
  if constexpr (KIND == 0) return ((const float *)data)[at];
  else return of_half<KIND>(((const unsigned short *)data)[at]);
}

struct Sums {
  double squares, shifted, shifted_squares;
  float low, high;
  int64 zeros, nan, inf;
};

__device__ void add(Sums &sums, float value, double pilot) {
  unsigned magnitude = __float_as_uint(value) & 0x7fffffffu;
  if (magnitude >= BITS_OF_INFINITY) {
    if (magnitude == BITS_OF_INFINITY) sums.inf++;
    else sums.nan++;
    return;
  }
  double wide = value, moved = wide - pilot;
  sums.squares += wide * wide;
  sums.shifted += moved;
  sums.shifted_squares += moved * moved;
  sums.low = fminf(sums.low, value);
  sums.high = fmaxf(sums.high, value);
  sums.zeros += magnitude == 0;
}

// Returns the first element, or 0 if it is not finite.
template <int KIND> __device__ double pilot_of(const void *data) {
  float first = element<KIND>(data, 0);
  return (__float_as_uint(first) & 0x7fffffffu) < BITS_OF_INFINITY ? (double)first : 0.0;
}

// Adds up the threads' sums in a fixed order and leaves the block's in `of_block`.
__device__ void reduce(const double *own, double *of_block) {
  __shared__ double shared[QUANTITIES][THREADS];
  int thread = threadIdx.x;
  for (int i = 0; i < QUANTITIES; i++) shared[i][thread] = own[i];
  for (int half = THREADS / 2; half; half /= 2) {
    __syncthreads();
    if (thread >= half) continue;
    for (int i = 0; i < QUANTITIES; i++) {
      double here = shared[i][thread], there = shared[i][thread + half];
      shared[i][thread] = i == 3 ? fmin(here, there) : i == 4 ? fmax(here, there) : here + there;
    }
  }
  if (thread == 0)
    for (int i = 0; i < QUANTITIES; i++) of_block[i] = shared[i][0];
}

template <int KIND> __device__ void measure(const void *data, double count, double *partial) {
  int64 n = (int64)count;
  double pilot = pilot_of<KIND>(data);
  const float infinity = from_bits(BITS_OF_INFINITY);
  Sums sums = {0.0, 0.0, 0.0, infinity, -infinity, 0, 0, 0};
  const int WIDTH = KIND == 0 ? 4 : 8;  // elements in 16 bytes
  int64 thread = (int64)blockIdx.x * THREADS + threadIdx.x, all = (int64)gridDim.x * THREADS;
  int64 head = 0, groups = 0;
  int64 past = (int64)((uint64)data & 15);
  int size = KIND == 0 ? 4 : 2;
  if (past % size == 0) {
    head = past ? (16 - past) / size : 0;
    if (head > n) head = n;
    groups = (n - head) / WIDTH;
  }
  const uint4 *wide = (const uint4 *)((const char *)data + head * size);
  for (int64 i = thread; i < groups; i += all) {
    uint4 four = wide[i];
    unsigned words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int k = 0; k < 4; k++) {
      if constexpr (KIND == 0) add(sums, from_bits(words[k]), pilot);
      else {
        add(sums, of_half<KIND>((unsigned short)(words[k] & 0xffffu)), pilot);
        add(sums, of_half<KIND>((unsigned short)(words[k] >> 16)), pilot);
      }
    }
  }
  int64 tail = head + groups * WIDTH, rest = n - (tail - head);
  for (int64 i = thread; i < rest; i += all)
    add(sums, element<KIND>(data, i < head ? i : tail + i - head), pilot);
  double own[QUANTITIES] = {sums.squares,      sums.shifted,       sums.shifted_squares,
                                (double)sums.low,  (double)sums.high,  (double)sums.zeros,
                                (double)sums.nan,  (double)sums.inf};
  reduce(own, partial + QUANTITIES * blockIdx.x);
}

// One block: adds up the blocks' sums, and writes the eight numbers.
template <int KIND>
__device__ void finish(const void *data, double count, double copies, double blocks,
                       const double *partial, double *numbers) {
  const double infinity = (double)from_bits(BITS_OF_INFINITY);
  double own[QUANTITIES] = {0.0, 0.0, 0.0, infinity, -infinity, 0.0, 0.0, 0.0};
  for (int block = threadIdx.x; block < (int)blocks; block += THREADS) {
    const double *one = partial + QUANTITIES * block;
    for (int i = 0; i < QUANTITIES; i++)
      own[i] = i == 3 ? fmin(own[i], one[i]) : i == 4 ? fmax(own[i], one[i]) : own[i] + one[i];
  }
  __shared__ double sums[QUANTITIES];
  reduce(own, sums);
  if (threadIdx.x) return;
  double low = sums[3], high = sums[4], nan = sums[6], inf = sums[7], n = count - nan - inf;
  double pilot = pilot_of<KIND>(data), shift = sums[1] / n;  // NaN if no element is finite
  double mean = low == high ? low : fmin(fmax(pilot + shift, low), high);
  double variance = low == high ? 0.0 : fmax(sums[2] / n - shift * shift, 0.0);
  numbers[0] = sqrt(sums[0]) * sqrt(copies);
  numbers[1] = mean;
  numbers[2] = sqrt(variance);
  numbers[3] = low;
  numbers[4] = high;
  numbers[5] = sums[5] * copies;
  numbers[6] = nan * copies;
  numbers[7] = inf * copies;
}

#define KERNELS(NAME, KIND)                                                                      \
  extern "C" __global__ void measure_##NAME(const void *data, double count, double *partial) {   \
    measure<KIND>(data, count, partial);                                                         \
  }                                                                                              \
  extern "C" __global__ void finish_##NAME(const void *data, double count, double copies,        \
                                           double blocks, const double *partial,                 \
                                           double *numbers) {                                    \
    finish<KIND>(data, count, copies, blocks, partial, numbers);                                 \
  }

KERNELS(float32, 0)
KERNELS(bfloat16, 1)
KERNELS(float16, 2)
