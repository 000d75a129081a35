// Matrix products, summed in float32: c [rows, columns] = or += a [rows, depth] times b [depth, columns]. In bfloat16, b is
// [depth / 2, columns, 2]: neighbours of the summed dimension are pairs.
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

// A pair of bfloat16: its halves, shifted, are the two numbers in float32.
typedef uint32_t bf16_pair;
inline vec even(uvec pairs) { return (vec)(pairs << 16); }
inline vec odd(uvec pairs) { return (vec)(pairs & 0xffff0000u); }

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

// AVX-512's dot products of pairs (VDPBF16PS) have twice the rate of float32 multiply-adds on AMD's processors, and half
// of it on Intel's.
inline bool dots_are_fast() {
#ifdef __AVX512BF16__
    return __builtin_cpu_is("amd");
#else
    return false;
#endif
}

// What a is multiplied with: an element of b, how much of the depth it holds, and a register of them.
template <class Left>
struct Right;

template <>
struct Right<float> {
    typedef float Element;
    typedef rvec Register;
    static constexpr int64_t kTogether = 1;
    static constexpr bool kReadAhead = false;

    static rvec multiply_add(rvec total, const float* a, rvec columns) { return total + *a * columns; }
};

#ifdef __AVX512BF16__
template <>
struct Right<bf16> {
    typedef bf16_pair Element;
    typedef __m512bh Register;
    static constexpr int64_t kTogether = 2;
    static constexpr bool kReadAhead = true;

    static rvec multiply_add(rvec total, const bf16* a, __m512bh columns) {
        __m512bh both = (__m512bh)_mm512_set1_epi32(load_bits<int32_t>(a));
        return (rvec)_mm512_dpbf16_ps((__m512)total, both, columns);
    }
};
#endif

constexpr int64_t kAhead = 1536;  // prefetch distance of few rows, in elements of b

template <int Rows, int Vecs, class Left, class Element>
inline void tile(const Left* a, int64_t a_stride, const Element* b, int64_t b_stride, float* c, int64_t c_stride,
                 int64_t depth, bool add) {
    typedef Right<Left> Of;
    rvec total[Rows][Vecs];
#pragma GCC unroll 8
    for (int r = 0; r < Rows; r++)
#pragma GCC unroll 8
        for (int v = 0; v < Vecs; v++) total[r][v] = add ? load_bits<rvec>(c + r * c_stride + v * kRegister) : rvec{};
    for (int64_t k = 0; k < depth; k += Of::kTogether, b += b_stride) {
        typename Of::Register columns[Vecs];
#pragma GCC unroll 8
        for (int v = 0; v < Vecs; v++) {
            columns[v] = load_bits<typename Of::Register>(b + v * kRegister);
            if (Of::kReadAhead && Rows <= 2) __builtin_prefetch(b + v * kRegister + kAhead);
        }
#pragma GCC unroll 8
        for (int r = 0; r < Rows; r++)
#pragma GCC unroll 8
            for (int v = 0; v < Vecs; v++)
                total[r][v] = Of::multiply_add(total[r][v], a + r * a_stride + k, columns[v]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; r++)
#pragma GCC unroll 8
        for (int v = 0; v < Vecs; v++) store_bits(c + r * c_stride + v * kRegister, total[r][v]);
}

template <int Vecs, class Left, class Element>
inline void tile_rows(int64_t rows, const Left* a, int64_t a_stride, const Element* b, int64_t b_stride, float* c,
                      int64_t c_stride, int64_t depth, bool add) {
    int64_t row = 0;
    for (; row + kTileRows <= rows; row += kTileRows)
        tile<kTileRows, Vecs>(a + row * a_stride, a_stride, b, b_stride, c + row * c_stride, c_stride, depth, add);
    for (; row + 2 <= rows; row += 2)
        tile<2, Vecs>(a + row * a_stride, a_stride, b, b_stride, c + row * c_stride, c_stride, depth, add);
    if (row < rows)
        tile<1, Vecs>(a + row * a_stride, a_stride, b, b_stride, c + row * c_stride, c_stride, depth, add);
}

// Columns are a multiple of 16; strides count elements.
template <class Left, class Element>
inline void multiply(int64_t rows, int64_t columns, int64_t depth, const Left* a, int64_t a_stride, const Element* b,
                     int64_t b_stride, float* c, int64_t c_stride, bool add) {
    int64_t column = 0;
    for (; column + kTileVecs * kRegister <= columns; column += kTileVecs * kRegister)
        tile_rows<kTileVecs>(rows, a, a_stride, b + column, b_stride, c + column, c_stride, depth, add);
    for (; column < columns; column += kRegister)
        tile_rows<1>(rows, a, a_stride, b + column, b_stride, c + column, c_stride, depth, add);
}
