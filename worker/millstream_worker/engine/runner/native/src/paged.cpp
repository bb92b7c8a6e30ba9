// Attention over a paged KV cache on the CPU: stores a step's keys and values, then attends to all that its
// rows have stored. Compiled on the machine that runs it; knows numbers and addresses only.
//
// Linked without an OpenMP runtime on purpose: it finds the one that torch has loaded, and its thread team.
// No key or value beyond a row's length is read: what a block's last user left there need not be cleared.

#include "pieces.h"
#include "rates.h"
#include "tile.h"

constexpr int MOST_DIM = 4096;

// Fields as in library.py, all three.
struct Layer {
    int32_t heads, kv_heads, key_dim, value_dim, block_size;
    int32_t window;  // newest tokens that a token sees; 0: all
    float scale, softcap;
    void *keys, *values;  // [blocks, kv_heads, block_size, dim]
    KeyScales* key_scales;  // [blocks, kv_heads, block_size], where those are codes
    ValueScale* value_scales;
};

// New tokens of one segment, or of several that begin alike, and keys that all of them attend to.
struct Piece {
    int32_t segment;  // whose block table holds the keys
    int32_t first_member, tokens;  // their places among the step's members
    int32_t first_key, end_key;
    int32_t part;  // which one of its tokens' parts this is; -1: all that they attend to
};

// A token whose keys were cut into parts.
struct Split {
    int32_t token, first_part, parts;
};

struct Step {
    const Piece* pieces;
    const Split* splits;
    const int32_t *tables, *positions;
    const int32_t* members;      // tokens
    const int32_t* first_parts;  // [tokens] where a token's parts begin
    const int64_t* slots;
    float* parts;  // [parts, heads, value_dim + 2]: sums, highest score, sum of weights
    int32_t piece_count, split_count, table_width, tokens, threads;
    int32_t together;  // heads of a piece that one thread takes, one after the other
};

template <class T>
struct Strided {
    const T* data;
    int64_t token, head;

    const T* at(int64_t t, int64_t h) const { return data + t * token + h * head; }
};

namespace {

thread_local Scratch scratch;

const float zeros[MOST_DIM] = {};
const void* const ZEROS = zeros;

template <class C, class T, class S>
void put(const Strided<T>& from, void* cache, S* scales, int dim, const Layer& layer, int64_t slot,
         int token) {
    const int64_t block = slot / layer.block_size, offset = slot % layer.block_size;
    for (int head = 0; head < layer.kv_heads; ++head) {
        const int64_t place = (block * layer.kv_heads + head) * layer.block_size + offset;
        C* to = static_cast<C*>(cache) + place * dim;
        if constexpr (std::is_same_v<C, T>)
            std::memcpy(to, from.at(token, head), dim * sizeof(T));
        else
            quantize(from.at(token, head), dim, to, scales[place]);
    }
}

// Finds the keys and values of one row.
template <class T>
struct Reader {
    const Layer& layer;
    const int32_t* table;
    int first, end;

    // The addresses of 64 keys from `start` on of a head; of zeros where they are not in [first, end).
    void find(int head, int start, Addresses<T>& to) const {
        const int size = layer.block_size;
        for (int k = 0; k < KEYS;) {
            const int key = start + k;
            if (key < first || key >= end) {
                to.keys[k] = to.values[k] = static_cast<const T*>(ZEROS);
                if constexpr (std::is_same_v<T, int8_t>) {
                    to.key_scales[k] = static_cast<const KeyScales*>(ZEROS);
                    to.value_scales[k] = static_cast<const ValueScale*>(ZEROS);
                }
                ++k;
                continue;
            }
            const int offset = key % size;
            const int run = std::min({size - offset, KEYS - k, end - key});
            const int64_t place = (int64_t(table[key / size]) * layer.kv_heads + head) * size + offset;
            const T* one_key = static_cast<const T*>(layer.keys) + place * layer.key_dim;
            const T* one_value = static_cast<const T*>(layer.values) + place * layer.value_dim;
            if constexpr (std::is_same_v<T, int8_t>) {
                for (int near = 0; near < run; ++near) {
                    to.key_scales[k + near] = layer.key_scales + place + near;
                    to.value_scales[k + near] = layer.value_scales + place + near;
                }
                __builtin_prefetch(layer.key_scales + place);
                __builtin_prefetch(layer.value_scales + place);
            }
            for (const int stop = k + run; k < stop; ++k) {
                to.keys[k] = one_key;
                to.values[k] = one_value;
                one_key += layer.key_dim;
                one_value += layer.value_dim;
            }
        }
    }
};

// What a tile has come to for its tokens, as answers or as parts of them.
template <class P, class C>
void leave(Tile<P, C>& tile, const Layer& layer, const Step& step, const Piece& piece, int first_head,
           const float* sinks, typename P::Stored* out) {
    const int group = layer.heads / layer.kv_heads, dim = layer.value_dim;
    for (int row = 0; row < piece.tokens * group; ++row) {
        const int64_t token = step.members[piece.first_member + row / group];
        const int head = first_head + row % group;
        const float* sums = tile.sums + row * tile.width;
        if (piece.part < 0) {
            const Answer answer(tile.highest[row], tile.total(row), sinks ? sinks + head : nullptr);
            narrow(sums, answer.factor, dim, out + (token * layer.heads + head) * dim);
            continue;
        }
        const int64_t place = step.first_parts[token] + piece.part;
        float* part = step.parts + (place * layer.heads + head) * (dim + 2);
        std::memcpy(part, sums, dim * sizeof(float));
        part[dim] = tile.highest[row];
        part[dim + 1] = tile.total(row);
    }
}

template <class P, class C>
void attend_piece(const Layer& layer, const Step& step, const Piece& piece, int head,
                  const Strided<typename P::Stored>& query, const float* sinks, typename P::Stored* out) {
    const int group = layer.heads / layer.kv_heads, first_head = head * group;
    const Shape shape{piece.tokens * group, layer.key_dim, layer.value_dim, layer.scale, layer.softcap};
    const int32_t* members = step.members + piece.first_member;
    Tile<P, C> tile(shape, scratch);
    for (int row = 0; row < shape.rows; ++row)
        tile.put_query(row, query.at(members[row / group], first_head + row % group));

    const Reader<C> reader{layer, step.tables + int64_t(piece.segment) * step.table_width, piece.first_key,
                           piece.end_key};
    Addresses<C> addresses[2];
    const int begin = piece.first_key / KEYS * KEYS;
    reader.find(head, begin, addresses[0]);
    int now = 0;
    for (int start = begin; start < piece.end_key; start += KEYS, now ^= 1) {
        const bool last = start + KEYS >= piece.end_key;  // then comes the next head, see `together`
        reader.find(last ? std::min(head + 1, layer.kv_heads - 1) : head, last ? begin : start + KEYS,
                    addresses[now ^ 1]);
        const int count = std::min(KEYS, piece.end_key - start);
        tile.attend(addresses[now], addresses[now ^ 1], count, [&](int row) {
            const int position = step.positions[members[row / group]];
            const int low = layer.window ? position - layer.window + 1 : 0;
            return Sight{std::max(low, piece.first_key) - start,
                         std::min(position + 1, piece.end_key) - start};
        });
    }
    leave(tile, layer, step, piece, first_head, sinks, out);
}

// Puts the parts of a token together, one query head after the other.
template <class T>
void join(const Layer& layer, const Step& step, const Split& split, const float* sinks, T* out) {
    const int dim = layer.value_dim;
    const int64_t stride = int64_t(layer.heads) * (dim + 2);
    scratch.reserve(Scratch::bytes<float>(dim));
    float* sums = scratch.take<float>(dim);
    for (int head = 0; head < layer.heads; ++head) {
        const float* parts = step.parts + (int64_t(split.first_part) * layer.heads + head) * (dim + 2);
        float highest = -INFINITY, total = 0;
        for (int p = 0; p < split.parts; ++p) highest = std::max(highest, parts[p * stride + dim]);
        std::fill_n(sums, dim, 0.0f);
        for (int p = 0; p < split.parts; ++p) {
            const float* part = parts + p * stride;
            const float share = highest == -INFINITY ? 1.0f : std::exp2(part[dim] - highest);
            for (int d = 0; d < dim; ++d) sums[d] += part[d] * share;
            total += part[dim + 1] * share;
        }
        const Answer answer(highest, total, sinks ? sinks + head : nullptr);
        narrow(sums, answer.factor, dim, out + (int64_t(split.token) * layer.heads + head) * dim);
    }
}

// C: what keys and values are stored as.
template <class P, class C>
void attend(const Layer& layer, const Step& step, const Strided<typename P::Stored>& query,
            const Strided<typename P::Stored>& key, const Strided<typename P::Stored>& value,
            const float* sinks, typename P::Stored* out) {
    if (step.tokens == 0) return;
    const auto store = [&](Span tokens) {
        for (int token = int(tokens.first); token < tokens.end; ++token) {
            const int64_t slot = step.slots[token];
            put<C>(key, layer.keys, layer.key_scales, layer.key_dim, layer, slot, token);
            put<C>(value, layer.values, layer.value_scales, layer.value_dim, layer, slot, token);
        }
    };
    if (key.data) in_spans(step.tokens, step.threads, store);  // else they are a layer's before it
    const int heads = step.piece_count * layer.kv_heads;
    one_by_one((heads + step.together - 1) / step.together, step.threads, [&](int64_t some) {
        const int first = int(some) * step.together;
        for (int item = first; item < std::min(first + step.together, heads); ++item)
            attend_piece<P, C>(layer, step, step.pieces[item / layer.kv_heads], item % layer.kv_heads, query,
                               sinks, out);
    });
    if (step.split_count > 0)
        one_by_one(step.split_count, step.threads,
                   [&](int64_t split) { join(layer, step, step.splits[split], sinks, out); });
}

}  // namespace

#define ENTRY(name, T, compute)                                                                             \
    extern "C" void name(const void* query, const void* key, const void* value, const float* sinks,         \
                         void* out, const Layer* layer, const Step* step, int64_t query_token,              \
                         int64_t query_head, int64_t key_token, int64_t key_head, int64_t value_token,      \
                         int64_t value_head) {                                                              \
        compute(*layer, *step, {static_cast<const T*>(query), query_token, query_head},                     \
                {static_cast<const T*>(key), key_token, key_head},                                          \
                {static_cast<const T*>(value), value_token, value_head}, sinks, static_cast<T*>(out));      \
    }

#if defined(__AVX512BF16__)
#define ATTEND_BFLOAT16 (may_use_tiles() || pairs_pay() ? attend<Pairs, uint16_t> : attend<Halves, uint16_t>)
#define ATTEND_CODES (may_use_tiles() ? attend<Pairs, int8_t> : attend<WholePairs, int8_t>)
#elif defined(WHOLE_PAIRS)
#define ATTEND_BFLOAT16 (attend<Halves, uint16_t>)
#define ATTEND_CODES (attend<WholePairs, int8_t>)
#else
#define ATTEND_BFLOAT16 (attend<Halves, uint16_t>)
#define ATTEND_CODES (attend<Halves, int8_t>)
#endif

ENTRY(attend_bfloat16, uint16_t, ATTEND_BFLOAT16)
ENTRY(attend_bfloat16_int8, uint16_t, ATTEND_CODES)
ENTRY(attend_float32, float, (attend<Float32, float>))
ENTRY(attend_float32_int8, float, (attend<Float32, int8_t>))

extern "C" const char* bfloat16_products() {
    return may_use_tiles() ? "tiles" : pairs_pay() ? "pairs" : "float32";
}
