// The entries of recurrent states: a step's segments, shared out among threads.
#include "states.h"

#include "pieces.h"

namespace {

thread_local Scratch scratch;

constexpr int WIDE = 8, NARROW = 32 / LANES;  // vectors of columns

template <class T>
void convolve(const T* inputs, const T* weight, const T* bias, T* out, const Convolution* layer, const StateStep* step,
              int64_t token) {
    in_spans((layer->channels + LANES - 1) / LANES, step->threads, [&](Span vectors) {
        for (int vector = vectors.first; vector < vectors.end; ++vector)
            convolve_channels(*layer, *step, vector * LANES, Rows<T>{inputs, token}, weight, bias, out);
    });
}

// Rows that decode read their states in wide pieces, as memory likes it; in prompts narrow ones stay in the
// nearest cache from token to token.
template <class T>
void advance(const RuleInputs<T>& given, T* out, const Rule* layer, const StateStep* step) {
    const int64_t heads = int64_t(step->count) * layer->heads;
    const int wide_parts = (layer->value_dim + WIDE * LANES - 1) / (WIDE * LANES);
    const bool few = heads * wide_parts < 4 * int64_t(step->threads);  // to share out
    const int width = (few ? NARROW : WIDE) * LANES, parts = (layer->value_dim + width - 1) / width;
    const auto item = [&](int64_t number) {
        const int64_t head = number / parts;
        return Item{step->segments[head / layer->heads], int(head % layer->heads), int(number % parts) * width};
    };
    one_by_one(heads * parts, step->threads, [&](int64_t number) {
        const Item own = item(number);
        const auto columns = [&](auto advanced, int count, const float* ahead) {
            for (int begin = own.begin; begin < std::min(own.begin + width, layer->value_dim); begin += count)
                advanced(*layer, {own.segment, own.head, begin}, !step->kept, given, out, ahead, scratch);
        };
        const int64_t next = number + step->threads;  // probably this thread's
        if (few || own.segment.replays + own.segment.tokens > 1)
            columns(advance_columns<NARROW, T>, NARROW * LANES, nullptr);
        else
            columns(advance_columns<WIDE, T>, width, next < heads * parts ? state_of(*layer, item(next)) : nullptr);
    });
    for (int number = 0; number < step->count && !step->kept; ++number)
        if (const StateSegment& segment = step->segments[number]; segment.holds)
            HeldInputs<T>(*layer, segment.slot).take(*layer, segment, given);
}

}  // namespace

extern "C" int32_t most_taps() { return MOST_TAPS; }

// inputs [T, channels], whose tokens lie `token` numbers apart; out [T, channels].
extern "C" void convolve_bfloat16(const uint16_t* inputs, const uint16_t* weight, const uint16_t* bias, uint16_t* out,
                                  const Convolution* layer, const StateStep* step, int64_t token) {
    convolve(inputs, weight, bias, out, layer, step, token);
}

extern "C" void convolve_float32(const float* inputs, const float* weight, const float* bias, float* out,
                                 const Convolution* layer, const StateStep* step, int64_t token) {
    convolve(inputs, weight, bias, out, layer, step, token);
}

// query, key [T, key_heads, key_dim] and value [T, heads, value_dim], whose tokens lie that far apart; log_decay [T,
// heads] or [T, heads, key_dim]; beta [T, heads]; out as value, without gaps.
extern "C" void advance_bfloat16(const uint16_t* query, const uint16_t* key, const uint16_t* value,
                                 const float* log_decay, const float* beta, uint16_t* out, const Rule* layer,
                                 const StateStep* step, int64_t query_token, int64_t key_token, int64_t value_token) {
    advance<uint16_t>({{query, query_token}, {key, key_token}, {value, value_token}, log_decay, beta}, out, layer, step);
}

extern "C" void advance_float32(const float* query, const float* key, const float* value, const float* log_decay,
                                const float* beta, float* out, const Rule* layer, const StateStep* step,
                                int64_t query_token, int64_t key_token, int64_t value_token) {
    advance<float>({{query, query_token}, {key, key_token}, {value, value_token}, log_decay, beta}, out, layer, step);
}
