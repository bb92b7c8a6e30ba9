// Rows of floats as whole numbers: codes of 8 bits with one scale for 32 of them, and what products need of their
// sums.
#pragma once

#include "scratch.h"
#include "whole_tiles.h"

#if defined(WHOLE_NUMBERS)

inline int parts_of(int64_t size, int most) { return int((size + most - 1) / most); }

inline float wide(float value) { return value; }
inline float wide(uint16_t value) { return widened(value); }
inline void narrow(float value, float& to) { to = value; }
inline void narrow(float value, uint16_t& to) { to = narrowed(value); }

// The same of vectors.
typedef uint16_t Shorts __attribute__((vector_size(WIDE * 2)));
inline Floats wide_vector(const float* from) { return load<Floats>(from); }
inline Floats wide_vector(const uint16_t* from) {
    return (Floats)(__builtin_convertvector(load<Shorts>(from), Ints) << 16);
}
inline void narrow(Floats values, float* to) { store(to, values); }
inline void narrow(Floats values, uint16_t* to) {
    const Ints bits = (Ints)values, rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    store(to, __builtin_convertvector(values == values ? rounded : repeated(0x7fc0), Shorts));
}

struct Rows {
    static constexpr int GROUP = 32;  // inputs that share a scale
    static constexpr int HALF = 16;   // inputs whose codes are summed
    int groups;
    int per;   // sums of a group: 1, or one for each half
    int zero;  // which code of a weight stands for 0, or for the offset
    bool tiled;  // numbers of a tile's rows lie side by side, else those of a row
    int8_t* codes;    // [rows / side][groups][side][GROUP]
    float* scales;    // [rows / side][groups][side]
    float* totals;    // the same: sums of codes, times their scale
    int32_t* shifts;  // [rows / side][groups][side][per] sums of codes, times -zero

    // The place of a row's group, and how far from it that of the next row is, of the same tile.
    int64_t at(int64_t row, int64_t group) const { return (row / side() * groups + group) * side() + row % side(); }
    int64_t apart() const { return side() > 1 ? 1 : groups; }
    int side() const { return TILE_ROWS > 1 && tiled ? TILE_ROWS : 1; }

    // For so many rows, and those that are missing of a tile.
    void take(Scratch& scratch, int count) {
        tiled = tiles_pay(count);
        const int all = rounded_up(count, side()) * groups;
        scratch.reserve(Scratch::bytes<int8_t>(all * GROUP) + 2 * Scratch::bytes<float>(all) +
                        Scratch::bytes<int32_t>(per * all));
        codes = scratch.take<int8_t>(all * GROUP);
        scales = scratch.take<float>(all);
        totals = scratch.take<float>(all);
        shifts = scratch.take<int32_t>(per * all);
    }

    // The rows behind `count` that are missing of a tile: they are scaled, and nobody looks at their sums.
    void clear_missing(int count) const {
        for (int row = count; row < rounded_up(count, side()); ++row)
            for (int g = 0; g < groups; ++g) scales[at(row, g)] = totals[at(row, g)] = 0;
    }

    template <class Stored>
    void quantise(int64_t row, const Stored* from, int in) const {
        int64_t group = at(row, 0);
        for (; in >= GROUP; in -= GROUP, from += GROUP, group += side()) quantise(group, from);
        if (in == 0) return;
        Stored rest[GROUP] = {};
        std::copy_n(from, in, rest);
        quantise(group, rest);
    }

    // Sizes are compared by their bits: what is infinite is larger than all numbers, and what is none larger still.
    template <class Stored>
    void quantise(int64_t group, const Stored* from) const {
        constexpr int VECTORS = GROUP / WIDE;
        Floats numbers[VECTORS];
        Ints sizes = {};
        for (int v = 0; v < VECTORS; ++v) {
            numbers[v] = wide_vector(from + v * WIDE);
            const Ints size = (Ints)numbers[v] & 0x7fffffff;
            sizes = size > sizes ? size : sizes;
        }
        const int32_t largest_size = largest(sizes);
        const float most = load<float>(&largest_size);
        const float inverse = most > 0 ? 127.0f / most : 0.0f;
        Ints sums[GROUP / HALF] = {};
        for (int v = 0; v < VECTORS; ++v) {
            const Ints whole = nearest(numbers[v] * inverse);
            store(codes + group * GROUP + v * WIDE, __builtin_convertvector(whole, Codes));
            sums[v * WIDE / HALF] += whole;
        }
        const int32_t total = sum(sums[0] + sums[1]);
        for (int n = 0; n < per; ++n) shifts[group * per + n] = -zero * (per == 1 ? total : sum(sums[n]));
        scales[group] = most / 127.0f + most * 0.0f;  // no number, if one of the row's is none or infinite
        totals[group] = scales[group] * float(total);
    }

private:
    typedef int8_t Codes __attribute__((vector_size(WIDE)));
};
#endif
