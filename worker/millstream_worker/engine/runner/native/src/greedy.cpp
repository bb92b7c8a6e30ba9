// The most likely token of each row of logits: the first of the highest numbers, of those that its mask allows.
#include <limits>

#include "masks.h"
#include "pieces.h"

namespace {

constexpr int64_t CHUNK = 4096;  // numbers after which is known that the highest is among them

// The bits of a floating number, as a whole number that orders as it does. -0 comes before 0.
template <class Whole>
inline Whole ordered(Whole bits) {
    return Whole(bits ^ (Whole(bits >> (8 * sizeof bits - 1)) & std::numeric_limits<Whole>::max()));
}

// A row's, as its mask leaves them.
template <class Whole>
struct Numbers {
    const Whole* row;
    int64_t size;
    const uint32_t* bits;  // or null: all are allowed
    Whole minus_infinity;  // its bits

    // A chunk, where it lies or in `room`; null if nothing of it is allowed.
    const Whole* chunk(int64_t begin, int64_t count, Whole* room) const {
        if (!bits) return row + begin;
        const uint32_t* words = bits + begin / WORD;
        if (std::all_of(words, words + (count + WORD - 1) / WORD, [](uint32_t word) { return word == 0; }))
            return nullptr;
        std::copy_n(row + begin, count, room);
        mask_row(room, count, words, minus_infinity);
        return room;
    }
};

// Its place. `infinity`: its bits. Broken is a row with a NaN or with infinity, or of nothing but minus infinity.
template <class Whole>
int64_t first_of_highest(const Numbers<Whole>& numbers, Whole infinity, bool& broken) {
    alignas(64) Whole room[CHUNK];
    const Whole minus_infinity = ordered(numbers.minus_infinity);
    Whole highest = std::numeric_limits<Whole>::min(), lowest = std::numeric_limits<Whole>::max();
    int64_t place = 0;
    for (int64_t begin = 0; begin < numbers.size; begin += CHUNK) {
        const int64_t count = std::min(CHUNK, numbers.size - begin);
        const Whole* some = numbers.chunk(begin, count, room);
        if (!some) continue;
        Whole top = highest;
        for (int64_t n = 0; n < count; ++n) {
            const Whole number = ordered(some[n]);
            top = std::max(top, number);
            lowest = std::min(lowest, number);
        }
        if (top > highest) highest = top, place = begin;
    }
    broken = highest >= infinity || highest <= minus_infinity || lowest < minus_infinity;
    if (broken) return 0;
    if (highest == 0) highest = -1, place = 0;  // a zero of the other sign, which is equal, may come before it
    for (;; place += CHUNK) {
        const int64_t count = std::min(CHUNK, numbers.size - place);
        const Whole* some = numbers.chunk(place, count, room);
        for (int64_t n = 0; some && n < count; ++n)
            if (ordered(some[n]) >= highest) return place + n;
    }
}

template <class Whole>
void choose(const Whole* logits, Whole infinity, int64_t count, int64_t size, int64_t stride, const int32_t* masks,
            const uint32_t* bits, int64_t words, int64_t* tokens, bool* broken, int threads) {
    const Whole minus_infinity = infinity | std::numeric_limits<Whole>::min();
    one_by_one(count, threads, [&](int64_t row) {
        const uint32_t* own = masks && masks[row] >= 0 ? bits + masks[row] * words : nullptr;
        const Numbers<Whole> numbers{logits + row * stride, size, own, minus_infinity};
        tokens[row] = first_of_highest(numbers, infinity, broken[row]);
    });
}

}  // namespace

// logits [count, size], the rows `stride` numbers apart; masks [count]: each row's place in bits [*, words], or -1;
// null: no row has one. Answers tokens and broken, [count] each. The token of a broken row is 0.
extern "C" void most_likely_bfloat16(const int16_t* logits, int64_t count, int64_t size, int64_t stride,
                                     const int32_t* masks, const uint32_t* bits, int64_t words, int64_t* tokens,
                                     bool* broken, int threads) {
    choose<int16_t>(logits, 0x7F80, count, size, stride, masks, bits, words, tokens, broken, threads);
}

extern "C" void most_likely_float32(const int32_t* logits, int64_t count, int64_t size, int64_t stride,
                                    const int32_t* masks, const uint32_t* bits, int64_t words, int64_t* tokens,
                                    bool* broken, int threads) {
    choose<int32_t>(logits, 0x7F800000, count, size, stride, masks, bits, words, tokens, broken, threads);
}
