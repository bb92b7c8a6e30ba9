// Keys and values as codes of 8 bits, of a token and head. Keys: number = code * scale + middle. Values: number =
// code * scale.
#pragma once

#include <algorithm>

#include "vectors.h"

// Scale and middle, a pair of bfloat16.
using KeyScales = uint32_t;
using ValueScale = uint16_t;  // bfloat16

inline Vector scale_of(IntVector pairs) { return widened_half(pairs, 0); }
inline Vector middle_of(IntVector pairs) { return widened_half(pairs, 1); }

// Least and largest number, and 0, or what is no number if one of them is not finite.
struct Extent {
    float least = INFINITY, largest = -INFINITY, finite = 0;

    template <class T>
    Extent(const T* numbers, int dim) {
        Vector low = broadcast(least), high = broadcast(largest), rest = Vector{};
        int d = 0;
        for (; d + LANES <= dim; d += LANES) {
            const Vector some = widened_numbers(numbers + d);
            low = some < low ? some : low;
            high = some > high ? some : high;
            rest += some * 0.0f;
        }
        least = -::largest(-low);
        largest = ::largest(high);
        finite = sum(rest);
        for (; d < dim; ++d) {
            const float number = widened(numbers[d]);
            least = std::min(least, number);
            largest = std::max(largest, number);
            finite += number * 0.0f;
        }
    }
};

// kv_format.py's `quantize_keys` and `quantize_values`, to the last bit.
constexpr float MOST_CODE = 127, LEAST_HALF = 1e-18f;  // kv_format.py's MOST and LEAST_HALF
constexpr uint16_t NO_NUMBER = 0x7fc0;

// Codes of numbers from -half to half around the middle; returns their scale.
template <class T>
inline uint16_t put_codes(const T* numbers, int dim, float middle, float half, int8_t* codes) {
    const uint16_t up = half > LEAST_HALF ? rounded_up(half * (1 / MOST_CODE)) : 0;
    const float inverse = up ? 1 / widened(up) : 0;
    int d = 0;
    for (; d + LANES <= dim; d += LANES)
        store_bytes(codes + d, nearest_integers((widened_numbers(numbers + d) - middle) * inverse));
    for (; d < dim; ++d) codes[d] = int8_t(std::rint((widened(numbers[d]) - middle) * inverse));
    return up;
}

template <class T>
inline void quantize(const T* numbers, int dim, int8_t* codes, KeyScales& scales) {
    const Extent extent(numbers, dim);
    if (extent.finite != 0) {  // what is no number
        std::fill_n(codes, dim, int8_t(0));
        scales = NO_NUMBER | KeyScales(NO_NUMBER) << 16;
        return;
    }
    const uint32_t bits = narrowed((extent.least + extent.largest) * 0.5f);
    const float middle = widened(uint16_t(bits));
    const float half = std::max(extent.largest - middle, middle - extent.least);
    scales = put_codes(numbers, dim, middle, half, codes) | bits << 16;
}

template <class T>
inline void quantize(const T* numbers, int dim, int8_t* codes, ValueScale& scale) {
    const Extent extent(numbers, dim);
    if (extent.finite != 0) {
        std::fill_n(codes, dim, int8_t(0));
        scale = NO_NUMBER;
        return;
    }
    scale = put_codes(numbers, dim, 0, std::max(extent.largest, -extent.least), codes);
}
