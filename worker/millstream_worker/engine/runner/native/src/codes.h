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

// Least and largest number.
struct Extent {
    float least = INFINITY, largest = -INFINITY;

    template <class T>
    Extent(const T* numbers, int dim) {
        Vector low = broadcast(least), high = broadcast(largest);
        int d = 0;
        for (; d + LANES <= dim; d += LANES) {
            const Vector some = widened_numbers(numbers + d);
            low = some < low ? some : low;
            high = some > high ? some : high;
        }
        least = -::largest(-low);
        largest = ::largest(high);
        for (; d < dim; ++d) {
            const float number = widened(numbers[d]);
            least = std::min(least, number);
            largest = std::max(largest, number);
        }
    }
};

// kv_format.py's `quantize`, to the last bit.
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
    if (!std::isfinite(largest_size(numbers, dim))) {
        std::fill_n(codes, dim, int8_t(0));
        scales = NO_NUMBER | KeyScales(NO_NUMBER) << 16;
        return;
    }
    const Extent extent(numbers, dim);
    const uint32_t bits = narrowed((extent.least + extent.largest) * 0.5f);
    const float middle = widened(uint16_t(bits));
    const float half = std::max(extent.largest - middle, middle - extent.least);
    scales = put_codes(numbers, dim, middle, half, codes) | bits << 16;
}

template <class T>
inline void quantize(const T* numbers, int dim, int8_t* codes, ValueScale& scale) {
    const float size = largest_size(numbers, dim);
    scale = std::isfinite(size) ? put_codes(numbers, dim, 0, size, codes) : NO_NUMBER;
    if (scale == NO_NUMBER) std::fill_n(codes, dim, int8_t(0));
}
