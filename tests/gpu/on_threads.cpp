// Runs the kernels of on_cuda.cu on the processor: a thread for each of a block's, one block after
// another. KERNELS is the path of the source, with its one line of PTX replaced.

#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#define __device__
#define __global__
#define __shared__ static

struct Index { int x; };
struct uint4 { unsigned x, y, z, w; };
static thread_local Index threadIdx, blockIdx, gridDim;
static std::barrier<> *block_barrier;

static void __syncthreads() { block_barrier->arrive_and_wait(); }
static float __uint_as_float(unsigned bits) { float value; std::memcpy(&value, &bits, 4); return value; }
static unsigned __float_as_uint(float value) { unsigned bits; std::memcpy(&bits, &value, 4); return bits; }

static float float_of_half(unsigned short bits) {
  int exponent = bits >> 10 & 31, fraction = bits & 1023;
  float size = exponent == 31  ? (fraction ? NAN : INFINITY)
               : exponent == 0 ? std::ldexp((float)fraction, -24)
                               : std::ldexp(1.0f + fraction / 1024.0f, exponent - 15);
  return bits >> 15 ? -size : size;
}

using std::fmax;
using std::fmin;
using std::sqrt;
#include KERNELS

template <class Kernel> static void launch(int blocks, Kernel kernel) {
  for (int block = 0; block < blocks; block++) {
    std::barrier<> together(THREADS);
    block_barrier = &together;
    std::vector<std::thread> threads;
    for (int thread = 0; thread < THREADS; thread++)
      threads.emplace_back([=] {
        threadIdx.x = thread, blockIdx.x = block, gridDim.x = blocks;
        kernel();
      });
    for (auto &thread : threads) thread.join();
  }
}

#define RUN(NAME)                                                                                  \
  launch(blocks, [=] { measure_##NAME(data, count, partial); });                                   \
  launch(1, [=] { finish_##NAME(data, count, copies, blocks, partial, numbers); });

extern "C" void run(int kind, const void *data, double count, double copies, int blocks,
                    double *partial, double *numbers) {
  if (kind == 0) { RUN(float32) }
  if (kind == 1) { RUN(bfloat16) }
  if (kind == 2) { RUN(float16) }
}
