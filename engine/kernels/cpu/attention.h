// Attention over a paged pool, for a batch of prompt chunks and decodes.
//
// A piece of work is one key head, a block of query rows (tokens times the query heads that share the key head)
// and a part of the context. Long contexts are split into parts, which are merged afterwards, so that a single
// request keeps all threads busy. The split depends only on the request, never on the rest of the batch.
#pragma once

#include <vector>

#include "matmul.h"

struct Step {
    int64_t products;             // `enum Products`
    int64_t threads, num_tokens, num_requests, heads, kv_heads, head_dim, page_size;
    int64_t page_stride;          // elements between two pages
    int64_t uniform;              // 1: a query's result does not depend on others of its step, nor on released pages
    int64_t stored;               // 0: the layer has no keys and values, and reads those of another
    const int64_t* query_indptr;  // [R + 1]
    const int64_t* context_lens;  // [R]
    const int64_t* page_indptr;   // [R + 1]
    const int64_t* pages;
    const int64_t* slots;      // [T]: page * page_size + offset
    const int64_t* positions;  // [T]
    const float* angles;       // [positions, head_dim], cosines first; null: queries and keys are not rotated
    // Of the layer:
    const float* sinks;     // [heads]: scores in the softmax that have no value; null: there are none
    int64_t window;         // a token attends to so many, itself included; 0: to all
    float scale, soft_cap;  // soft_cap 0: scores are not capped
};

constexpr int64_t kBlockRows = 96;    // query rows that share a block of keys
constexpr int64_t kDecodePart = 256;  // tokens of context
constexpr int64_t kChunkPart = 4096;
constexpr int64_t kFewHeads = 16;  // a decode with more query heads per key head is computed like a chunk
constexpr float kNone = -1e30f;    // initial maximum of scores; finite, so that differences are not NaN

struct Piece {
    int64_t request, head, first, tokens;  // query tokens, counted from the request's first of this step
    int64_t begin, end;                    // of the context
    int64_t partial;                       // index of the partial result; -1: nothing to merge
    int64_t parts;                         // in the first of several parts, their number; otherwise 0
};

constexpr int64_t kKeys = 64;  // multiplied at once

// Keys before a request's first page: those of pages that its windows have left.
inline int64_t released(const Step& s, int64_t request) {
    return s.positions[s.query_indptr[request + 1] - 1] + 1 - s.context_lens[request];
}

// The first key that a query sees which sees none from `visible` on.
inline int64_t earliest(const Step& s, int64_t visible) {
    return s.window && visible > s.window ? visible - s.window : 0;
}

// A query's keys are summed in blocks of kKeys. If results must be uniform, blocks begin at multiples of kKeys in the
// whole context, whatever the first key of the piece and the first page of the request are: `begin` may be negative.
inline std::vector<Piece> cut(const Step& s, int64_t* partial_floats) {
    std::vector<Piece> pieces;
    int64_t group = s.heads / s.kv_heads, floats = 0;
    int64_t most = group < kBlockRows ? kBlockRows / group : 1;
    for (int64_t r = 0; r < s.num_requests; r++) {
        int64_t tokens = s.query_indptr[r + 1] - s.query_indptr[r], before = s.context_lens[r] - tokens;
        int64_t part = tokens == 1 && !s.uniform ? kDecodePart : kChunkPart;
        int64_t gone = s.uniform && s.window ? released(s, r) : 0;
        for (int64_t first = (tokens - 1) / most * most; first >= 0; first -= most) {  // long contexts first
            int64_t rows = lesser(tokens - first, most);
            int64_t visible = gone + before + first + rows, lowest = gone + earliest(s, before + first + 1);
            if (s.uniform) lowest -= lowest % kKeys;
            int64_t parts = up(visible, part) / part - lowest / part;
            for (int64_t head = 0; head < s.kv_heads; head++)
                for (int64_t p = 0; p < parts; p++) {
                    int64_t begin = (lowest / part + p) * part, end = lesser(begin + part, visible);
                    pieces.push_back({r, head, first, rows, (begin < lowest ? lowest : begin) - gone, end - gone,
                                      parts > 1 ? floats : -1, parts > 1 && p == 0 ? parts : 0});
                    if (parts > 1) floats += rows * group * (up(s.head_dim, kLanes) + 2);
                }
        }
    }
    *partial_floats = floats;
    return pieces;
}

template <class T>
struct Attention;

// A piece of several query rows: attention_blocks.h.
inline void attend_block(const Attention<float>& attention, const Piece& piece);
inline void attend_block(const Attention<bf16>& attention, const Piece& piece);

template <class T>
struct Attention {
    const Step& s;
    T* pool;  // the layer's part of page 0
    const T* qkv;
    T* out;
    float* partials;
    int64_t group = s.heads / s.kv_heads, dim = s.head_dim;
    int64_t columns = up(dim, kLanes);  // of sums, padded with zeros after a head's features
    int64_t head_elements = s.page_size * dim, values_after = s.kv_heads * head_elements;

    const T* row(int64_t token) const { return qkv + token * (s.heads + (s.stored ? 2 * s.kv_heads : 0)) * dim; }

    template <class To>
    void rotate(const T* from, To* to, int64_t token) const {
        if (!s.angles) {
#pragma GCC ivdep
            for (int64_t i = 0; i < dim; i++) to[i] = make(to_float(from[i]), To{});
            return;
        }
        const float* cosine = s.angles + s.positions[token] * dim;
        int64_t half = dim / 2;
#pragma GCC ivdep
        for (int64_t i = 0; i < half; i++) {
            float a = to_float(from[i]), b = to_float(from[i + half]);
            to[i] = make(a * cosine[i] - b * cosine[i + half], To{});
            to[i + half] = make(b * cosine[i] + a * cosine[i + half], To{});
        }
    }

    void keep(int64_t token) const {
        int64_t page = s.slots[token] / s.page_size, offset = s.slots[token] % s.page_size;
        T* place = pool + page * s.page_stride + offset * dim;
        for (int64_t head = 0; head < s.kv_heads; head++, place += head_elements) {
            rotate(row(token) + (s.heads + head) * dim, place, token);
            memcpy(place + values_after, row(token) + (s.heads + s.kv_heads + head) * dim, dim * sizeof(T));
        }
    }

    // Locations of `count` keys from `begin` on; of those before the request's first page, its first key, which is hidden.
    void find(const Piece& piece, int64_t begin, int64_t count, const T** keys) const {
        const int64_t* page = s.pages + s.page_indptr[piece.request];
        int64_t i = 0, offset = 0;
        for (; begin < 0 && i < count; begin++) keys[i++] = pool + *page * s.page_stride + piece.head * head_elements;
        if (begin > 0) page += begin / s.page_size, offset = begin % s.page_size;
        for (; i < count; page++, offset = 0) {
            const T* key = pool + *page * s.page_stride + piece.head * head_elements + offset * dim;
            for (; offset < s.page_size && i < count; offset++, key += dim) keys[i++] = key;
        }
    }

    void write(const Piece& piece, int64_t row, const float* sums, float highest, float total) const {
        if (piece.partial >= 0) {
            float* to = partials + piece.partial + row * (columns + 2);
            memcpy(to, sums, columns * sizeof(float));
            to[columns] = highest;
            to[columns + 1] = total;
            return;
        }
        int64_t token = s.query_indptr[piece.request] + piece.first + row / group;
        int64_t head = piece.head * group + row % group;
        T* to = out + (token * s.heads + head) * dim;
        if (s.sinks) total += exponential(splat(s.sinks[head] - highest))[0];
        for (int64_t d = 0; d < dim; d += kLanes) store(to + d, load(sums + d) / total, dim - d);
    }

    void merge(const Piece* pieces) const {
        int64_t stride = columns + 2, rows = pieces->tokens * group;
        float* sums = (float*)scratch(columns * sizeof(float));
        Piece whole = *pieces;
        whole.partial = -1;
        for (int64_t r = 0; r < rows; r++) {
            float highest = kNone, total = 0;
            for (int64_t p = 0; p < pieces->parts; p++) {
                float here = partials[pieces[p].partial + r * stride + columns];
                highest = here > highest ? here : highest;
            }
            memset(sums, 0, columns * sizeof(float));
            for (int64_t p = 0; p < pieces->parts; p++) {
                const float* from = partials + pieces[p].partial + r * stride;
                float weight = exponential(splat(from[columns] - highest))[0];
                total += weight * from[columns + 1];
                for (int64_t d = 0; d < columns; d += kLanes)
                    store(sums + d, load(sums + d) + weight * load(from + d));
            }
            write(whole, r, sums, highest, total);
        }
    }

    void attend(const Piece& piece) const {
        bool alone = s.query_indptr[piece.request + 1] - s.query_indptr[piece.request] == 1;
        if (alone && group <= kFewHeads && !s.uniform)
            decode(piece);
        else
            attend_block(*this, piece);
    }

    vec score(vec product) const {
        product *= s.scale;
        return s.soft_cap ? s.soft_cap * hyperbolic_tangent(product / s.soft_cap) : product;
    }

    // Products of one query with 16 keys.
    vec products(const float* query, const T* const* keys) const {
        vec total[kLanes] = {};
        for (int64_t d = 0; d < dim; d += kLanes) {
            vec part = load(query + d);
#pragma GCC unroll 16
            for (int i = 0; i < kLanes; i++) total[i] += part * load(keys[i] + d, dim - d);
        }
        return sums(total);
    }

    // sums [Rows, Vecs * 16] of `count` values, weighted; `places` are the values' columns.
    template <int Rows, int Vecs>
    void add_values(const float* weights, const T* const* places, int64_t count, int64_t from, float* to) const {
        vec total[Rows][Vecs] = {};
        for (int64_t i = 0; i < count; i++) {
            vec value[Vecs];
#pragma GCC unroll 4
            for (int v = 0; v < Vecs; v++) value[v] = load(places[i] + from + v * kLanes, dim - from - v * kLanes);
#pragma GCC unroll 4
            for (int r = 0; r < Rows; r++)
#pragma GCC unroll 4
                for (int v = 0; v < Vecs; v++) total[r][v] += weights[r * kDecodePart + i] * value[v];
        }
#pragma GCC unroll 4
        for (int r = 0; r < Rows; r++)
#pragma GCC unroll 4
            for (int v = 0; v < Vecs; v++) store(to + r * columns + from + v * kLanes, total[r][v]);
    }

    template <int Rows>
    void add_rows(const float* weights, const T* const* places, int64_t count, float* to) const {
        int64_t from = 0;
        for (; from + 4 * kLanes <= columns; from += 4 * kLanes)
            add_values<Rows, 4>(weights, places, count, from, to);
        for (; from < columns; from += kLanes) add_values<Rows, 1>(weights, places, count, from, to);
    }

    // One query token over at most kDecodePart tokens of context.
    void decode(const Piece& piece) const {
        int64_t count = piece.end - piece.begin, token = s.query_indptr[piece.request];
        float* sums = (float*)scratch(group * (2 * columns + kDecodePart) * sizeof(float));
        float *queries = sums + group * columns, *scores = queries + group * columns;
        memset(queries, 0, group * columns * sizeof(float));
        for (int64_t r = 0; r < group; r++)
            rotate(row(token) + (piece.head * group + r) * dim, queries + r * columns, token);

        const T* places[kDecodePart + 2 * kLanes];
        find(piece, piece.begin, count, places);
        for (int64_t i = count; i < count + 2 * kLanes; i++) places[i] = places[count - 1];
        for (int64_t i = 0; i < count; i += kLanes) {
            for (int64_t j = i; j < i + kLanes; j++)
                for (int64_t byte = 0; byte < dim * int64_t(sizeof(T)); byte += 64) {
                    __builtin_prefetch((const char*)places[j + kLanes] + byte);
                    __builtin_prefetch((const char*)(places[j] + values_after) + byte);
                }
            for (int64_t r = 0; r < group; r++)
                store(scores + r * kDecodePart + i, score(products(queries + r * columns, places + i)));
        }
        float highest[kFewHeads], totals[kFewHeads];
        for (int64_t r = 0; r < group; r++) {
            float* row = scores + r * kDecodePart;
            for (int64_t i = count; i < up(count, kLanes); i++) row[i] = -__builtin_inff();
            vec most = splat(kNone), total = {};
            for (int64_t i = 0; i < count; i += kLanes) most = greater(load(row + i), most);
            highest[r] = largest(most);
            for (int64_t i = 0; i < count; i += kLanes) {
                vec weight = exponential(load(row + i) - highest[r]);
                store(row + i, weight);
                total += weight;
            }
            totals[r] = sum(total);
        }
        for (int64_t i = 0; i < count; i++) places[i] += values_after;
        int64_t r = 0;
        for (; r + 4 <= group; r += 4) add_rows<4>(scores + r * kDecodePart, places, count, sums + r * columns);
        if (group - r == 3) add_rows<3>(scores + r * kDecodePart, places, count, sums + r * columns);
        if (group - r == 2) add_rows<2>(scores + r * kDecodePart, places, count, sums + r * columns);
        if (group - r == 1) add_rows<1>(scores + r * kDecodePart, places, count, sums + r * columns);
        for (r = 0; r < group; r++) write(piece, r, sums + r * columns, highest[r], totals[r]);
    }
};

template <class T>
void attend(const Step& s, T* pool, const T* qkv, T* out) {
    int64_t floats;
    const std::vector<Piece> pieces = cut(s, &floats);
    std::vector<float> partials(floats);
    const Attention<T> attention{s, pool, qkv, out, partials.data()};
#pragma omp parallel num_threads(s.threads)
    {
#pragma omp for schedule(static)
        for (int64_t token = 0; token < (s.stored ? s.num_tokens : 0); token++) attention.keep(token);
#pragma omp for schedule(dynamic, 1)
        for (size_t i = 0; i < pieces.size(); i++) attention.attend(pieces[i]);
        if (floats) {
#pragma omp for schedule(dynamic, 1)
            for (size_t i = 0; i < pieces.size(); i++)
                if (pieces[i].parts) attention.merge(&pieces[i]);
        }
    }
}
