// Vectors of floats as wide as the machine's registers, in the compiler's own vector types: one source for
// AVX-512, AVX2, NEON and anything else.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif

typedef float Vector __attribute__((vector_size(LANES * 4)));
typedef int32_t IntVector __attribute__((vector_size(LANES * 4)));

template <class V>
inline V load(const void* from) {
    V vector;
    std::memcpy(&vector, from, sizeof vector);
    return vector;
}

template <class V>
inline void store(void* to, V vector) {
    std::memcpy(to, &vector, sizeof vector);
}

// Nothing is computed: x - 0 is x for every x, which x + 0 is not.
inline Vector broadcast(float value) { return value - Vector{}; }

// a * b + c, rounded once wherever the machine can: left to compilers, some sums are fused and others not.
inline Vector fused(Vector a, Vector b, Vector c) {
#if defined(__AVX512F__)
    return (Vector)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    return (Vector)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

// Of pairs of bfloat16, as floats: the first of each, or the second.
inline Vector widened_half(IntVector pairs, int second) {
    return (Vector)(second ? pairs & int32_t(0xffff0000) : pairs << 16);
}

// GCC 12 converts narrow vectors one number at a time.
inline IntVector widened_integers(const int8_t* from) {
#if defined(__AVX512F__)
    return (IntVector)_mm512_cvtepi8_epi32(load<__m128i>(from));
#elif defined(__AVX2__)
    return (IntVector)_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
#else
    typedef int8_t Bytes __attribute__((vector_size(LANES)));
    return __builtin_convertvector(load<Bytes>(from), IntVector);
#endif
}

inline IntVector widened_integers(const uint16_t* from) {
#if defined(__AVX512F__)
    return (IntVector)_mm512_cvtepu16_epi32(load<__m256i>(from));
#elif defined(__AVX2__)
    return (IntVector)_mm256_cvtepu16_epi32(load<__m128i>(from));
#else
    typedef uint16_t Halves __attribute__((vector_size(LANES * 2)));
    return __builtin_convertvector(load<Halves>(from), IntVector);
#endif
}

inline IntVector truncated(Vector x) { return __builtin_convertvector(x, IntVector); }
inline Vector floats_of(IntVector whole) { return __builtin_convertvector(whole, Vector); }

inline Vector widened_codes(const int8_t* codes) {
    return floats_of(widened_integers(codes));
}

// Of words of four codes, as floats.
inline Vector widened_code(IntVector words, int which) {
    return floats_of(words << (24 - 8 * which) >> 24);
}


// Ties to even.
inline IntVector nearest_integers(Vector x) {
#if defined(__AVX512F__)
    return (IntVector)_mm512_cvtps_epi32((__m512)x);
#elif defined(__AVX__)
    return (IntVector)_mm256_cvtps_epi32((__m256)x);
#else
    IntVector whole;
    for (int lane = 0; lane < LANES; ++lane) whole[lane] = int32_t(std::rint(x[lane]));
    return whole;
#endif
}

// Of numbers that fit into 8 bits.
inline void store_bytes(int8_t* to, IntVector numbers) {
#if defined(__AVX512F__)
    store(to, _mm512_cvtepi32_epi8((__m512i)numbers));
#else
    for (int lane = 0; lane < LANES; ++lane) to[lane] = int8_t(numbers[lane]);
#endif
}

#if defined(__AVX2__)
// Of numbers that fit into 16 bits.
inline void store_shorts(void* to, IntVector numbers) {
#if defined(__AVX512F__)
    store(to, _mm512_cvtepi32_epi16((__m512i)numbers));
#else
    const auto whole = (__m256i)numbers;
    store(to, _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1)));
#endif
}
#endif

// Pairs of bfloat16 from floats that are such.
inline IntVector paired(Vector first, Vector second) {
    typedef uint32_t Bits __attribute__((vector_size(LANES * 4)));
    return IntVector((Bits)first >> 16) | (IntVector)second;
}

inline IntVector counting() {
    IntVector vector;
    for (int lane = 0; lane < LANES; ++lane) vector[lane] = lane;
    return vector;
}

#if defined(__AVX512F__)
inline float largest(Vector vector) { return _mm512_reduce_max_ps((__m512)vector); }
inline int32_t largest(IntVector vector) { return _mm512_reduce_max_epi32((__m512i)vector); }
inline float sum(Vector vector) { return _mm512_reduce_add_ps((__m512)vector); }
#else
template <class V>
inline auto largest(V vector) {
    auto most = vector[0];
    for (int lane = 1; lane < LANES; ++lane) most = vector[lane] > most ? vector[lane] : most;
    return most;
}

inline float sum(Vector vector) {
    float total = vector[0];
    for (int lane = 1; lane < LANES; ++lane) total += vector[lane];
    return total;
}
#endif

constexpr float LOG2_E = 1.44269504088896341f;

// 2^x to about two units in the last place for x < 127, or to 1e-4; 0 below -126; what is no number stays so.
template <bool Coarse = false>
inline Vector power_of_two(Vector x) {
    constexpr float shift = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer in the low bits
    const Vector shifted = x + shift;
    const Vector rest = x - (shifted - shift);
    Vector series;
    if constexpr (Coarse) {
        series = rest * 5.517167e-2f + 2.4261112e-1f;
        series = series * rest + 6.9326099e-1f;
        series = series * rest + 9.9992807e-1f;
    } else {
        series = rest * 1.535336188319500e-4f + 1.339887440266574e-3f;  // Cephes' exp2f
        series = series * rest + 9.618437357674640e-3f;
        series = series * rest + 5.550332471162809e-2f;
        series = series * rest + 2.402264791363012e-1f;
        series = series * rest + 6.931472028550421e-1f;
        series = series * rest + 1.0f;
    }
    const IntVector power = ((IntVector)shifted << 23) + 0x3f800000;
    return x < -126.0f ? Vector{} : series * (Vector)power;
}

// Of normal numbers above 0, to 2e-6.
inline Vector logarithm_of_two(Vector x) {
    constexpr float ROOT = 1.41421356f, FIRST = 2 * LOG2_E;
    const Vector number = (Vector)(((IntVector)x & 0x7fffff) | 0x3f800000);
    const Vector power = floats_of(((IntVector)x >> 23) - 127);
    const Vector ratio = (number - ROOT) / (number + ROOT), square = ratio * ratio;
    return ((square * (FIRST / 5) + FIRST / 3) * square + FIRST) * ratio + (power + 0.5f);
}

// cap * tanh(x / cap)
inline Vector capped(Vector x, float cap) {
    Vector twice = x * (2.0f * LOG2_E / cap);
    twice = twice > 126.0f ? broadcast(126.0f) : twice;
    return cap - 2.0f * cap / (power_of_two(twice) + 1.0f);
}

inline float of_bits(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

inline float widened(uint16_t bfloat16) { return of_bits(uint32_t(bfloat16) << 16); }

inline float widened(float value) { return value; }

inline Vector widened_numbers(const float* from) { return load<Vector>(from); }

inline Vector widened_numbers(const uint16_t* from) {
    return (Vector)(widened_integers(from) << 16);
}

// The magnitude of the largest number; no finite one if one is not: as bits it is larger than those that are.
inline float largest_size(const float* numbers, int dim) {
    IntVector sizes{};
    int d = 0, most = 0;
    for (; d + LANES <= dim; d += LANES) {
        const IntVector some = load<IntVector>(numbers + d) & 0x7fffffff;
        sizes = some > sizes ? some : sizes;
    }
    for (; d < dim; ++d) {
        int32_t bits;
        std::memcpy(&bits, numbers + d, sizeof bits);
        most = std::max(most, bits & 0x7fffffff);
    }
    return of_bits(std::max(most, largest(sizes)));
}

inline float largest_size(const uint16_t* numbers, int dim) {
    typedef int16_t Shorts __attribute__((vector_size(LANES * 4)));
    Shorts sizes{};
    int d = 0, most = 0;
    for (; d + 2 * LANES <= dim; d += 2 * LANES) {
        const Shorts some = load<Shorts>(numbers + d) & int16_t(0x7fff);
        sizes = some > sizes ? some : sizes;
    }
    for (; d < dim; ++d) most = std::max(most, numbers[d] & 0x7fff);
    const IntVector even = (IntVector)sizes & 0xffff, odd = (IntVector)sizes >> 16;
    return of_bits(uint32_t(std::max(most, largest(even > odd ? even : odd))) << 16);
}

// To the next bfloat16 that is not less.
inline uint16_t rounded_up(float positive) {
    uint32_t bits;
    std::memcpy(&bits, &positive, sizeof bits);
    return uint16_t((bits + 0xffff) >> 16);
}

// To the nearest bfloat16, ties to even.
inline uint16_t narrowed(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return value == value ? uint16_t(rounded) : uint16_t(0x7fc0);
}

// The first `count` of some numbers, as floats; the others are 0.
template <class T>
inline Vector load_some(const T* from, int count) {
    if (count >= LANES) return widened_numbers(from);
    Vector some{};
    for (int lane = 0; lane < count; ++lane) some[lane] = widened(from[lane]);
    return some;
}

inline void store_some(float* to, Vector numbers, int count) {
    if (count >= LANES)
        store(to, numbers);
    else
        for (int lane = 0; lane < count; ++lane) to[lane] = numbers[lane];
}

inline void store_some(uint16_t* to, Vector numbers, int count) {
#if defined(__AVX2__)
    if (count >= LANES) {
        const IntVector bits = (IntVector)numbers, rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
        store_shorts(to, numbers == numbers ? rounded : IntVector{} + 0x7fc0);
        return;
    }
#endif
    for (int lane = 0; lane < std::min(count, LANES); ++lane) to[lane] = narrowed(numbers[lane]);
}
