// Recurrent states on the CPU: what one thread does at a time. A token's numbers depend on those before it in its
// row alone: not on where steps cut the row, nor on which columns a thread has.
#pragma once

#include "scratch.h"
#include "vectors.h"

// Fields as in library.py, but for the segments', which native_states.py lays out.
struct Convolution {
    int32_t channels, taps, activated;
    int64_t row;   // numbers from one slot's state to the next
    float* state;  // [taps - 1, channels] of the first slot
};

struct Rule {
    int32_t key_heads, heads, key_dim, value_dim, by_channel, corrects;
    int64_t row;
    float* state;  // [heads, key_dim, value_dim] of the first slot
};

struct StateSegment {
    int32_t slot, first, tokens;
    int32_t fresh;  // it begins with zeros
};

struct StateStep {
    const StateSegment* segments;
    int32_t count, threads;
};

// Numbers that lie side by side in a token's row.
template <class T>
struct Rows {
    const T* data;
    int64_t token;

    const T* at(int64_t number) const { return data + number * token; }
};

// The first `count` of some numbers, as floats; the others are 0.
template <class T>
inline Vector load_some(const T* from, int count) {
    if (count >= LANES) return widened_numbers(from);
    Vector some{};
    for (int lane = 0; lane < count; ++lane) some[lane] = widened(from[lane]);
    return some;
}

inline void store_some(float* to, Vector numbers, int count) {
    if (count >= LANES)
        store(to, numbers);
    else
        for (int lane = 0; lane < count; ++lane) to[lane] = numbers[lane];
}

inline void store_some(uint16_t* to, Vector numbers, int count) {
#if defined(__AVX2__)
    if (count >= LANES) {
        const IntVector bits = (IntVector)numbers, rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
        store_shorts(to, numbers == numbers ? rounded : IntVector{} + 0x7fc0);
        return;
    }
#endif
    for (int lane = 0; lane < std::min(count, LANES); ++lane) to[lane] = narrowed(numbers[lane]);
}

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
void convolve_tokens(const Convolution& layer, const StateSegment& segment, int channel, Rows<T> inputs,
                     const Vector* weights, Vector bias, T* out) {
    const int kept = KEPT ? KEPT : layer.taps - 1, count = layer.channels - channel;
    float* state = layer.state + segment.slot * layer.row + channel;
    Vector seen[KEPT ? KEPT + 1 : MOST_TAPS];
    for (int tap = 0; tap < kept; ++tap)
        seen[tap] = segment.fresh ? Vector{} : load_some(state + int64_t(tap) * layer.channels, count);
    for (int64_t token = segment.first, end = token + segment.tokens; token < end; ++token) {
        seen[kept] = load_some(inputs.at(token) + channel, count);
        Vector sum = bias;
        for (int tap = 0; tap <= kept; ++tap) sum = fused(seen[tap], weights[tap], sum);
        store_some(out + token * layer.channels + channel, layer.activated ? silu(sum) : sum, count);
        for (int tap = 0; tap < kept; ++tap) seen[tap] = seen[tap + 1];
    }
    for (int tap = 0; tap < kept; ++tap) store_some(state + int64_t(tap) * layer.channels, seen[tap], count);
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
        convolved(layer, step.segments[number], channel, inputs, weights, shift, out);
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
__attribute__((noinline)) void prepare(const Token& token, const Rule& layer, const T* key, const T* query, const float* log_decay) {
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

// Ends a token, and begins the next one, in one pass over what is held.
template <int V>
inline void pass_on(const Token& token, const Token& next, int key_dim, float* held, const Vector* change,
                    Vector* answer, Vector* found) {
    for (int d = 0; d < key_dim; ++d) {
        const Vector key = broadcast(token.key[d]), query = broadcast(token.query[d]);
        const Vector decay = broadcast(next.decay[d]), next_key = broadcast(next.key[d]);
        for (int v = 0; v < V; ++v) {
            float* place = held + (d * V + v) * LANES;
            const Vector now = fused(change[v], key, load<Vector>(place));
            answer[v] = fused(now, query, answer[v]);
            const Vector kept = now * decay;
            store(place, kept);
            found[v] = fused(kept, next_key, found[v]);
        }
    }
}

template <int V>
inline void end_token(const Token& token, int key_dim, const float* held, const Vector* change, Vector* answer,
                      const Columns& columns) {
    for (int d = 0; d < key_dim; ++d) {
        const Vector key = broadcast(token.key[d]), query = broadcast(token.query[d]);
        for (int v = 0; v < V; ++v) {
            const Vector now = fused(change[v], key, load<Vector>(held + (d * V + v) * LANES));
            store_some(columns.state + d * columns.row + v * LANES, now, columns.count - v * LANES);
            answer[v] = fused(now, query, answer[v]);
        }
    }
}

// What a key adds to the state, per column.
inline Vector change_of(const Rule& layer, Vector wanted, Vector found, float beta) {
    return (layer.corrects ? wanted - found : wanted) * broadcast(beta);
}

// A token of a row that decodes: the state is read where it is; twice, and the second time from a near
// cache, where a rule corrects. Meanwhile
// the processor fetches `ahead`, the columns that come next.
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

// All tokens of a segment, for V vectors of columns. In between the state is in the scratch: in the storage its
// rows lie so far apart that a processor's cache holds few of them.
template <int V, class T>
void advance_columns(const Rule& layer, const Item& item, Rows<T> query, Rows<T> key, Rows<T> value,
                     const float* log_decay, const float* beta, T* out, const float* ahead, Scratch& scratch) {
    const StateSegment& segment = item.segment;
    const int head = item.head, begin = item.begin;
    const int key_dim = layer.key_dim, value_dim = layer.value_dim, padded = key_dim + LANES;
    const int key_head = head / (layer.heads / layer.key_heads) * key_dim;
    scratch.reserve(6 * Scratch::bytes<float>(padded) + Scratch::bytes<float>(key_dim * V * LANES));
    const auto taken = [&] { return scratch.take<float>(padded); };
    Token token{taken(), taken(), taken()}, next{taken(), taken(), taken()};
    float* held = scratch.take<float>(key_dim * V * LANES);
    const Columns columns{state_of(layer, item), value_dim, std::min(value_dim - begin, V * LANES)};
    const auto prepared = [&](const Token& to, int64_t number) {
        const int64_t decays = (number * layer.heads + head) * (layer.by_channel ? key_dim : 1);
        prepare(to, layer, key.at(number) + key_head, query.at(number) + key_head, log_decay + decays);
    };
    Vector found[V] = {};
    prepared(token, segment.first);
    if (segment.tokens == 1 && !segment.fresh) {
        const int64_t place = int64_t(segment.first) * layer.heads + head;
        Vector wanted[V], answer[V] = {};
        const T* values = value.at(segment.first) + head * value_dim + begin;
        for (int v = 0; v < V; ++v) wanted[v] = load_some(values + v * LANES, columns.count - v * LANES);
        only_token<V>(token, layer, columns, ahead, wanted, beta[place], answer);
        T* to = out + place * value_dim + begin;
        for (int v = 0; v < V; ++v) store_some(to + v * LANES, answer[v], columns.count - v * LANES);
        end_streaming();
        return;
    }
    if (segment.fresh)
        std::fill(held, held + key_dim * V * LANES, 0.0f);
    else
        begin_token<V>(token, key_dim, columns, held, found);
    for (int64_t number = segment.first, end = number + segment.tokens; number < end; ++number) {
        const int64_t place = number * layer.heads + head;
        const T* wanted = value.at(number) + head * value_dim + begin;
        Vector change[V], answer[V] = {};
        for (int v = 0; v < V; ++v) {
            const Vector own = load_some(wanted + v * LANES, columns.count - v * LANES);
            change[v] = change_of(layer, own, found[v], beta[place]);
            found[v] = Vector{};
        }
        if (number + 1 < end) {
            prepared(next, number + 1);
            pass_on<V>(token, next, key_dim, held, change, answer, found);
            std::swap(token, next);
        } else {
            end_token<V>(token, key_dim, held, change, answer, columns);
        }
        T* to = out + place * value_dim + begin;
        for (int v = 0; v < V; ++v) store_some(to + v * LANES, answer[v], columns.count - v * LANES);
    }
}
