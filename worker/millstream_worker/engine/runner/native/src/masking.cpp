// Masks of grammars on logits: a bit of 0 makes a logit -inf.
#include "masks.h"
#include "pieces.h"

namespace {

template <class Whole>
void mask(Whole* logits, int64_t size, int64_t stride, const int32_t* rows, int64_t count, const uint32_t* bits,
          int64_t words, Whole minus_infinity, int threads) {
    one_by_one(count, threads, [&](int64_t place) {
        mask_row(logits + rows[place] * stride, size, bits + place * words, minus_infinity);
    });
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
