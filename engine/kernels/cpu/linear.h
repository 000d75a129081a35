// Products with a weight in panels of 64 columns, the last filled up with zeros: [panels, depth, 64] of float32, or
// [panels, depth / 2, 64, 2] of bfloat16, which keeps pairs of neighbours of the summed dimension together.
//
// Where dot products of such pairs are slow, bfloat16 is converted to float32 when it is loaded into the L1 cache.
#pragma once

#include <type_traits>
#include <vector>

#include "matmul.h"

constexpr int64_t kPanel = 64;        // columns of a panel
constexpr int64_t kDepthBlock = 128;  // rows of a panel that fit the L1 cache
constexpr int64_t kRowBlock = 96;     // rows of a result that one task computes

// c [Rows, 64] = a [Rows, depth] times a panel, for too few rows to amortize converting it. Sums in the order of `thick`,
// so that a row's result is the same among any number of rows.
template <int Rows>
inline void thin(const float* a, int64_t depth, const bf16_pair* panel, float* c) {
    constexpr int kVecs = kPanel / kLanes;
    vec total[Rows][kVecs] = {};
    for (int64_t k = 0; k < depth; k += 2) {
        const bf16_pair* from = panel + k / 2 * kPanel;
#pragma GCC unroll 4
        for (int v = 0; v < kVecs; v++) {
            uvec pairs = load_bits<uvec>(from + v * kLanes);
            __builtin_prefetch(from + v * kLanes + kAhead);
#pragma GCC unroll 4
            for (int r = 0; r < Rows; r++) {
                total[r][v] += a[r * depth + k] * even(pairs);
                total[r][v] += a[r * depth + k + 1] * odd(pairs);
            }
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < Rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < kVecs; v++) store(c + r * kPanel + v * kLanes, total[r][v]);
}

// c [rows, 64] = a [rows, depth] times a panel that is converted block by block.
inline void thick(int64_t rows, const float* a, int64_t depth, const bf16_pair* panel, float* c, float* block) {
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

// The three products of rows with a panel: c [rows, 64] = a [rows, depth] times it.

inline void by_panel(int64_t rows, const float* a, int64_t depth, const bf16_pair* panel, float* c, float* block) {
#ifdef __AVX512F__
    switch (rows) {
        case 1: return thin<1>(a, depth, panel, c);
        case 2: return thin<2>(a, depth, panel, c);
        case 3: return thin<3>(a, depth, panel, c);
        case 4: return thin<4>(a, depth, panel, c);
    }
#endif
    thick(rows, a, depth, panel, c, block);
}

template <class Left>
inline void by_panel(int64_t rows, const Left* a, int64_t depth, const typename Right<Left>::Element* panel, float* c,
                     float*) {
    for (int64_t k = 0; k < depth; k += kDepthBlock)
        multiply(rows, kPanel, lesser(depth - k, kDepthBlock), a + k, depth,
                 panel + k / Right<Left>::kTogether * kPanel, kPanel, c, kPanel, k > 0);
}

// A weight in panels of floating-point numbers, for `linear_as`.
template <class Left, class W>
struct Panels {
    const W* weight;
    int64_t depth, panel_size;  // the latter in W

    bool prepares() const { return false; }
    void prepare(int64_t, const Left*) {}

    // c [rows, 64] = a [rows, depth] times a panel; the first row is number `first` of x.
    void product(int64_t panel, int64_t, int64_t rows, const Left* a, float* c, float* block) const {
        by_panel(rows, a, depth, weight + panel * panel_size, c, block);
    }
};

// out [rows, columns] = x [rows, depth] times a weight, plus bias if there is one. `Left`: what x is converted to.
template <class Left, class T, class Weight>
inline void linear_as(int64_t threads, int64_t rows, int64_t columns, int64_t depth, const T* x, int64_t x_stride,
                      Weight& weight, const T* bias, T* out) {
    bool in_place = std::is_same<Left, T>::value && x_stride == depth;
    std::vector<Left> copy(in_place ? 0 : rows * depth);
    const Left* a = in_place ? (const Left*)x : copy.data();
    int64_t panels = up(columns, kPanel) / kPanel, blocks = up(rows, kRowBlock) / kRowBlock;
#pragma omp parallel num_threads(threads)
    {
        if (!in_place || weight.prepares()) {
#pragma omp for schedule(static)
            for (int64_t r = 0; r < rows; r++) {
                for (int64_t k = 0; k < depth && !in_place; k += kLanes)
                    store(copy.data() + r * depth + k, load(x + r * x_stride + k, depth - k), depth - k);
                weight.prepare(r, a + r * depth);
            }
        }
#pragma omp for schedule(static)
        for (int64_t task = 0; task < panels * blocks; task++) {
            int64_t first = task % blocks * kRowBlock, height = lesser(rows - first, kRowBlock);
            float* block = (float*)scratch((kDepthBlock + kRowBlock) * kPanel * sizeof(float));
            float* c = block + kDepthBlock * kPanel;
            weight.product(task / blocks, first, height, a + first * depth, c, block);
            int64_t from = task / blocks * kPanel, width = lesser(columns - from, kPanel);
            for (int64_t r = 0; r < height; r++)
                for (int64_t i = 0; i < width; i += kLanes) {
                    vec value = load(c + r * kPanel + i);
                    if (bias) value += load(bias + from + i, width - i);
                    store(out + (first + r) * columns + from + i, value, width - i);
                }
        }
    }
}

inline void linear(int64_t threads, int64_t rows, int64_t columns, int64_t depth, const float* x, int64_t x_stride,
                   const void* weight, const float* bias, float* out) {
    Panels<float, float> panels = {(const float*)weight, depth, depth * kPanel};
    linear_as<float>(threads, rows, columns, depth, x, x_stride, panels, bias, out);
}

inline void linear(int64_t threads, int64_t rows, int64_t columns, int64_t depth, const bf16* x, int64_t x_stride,
                   const void* weight, const bf16* bias, bf16* out) {
    const bf16_pair* pairs = (const bf16_pair*)weight;
#ifdef __AVX512BF16__
    if (dots_are_fast()) {
        Panels<bf16, bf16_pair> panels = {pairs, depth, depth / 2 * kPanel};
        return linear_as<bf16>(threads, rows, columns, depth, x, x_stride, panels, bias, out);
    }
#endif
    Panels<float, bf16_pair> panels = {pairs, depth, depth / 2 * kPanel};
    linear_as<float>(threads, rows, columns, depth, x, x_stride, panels, bias, out);
}
