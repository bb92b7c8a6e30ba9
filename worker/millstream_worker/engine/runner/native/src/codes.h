// Keys and values as codes of 8 bits: number = code * scale + middle, of a token and head.
#pragma once

#include <algorithm>

#include "vectors.h"

// Scale and middle, a pair of bfloat16.
using Scales = uint32_t;

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

// kv_format.py's `quantize`, to the last bit.
template <class T>
inline Scales quantize(const T* numbers, int dim, int8_t* codes) {
    constexpr float MOST = 127, LEAST_HALF = 1e-30f;
    const Extent extent(numbers, dim);
    if (extent.finite != 0) {  // what is no number
        std::fill_n(codes, dim, int8_t(0));
        return 0x7fc07fc0;
    }
    const uint32_t bits = narrowed((extent.least + extent.largest) * 0.5f);
    const float middle = widened(uint16_t(bits));
    const float half = std::max(extent.largest - middle, middle - extent.least);
    const uint16_t up = half > LEAST_HALF ? rounded_up(half * (1 / MOST)) : 0;
    const float inverse = up ? 1 / widened(up) : 0;
    for (int d = 0; d < dim; ++d) codes[d] = int8_t(std::rint((widened(numbers[d]) - middle) * inverse));
    return up | bits << 16;
}
