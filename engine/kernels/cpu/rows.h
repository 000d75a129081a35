// Operations on rows of activations: each reads and writes its row once.
#pragma once

#include "vectors.h"

constexpr int64_t kWorthThreads = 1 << 14;  // elements: below this, waking threads takes longer than computing

// out = x * weight / sqrt(mean(x^2) + eps), for `outer` times `inner` rows at the given strides; out may be x.
// With a contiguous residual, x + residual is normalised, and stored in the residual.
template <class T>
void rms_norm(int64_t threads, int64_t outer, int64_t inner, int64_t size, const T* x, int64_t outer_stride,
              int64_t inner_stride, T* residual, const T* weight, float eps, T* out, int64_t out_outer_stride,
              int64_t out_inner_stride) {
#pragma omp parallel for num_threads(threads) if (outer * inner * size > kWorthThreads)
    for (int64_t row = 0; row < outer * inner; row++) {
        const T* from = x + row / inner * outer_stride + row % inner * inner_stride;
        T* to = out + row / inner * out_outer_stride + row % inner * out_inner_stride;
        T* kept = residual ? residual + row * size : nullptr;
        vec squares = {};
        for (int64_t i = 0; i < size; i += kLanes) {
            vec value = load(from + i, size - i);
            if (kept) {
                store(kept + i, value + load(kept + i, size - i), size - i);
                value = load(kept + i, size - i);
            }
            squares += value * value;
        }
        float factor = 1 / __builtin_sqrtf(sum(squares) / float(size) + eps);
        const T* again = kept ? kept : from;
        for (int64_t i = 0; i < size; i += kLanes)
            store(to + i, load(again + i, size - i) * factor * load(weight + i, size - i), size - i);
    }
}

enum Activation : int64_t { kSilu, kGelu, kClamped };  // as engine/model_config/layer_options.py lists them

inline vec gated(int64_t activation, vec gate, vec up) {
    vec steepness = gate;
    if (activation == kGelu) steepness = 1.5957691216057308f * (gate + 0.044715f * gate * gate * gate);
    if (activation == kClamped) {
        const vec limit = splat(7.0f);
        gate = gate > limit ? limit : gate;
        up = (up > limit ? limit : up < -limit ? -limit : up) + 1.0f;
        steepness = 1.702f * gate;
    }
    return gate / (1.0f + exponential(-steepness)) * up;
}

enum Function : int64_t { kSigmoid, kGeluAlone };  // as in engine/kernels/cpu/library.py

// A function of each number: the same for equal numbers, whatever else is computed.
template <class T>
void each(int64_t function, int64_t threads, int64_t count, const T* x, T* out) {
    const vec one = splat(1.0f);
#pragma omp parallel for num_threads(threads) if (count > kWorthThreads)
    for (int64_t i = 0; i < count; i += kLanes) {
        vec value = load(x + i, count - i);
        value = function == kSigmoid ? one / (one + exponential(-value)) : gated(kGelu, value, one);
        store(out + i, value, count - i);
    }
}

// The activation of rows of concatenated gate and up.
template <class T>
void gate(int64_t activation, int64_t threads, int64_t rows, int64_t size, const T* gate_up, T* out) {
#pragma omp parallel for num_threads(threads) if (rows * size > kWorthThreads)
    for (int64_t row = 0; row < rows; row++) {
        const T *from = gate_up + row * 2 * size, *up = from + size;
        for (int64_t i = 0; i < size; i += kLanes)
            store(out + row * size + i, gated(activation, load(from + i, size - i), load(up + i, size - i)),
                  size - i);
    }
}
