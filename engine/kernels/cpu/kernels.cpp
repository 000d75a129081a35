// Kernels for CPUs as plain C functions, compiled by Baton where it runs (see build.py) and called with pointers.
#include "attention_blocks.h"
#include "low_rank.h"
#include "quantized.h"
#include "rows.h"

#define FOR_EACH_TYPE(DEFINE) \
    DEFINE(float, float32)    \
    DEFINE(bf16, bfloat16)

#define DEFINE(T, NAME)                                                                                           \
    void baton_attend_##NAME(const Step* step, T* pool, const T* qkv, T* out) { attend(*step, pool, qkv, out); } \
    void baton_rms_norm_##NAME(int64_t threads, int64_t outer, int64_t inner, int64_t size, const T* x,          \
                               int64_t outer_stride, int64_t inner_stride, T* residual, const T* weight,         \
                               float eps, T* out, int64_t out_outer_stride, int64_t out_inner_stride) {          \
        rms_norm(threads, outer, inner, size, x, outer_stride, inner_stride, residual, weight, eps, out,         \
                 out_outer_stride, out_inner_stride);                                                            \
    }                                                                                                            \
    void baton_gate_##NAME(int64_t activation, int64_t threads, int64_t rows, int64_t size, const T* gate_up,    \
                           T* out) {                                                                             \
        gate(activation, threads, rows, size, gate_up, out);                                                     \
    }                                                                                                            \
    void baton_each_##NAME(int64_t function, int64_t threads, int64_t count, const T* x, T* out) {               \
        each(function, threads, count, x, out);                                                                  \
    }                                                                                                            \
    void baton_linear_##NAME(int64_t threads, int64_t rows, int64_t columns, int64_t depth, const T* x,          \
                             int64_t x_stride, const void* weight, const T* bias, T* out) {                      \
        linear(threads, rows, columns, depth, x, x_stride, weight, bias, out);                                   \
    }                                                                                                            \
    void baton_quantized_linear_##NAME(int64_t threads, int64_t rows, int64_t columns, int64_t depth, const T* x, \
                                       int64_t x_stride, const Quantized* weight, const T* bias, T* out) {       \
        quantized_linear(threads, rows, columns, depth, x, x_stride, *weight, bias, out);                        \
    }                                                                                                            \
    void baton_add_low_rank_##NAME(int64_t threads, int64_t rows, int64_t depth, const int64_t* slots,           \
                                   const SlotPairs* adapters, const T* x, int64_t x_stride, T* product,       \
                                   int64_t product_stride) {                                                     \
        add_low_rank(threads, rows, depth, slots, adapters, x, x_stride, product, product_stride);               \
    }

extern "C" {
FOR_EACH_TYPE(DEFINE)

int64_t baton_supports(int64_t products) { return supported(products); }
int64_t baton_fastest_products() { return fastest_products(); }
}
