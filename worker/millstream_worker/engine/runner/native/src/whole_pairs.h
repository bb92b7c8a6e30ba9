// The products of codes with queries and weights that are rounded to 16 bits, against their largest, for keys
// and values that lie as codes beside numbers in bfloat16. Sums are exact.
#pragma once

#include "packing.h"

#if defined(__AVX512BW__) || (defined(__AVX2__) && !defined(__AVX512F__))
#define WHOLE_PAIRS 1

// Elements of B are pairs of 16 bits. Sums take the place of floats.
struct WholePairs {
    using Stored = uint16_t;
    using Row = uint32_t;
    using Packed = uint32_t;
    static constexpr int PER = 2;
    static constexpr int PARTS = 1;
    static constexpr bool AS_STORED = false;
    static constexpr bool WHOLE = true;
    using Add = const float*;  // what a row's products are multiples of, added to the floats that are there; or null
    typedef int16_t Shorts __attribute__((vector_size(LANES * 4)));

    static IntVector repeated(uint32_t element) { return IntVector{} + int32_t(element); }
    static IntVector column(const uint32_t* pairs, int) { return load<IntVector>(pairs); }

    static IntVector add_product(IntVector sums, IntVector a, IntVector b) {
#if defined(__AVX512VNNI__)
        return (IntVector)_mm512_dpwssd_epi32((__m512i)sums, (__m512i)a, (__m512i)b);
#elif defined(__AVX512BW__)
        return (IntVector)_mm512_add_epi32((__m512i)sums, _mm512_madd_epi16((__m512i)a, (__m512i)b));
#elif defined(__AVXVNNI__)
        return (IntVector)_mm256_dpwssd_avx_epi32((__m256i)sums, (__m256i)a, (__m256i)b);
#else
        return (IntVector)_mm256_add_epi32((__m256i)sums, _mm256_madd_epi16((__m256i)a, (__m256i)b));
#endif
    }

    // What whole numbers are multiples of, and the sum of the numbers as such; no number where one is none.
    struct Query {
        float factor, sum;
    };

    // Pairs are as `pack_keys` finds them: 0 and 2, 1 and 3 of each four.
    static Query pack_query(const uint16_t* row, int dim, uint32_t* to) {
        const int whole = dim / LANES * LANES;
        float sum = 0;
        const float highest = largest_size(row, dim), most = std::min(32767.0f, float(INT32_MAX / 127) / dim);
        const float inverse = highest > 0 ? most / highest : 0;
        Vector sums{};
        for (int d = 0; d < whole; d += LANES) {
            const Vector numbers = widened_numbers(row + d) * inverse;
            store_shorts(to + d / 2, in_pairs(nearest_integers(numbers)));
            sums += numbers;
        }
        const auto rounded = [&](int d) {
            const float number = d < dim ? widened(row[d]) * inverse : 0;
            sum += number;
            return uint16_t(int16_t(std::rint(number)));
        };
        for (int pair = whole / 2; pair < rounded_up(dim, 4) / 2; ++pair) {
            const int first = pair / 2 * 4 + pair % 2;
            to[pair] = rounded(first) | uint32_t(rounded(first + 2)) << 16;
        }
        return {highest / most, sum + ::sum(sums)};
    }

    // 0, 2, 1 and 3 of each four.
    static IntVector in_pairs(IntVector numbers) {
#if defined(__AVX512F__)
        return (IntVector)_mm512_shuffle_epi32((__m512i)numbers, _MM_PERM_DBCA);
#else
        return (IntVector)_mm256_shuffle_epi32((__m256i)numbers, 0xd8);
#endif
    }

    static void pack_keys(const int8_t* const* rows, int dim, uint32_t* to) {
        turn_codes(rows, dim, [&](int e, const uint32_t* words) {
            for (int k = 0; k < GROUP; k += LANES) {
                const auto codes = load<Shorts>(words + k);
                store(to + 2 * e * KEYS + k, codes << 8 >> 8);
                store(to + (2 * e + 1) * KEYS + k, codes >> 8);
            }
        });
    }

    static void pack_values(const int8_t* const* rows, int count, int dim, int width, uint32_t* to) {
        for (int k = 0; k < count; k += 2, to += width) {
            const int8_t *first = rows[k], *second = rows[k + 1];
            int d = 0;
#if defined(__AVX512BW__)
            for (; d + 32 <= dim; d += 32) {
                const auto a = _mm512_cvtepi8_epi16(load<__m256i>(first + d));
                const auto b = _mm512_cvtepi8_epi16(load<__m256i>(second + d));
                store(to + d, _mm512_permutex2var_epi16(a, load<__m512i>(INTERLEAVED.index), b));
                store(to + d + 16, _mm512_permutex2var_epi16(a, load<__m512i>(INTERLEAVED.index + 32), b));
            }
#endif
            for (; d + LANES <= dim; d += LANES)
                store(to + d, (widened_integers(first + d) & 0xffff) | widened_integers(second + d) << 16);
            for (; d < dim; ++d) to[d] = uint16_t(first[d]) | uint32_t(uint16_t(second[d])) << 16;
            for (; d < width; ++d) to[d] = 0;
        }
    }
};
#endif
