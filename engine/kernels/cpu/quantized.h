// Products with weights of 4 or 8 bits: weight = code * scale + offset, where `group` consecutive weights of an output
// feature share scale and offset. A group's codes are summed before they are scaled:
//
//     y = sum over groups of (scale * sum(code * x) + offset * sum(x))
//
// so weights are never rounded to the dtype of activations, and a row's result does not depend on the other rows.
// Codes are in panels of 64 columns, one pair of rows after the other:
//
//     8 bits  [panels, depth / 2, 64, 2] of int8
//     4 bits  [panels, depth / 2, 16, 2] of words of 16 bits, which hold columns i, 16 + i, 32 + i and 48 + i
//
// and scales and offsets in [panels, groups, 64].
#pragma once

#include "linear.h"

struct Quantized {
    int64_t bits, group;  // group: a multiple of 16, at most kDepthBlock
    const uint8_t* codes;
    const float* scales;
    const float* offsets;  // or null
    float values[16];      // what codes of 4 bits stand for; exact in bfloat16
};

inline int64_t pair_bytes(const Quantized& weight) { return weight.bits * kPanel / 4; }

typedef float eight __attribute__((vector_size(32)));
typedef int32_t eight_indices __attribute__((vector_size(32)));
typedef int16_t narrow_ivec __attribute__((vector_size(32)));

// table[index % 16] in each lane.
inline vec look_up(const float* table, uvec indices) {
#ifdef __AVX512F__
    return __builtin_shuffle(load(table), (ivec)indices);
#else
    vec found;
    for (int half = 0; half < 2; half++) {
        eight_indices some = load_bits<eight_indices>((const int32_t*)&indices + 8 * half);
        eight part = __builtin_shuffle(load_bits<eight>(table), load_bits<eight>(table + 8), some);
        memcpy((float*)&found + 8 * half, &part, sizeof part);
    }
    return found;
#endif
}

// Numbers of two neighbouring rows of a panel, and the step of a product with them.
template <int Vecs>
struct FloatColumns {
    rvec even[Vecs], odd[Vecs];

    rvec add(rvec total, const float* a, int v) const {
        total += a[0] * even[v];
        return total + a[1] * odd[v];
    }
};

// A panel's codes, from `codes` on, as numbers: block [depth, 64].
inline void expand(const Quantized& weight, const uint8_t* codes, int64_t depth, float* block) {
    for (int64_t pair = 0; pair < depth / 2; pair++, codes += pair_bytes(weight), block += 2 * kPanel)
        for (int v = 0; v < kPanel / kLanes; v++) {
            if (weight.bits == 4) {
                uvec words = load_bits<uvec>(codes);
                store(block + v * kLanes, look_up(weight.values, words >> (4 * v)));
                store(block + kPanel + v * kLanes, look_up(weight.values, words >> (16 + 4 * v)));
            } else {
                ivec both = __builtin_convertvector(load_bits<narrow_ivec>(codes + 2 * v * kLanes), ivec);
                store(block + v * kLanes, __builtin_convertvector(both << 24 >> 24, vec));
                store(block + kPanel + v * kLanes, __builtin_convertvector(both >> 8, vec));
            }
        }
}

template <int Vecs>
inline FloatColumns<Vecs> columns_at(const float* block, int64_t pair, int64_t column) {
    FloatColumns<Vecs> columns;
#pragma GCC unroll 8
    for (int v = 0; v < Vecs; v++) {
        columns.even[v] = load_bits<rvec>(block + 2 * pair * kPanel + column + v * kRegister);
        columns.odd[v] = load_bits<rvec>(block + (2 * pair + 1) * kPanel + column + v * kRegister);
    }
    return columns;
}

#ifdef __AVX512BF16__
template <int Vecs>
struct PairColumns {
    __m512bh both[Vecs];

    rvec add(rvec total, const bf16* a, int v) const {
        __m512bh left = (__m512bh)_mm512_set1_epi32(load_bits<int32_t>(a));
        return (rvec)_mm512_dpbf16_ps((__m512)total, left, both[v]);
    }
};

struct PairTable {
    __m512i values;  // twice

    explicit PairTable(const Quantized& weight) {
        bf16 twice[2 * kLanes];
        for (int i = 0; i < 2 * kLanes; i++) twice[i] = to_bf16(weight.values[i % kLanes]);
        values = load_bits<__m512i>(twice);
    }

    __m512bh four(__m512i words, int v) const {
        return (__m512bh)_mm512_permutexvar_epi16(_mm512_srli_epi16(words, 4 * v), values);
    }
};

inline __m512bh eight_bits(const uint8_t* from) {
    __m512 first = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_bits<__m128i>(from)));
    __m512 second = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_bits<__m128i>(from + kLanes)));
    return _mm512_cvtne2ps_pbh(second, first);
}

inline void expand(const Quantized& weight, const uint8_t* codes, int64_t depth, bf16_pair* block) {
    PairTable table(weight);
    for (int64_t pair = 0; pair < depth / 2; pair++, codes += pair_bytes(weight), block += kPanel)
        for (int v = 0; v < kPanel / kLanes; v++)
            store_bits(block + v * kLanes, weight.bits == 4 ? table.four(load_bits<__m512i>(codes), v)
                                                            : eight_bits(codes + 2 * v * kLanes));
}

template <int Vecs>
inline PairColumns<Vecs> columns_at(const bf16_pair* block, int64_t pair, int64_t column) {
    PairColumns<Vecs> columns;
#pragma GCC unroll 8
    for (int v = 0; v < Vecs; v++) columns.both[v] = load_bits<__m512bh>(block + pair * kPanel + column + v * kLanes);
    return columns;
}
#endif

// Scales and offsets of a panel's groups, and the sums of rows of x in groups.
struct Groups {
    const float *scales, *offsets, *sums;
    int64_t sums_stride;
};

inline Groups from(const Groups& all, int64_t group, int64_t row) {
    return {all.scales + group * kPanel, all.offsets ? all.offsets + group * kPanel : nullptr,
            all.sums + row * all.sums_stride + group, all.sums_stride};
}

template <int Rows>
using rows_of = std::integral_constant<int, Rows>;

// c [Rows, Vecs registers] = or += groups of a [Rows, depth] times the columns that `columns(pair)` gives.
template <int Rows, int Vecs, class Left, class Columns>
inline void grouped_tile(int64_t group, int64_t depth, const Left* a, int64_t a_stride, const Groups& groups, float* c,
                         bool add, Columns columns) {
    rvec total[Rows][Vecs];
#pragma GCC unroll 8
    for (int r = 0; r < Rows; r++)
#pragma GCC unroll 8
        for (int v = 0; v < Vecs; v++) total[r][v] = add ? load_bits<rvec>(c + r * kPanel + v * kRegister) : rvec{};
    for (int64_t g = 0; g * group < depth; g++) {
        rvec part[Rows][Vecs] = {};
        for (int64_t pair = g * group / 2; pair < (g + 1) * group / 2; pair++) {
            auto both = columns(pair);
#pragma GCC unroll 8
            for (int r = 0; r < Rows; r++)
#pragma GCC unroll 8
                for (int v = 0; v < Vecs; v++) part[r][v] = both.add(part[r][v], a + r * a_stride + 2 * pair, v);
        }
#pragma GCC unroll 8
        for (int v = 0; v < Vecs; v++) {
            rvec scale = load_bits<rvec>(groups.scales + g * kPanel + v * kRegister);
#pragma GCC unroll 8
            for (int r = 0; r < Rows; r++) total[r][v] += scale * part[r][v];
            if (!groups.offsets) continue;
            rvec offset = load_bits<rvec>(groups.offsets + g * kPanel + v * kRegister);
#pragma GCC unroll 8
            for (int r = 0; r < Rows; r++) total[r][v] += offset * groups.sums[r * groups.sums_stride + g];
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; r++)
#pragma GCC unroll 8
        for (int v = 0; v < Vecs; v++) store_bits(c + r * kPanel + v * kRegister, total[r][v]);
}

// With AVX-512 a table of 16 numbers is a register: expanding 4 bits while they are multiplied takes less time than
// storing them first, for any number of rows; 8 bits, for few.
#ifdef __AVX512F__
constexpr int64_t kFewRows = 8;
constexpr int kGroupedRows = 6;

template <int Rows>
inline void read_codes(const Quantized& weight, const uint8_t* codes, int64_t depth, const float* a,
                       const Groups& groups, float* c) {
    vec values = load(weight.values);
    if (weight.bits == 4)
        return grouped_tile<Rows, 4>(weight.group, depth, a, depth, groups, c, false, [&](int64_t pair) {
            uvec words = load_bits<uvec>(codes + pair * kPanel);
            __builtin_prefetch(codes + pair * kPanel + kAhead);
            FloatColumns<4> both;
#pragma GCC unroll 4
            for (int v = 0; v < 4; v++) {
                both.even[v] = __builtin_shuffle(values, (ivec)(words >> (4 * v)));
                both.odd[v] = __builtin_shuffle(values, (ivec)(words >> (16 + 4 * v)));
            }
            return both;
        });
    grouped_tile<Rows, 4>(weight.group, depth, a, depth, groups, c, false, [&](int64_t pair) {
        const uint8_t* from = codes + 2 * pair * kPanel;
        FloatColumns<4> both;
#pragma GCC unroll 4
        for (int v = 0; v < 4; v++) {
            ivec wide = __builtin_convertvector(load_bits<narrow_ivec>(from + 2 * v * kLanes), ivec);
            __builtin_prefetch(from + 2 * v * kLanes + 2 * kAhead);
            both.even[v] = __builtin_convertvector(wide << 24 >> 24, vec);
            both.odd[v] = __builtin_convertvector(wide >> 8, vec);
        }
        return both;
    });
}
#else
constexpr int kGroupedRows = 3;
#endif

#ifdef __AVX512BF16__
template <int Rows>
inline void read_codes(const Quantized& weight, const uint8_t* codes, int64_t depth, const bf16* a,
                       const Groups& groups, float* c) {
    PairTable table(weight);
    if (weight.bits == 4)
        return grouped_tile<Rows, 4>(weight.group, depth, a, depth, groups, c, false, [&](int64_t pair) {
            __m512i words = load_bits<__m512i>(codes + pair * kPanel);
            __builtin_prefetch(codes + pair * kPanel + kAhead);
            PairColumns<4> columns;
#pragma GCC unroll 4
            for (int v = 0; v < 4; v++) columns.both[v] = table.four(words, v);
            return columns;
        });
    grouped_tile<Rows, 4>(weight.group, depth, a, depth, groups, c, false, [&](int64_t pair) {
        const uint8_t* from = codes + 2 * pair * kPanel;
        PairColumns<4> columns;
#pragma GCC unroll 4
        for (int v = 0; v < 4; v++) {
            columns.both[v] = eight_bits(from + 2 * v * kLanes);
            __builtin_prefetch(from + 2 * v * kLanes + 2 * kAhead);
        }
        return columns;
    });
}
#endif

template <int Rows, class Left, class Block>
inline void tile_columns(const Quantized& weight, int64_t depth, const Left* a, int64_t a_stride, const Block* block,
                         Groups groups, float* c, bool add) {
    constexpr int kVecs = 2;
    for (int64_t column = 0; column < kPanel; column += kVecs * kRegister) {
        Groups here = groups;
        here.scales += column;
        if (here.offsets) here.offsets += column;
        grouped_tile<Rows, kVecs>(weight.group, depth, a, a_stride, here, c + column, add,
                                  [&](int64_t pair) { return columns_at<kVecs>(block, pair, column); });
    }
}

// `Left`: what x is converted to; `Block`: what codes are.
template <class Left, class Block>
struct QuantizedPanels {
    const Quantized& weight;
    int64_t depth;
    std::vector<float> sums;  // [rows, groups] of x, if there are offsets

    QuantizedPanels(const Quantized& weight, int64_t rows, int64_t depth)
        : weight(weight), depth(depth), sums(weight.offsets ? rows * groups() : 0) {}

    int64_t groups() const { return depth / weight.group; }

    bool prepares() const { return weight.offsets; }

    void prepare(int64_t row, const Left* a) {
        if (!weight.offsets) return;
        for (int64_t g = 0; g < groups(); g++) {
            vec total = {};
            for (int64_t k = 0; k < weight.group; k += kLanes) total += load(a + g * weight.group + k);
            sums[row * groups() + g] = sum(total);
        }
    }

    void product(int64_t panel, int64_t first, int64_t rows, const Left* a, float* c, float* scratch) const {
        const uint8_t* codes = weight.codes + panel * (depth / 2) * pair_bytes(weight);
        int64_t at = panel * groups() * kPanel;
        Groups whole = {weight.scales + at, weight.offsets ? weight.offsets + at : nullptr,
                        sums.data() + first * groups(), groups()};
#ifdef __AVX512F__
        if (weight.bits == 4 || rows <= kFewRows) {
            int64_t row = 0;
            auto read = [&](auto together) {
                constexpr int kRows = decltype(together)::value;
                for (; row + kRows <= rows; row += kRows)
                    read_codes<kRows>(weight, codes, depth, a + row * depth, from(whole, 0, row), c + row * kPanel);
            };
            read(rows_of<4>()), read(rows_of<2>()), read(rows_of<1>());
            return;
        }
#endif
        Block* block = (Block*)scratch;
        int64_t deep = kDepthBlock / weight.group * weight.group;
        for (int64_t k = 0; k < depth; k += deep) {
            int64_t size = lesser(depth - k, deep), row = 0;
            expand(weight, codes + k / 2 * pair_bytes(weight), size, block);
            auto multiply = [&](auto together) {
                constexpr int kRows = decltype(together)::value;
                for (; row + kRows <= rows; row += kRows)
                    tile_columns<kRows>(weight, size, a + row * depth + k, depth, block,
                                        from(whole, k / weight.group, row), c + row * kPanel, k > 0);
            };
            multiply(rows_of<kGroupedRows>()), multiply(rows_of<1>());
        }
    }
};

inline void quantized_linear(int64_t threads, int64_t rows, int64_t columns, int64_t depth, const float* x,
                             int64_t x_stride, const Quantized& weight, const float* bias, float* out) {
    QuantizedPanels<float, float> panels(weight, rows, depth);
    linear_as<float>(threads, rows, columns, depth, x, x_stride, panels, bias, out);
}

inline void quantized_linear(int64_t threads, int64_t rows, int64_t columns, int64_t depth, const bf16* x,
                             int64_t x_stride, const Quantized& weight, const bf16* bias, bf16* out) {
#ifdef __AVX512BF16__
    if (dots_are_fast()) {
        QuantizedPanels<bf16, bf16_pair> panels(weight, rows, depth);
        return linear_as<bf16>(threads, rows, columns, depth, x, x_stride, panels, bias, out);
    }
#endif
    QuantizedPanels<float, float> panels(weight, rows, depth);
    linear_as<float>(threads, rows, columns, depth, x, x_stride, panels, bias, out);
}
