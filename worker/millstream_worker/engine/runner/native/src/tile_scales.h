// Where the keys and values of a tile are, and what their codes are multiples of.
#pragma once

#include "codes.h"
#include "packing.h"
#include "scratch.h"

// As they are computed, or as codes.
template <class T>
struct Addresses {
    const T *keys[KEYS], *values[KEYS];
};

template <>
struct Addresses<int8_t> {
    const int8_t *keys[KEYS], *values[KEYS];
    const KeyScales* key_scales[KEYS];
    const ValueScale* value_scales[KEYS];
};

// Of 64 keys and values, one behind the other.
struct TileScales {
    alignas(LINE) float keys[KEYS], middles[KEYS], values[KEYS];
    alignas(LINE) float logarithms[KEYS], inverses[KEYS];  // of values' scales

    void take(const Addresses<int8_t>& from, int count) {
        alignas(LINE) KeyScales pairs[KEYS];
        alignas(LINE) ValueScale singles[KEYS];
        for (int k = 0; k < count; ++k) {
            pairs[k] = *from.key_scales[k];
            singles[k] = *from.value_scales[k];
        }
        for (int k = 0; k < count; k += LANES) {
            const auto some = load<IntVector>(pairs + k);
            store(keys + k, scale_of(some));
            store(middles + k, middle_of(some));
            store(values + k, widened_numbers(singles + k));
        }
    }

    // Of codes that are all 0, any scale will do.
    void take_logarithms(int count) {
        for (int k = 0; k < count; k += LANES) {
            const auto scale = load<Vector>(values + k);
            const Vector some = scale == 0.0f ? broadcast(1) : scale;
            store(logarithms + k, logarithm_of_two(some));
            store(inverses + k, 1.0f / some);
        }
    }
};
