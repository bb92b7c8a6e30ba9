// Masks of grammars on logits: a bit of 0 makes a logit -inf.
#include <algorithm>
#include <cstdint>

namespace {

constexpr int64_t WORD = 32;

// Without a branch, which mixed words would mislead; for a word known to be whole, compilers use vectors.
template <class Whole>
inline void mask_word(Whole* row, int64_t size, uint32_t allowed, Whole minus_infinity) {
    for (int n = 0; n < size; ++n) row[n] = allowed >> n & 1 ? row[n] : minus_infinity;
}

template <class Whole>
void mask_row(Whole* row, int64_t size, const uint32_t* bits, Whole minus_infinity) {
    for (; size >= WORD; row += WORD, size -= WORD, ++bits) {
        if (*bits == 0)
            std::fill_n(row, WORD, minus_infinity);
        else if (*bits != ~uint32_t(0))
            mask_word(row, WORD, *bits, minus_infinity);
    }
    if (size) mask_word(row, size, *bits, minus_infinity);
}

template <class Whole>
void mask(Whole* logits, int64_t size, int64_t stride, const int32_t* rows, int64_t count, const uint32_t* bits,
          int64_t words, Whole minus_infinity, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t place = 0; place < count; ++place)
        mask_row(logits + rows[place] * stride, size, bits + place * words, minus_infinity);
}

}  // namespace

// logits [*, size], the rows `stride` numbers apart; rows [count] of them, bits [count, words], a bit for each
// logit, the lowest first.
extern "C" void mask_bfloat16(int16_t* logits, int64_t size, int64_t stride, const int32_t* rows, int64_t count,
                              const uint32_t* bits, int64_t words, int threads) {
    mask<int16_t>(logits, size, stride, rows, count, bits, words, int16_t(0xFF80), threads);
}

extern "C" void mask_float32(int32_t* logits, int64_t size, int64_t stride, const int32_t* rows, int64_t count,
                             const uint32_t* bits, int64_t words, int threads) {
    mask<int32_t>(logits, size, stride, rows, count, bits, words, int32_t(0xFF800000), threads);
}
