// Matrix products in float32.
#pragma once

#include <cstdlib>

#include "vectors.h"

// One register. GCC splits wider vectors, and keeps the parts of many of them on the stack.
#if defined(__AVX512F__)
constexpr int kRegister = 16, kTileRows = 6, kTileVecs = 4;
#elif defined(__AVX__)
constexpr int kRegister = 8, kTileRows = 6, kTileVecs = 2;
#else
constexpr int kRegister = 4, kTileRows = 6, kTileVecs = 4;
#endif
// Sums in registers: kTileRows rows of kTileVecs vectors.
typedef float rvec __attribute__((vector_size(kRegister * sizeof(float))));

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
    rvec total[Rows][Vecs];
#pragma GCC unroll 8
    for (int r = 0; r < Rows; r++)
#pragma GCC unroll 8
        for (int v = 0; v < Vecs; v++) total[r][v] = add ? load_bits<rvec>(c + r * c_stride + v * kRegister) : rvec{};
    for (int64_t k = 0; k < depth; k++) {
        rvec columns[Vecs];
#pragma GCC unroll 8
        for (int v = 0; v < Vecs; v++) columns[v] = load_bits<rvec>(b + k * b_stride + v * kRegister);
#pragma GCC unroll 8
        for (int r = 0; r < Rows; r++)
#pragma GCC unroll 8
            for (int v = 0; v < Vecs; v++) total[r][v] += a[r * a_stride + k] * columns[v];
    }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; r++)
#pragma GCC unroll 8
        for (int v = 0; v < Vecs; v++) store_bits(c + r * c_stride + v * kRegister, total[r][v]);
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
    for (; column + kTileVecs * kRegister <= columns; column += kTileVecs * kRegister)
        tile_rows<kTileVecs>(rows, a, a_stride, b + column, b_stride, c + column, c_stride, depth, add);
    for (; column < columns; column += kRegister)
        tile_rows<1>(rows, a, a_stride, b + column, b_stride, c + column, c_stride, depth, add);
}
