// Vectors of 16 floats in GCC's vector extension: one AVX-512 register, two of AVX2, four of NEON.
#pragma once

#include <cstdint>
#include <cstring>

#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

struct bf16 {
    uint16_t bits;
};

typedef float vec __attribute__((vector_size(64)));
typedef int32_t ivec __attribute__((vector_size(64)));
typedef uint32_t uvec __attribute__((vector_size(64)));
typedef uint16_t half_vec __attribute__((vector_size(32)));

constexpr int kLanes = 16;

template <class V>
inline V load_bits(const void* from) {
    V value;
    memcpy(&value, from, sizeof value);
    return value;
}

template <class V>
inline void store_bits(void* to, V value) {
    memcpy(to, &value, sizeof value);
}

inline vec splat(float x) { return x - vec{}; }

inline float to_float(float x) { return x; }
inline float to_float(bf16 x) {
    uint32_t bits = uint32_t(x.bits) << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

inline bf16 to_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;  // to nearest, ties to even
    return {uint16_t(x == x ? rounded : bits >> 16 | 0x40)};        // a NaN must not be rounded to infinity
}

inline float make(float x, float) { return x; }
inline bf16 make(float x, bf16) { return to_bf16(x); }

inline vec load(const float* from) { return load_bits<vec>(from); }
inline vec load(const bf16* from) {
    return (vec)(__builtin_convertvector(load_bits<half_vec>(from), uvec) << 16);
}

inline void store(float* to, vec value) { store_bits(to, value); }
inline void store(bf16* to, vec value) {
#ifdef __AVX512BF16__
    store_bits(to, _mm512_cvtneps_pbh((__m512)value));
#else
    uvec bits = (uvec)value;
    uvec rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16, quiet = (bits >> 16) | 0x40;
    store_bits(to, __builtin_convertvector(value == value ? rounded : quiet, half_vec));
#endif
}

// The first `count` (at most 16) elements; the other lanes are zero, and their memory is not touched.
template <class T>
inline vec load(const T* from, int64_t count) {
    if (count >= kLanes) return load(from);
    T some[kLanes] = {};
    memcpy(some, from, count * sizeof(T));
    return load(some);
}

template <class T>
inline void store(T* to, vec value, int64_t count) {
    if (count >= kLanes) return store(to, value);
    T some[kLanes];
    store(some, value);
    memcpy(to, some, count * sizeof(T));
}

inline vec greater(vec a, vec b) { return a > b ? a : b; }

// Lane i is lane i + Half.
template <int Half>
inline vec upper(vec v) {
    ivec lanes;
#pragma GCC unroll 16
    for (int lane = 0; lane < kLanes; lane++) lanes[lane] = (lane + Half) % kLanes;
    return __builtin_shuffle(v, lanes);
}

inline float sum(vec v) {
    v += upper<8>(v);
    v += upper<4>(v);
    v += upper<2>(v);
    return (v + upper<1>(v))[0];
}

inline float largest(vec v) {
    v = greater(upper<8>(v), v);
    v = greater(upper<4>(v), v);
    v = greater(upper<2>(v), v);
    return greater(upper<1>(v), v)[0];
}

// Groups of `Width` lanes: the sums of the halves of a's group, then those of b's.
template <int Width>
inline vec fold(vec a, vec b) {
    ivec low, high;
#pragma GCC unroll 16
    for (int lane = 0; lane < kLanes; lane++) {
        int group = lane / Width * Width, at = lane % Width, half = Width / 2;
        int from = at < half ? group + at : kLanes + group + at - half;
        low[lane] = from;
        high[lane] = from + half;
    }
    return __builtin_shuffle(a, b, low) + __builtin_shuffle(a, b, high);
}

// Lane i is the sum of v[i]. Consumes v.
inline vec sums(vec* v) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) v[i] = fold<16>(v[i], v[i + 8]);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) v[i] = fold<8>(v[i], v[i + 4]);
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) v[i] = fold<4>(v[i], v[i + 2]);
    return fold<2>(v[0], v[1]);
}

// v[i][j] becomes v[j][i].
inline void transpose(uvec* v) {
#pragma GCC unroll 4
    for (int step = 8; step; step /= 2) {
        uvec low, high;
#pragma GCC unroll 16
        for (int lane = 0; lane < kLanes; lane++) {
            low[lane] = lane & step ? kLanes + lane - step : lane;
            high[lane] = lane & step ? kLanes + lane : lane + step;
        }
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; i++)
            if (!(i & step)) {
                uvec a = v[i], b = v[i + step];
                v[i] = __builtin_shuffle(a, b, low);
                v[i + step] = __builtin_shuffle(a, b, high);
            }
    }
}

// e^x within 2 units in the last place; 0 below -87, e^88 above 88, NaN for NaN.
inline vec exponential(vec x) {
    const vec lowest = splat(-87.0f), highest = splat(88.0f);
    vec bounded = x < lowest ? lowest : x;
    bounded = bounded > highest ? highest : bounded;
    const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer in the low bits
    vec shifted = bounded * 1.44269504088896341f + magic;
    vec whole = shifted - magic;
    vec rest = bounded - whole * 0.693359375f;
    rest = rest + whole * 2.12194440e-4f;
    vec power = splat(1.9875691500e-4f);
    power = power * rest + 1.3981999507e-3f;
    power = power * rest + 8.3334519073e-3f;
    power = power * rest + 4.1665795894e-2f;
    power = power * rest + 1.6666665459e-1f;
    power = power * rest + 5.0000001201e-1f;
    power = power * rest * rest + rest + 1.0f;
    vec scaled = (vec)((ivec)power + ((ivec)shifted << 23));
    scaled = x < lowest ? vec{} : scaled;
    return x == x ? scaled : x;
}

// 2^x within 3e-6 of its value for x <= 0: cheaper than `exponential`, for what is rounded to bfloat16. Exactly 1 for 0,
// 0 below -127, NaN for NaN.
inline vec power_of_two(vec x) {
    const vec lowest = splat(-127.0f);
    vec bounded = x < lowest ? lowest : x;
    const float magic = 12582912.0f + 127.0f;  // as above, with the exponent of 1 added
    vec shifted = bounded + magic;
    vec rest = bounded - (shifted - magic);
    vec power = splat(9.582855803e-3f);
    power = power * rest + 5.590646768e-2f;
    power = power * rest + 2.402409882e-1f;
    power = power * rest + 6.931241886e-1f;
    power = power * rest + 1.0f;
    return power * (vec)((ivec)shifted << 23);
}

// Within 2e-7 of tanh(x); NaN for NaN.
inline vec hyperbolic_tangent(vec x) {
    vec faded = exponential(x < 0.0f ? x + x : -(x + x));
    vec size = (1.0f - faded) / (1.0f + faded);
    return x < 0.0f ? -size : size;
}
