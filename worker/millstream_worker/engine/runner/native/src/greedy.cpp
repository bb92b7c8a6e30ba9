// The most likely token of each row of logits: the first of the highest numbers.
#include <algorithm>
#include <cstdint>
#include <limits>

namespace {

constexpr int64_t CHUNK = 4096;  // numbers after which is known that the highest is among them

// The bits of a floating number, as a whole number that orders as it does. -0 comes before 0.
template <class Whole>
inline Whole ordered(Whole bits) {
    return Whole(bits ^ (Whole(bits >> (8 * sizeof bits - 1)) & std::numeric_limits<Whole>::max()));
}

// Its place. `infinity`: its bits. Broken is a row with a NaN or with infinity, or of nothing but minus infinity.
template <class Whole>
int64_t first_of_highest(const Whole* row, int64_t size, Whole infinity, bool& broken) {
    const Whole minus_infinity = ordered(Whole(infinity | std::numeric_limits<Whole>::min()));
    Whole highest = std::numeric_limits<Whole>::min(), lowest = std::numeric_limits<Whole>::max();
    int64_t place = 0;
    for (int64_t begin = 0; begin < size; begin += CHUNK) {
        const int64_t end = std::min(begin + CHUNK, size);
        Whole top = highest;
        for (int64_t n = begin; n < end; ++n) {
            const Whole number = ordered(row[n]);
            top = std::max(top, number);
            lowest = std::min(lowest, number);
        }
        if (top > highest) highest = top, place = begin;
    }
    broken = highest >= infinity || highest == minus_infinity || lowest < minus_infinity;
    if (broken) return 0;
    if (highest == 0) highest = -1, place = 0;  // a zero of the other sign, which is equal, may come before it
    while (ordered(row[place]) < highest) ++place;
    return place;
}

template <class Whole>
void choose(const Whole* logits, Whole infinity, int64_t count, int64_t size, int64_t stride, int64_t* tokens,
            bool* broken, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t row = 0; row < count; ++row)
        tokens[row] = first_of_highest(logits + row * stride, size, infinity, broken[row]);
}

}  // namespace

// logits [count, size], the rows `stride` numbers apart; answers tokens and broken, [count] each. The token of a
// broken row is 0.
extern "C" void most_likely_bfloat16(const int16_t* logits, int64_t count, int64_t size, int64_t stride,
                                     int64_t* tokens, bool* broken, int threads) {
    choose<int16_t>(logits, 0x7F80, count, size, stride, tokens, broken, threads);
}

extern "C" void most_likely_float32(const int32_t* logits, int64_t count, int64_t size, int64_t stride,
                                    int64_t* tokens, bool* broken, int threads) {
    choose<int32_t>(logits, 0x7F800000, count, size, stride, tokens, broken, threads);
}
