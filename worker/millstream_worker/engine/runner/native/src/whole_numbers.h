// Sums of products of whole numbers of eight bits: codes of rows, -127 to 127, and of weights, in vectors of as
// many outputs as fit, four inputs of each side by side. A sum is exact: its order does not matter.
#pragma once

#include <algorithm>

#include "vectors.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define WHOLE_NUMBERS 1

// AVX-512 without VNNI has no products of bytes that are better than AVX2's.
#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
constexpr int WIDE = 16;
#else
constexpr int WIDE = 8;
#endif

typedef float Floats __attribute__((vector_size(WIDE * 4)));
typedef int32_t Ints __attribute__((vector_size(WIDE * 4)));

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
#define SHIFTED_CODES 1
inline Ints repeated(int32_t value) { return (Ints)_mm512_set1_epi32(value); }
inline Floats repeated(float value) { return (Floats)_mm512_set1_ps(value); }
inline Floats floats(Ints whole) { return (Floats)_mm512_cvtepi32_ps((__m512i)whole); }
inline Ints nearest(Floats x) { return (Ints)_mm512_cvtps_epi32((__m512)x); }
inline Floats add_product(Floats a, Floats b, Floats c) {
    return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}
inline Floats halves(const uint16_t* from) {
    return (Floats)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
inline Ints dots(Ints sums, Ints weights, Ints rows) {
    return (Ints)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)weights, (__m512i)rows);
}
inline int32_t sum(Ints x) { return _mm512_reduce_add_epi32((__m512i)x); }
#else
inline Ints repeated(int32_t value) { return (Ints)_mm256_set1_epi32(value); }
inline Floats repeated(float value) { return (Floats)_mm256_set1_ps(value); }
inline Floats floats(Ints whole) { return (Floats)_mm256_cvtepi32_ps((__m256i)whole); }
inline Ints nearest(Floats x) { return (Ints)_mm256_cvtps_epi32((__m256)x); }
inline Floats add_product(Floats a, Floats b, Floats c) {
    return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}
inline Floats halves(const uint16_t* from) {
    return (Floats)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
inline int32_t largest(Ints x) { return std::max({x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7]}); }
inline int32_t sum(Ints x) { return x[0] + x[1] + x[2] + x[3] + x[4] + x[5] + x[6] + x[7]; }
#if defined(__AVXVNNI__)
#define SHIFTED_CODES 1
inline Ints dots(Ints sums, Ints weights, Ints rows) {
    return (Ints)_mm256_dpbusd_avx_epi32((__m256i)sums, (__m256i)weights, (__m256i)rows);
}
#else
inline __m256i pairs(Ints weights, Ints rows) {  // of 16 bits, saturated
    return _mm256_maddubs_epi16((__m256i)weights, (__m256i)rows);
}
inline Ints added_pairs(__m256i sums) { return (Ints)_mm256_madd_epi16(sums, _mm256_set1_epi16(1)); }
#endif
#endif

// How codes of weights are multiplied. `LINES` lines of memory hold a group of inputs, and make `PARTS` vectors
// of four inputs each. A sum of products lies `ZERO` times the sum of the row's codes too high: `shift` is what
// that comes to, less than 0, and taken as what the sum begins with where that fits.
struct Bytes {  // -127 to 127
    static constexpr int PARTS = 1;

#if defined(SHIFTED_CODES)  // VNNI takes weights without a sign
    using Weights = Ints;
    using Sums = Ints;
    static constexpr int ZERO = 128;
    static Weights weights(Ints line, int) { return line ^ repeated(int32_t(0x80808080)); }
    static Sums begin(int32_t shift) { return repeated(shift); }
    static void add(Sums& sums, Weights weights, Ints row) { sums = dots(sums, weights, row); }
    static Ints total(Sums sums, int32_t) { return sums; }
#else
    struct Weights {
        Ints line, positive;
    };
    using Sums = Ints;
    static constexpr int ZERO = 0;
    static Sums begin(int32_t shift) { return repeated(shift); }
    static Weights weights(Ints line, int) { return {line, (Ints)_mm256_abs_epi8((__m256i)line)}; }
    static void add(Sums& sums, Weights weights, Ints row) {
        const auto turned = (Ints)_mm256_sign_epi8((__m256i)row, (__m256i)weights.line);
        sums += added_pairs(pairs(weights.positive, turned));  // 2 · 127 · 127 fits into 16 bits
    }
    static Ints total(Sums sums, int32_t) { return sums; }
#endif
};

struct Nibbles {  // 0 to 15
    static constexpr int PARTS = 2;
    using Weights = Ints;
    static constexpr int ZERO = 0;
    static Weights weights(Ints line, int part) { return (part ? line >> 4 : line) & 0x0f0f0f0f; }
    // With `zero`, at most 8, taken off each. The highest bit of each byte keeps it from borrowing of the next one.
    static Ints signed_codes(Ints line, int part, int zero) {
        const Ints high = repeated(int32_t(0x80808080));
        return ((weights(line, part) | high) - repeated(zero * 0x01010101)) ^ high;
    }

#if defined(SHIFTED_CODES)
    using Sums = Ints;
    static Sums begin(int32_t shift) { return repeated(shift); }
    static void add(Sums& sums, Weights weights, Ints row) { sums = dots(sums, weights, row); }
    static Ints total(Sums sums, int32_t) { return sums; }
#else
    using Sums = __m256i;  // eight sums of two products, each at most 15 · 127, fit into 16 bits
    static Sums begin(int32_t) { return Sums{}; }
    static void add(Sums& sums, Weights weights, Ints row) {
        sums = _mm256_add_epi16(sums, pairs(weights, row));
    }
    static Ints total(Sums sums, int32_t shift) { return added_pairs(sums) + repeated(shift); }
#endif
};
#endif
