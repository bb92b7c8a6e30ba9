// Rows of floats as whole numbers: codes of 8 bits with one scale for 32 of them, and what products need of their
// sums.
#pragma once

#include "scratch.h"
#include "whole_numbers.h"

#if defined(WHOLE_NUMBERS)

inline int parts_of(int64_t size, int most) { return int((size + most - 1) / most); }

inline float wide(float value) { return value; }
inline float wide(uint16_t value) { return widened(value); }
inline void narrow(float value, float& to) { to = value; }
inline void narrow(float value, uint16_t& to) { to = narrowed(value); }

struct Rows {
    static constexpr int GROUP = 32;  // inputs that share a scale
    static constexpr int HALF = 16;   // inputs whose codes are summed
    int groups;
    int per;    // sums of a group: 1, or one for each half
    int zero;   // which code of a weight stands for 0, or for the offset
    int8_t* codes;    // [rows][groups][GROUP]
    float* scales;    // [rows][groups]
    float* totals;    // [rows][groups] sums of codes, times their scale
    int32_t* shifts;  // [rows][groups][per] sums of codes, times -zero

    void take(Scratch& scratch, int count) {
        const int all = count * groups;
        scratch.reserve(Scratch::bytes<int8_t>(all * GROUP) + 2 * Scratch::bytes<float>(all) +
                        Scratch::bytes<int32_t>(per * all));
        codes = scratch.take<int8_t>(all * GROUP);
        scales = scratch.take<float>(all);
        totals = scratch.take<float>(all);
        shifts = scratch.take<int32_t>(per * all);
    }

    template <class Stored>
    void quantise(int64_t row, const Stored* from, int in) const {
        alignas(64) float numbers[GROUP] = {};
        int g = 0;
        for (; g < in / GROUP; ++g) {
            for (int k = 0; k < GROUP; ++k) numbers[k] = wide(from[g * GROUP + k]);
            quantise(row * groups + g, numbers);
        }
        if (g == groups) return;
        const int some = in - g * GROUP;
        for (int k = 0; k < GROUP; ++k) numbers[k] = k < some ? wide(from[g * GROUP + k]) : 0.0f;
        quantise(row * groups + g, numbers);
    }

    // Sizes are compared by their bits: what is infinite is larger than all numbers, and what is none larger still.
    void quantise(int64_t group, const float* numbers) const {
        Ints sizes = {};
        for (int k = 0; k < GROUP; k += WIDE) {
            const Ints size = load<Ints>(numbers + k) & 0x7fffffff;
            sizes = size > sizes ? size : sizes;
        }
        const int32_t largest_size = largest(sizes);
        const float most = load<float>(&largest_size);
        const float inverse = most > 0 ? 127.0f / most : 0.0f;
        Ints sums[GROUP / HALF] = {};
        for (int k = 0; k < GROUP; k += WIDE) {
            const Ints whole = nearest(load<Floats>(numbers + k) * inverse);
            store(codes + group * GROUP + k, __builtin_convertvector(whole, Codes));
            sums[k / HALF] += whole;
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
