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
void advance(const T* query, const T* key, const T* value, const float* log_decay, const float* beta, T* out,
             const DeltaRule* layer, const StateStep* step, int64_t query_token, int64_t key_token,
             int64_t value_token) {
    const int narrow = (layer->value_dim + NARROW * LANES - 1) / (NARROW * LANES);
    const int wide = (layer->value_dim + WIDE * LANES - 1) / (WIDE * LANES);
    const int64_t items = int64_t(step->count) * layer->heads;
    const bool few = items * wide < 4 * int64_t(step->threads);
    const int parts = few ? narrow : wide;
    one_by_one(items * parts, step->threads, [&](int64_t number) {
        const StateSegment& segment = step->segments[number / parts / layer->heads];
        const int head = int(number / parts % layer->heads), part = int(number % parts);
        const auto columns = [&](auto advanced, int width) {
            const int end = std::min(layer->value_dim, (few ? NARROW : WIDE) * LANES * (part + 1));
            for (int begin = (few ? NARROW : WIDE) * LANES * part; begin < end; begin += width)
                advanced(*layer, segment, head, begin, Rows<T>{query, query_token}, Rows<T>{key, key_token},
                         Rows<T>{value, value_token}, log_decay, beta, out, scratch);
        };
        if (few || segment.tokens > 1)
            columns(advance_columns<NARROW, T>, NARROW * LANES);
        else
            columns(advance_columns<WIDE, T>, WIDE * LANES);
    });
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
                                 const float* log_decay, const float* beta, uint16_t* out, const DeltaRule* layer,
                                 const StateStep* step, int64_t query_token, int64_t key_token, int64_t value_token) {
    advance(query, key, value, log_decay, beta, out, layer, step, query_token, key_token, value_token);
}

extern "C" void advance_float32(const float* query, const float* key, const float* value, const float* log_decay,
                                const float* beta, float* out, const DeltaRule* layer, const StateStep* step,
                                int64_t query_token, int64_t key_token, int64_t value_token) {
    advance(query, key, value, log_decay, beta, out, layer, step, query_token, key_token, value_token);
}
