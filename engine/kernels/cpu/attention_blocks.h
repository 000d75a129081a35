// Attention of a block of query rows: products with a block of keys, a softmax whose maxima and sums go on from block
// to block, and products of its weights with the values.
//
// Blocks of bfloat16 can be multiplied in three ways. As float32; or by dot products of pairs or AMX's tiles, for which
// queries and weights are rounded to bfloat16, as torch does. Scores and all sums are float32 in any case.
#pragma once

#include "attention.h"
#include "tiles.h"

enum Products : int64_t { kFloats, kDots, kTiles };  // as in engine/kernels/cpu/library.py

struct Floats {
    typedef float Left;
    typedef float Element;
    static constexpr int64_t kUnit = kLanes, kRowUnit = 1;  // features, and rows, are filled up to multiples
    struct Scope {};

    static void multiply(int64_t rows, int64_t columns, int64_t depth, const float* a, int64_t a_stride, const float* b,
                         float* c, bool add) {
        ::multiply(rows, columns, depth, a, a_stride, b, columns, c, columns, add);
    }
};

struct Pairs {
    typedef bf16 Left;
    typedef bf16_pair Element;
    static constexpr int64_t kUnit = 32;
};

#ifdef __AVX512BF16__
struct Dots : Pairs {
    static constexpr int64_t kRowUnit = 1;
    struct Scope {};

    static void multiply(int64_t rows, int64_t columns, int64_t depth, const bf16* a, int64_t a_stride,
                         const bf16_pair* b, float* c, bool add) {
        ::multiply(rows, columns, up(depth, 2), a, a_stride, b, columns, c, columns, add);
    }
};
#endif

#ifdef BATON_TILES
struct Tiles : Pairs {
    static constexpr int64_t kRowUnit = 32;
    typedef TileShapes Scope;

    static void multiply(int64_t rows, int64_t columns, int64_t depth, const bf16* a, int64_t a_stride,
                         const bf16_pair* b, float* c, bool add) {
        multiply_tiles(up(rows, 32), columns, up(depth, 32), a, a_stride, b, columns, c, columns, add);
    }
};
#endif

// Rows of `count` keys, transposed to [features, kKeys]; zeros where there is no key or no feature.
template <class T>
inline void pack_keys(const T* const* keys, int64_t count, int64_t dim, float* to) {
    for (int64_t key = 0; key < kKeys; key += kLanes)
        for (int64_t d = 0; d < dim; d += kLanes) {
            uvec square[kLanes];
            for (int64_t i = 0; i < kLanes; i++)
                square[i] = key + i < count ? (uvec)load(keys[key + i] + d, dim - d) : uvec{};
            transpose(square);
            for (int64_t i = 0; i < kLanes; i++) store_bits(to + (d + i) * kKeys + key, square[i]);
        }
}

// The same in pairs of features: [features / 2, kKeys].
inline void pack_keys(const bf16* const* keys, int64_t count, int64_t dim, bf16_pair* to) {
    for (int64_t key = 0; key < kKeys; key += kLanes)
        for (int64_t d = 0; d < dim; d += 2 * kLanes) {
            uvec square[kLanes] = {};
            size_t bytes = lesser(dim - d, 2 * kLanes) * sizeof(bf16);
            for (int64_t i = 0; i < kLanes && key + i < count; i++)
                if (bytes == sizeof(uvec))
                    square[i] = load_bits<uvec>(keys[key + i] + d);
                else
                    memcpy(&square[i], keys[key + i] + d, bytes);
            transpose(square);
            for (int64_t i = 0; i < kLanes; i++) store_bits(to + (d / 2 + i) * kKeys + key, square[i]);
        }
}

// Rows of `count` values, `after` the places: [count, columns], zeros after a value's features.
template <class T>
inline void pack_values(const T* const* places, int64_t after, int64_t count, int64_t dim, int64_t columns, float* to) {
    for (int64_t i = 0; i < count; i++)
        for (int64_t d = 0; d < columns; d += kLanes) store(to + i * columns + d, load(places[i] + after + d, dim - d));
}

// The same in pairs of rows: [kKeys / 2, columns], zeros from row `count` on.
inline void pack_values(const bf16* const* places, int64_t after, int64_t count, int64_t dim, int64_t columns,
                        bf16_pair* to) {
    for (int64_t i = 0; i < kKeys; i += 2, to += columns)
        for (int64_t d = 0; d < columns; d += kLanes) {
            uvec first = i < count && d < dim ? (uvec)load(places[i] + after + d, dim - d) : uvec{};
            uvec second = i + 1 < count && d < dim ? (uvec)load(places[i + 1] + after + d, dim - d) : uvec{};
            store_bits(to + d, first >> 16 | second);
        }
}

template <class T, class Format>
struct Block {
    typedef typename Format::Left Left;
    typedef typename Format::Element Element;

    const Attention<T>& all;
    const Step& s = all.s;
    const float kLog2E = 1.44269504088896341f;

    // Scores [kKeys] that a query does not see, before `from` and from `visible` on, are -inf. Returns the largest of the
    // others, at least `highest`.
    static float hide(vec* row, int64_t from, int64_t visible, float highest) {
        vec most = splat(highest);
        const ivec lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
        for (int i = 0; i < kKeys / kLanes; i++) {
            if (visible < kKeys) row[i] = lane < int32_t(visible - i * kLanes) ? row[i] : splat(-__builtin_inff());
            if (from > 0) row[i] = lane < int32_t(from - i * kLanes) ? splat(-__builtin_inff()) : row[i];
            most = greater(row[i], most);
        }
        return largest(most);
    }

    // Products [kKeys] of a row become weights, in the same place. Returns the factor for earlier sums.
    float weigh(float* scores, float*, int64_t from, int64_t visible, float& highest, float& total) const {
        vec row[kKeys / kLanes], sum_of_weights = {};
        for (int i = 0; i < kKeys / kLanes; i++) row[i] = all.score(load(scores + i * kLanes));
        float now = hide(row, from, visible, highest);
        for (int i = 0; i < kKeys / kLanes; i++) {
            vec weight = exponential(row[i] - now);
            sum_of_weights += weight;
            store(scores + i * kLanes, weight);
        }
        float factor = now == highest ? 1.0f : exponential(splat(highest - now))[0];
        total = total * factor + sum(sum_of_weights);
        highest = now;
        return factor;
    }

    // The same, rounded to bfloat16. The maximum is that of products before they are scaled, if nothing caps them.
    float weigh(const float* scores, bf16* weights, int64_t from, int64_t visible, float& highest, float& total) const {
        vec row[kKeys / kLanes], sum_of_weights = {};
        for (int i = 0; i < kKeys / kLanes; i++) row[i] = load(scores + i * kLanes);
        if (s.soft_cap)
            for (int i = 0; i < kKeys / kLanes; i++) row[i] = all.score(row[i]);
        float now = hide(row, from, visible, highest), unit = (s.soft_cap ? 1.0f : s.scale) * kLog2E;
        for (int i = 0; i < kKeys / kLanes; i++) {
            vec weight = power_of_two(row[i] * unit - now * unit);
            sum_of_weights += weight;
            store(weights + i * kLanes, weight);
        }
        float factor = now == highest ? 1.0f : power_of_two(splat((highest - now) * unit))[0];
        total = total * factor + sum(sum_of_weights);
        highest = now;
        return factor;
    }

    void attend(const Piece& piece) const {
        constexpr bool kRounds = sizeof(Left) < sizeof(float);
        constexpr int64_t kTogether = kRounds ? 2 : 1;
        int64_t rows = piece.tokens * all.group, tall = up(rows, Format::kRowUnit), dim = all.dim;
        int64_t wide = up(dim, Format::kUnit);  // features, filled up
        float* sums = (float*)scratch(
            (tall * (wide + kKeys) + 2 * rows + 2 * kKeys * wide / kTogether) * sizeof(float) +
            tall * (wide + kKeys) * sizeof(Left));
        float* scores = sums + tall * wide;
        Left* queries = (Left*)(scores + tall * kKeys);
        Left* weights = kRounds ? queries + tall * wide : (Left*)scores;
        Element* keys = (Element*)(queries + tall * (wide + kKeys));
        Element* values = keys + kKeys * wide / kTogether;
        float *highest = (float*)(values + kKeys * wide / kTogether), *totals = highest + rows;

        memset(sums, 0, tall * wide * sizeof(float));
        memset(queries, 0, tall * wide * sizeof(Left));
        int64_t first_token = s.query_indptr[piece.request] + piece.first;
        for (int64_t r = 0; r < rows; r++) {
            int64_t token = first_token + r / all.group, head = piece.head * all.group + r % all.group;
            all.rotate(all.row(token) + head * dim, queries + r * wide, token);
            highest[r] = kNone;
            totals[r] = 0;
        }
        const typename Format::Scope scope;
        // Keys visible to the first query token; each further token sees one more.
        int64_t seen = s.context_lens[piece.request] - s.query_indptr[piece.request + 1] + first_token + 1;
        const T* places[kKeys];
        for (int64_t begin = piece.begin; begin < piece.end; begin += kKeys) {
            int64_t count = lesser(piece.end - begin, kKeys);
            all.find(piece, begin, count, places);
            pack_keys(places, count, dim, keys);
            Format::multiply(rows, kKeys, wide, queries, wide, keys, scores, false);
            for (int64_t r = 0; r < rows; r++) {
                int64_t visible = lesser(seen + r / all.group - begin, count);
                int64_t from = earliest(s, seen + r / all.group) - begin;
                float factor = weigh(scores + r * kKeys, weights + r * kKeys, from, visible, highest[r], totals[r]);
                if (factor != 1.0f)
                    for (int64_t d = 0; d < wide; d += kLanes)
                        store(sums + r * wide + d, load(sums + r * wide + d) * factor);
            }
            pack_values(places, all.values_after, count, dim, wide, values);
            Format::multiply(rows, wide, count, weights, kKeys, values, sums, true);
        }
        float unit = kRounds && !s.soft_cap ? s.scale : 1.0f;  // of `highest`
        for (int64_t r = 0; r < rows; r++) all.write(piece, r, sums + r * wide, highest[r] * unit, totals[r]);
    }
};

inline void attend_block(const Attention<float>& attention, const Piece& piece) {
    Block<float, Floats>{attention}.attend(piece);
}

inline void attend_block(const Attention<bf16>& attention, const Piece& piece) {
    switch (attention.s.products) {
#ifdef __AVX512BF16__
        case kDots: return Block<bf16, Dots>{attention}.attend(piece);
#endif
#ifdef BATON_TILES
        case kTiles: return Block<bf16, Tiles>{attention}.attend(piece);
#endif
    }
    Block<bf16, Floats>{attention}.attend(piece);
}

// Whether this machine has them.
inline bool supported(int64_t products) {
#ifdef __AVX512BF16__
    if (products == kDots) return true;
#endif
    return products == kFloats || (products == kTiles && tiles_allowed());
}

// The fastest of those.
inline int64_t fastest_products() { return tiles_allowed() ? kTiles : dots_are_fast() ? kDots : kFloats; }
