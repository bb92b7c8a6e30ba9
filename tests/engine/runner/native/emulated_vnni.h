// AVX-VNNI's sums of products, emulated: what is computed with them is tested on processors that have none. As
// Intel's Software Developer's Manual defines VPDPBUSD, of bytes: the first operand's have no sign, the second's
// have one, and nothing is saturated; and VPDPWSSD, of words with signs.
#pragma once

#include <immintrin.h>

#undef __AVX512VNNI__
#define __AVXVNNI__ 1

inline __m256i emulated_dpbusd(__m256i sums, __m256i a, __m256i b) {
    const __m256i even = _mm256_madd_epi16(_mm256_and_si256(a, _mm256_set1_epi16(255)),
                                           _mm256_srai_epi16(_mm256_slli_epi16(b, 8), 8));
    const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(a, 8), _mm256_srai_epi16(b, 8));
    return _mm256_add_epi32(sums, _mm256_add_epi32(even, odd));
}

#define _mm256_dpbusd_avx_epi32 emulated_dpbusd

inline __m256i emulated_dpwssd(__m256i sums, __m256i a, __m256i b) {
    return _mm256_add_epi32(sums, _mm256_madd_epi16(a, b));
}

#define _mm256_dpwssd_avx_epi32 emulated_dpwssd
