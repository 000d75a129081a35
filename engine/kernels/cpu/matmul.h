// Matrix products in float32, also of bfloat16 operands.
//
// AVX-512's dot products of bfloat16 (VDPBF16PS) run at half the rate of float32 multiply-adds on Intel's
// processors, so they gain nothing there: bfloat16 is converted to float32 when it is loaded into the L1 cache.
#pragma once

#include <cstdlib>
#include <vector>

#include "vectors.h"

// Sums in registers: kTileRows rows of kTileVecs vectors.
#ifdef __AVX512F__
constexpr int kTileRows = 6, kTileVecs = 4;
#else
constexpr int kTileRows = 4, kTileVecs = 1;
#endif
constexpr int64_t kDepthBlock = 128;  // rows of 64 columns that fit the L1 cache
constexpr int64_t kRowBlock = 96;     // rows of a result that one task computes
constexpr int64_t kPanel = 64;        // columns of a packed weight that are adjacent
constexpr int64_t kAhead = 1536;      // prefetch distance, in pairs of a weight

inline int64_t up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }
inline int64_t lesser(int64_t a, int64_t b) { return a < b ? a : b; }

// Scratch memory of a thread. Never shrinks; valid until the next call.
inline char* scratch(size_t bytes) {
    static thread_local char* memory = nullptr;
    static thread_local size_t size = 0;
    if (bytes > size) {
        free(memory);
        size = up(bytes, 4096);
        memory = (char*)aligned_alloc(64, size);
        if (!memory) abort();
    }
    return memory;
}

template <int Rows, int Vecs>
inline void tile(const float* a, int64_t a_stride, const float* b, int64_t b_stride, float* c, int64_t c_stride,
                 int64_t depth, bool add) {
    vec total[Rows][Vecs];
#pragma GCC unroll 8
    for (int r = 0; r < Rows; r++)
#pragma GCC unroll 8
        for (int v = 0; v < Vecs; v++) total[r][v] = add ? load(c + r * c_stride + v * kLanes) : vec{};
    for (int64_t k = 0; k < depth; k++) {
        vec columns[Vecs];
#pragma GCC unroll 8
        for (int v = 0; v < Vecs; v++) columns[v] = load(b + k * b_stride + v * kLanes);
#pragma GCC unroll 8
        for (int r = 0; r < Rows; r++)
#pragma GCC unroll 8
            for (int v = 0; v < Vecs; v++) total[r][v] += a[r * a_stride + k] * columns[v];
    }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; r++)
#pragma GCC unroll 8
        for (int v = 0; v < Vecs; v++) store(c + r * c_stride + v * kLanes, total[r][v]);
}

template <int Vecs>
inline void tile_rows(int64_t rows, const float* a, int64_t a_stride, const float* b, int64_t b_stride, float* c,
                      int64_t c_stride, int64_t depth, bool add) {
    int64_t row = 0;
    for (; row + kTileRows <= rows; row += kTileRows)
        tile<kTileRows, Vecs>(a + row * a_stride, a_stride, b, b_stride, c + row * c_stride, c_stride, depth, add);
    for (; row + 2 <= rows; row += 2)
        tile<2, Vecs>(a + row * a_stride, a_stride, b, b_stride, c + row * c_stride, c_stride, depth, add);
    if (row < rows)
        tile<1, Vecs>(a + row * a_stride, a_stride, b, b_stride, c + row * c_stride, c_stride, depth, add);
}

// c [rows, columns] = or += a [rows, depth] times b [depth, columns]. Columns are a multiple of 16.
inline void multiply(int64_t rows, int64_t columns, int64_t depth, const float* a, int64_t a_stride, const float* b,
                     int64_t b_stride, float* c, int64_t c_stride, bool add) {
    int64_t column = 0;
    for (; column + kTileVecs * kLanes <= columns; column += kTileVecs * kLanes)
        tile_rows<kTileVecs>(rows, a, a_stride, b + column, b_stride, c + column, c_stride, depth, add);
    for (; column < columns; column += kLanes)
        tile_rows<1>(rows, a, a_stride, b + column, b_stride, c + column, c_stride, depth, add);
}

// A weight of linear_bf16 is [columns / 64, depth / 2, 64, 2]: pairs of neighbours of the summed dimension, as
// oneDNN packs it. A lane holds such a pair: its halves, shifted, are the two numbers.
inline vec even(uvec pairs) { return (vec)(pairs << 16); }
inline vec odd(uvec pairs) { return (vec)(pairs & 0xffff0000u); }

// c [Rows, 64] = a [Rows, depth] times a panel, for too few rows to amortize converting it.
template <int Rows>
inline void thin(const float* a, int64_t depth, const uint32_t* panel, float* c) {
    constexpr int kHalf = kPanel / kLanes / 2;
    for (int part = 0; part < 2; part++) {
        vec evens[Rows][kHalf] = {}, odds[Rows][kHalf] = {};
        for (int64_t k = 0; k < depth; k += 2) {
            const uint32_t* from = panel + k / 2 * kPanel + part * kHalf * kLanes;
#pragma GCC unroll 4
            for (int v = 0; v < kHalf; v++) {
                uvec pairs = load_bits<uvec>(from + v * kLanes);
                __builtin_prefetch(from + v * kLanes + kAhead);
#pragma GCC unroll 4
                for (int r = 0; r < Rows; r++) {
                    evens[r][v] += a[r * depth + k] * even(pairs);
                    odds[r][v] += a[r * depth + k + 1] * odd(pairs);
                }
            }
        }
#pragma GCC unroll 4
        for (int r = 0; r < Rows; r++)
#pragma GCC unroll 4
            for (int v = 0; v < kHalf; v++)
                store(c + r * kPanel + (part * kHalf + v) * kLanes, evens[r][v] + odds[r][v]);
    }
}

// c [rows, 64] = a [rows, depth] times a panel that is converted block by block.
inline void thick(int64_t rows, const float* a, int64_t depth, const uint32_t* panel, float* c, float* block) {
    for (int64_t k = 0; k < depth; k += kDepthBlock) {
        int64_t deep = lesser(depth - k, kDepthBlock);
        for (int64_t pair = 0; pair < deep / 2; pair++)
            for (int64_t i = 0; i < kPanel; i += kLanes) {
                uvec pairs = load_bits<uvec>(panel + (k / 2 + pair) * kPanel + i);
                store(block + 2 * pair * kPanel + i, even(pairs));
                store(block + (2 * pair + 1) * kPanel + i, odd(pairs));
            }
        multiply(rows, kPanel, deep, a + k, depth, block, kPanel, c, kPanel, k > 0);
    }
}

// out [rows, columns] = x [rows, depth] times a weight, plus bias if there is one.
inline void linear_bf16(int64_t threads, int64_t rows, int64_t columns, int64_t depth, const bf16* x,
                        int64_t x_stride, const uint32_t* weight, const bf16* bias, bf16* out) {
    std::vector<float> wide(rows * depth);
    float* a = wide.data();
    int64_t panels = columns / kPanel, blocks = (rows + kRowBlock - 1) / kRowBlock;
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
        for (int64_t r = 0; r < rows; r++)
            for (int64_t k = 0; k < depth; k += kLanes) store(a + r * depth + k, load(x + r * x_stride + k));
#pragma omp for schedule(static)
        for (int64_t task = 0; task < panels * blocks; task++) {
            int64_t first = task % blocks * kRowBlock, height = lesser(rows - first, kRowBlock);
            const uint32_t* panel = weight + task / blocks * depth / 2 * kPanel;
            const float* left = a + first * depth;
            float* block = (float*)scratch((kDepthBlock + kRowBlock) * kPanel * sizeof(float));
            float* c = block + kDepthBlock * kPanel;
            switch (height) {
                case 1: thin<1>(left, depth, panel, c); break;
                case 2: thin<2>(left, depth, panel, c); break;
                case 3: thin<3>(left, depth, panel, c); break;
                case 4: thin<4>(left, depth, panel, c); break;
                default: thick(height, left, depth, panel, c, block);
            }
            for (int64_t r = 0; r < height; r++)
                for (int64_t i = 0; i < kPanel; i += kLanes) {
                    int64_t column = task / blocks * kPanel + i;
                    vec value = load(c + r * kPanel + i);
                    if (bias) value += load(bias + column);
                    store(out + (first + r) * columns + column, value);
                }
        }
    }
}
