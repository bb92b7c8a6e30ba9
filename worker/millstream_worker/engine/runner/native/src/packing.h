// How the operands of  C[M, N] += A[M, K] · B[K, N]  lie in memory, and how they are multiplied: a type for each
// way. Elements have 32 bits: a float, or a pair of bfloat16. Attention's two products are packed here, too.
#pragma once

#include <algorithm>

#include "vectors.h"

constexpr int GROUP = 16;  // keys that are turned at a time
constexpr int KEYS = 64;   // of a tile

inline int rounded_up(int size, int unit) { return (size + unit - 1) / unit * unit; }

#if defined(__AVX__) && !defined(__AVX512F__)
// Elements [start, start + 8) of 8 rows. Halves are put together as they are loaded, which takes no shuffle.
inline void turn_eight(const float* const* rows, int start, uint32_t* to) {
    for (int e = 0; e < 8; e += 4, to += 4 * KEYS) {
        __m256 a[4], b[4];
        for (int r = 0; r < 4; ++r)
            a[r] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(rows[r] + start + e)),
                                        _mm_loadu_ps(rows[r + 4] + start + e), 1);
        for (int r = 0; r < 4; r += 2) {
            b[r] = _mm256_unpacklo_ps(a[r], a[r + 1]);
            b[r + 1] = _mm256_unpackhi_ps(a[r], a[r + 1]);
        }
        for (int half = 0; half < 2; ++half) {
            store(to + 2 * half * KEYS, _mm256_unpacklo_pd((__m256d)b[half], (__m256d)b[half + 2]));
            store(to + (2 * half + 1) * KEYS, _mm256_unpackhi_pd((__m256d)b[half], (__m256d)b[half + 2]));
        }
    }
}
#endif

// `count` elements of 32 bits of each of 16 rows, so that element e of all rows is to[e * KEYS ... + 16).
inline void turn(const void* const* rows, int count, void* to) {
    auto* out = static_cast<uint32_t*>(to);
    int done = 0;
#if defined(__AVX512F__)
    for (; done < count; done += 16) {
        const auto some = __mmask16(count - done >= 16 ? 0xffff : (1 << (count - done)) - 1);
        __m512i a[16], b[16];
        for (int r = 0; r < 16; ++r)
            a[r] = _mm512_maskz_loadu_epi32(some, static_cast<const uint32_t*>(rows[r]) + done);
        for (int r = 0; r < 16; r += 2) {
            b[r] = _mm512_unpacklo_epi32(a[r], a[r + 1]);
            b[r + 1] = _mm512_unpackhi_epi32(a[r], a[r + 1]);
        }
        for (int r = 0; r < 16; r += 4) {
            a[r] = _mm512_unpacklo_epi64(b[r], b[r + 2]);
            a[r + 1] = _mm512_unpackhi_epi64(b[r], b[r + 2]);
            a[r + 2] = _mm512_unpacklo_epi64(b[r + 1], b[r + 3]);
            a[r + 3] = _mm512_unpackhi_epi64(b[r + 1], b[r + 3]);
        }
        for (int e = 0; e < 4; ++e) {  // a[4 i + e] holds elements e, e + 4, e + 8, e + 12 of rows 4 i ...
            const auto low = _mm512_shuffle_i32x4(a[e], a[4 + e], 0x88);
            const auto high = _mm512_shuffle_i32x4(a[8 + e], a[12 + e], 0x88);
            const auto low_odd = _mm512_shuffle_i32x4(a[e], a[4 + e], 0xdd);
            const auto high_odd = _mm512_shuffle_i32x4(a[8 + e], a[12 + e], 0xdd);
            b[e] = _mm512_shuffle_i32x4(low, high, 0x88);
            b[e + 4] = _mm512_shuffle_i32x4(low_odd, high_odd, 0x88);
            b[e + 8] = _mm512_shuffle_i32x4(low, high, 0xdd);
            b[e + 12] = _mm512_shuffle_i32x4(low_odd, high_odd, 0xdd);
        }
        for (int e = 0; e < 16 && done + e < count; ++e) store(out + (done + e) * KEYS, b[e]);
    }
#elif defined(__AVX__)
    for (; done + 8 <= count; done += 8)
        for (int r = 0; r < GROUP; r += 8)
            turn_eight(reinterpret_cast<const float* const*>(rows + r), done, out + done * KEYS + r);
#endif
    for (; done < count; ++done)
        for (int r = 0; r < GROUP; ++r)
            std::memcpy(out + done * KEYS + r, static_cast<const uint32_t*>(rows[r]) + done, 4);
}

// Codes of 8 bits of 16 rows, four of each at a time: `use(e, words)` gets codes 4 e ... 4 e + 3, zeros behind
// the last, as 16 words.
template <class F>
inline void turn_codes(const int8_t* const* rows, int dim, F use) {
    alignas(64) uint32_t words[GROUP * KEYS];
    for (int start = 0; start < dim; start += 4 * GROUP) {
        const int some = std::min(4 * GROUP, dim - start), whole = some / 4;
        const void* from[GROUP];
        for (int r = 0; r < GROUP; ++r) from[r] = rows[r] + start;
        turn(from, whole, words);
        for (int e = 0; e < whole; ++e) use(start / 4 + e, words + e * KEYS);
        if (some % 4 == 0) continue;
        for (int r = 0; r < GROUP; ++r) {
            words[r] = 0;
            std::memcpy(words + r, rows[r] + start + whole * 4, some % 4);
        }
        use(start / 4 + whole, words);
    }
}

// How operands are stored, packed and multiplied: an element of B is `PER` numbers of a column, and takes
// `PARTS` elements of A.
struct Float32 {
    using Stored = float;
    using Row = float;     // an element of A
    using Packed = float;  // of B
    static constexpr int PER = 1;
    static constexpr int PARTS = 1;
    static constexpr bool AS_STORED = true;
    static constexpr bool WHOLE = false;
    using Add = bool;  // whether products are added to what is there

    static Vector repeated(float element) { return broadcast(element); }
    static Vector column(const float* elements, int) { return load<Vector>(elements); }
    static Vector add_product(Vector sums, Vector a, Vector b) { return fused(a, b, sums); }

    static void pack_query(const float* row, int dim, float* to) { std::memcpy(to, row, dim * sizeof *row); }

    static void pack_keys(const float* const* rows, int dim, float* to) {
        turn(reinterpret_cast<const void* const*>(rows), dim, to);
    }

    static void pack_values(const float* const* rows, int count, int dim, int width, float* to) {
        for (int k = 0; k < count; ++k, to += width) {
            std::memcpy(to, rows[k], dim * sizeof *to);
            std::fill(to + dim, to + width, 0.0f);
        }
    }

    static void pack_keys(const int8_t* const* rows, int dim, float* to) {
        turn_codes(rows, dim, [&](int e, const uint32_t* words) {
            for (int d = 4 * e; d < std::min(4 * e + 4, dim); ++d)
                for (int k = 0; k < GROUP; k += LANES)
                    store(to + d * KEYS + k, widened_code(load<IntVector>(words + k), d % 4));
        });
    }

    static void pack_values(const int8_t* const* rows, int count, int dim, int width, float* to) {
        for (int k = 0; k < count; ++k, to += width) {
            int d = 0;
            for (; d + LANES <= dim; d += LANES) store(to + d, widened_codes(rows[k] + d));
            for (; d < dim; ++d) to[d] = rows[k][d];
            std::fill(to + dim, to + width, 0.0f);
        }
    }

    static const float* pack_floats(const float* weights, int, float*) { return weights; }
};

#if defined(__AVX512BW__)
struct Interleaved {
    alignas(64) uint16_t index[64];

    constexpr Interleaved() : index() {
        for (int n = 0; n < 64; ++n) index[n] = n / 2 + n % 2 * 32;
    }
};
constexpr Interleaved INTERLEAVED;
#endif

// Elements of B are pairs of bfloat16.
struct BFloat16 {
    using Stored = uint16_t;
    using Packed = uint32_t;
    static constexpr int PER = 2;
    static constexpr bool AS_STORED = false;
    static constexpr bool WHOLE = false;
    using Add = bool;

    static void pack_keys(const uint16_t* const* rows, int dim, uint32_t* to) {
        turn(reinterpret_cast<const void* const*>(rows), dim / 2, to);
        if (dim % 2)
            for (int k = 0; k < GROUP; ++k) to[dim / 2 * KEYS + k] = rows[k][dim - 1];
    }

    static void pack_values(const uint16_t* const* rows, int count, int dim, int width, uint32_t* to) {
        for (int k = 0; k < count; k += 2, to += width) {
            const uint16_t *first = rows[k], *second = rows[k + 1];
            int d = 0;
#if defined(__AVX512BW__)
            for (; d + 32 <= dim; d += 32) {
                const auto a = load<__m512i>(first + d), b = load<__m512i>(second + d);
                store(to + d, _mm512_permutex2var_epi16(a, load<__m512i>(INTERLEAVED.index), b));
                store(to + d + 16, _mm512_permutex2var_epi16(a, load<__m512i>(INTERLEAVED.index + 32), b));
            }
#endif
            for (; d < dim; ++d) to[d] = first[d] | uint32_t(second[d]) << 16;
            for (; d < width; ++d) to[d] = 0;
        }
    }

    // Whole numbers of 8 bits are exact.
    static void pack_keys(const int8_t* const* rows, int dim, uint32_t* to) {
        turn_codes(rows, dim, [&](int e, const uint32_t* words) {
            for (int pair = 2 * e; pair < std::min(2 * e + 2, (dim + 1) / 2); ++pair)
                for (int k = 0; k < GROUP; k += LANES) {
                    const auto codes = load<IntVector>(words + k);
                    const int which = pair % 2 * 2;
                    store(to + pair * KEYS + k,
                          paired(widened_code(codes, which), widened_code(codes, which + 1)));
                }
        });
    }

    static void pack_values(const int8_t* const* rows, int count, int dim, int width, uint32_t* to) {
        for (int k = 0; k < count; k += 2, to += width) {
            const int8_t *first = rows[k], *second = rows[k + 1];
            int d = 0;
            for (; d + LANES <= dim; d += LANES)
                store(to + d, paired(widened_codes(first + d), widened_codes(second + d)));
            for (; d < dim; ++d) to[d] = narrowed(first[d]) | uint32_t(narrowed(second[d])) << 16;
            for (; d < width; ++d) to[d] = 0;
        }
    }
};

// Pairs are widened on their way into registers, and multiplied with floats.
struct Halves : BFloat16 {
    using Row = float;
    static constexpr int PARTS = 2;

    static Vector repeated(float element) { return broadcast(element); }
    static Vector column(const uint32_t* pairs, int part) { return widened_half(load<IntVector>(pairs), part); }
    static Vector add_product(Vector sums, Vector a, Vector b) { return fused(a, b, sums); }

    static void pack_query(const uint16_t* row, int dim, float* to) {
        for (int d = 0; d < dim; ++d) to[d] = widened(row[d]);
        if (dim % 2) to[dim] = 0;  // the second of the last pair
    }

    static const float* pack_floats(const float* weights, int, float*) { return weights; }
};

#if defined(__AVX512BF16__)
// One instruction multiplies pairs and adds them up in float32.
struct Pairs : BFloat16 {
    using Row = uint32_t;
    static constexpr int PARTS = 1;

    static Vector repeated(uint32_t element) { return (Vector)_mm512_set1_epi32(int(element)); }
    static Vector column(const uint32_t* pairs, int) { return load<Vector>(pairs); }
    static Vector add_product(Vector sums, Vector a, Vector b) {
        return (Vector)_mm512_dpbf16_ps((__m512)sums, (__m512bh)a, (__m512bh)b);
    }

    static void pack_query(const uint16_t* row, int dim, uint32_t* to) {
        to[(dim - 1) / 2] = 0;  // the second of the last pair
        std::memcpy(to, row, dim * sizeof *row);
    }

    static const uint32_t* pack_floats(const float* weights, int count, uint32_t* to) {
        auto* halves = reinterpret_cast<uint16_t*>(to);
        for (int k = 0; k < count; k += LANES)
            store(halves + k, _mm512_cvtneps_pbh((__m512)load<Vector>(weights + k)));
        return to;
    }
};
#endif
