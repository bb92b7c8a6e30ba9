// Recurrent states on the CPU: what one thread does at a time. A token's numbers depend on those before it in its
// row alone: not on where steps cut the row, nor on which columns a thread has.
#pragma once

#include "scratch.h"
#include "vectors.h"

// Fields as in library.py, but for the segments', which slot_segments.py lays out. Of inputs that are held, each slot
// has places for `most_held` tokens; they are of the inputs' type.
struct Convolution {
    int32_t channels, taps, activated, most_held;
    int64_t row;   // numbers from one slot's state to the next
    float* state;  // [taps - 1, channels] of the first slot
    void* held;    // [slots, most_held, channels]
};

struct Rule {
    int32_t key_heads, heads, key_dim, value_dim, by_channel, corrects, most_held;
    int64_t row;
    float* state;       // [heads, key_dim, value_dim] of the first slot
    void* held_keys;    // [slots, most_held, key_heads, key_dim]
    void* held_values;  // [slots, most_held, heads, value_dim]
    float* held_decays;
    float* held_betas;

    int key_numbers() const { return key_heads * key_dim; }
    int value_numbers() const { return heads * value_dim; }
    int decay_numbers() const { return heads * (by_channel ? key_dim : 1); }
};

struct StateSegment {
    int32_t slot, first, tokens;
    int32_t fresh;    // it begins with zeros
    int32_t replays;  // tokens, of those that the slot holds, that come before its own
    int32_t holds;    // its own tokens are held: the state stays the one before them

    // Tokens behind which the state is stored.
    int stored_behind() const { return replays + (holds ? 0 : tokens); }
};

struct StateStep {
    const StateSegment* segments;
    int32_t count, threads;
    int32_t kept;  // nothing is stored
};

// Numbers that lie side by side in a token's row.
template <class T>
struct Rows {
    const T* data;
    int64_t token;

    const T* at(int64_t number) const { return data + number * token; }
};

// Past the caches, to an address that a vector's size divides where that can be.
inline void stream_some(float* to, Vector numbers, int count) {
#if defined(__AVX512F__)
    if (count >= LANES && reinterpret_cast<uintptr_t>(to) % sizeof numbers == 0) {
        _mm512_stream_ps(to, (__m512)numbers);
        return;
    }
#elif defined(__AVX__)
    if (count >= LANES && reinterpret_cast<uintptr_t>(to) % sizeof numbers == 0) {
        _mm256_stream_ps(to, (__m256)numbers);
        return;
    }
#endif
    store_some(to, numbers, count);
}

// What was streamed is seen by other threads after this.
inline void end_streaming() {
#if defined(__AVX__)
    _mm_sfence();
#endif
}

inline Vector silu(Vector x) {
    Vector power = x * -LOG2_E;
    power = power > 126.0f ? broadcast(126.0f) : power;
    return x / (power_of_two(power) + 1.0f);
}

constexpr int MOST_TAPS = 8;

// All tokens of a segment, of up to LANES channels from `channel` on. KEPT: taps but one; 0: as in the layer.
template <int KEPT, class T>
void convolve_tokens(const Convolution& layer, const StateSegment& segment, bool stores, int channel, Rows<T> inputs,
                     const Vector* weights, Vector bias, T* out) {
    const int kept = KEPT ? KEPT : layer.taps - 1, count = layer.channels - channel;
    float* state = layer.state + segment.slot * layer.row + channel;
    T* held = static_cast<T*>(layer.held) + int64_t(segment.slot) * layer.most_held * layer.channels + channel;
    Vector seen[KEPT ? KEPT + 1 : MOST_TAPS];
    const auto store_state = [&] {
        for (int tap = 0; tap < kept; ++tap) store_some(state + int64_t(tap) * layer.channels, seen[tap], count);
    };
    for (int tap = 0; tap < kept; ++tap)
        seen[tap] = segment.fresh ? Vector{} : load_some(state + int64_t(tap) * layer.channels, count);
    for (int64_t token = 0; token < segment.replays; ++token) {
        seen[kept] = load_some(held + token * layer.channels, count);
        for (int tap = 0; tap < kept; ++tap) seen[tap] = seen[tap + 1];
    }
    if (stores && segment.holds) {
        store_state();
        for (int64_t token = 0; token < segment.tokens; ++token) {
            const T* from = inputs.at(segment.first + token) + channel;
            std::copy(from, from + std::min(count, LANES), held + token * layer.channels);
        }
    }
    for (int64_t token = segment.first, end = token + segment.tokens; token < end; ++token) {
        seen[kept] = load_some(inputs.at(token) + channel, count);
        Vector sum = bias;
        for (int tap = 0; tap <= kept; ++tap) sum = fused(seen[tap], weights[tap], sum);
        store_some(out + token * layer.channels + channel, layer.activated ? silu(sum) : sum, count);
        for (int tap = 0; tap < kept; ++tap) seen[tap] = seen[tap + 1];
    }
    if (stores && !segment.holds) store_state();
}

// The same of all segments. weight [channels, taps]; bias may be null.
template <class T>
void convolve_channels(const Convolution& layer, const StateStep& step, int channel, Rows<T> inputs, const T* weight,
                       const T* bias, T* out) {
    const int taps = layer.taps, count = std::min(layer.channels - channel, LANES);
    Vector weights[MOST_TAPS] = {};
    for (int lane = 0; lane < count; ++lane)
        for (int tap = 0; tap < taps; ++tap)
            weights[tap][lane] = widened(weight[int64_t(channel + lane) * taps + tap]);
    const Vector shift = bias ? load_some(bias + channel, count) : Vector{};
    auto convolved = convolve_tokens<0, T>;
    if (taps == 3) convolved = convolve_tokens<2, T>;
    if (taps == 4) convolved = convolve_tokens<3, T>;
    for (int number = 0; number < step.count; ++number)
        convolved(layer, step.segments[number], !step.kept, channel, inputs, weights, shift, out);
}

template <class T>
inline void widen(const T* from, int dim, float* to) {
    for (int d = 0; d < dim; d += LANES) store_some(to + d, load_some(from + d, dim - d), dim - d);
}

// To length 1, times `factor`.
template <class T>
inline void normalise(const T* from, int dim, float factor, float* to) {
    constexpr float epsilon = 1e-6f;  // as in the modelling code
    Vector squares{};
    for (int d = 0; d < dim; d += LANES) {
        const Vector some = load_some(from + d, dim - d);
        squares = fused(some, some, squares);
    }
    const Vector scale = broadcast(factor / std::sqrt(sum(squares) + epsilon));
    for (int d = 0; d < dim; d += LANES) store_some(to + d, load_some(from + d, dim - d) * scale, dim - d);
}

// A head's normalised key and query of a token, and what is kept of each channel of its state.
struct Token {
    float *key, *query, *decay;
};

// By itself: parts of larger code may be contracted in other ways, and a token's numbers be others then.
template <class T>
__attribute__((noinline)) void prepare(const Token& token, const Rule& layer, const T* key, const T* query,
                                       const float* log_decay) {
    const int dim = layer.key_dim;
    if (layer.corrects) {
        normalise(key, dim, 1.0f, token.key);
        normalise(query, dim, 1.0f / std::sqrt(float(dim)), token.query);
    } else {
        widen(key, dim, token.key);
        widen(query, dim, token.query);
    }
    for (int d = 0; d < dim; d += LANES) {
        const Vector logs = layer.by_channel ? load_some(log_decay + d, dim - d) : broadcast(*log_decay);
        store(token.decay + d, power_of_two(logs * LOG2_E));
    }
}

// What a thread takes: columns of one head of a segment, from `begin` on.
struct Item {
    const StateSegment& segment;
    int head, begin;
};

inline float* state_of(const Rule& layer, const Item& item) {
    const int64_t heads_before = int64_t(item.head) * layer.key_dim * layer.value_dim;
    return layer.state + item.segment.slot * layer.row + heads_before + item.begin;
}

// Some columns of a head's state in the storage; their rows are `row` apart.
struct Columns {
    float* state;
    int64_t row;
    int count;
};

// What a token keeps of the state goes to `held` [key_dim, V * LANES], what its key finds there to `found`.
template <int V>
inline void begin_token(const Token& token, int key_dim, const Columns& columns, float* held, Vector* found) {
    for (int d = 0; d < key_dim; ++d) {
        const Vector decay = broadcast(token.decay[d]), key = broadcast(token.key[d]);
        for (int v = 0; v < V; ++v) {
            const float* from = columns.state + d * columns.row + v * LANES;
            const Vector kept = load_some(from, columns.count - v * LANES) * decay;
            store(held + (d * V + v) * LANES, kept);
            found[v] = fused(kept, key, found[v]);
        }
    }
}

// Ends a token, and begins the next one, in one pass over what is held. STORES: the state between them. Its sums stay
// in registers where it is part of the loop over tokens: by itself prompts took 1.6 times as long.
template <int V, bool STORES>
__attribute__((always_inline)) inline void pass_on(const Token& token, const Token& next, int key_dim, float* held, const Vector* change,
                    Vector* answer, Vector* found, const Columns& columns) {
    for (int d = 0; d < key_dim; ++d) {
        const Vector key = broadcast(token.key[d]), query = broadcast(token.query[d]);
        const Vector decay = broadcast(next.decay[d]), next_key = broadcast(next.key[d]);
        for (int v = 0; v < V; ++v) {
            float* place = held + (d * V + v) * LANES;
            const Vector now = fused(change[v], key, load<Vector>(place));
            answer[v] = fused(now, query, answer[v]);
            if (STORES) store_some(columns.state + d * columns.row + v * LANES, now, columns.count - v * LANES);
            const Vector kept = now * decay;
            store(place, kept);
            found[v] = fused(kept, next_key, found[v]);
        }
    }
}

template <int V, bool STORES>
inline void end_token(const Token& token, int key_dim, const float* held, const Vector* change, Vector* answer,
                      const Columns& columns) {
    for (int d = 0; d < key_dim; ++d) {
        const Vector key = broadcast(token.key[d]), query = broadcast(token.query[d]);
        for (int v = 0; v < V; ++v) {
            const Vector now = fused(change[v], key, load<Vector>(held + (d * V + v) * LANES));
            if (STORES) store_some(columns.state + d * columns.row + v * LANES, now, columns.count - v * LANES);
            answer[v] = fused(now, query, answer[v]);
        }
    }
}

// What a key adds to the state, per column.
inline Vector change_of(const Rule& layer, Vector wanted, Vector found, float beta) {
    return (layer.corrects ? wanted - found : wanted) * broadcast(beta);
}

// A token of a row that decodes: the state is read where it is; twice, and the second time from a near cache, where a
// rule corrects. Meanwhile the processor fetches `ahead`, the columns that come next.
template <int V>
inline void only_token(const Token& token, const Rule& layer, const Columns& columns, const float* ahead,
                       const Vector* wanted, float beta, Vector* answer) {
    const int key_dim = layer.key_dim;
    Vector found[V] = {}, change[V];
    for (int d = 0; d < (layer.corrects ? key_dim : 0); ++d) {
        const Vector decay = broadcast(token.decay[d]), key = broadcast(token.key[d]);
        for (int v = 0; v < V; ++v) {
            const float* from = columns.state + d * columns.row + v * LANES;
            if (ahead && d % 2 == 0) __builtin_prefetch(ahead + d * columns.row + v * LANES, 0, 2);
            found[v] = fused(load_some(from, columns.count - v * LANES) * decay, key, found[v]);
        }
    }
    for (int v = 0; v < V; ++v) change[v] = change_of(layer, wanted[v], found[v], beta);
    for (int d = 0; d < key_dim; ++d) {
        const Vector decay = broadcast(token.decay[d]);
        const Vector key = broadcast(token.key[d]), query = broadcast(token.query[d]);
        for (int v = 0; v < V; ++v) {
            float* place = columns.state + d * columns.row + v * LANES;
            if (ahead && (d % 2 || !layer.corrects)) __builtin_prefetch(ahead + d * columns.row + v * LANES, 0, 2);
            const Vector now = fused(change[v], key, load_some(place, columns.count - v * LANES) * decay);
            stream_some(place, now, columns.count - v * LANES);
            answer[v] = fused(now, query, answer[v]);
        }
    }
}

// What a rule is given of each token.
template <class T>
struct RuleInputs {
    Rows<T> query, key, value;
    const float *log_decay, *beta;  // [T, decay_numbers], [T, heads]
};

// Places of those that a slot holds.
template <class T>
struct HeldInputs {
    T *keys, *values;
    float *log_decays, *betas;

    HeldInputs(const Rule& layer, int slot) {
        const int64_t first = int64_t(slot) * layer.most_held;
        keys = static_cast<T*>(layer.held_keys) + first * layer.key_numbers();
        values = static_cast<T*>(layer.held_values) + first * layer.value_numbers();
        log_decays = layer.held_decays + first * layer.decay_numbers();
        betas = layer.held_betas + first * layer.heads;
    }

    // Nobody reads their answers: any numbers are their queries.
    RuleInputs<T> as_inputs(const Rule& layer) const {
        const Rows<T> rows{keys, layer.key_numbers()};
        return {rows, rows, {values, layer.value_numbers()}, log_decays, betas};
    }

    void take(const Rule& layer, const StateSegment& segment, const RuleInputs<T>& given) const {
        const int64_t first = segment.first;
        for (int token = 0; token < segment.tokens; ++token) {
            std::copy_n(given.key.at(first + token), layer.key_numbers(), keys + token * layer.key_numbers());
            std::copy_n(given.value.at(first + token), layer.value_numbers(), values + token * layer.value_numbers());
        }
        const int decays = layer.decay_numbers();
        std::copy_n(given.log_decay + first * decays, segment.tokens * decays, log_decays);
        std::copy_n(given.beta + first * layer.heads, segment.tokens * layer.heads, betas);
    }
};

// All tokens of a segment, for V vectors of columns. In between the state is in the scratch: in the storage its
// rows lie so far apart that a processor's cache holds few of them.
template <int V, class T>
void advance_columns(const Rule& layer, const Item& item, bool stores, const RuleInputs<T>& given, T* out,
                     const float* ahead, Scratch& scratch) {
    const StateSegment& segment = item.segment;
    const int head = item.head, begin = item.begin;
    const int key_dim = layer.key_dim, value_dim = layer.value_dim, padded = key_dim + LANES;
    const int key_head = head / (layer.heads / layer.key_heads) * key_dim;
    const RuleInputs<T> held_before = HeldInputs<T>(layer, segment.slot).as_inputs(layer);
    const auto source = [&](int number) -> const RuleInputs<T>& {
        return number < segment.replays ? held_before : given;
    };
    const auto place = [&](int number) {  // in its source
        return number < segment.replays ? int64_t(number) : int64_t(segment.first) + number - segment.replays;
    };
    scratch.reserve(6 * Scratch::bytes<float>(padded) + Scratch::bytes<float>(key_dim * V * LANES));
    const auto taken = [&] { return scratch.take<float>(padded); };
    Token token{taken(), taken(), taken()}, next{taken(), taken(), taken()};
    float* held = scratch.take<float>(key_dim * V * LANES);
    const Columns columns{state_of(layer, item), value_dim, std::min(value_dim - begin, V * LANES)};
    const auto prepared = [&](const Token& to, int number) {
        const RuleInputs<T>& from = source(number);
        const int64_t at = place(number), decays = (at * layer.heads + head) * (layer.by_channel ? key_dim : 1);
        prepare(to, layer, from.key.at(at) + key_head, from.query.at(at) + key_head, from.log_decay + decays);
    };
    const auto answered = [&](int number, const Vector* answer) {
        T* to = out + (place(number) * layer.heads + head) * value_dim + begin;
        for (int v = 0; v < V; ++v) store_some(to + v * LANES, answer[v], columns.count - v * LANES);
    };
    const int tokens = segment.replays + segment.tokens, stored_behind = stores ? segment.stored_behind() : -1;
    Vector found[V] = {};
    prepared(token, 0);
    if (tokens == 1 && !segment.fresh && stored_behind == 1) {
        Vector wanted[V], answer[V] = {};
        const T* values = given.value.at(segment.first) + head * value_dim + begin;
        for (int v = 0; v < V; ++v) wanted[v] = load_some(values + v * LANES, columns.count - v * LANES);
        const float beta = given.beta[int64_t(segment.first) * layer.heads + head];
        only_token<V>(token, layer, columns, ahead, wanted, beta, answer);
        answered(0, answer);
        end_streaming();
        return;
    }
    if (segment.fresh)
        std::fill(held, held + key_dim * V * LANES, 0.0f);
    else
        begin_token<V>(token, key_dim, columns, held, found);
    if (segment.fresh && stored_behind == 0)
        for (int d = 0; d < key_dim; ++d)
            std::fill_n(columns.state + d * columns.row, columns.count, 0.0f);
    for (int number = 0; number < tokens; ++number) {
        const RuleInputs<T>& from = source(number);
        const int64_t at = place(number);
        const T* wanted = from.value.at(at) + head * value_dim + begin;
        const float beta = from.beta[at * layer.heads + head];
        Vector change[V], answer[V] = {};
        for (int v = 0; v < V; ++v) {
            const Vector own = load_some(wanted + v * LANES, columns.count - v * LANES);
            change[v] = change_of(layer, own, found[v], beta);
            found[v] = Vector{};
        }
        const bool stored = number + 1 == stored_behind;
        if (number + 1 < tokens) {
            prepared(next, number + 1);
            if (stored)
                pass_on<V, true>(token, next, key_dim, held, change, answer, found, columns);
            else
                pass_on<V, false>(token, next, key_dim, held, change, answer, found, columns);
            std::swap(token, next);
        } else {
            if (stored)
                end_token<V, true>(token, key_dim, held, change, answer, columns);
            else
                end_token<V, false>(token, key_dim, held, change, answer, columns);
        }
        if (number >= segment.replays) answered(number, answer);
    }
}
