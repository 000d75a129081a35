// Low-rank products of adapters, added to what a layer has computed: each row with the pairs of its own adapter.
#pragma once

#include <vector>

#include "vectors.h"

// One projection of a layer; `struct SlotPair` of library.py.
struct SlotPair {
    int64_t rank, first, columns;  // output features [first, first + columns) of the layer
    const void *a, *b;             // [rank, depth] and [rank, columns]
};

// An adapter's part of a layer; `struct SlotPairs` of library.py.
struct SlotPairs {
    int64_t count;
    const SlotPair* pairs;
};

// inner[r] = a[r] x, for `rank` rows of a.
template <class T>
inline void shrink(int64_t rank, int64_t depth, const T* a, const T* x, float* inner) {
    int64_t r = 0;
    for (; r + 4 <= rank; r += 4) {
        vec total[4] = {};
        for (int64_t i = 0; i < depth; i += kLanes) {
            vec value = load(x + i, depth - i);
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) total[j] += value * load(a + (r + j) * depth + i, depth - i);
        }
        for (int j = 0; j < 4; j++) inner[r + j] = sum(total[j]);
    }
    for (; r < rank; r++) {
        vec total = {};
        for (int64_t i = 0; i < depth; i += kLanes) total += load(x + i, depth - i) * load(a + r * depth + i, depth - i);
        inner[r] = sum(total);
    }
}

// out[c] += sum over r of inner[r] b[r, c].
template <class T>
inline void expand(int64_t rank, int64_t columns, const float* inner, const T* b, T* out) {
    int64_t c = 0;
    for (; c + 4 * kLanes <= columns; c += 4 * kLanes) {
        vec total[4];
        for (int v = 0; v < 4; v++) total[v] = load(out + c + v * kLanes);
        for (int64_t r = 0; r < rank; r++)
#pragma GCC unroll 4
            for (int v = 0; v < 4; v++) total[v] += inner[r] * load(b + r * columns + c + v * kLanes);
        for (int v = 0; v < 4; v++) store(out + c + v * kLanes, total[v]);
    }
    for (; c < columns; c += kLanes) {
        vec total = load(out + c, columns - c);
        for (int64_t r = 0; r < rank; r++) total += inner[r] * load(b + r * columns + c, columns - c);
        store(out + c, total, columns - c);
    }
}

// A row's sums are the same among any other rows. `slots`: -1 for rows without an adapter.
template <class T>
void add_low_rank(int64_t threads, int64_t rows, int64_t depth, const int64_t* slots, const SlotPairs* adapters,
                  const T* x, int64_t x_stride, T* product, int64_t product_stride) {
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (rows > 1)
    for (int64_t row = 0; row < rows; row++) {
        if (slots[row] < 0) continue;
        const SlotPairs& adapter = adapters[slots[row]];
        std::vector<float> inner;
        for (int64_t p = 0; p < adapter.count; p++) {
            const SlotPair& pair = adapter.pairs[p];
            inner.resize(pair.rank);
            shrink(pair.rank, depth, (const T*)pair.a, x + row * x_stride, inner.data());
            expand(pair.rank, pair.columns, inner.data(), (const T*)pair.b, product + row * product_stride + pair.first);
        }
    }
}
