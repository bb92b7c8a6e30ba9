// Which of two ways to multiply bfloat16 is the faster one here.
#pragma once

#include <chrono>

#include "multiply.h"

// Seconds of a product that waits for no memory.
template <class P>
double seconds_of_product() {
    constexpr int ROWS = 6, COLUMNS = 64, DEPTH = 64, TIMES = 16;
    alignas(64) static typename P::Row a[ROWS * DEPTH * P::PARTS] = {};
    alignas(64) static typename P::Packed b[DEPTH * COLUMNS] = {};
    alignas(64) static float c[ROWS * COLUMNS];
    const auto start = std::chrono::steady_clock::now();
    for (int time = 0; time < TIMES; ++time)
        multiply_vectors<P>(ROWS, COLUMNS, DEPTH, a, DEPTH * P::PARTS, b, COLUMNS, c, COLUMNS, false);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Pairs are twice the numbers, but a Xeon without AMX multiplies one vector of them in two cycles, and four of
// floats. The least of many trials is the processor's own time.
inline bool pairs_pay() {
#if defined(PAIRS_PAY)  // tests try both
    return PAIRS_PAY;
#elif defined(__AVX512BF16__)
    static const bool pay = [] {
        double pairs = 1e9, halves = 1e9;
        for (int trial = 0; trial < 15; ++trial) {
            pairs = std::min(pairs, seconds_of_product<Pairs>());
            halves = std::min(halves, seconds_of_product<Halves>());
        }
        return pairs < halves;
    }();
    return pay;
#else
    return false;
#endif
}
