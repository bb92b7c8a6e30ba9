// Masks of tokens: a bit for each, the lowest first.
#pragma once

#include <algorithm>
#include <cstdint>

constexpr int64_t WORD = 32;

// Without a branch, which mixed words would mislead; for a word known to be whole, compilers use vectors.
template <class Whole>
inline void mask_word(Whole* row, int64_t size, uint32_t allowed, Whole minus_infinity) {
    for (int n = 0; n < size; ++n) row[n] = allowed >> n & 1 ? row[n] : minus_infinity;
}

// Numbers whose bit is 0 become minus infinity.
template <class Whole>
inline void mask_row(Whole* row, int64_t size, const uint32_t* bits, Whole minus_infinity) {
    for (; size >= WORD; row += WORD, size -= WORD, ++bits) {
        if (*bits == 0)
            std::fill_n(row, WORD, minus_infinity);
        else if (*bits != ~uint32_t(0))
            mask_word(row, WORD, *bits, minus_infinity);
    }
    if (size) mask_word(row, size, *bits, minus_infinity);
}
