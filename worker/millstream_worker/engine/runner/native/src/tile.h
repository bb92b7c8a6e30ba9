// Online softmax over one row's keys (Milakov and Gimelshein, arXiv:1805.02867), 64 keys at a time, for all
// query rows that share a head of keys: `rows` = new tokens x query heads of the group.
#pragma once

#include <algorithm>
#include <type_traits>

#include "amx.h"
#include "tile_scales.h"
#include "whole_pairs.h"

struct Shape {
    int rows, key_dim, value_dim;
    float scale, softcap;  // softcap 0: none
};

// Which keys of a tile a query row sees: [low, high), counted from the tile's first key.
struct Sight {
    int low, high;
};

// Codes are multiplied as they are: scales go into scores and weights, and the middles of keys count for all
// numbers of a query at once. Where weights become whole numbers, too, the scales of values go into them by
// their logarithms: what is highest is then the largest of weights times scales, and `totals` take them out.
template <class P, class C>
class Tile {
    static constexpr bool CODES = std::is_same_v<C, int8_t>;
    using Stored = typename P::Stored;
    using Row = typename P::Row;
    using Packed = typename P::Packed;

public:
    const int width;  // of a row of sums
    float *sums, *highest, *totals;
    Row* queries;  // [rows, depth * PARTS]

    Tile(const Shape& shape, Scratch& scratch)
        : width(rounded_up(shape.value_dim, 16)), shape_(shape),
          depth_(rounded_up(shape.key_dim, P::WHOLE ? 4 : P::PER) / P::PER), tiles_(shape.rows) {
        const int rows = shape.rows;
        scratch.reserve(Scratch::bytes<float>(rows * (width + 6)) + Scratch::bytes<float>(rows * LANES) +
                        Scratch::bytes<Row>(rows * depth_ * P::PARTS) + Scratch::bytes<Packed>(depth_ * KEYS) +
                        Scratch::bytes<Packed>(KEYS / P::PER * width) +
                        2 * Scratch::bytes<float>(rows * KEYS) + 6 * LINE);
        sums = scratch.take<float>(rows * width);
        highest = scratch.take<float>(rows);
        totals = scratch.take<float>(rows * LANES);
        query_sums_ = scratch.take<float>(rows);
        query_factors_ = scratch.take<float>(rows);
        weight_factors_ = scratch.take<float>(rows);
        found_ = scratch.take<float>(rows);
        lowest_ = scratch.take<float>(rows);
        queries = scratch.take<Row>(rows * depth_ * P::PARTS);
        keys_ = scratch.take<Packed>(depth_ * KEYS);
        values_ = scratch.take<Packed>(KEYS / P::PER * width);
        scores_ = scratch.take<float>(rows * KEYS);
        weights_ = scratch.take<Row>(rows * WEIGHTS);
        std::fill_n(sums, rows * width, 0.0f);
        std::fill_n(highest, rows, -INFINITY);
        std::fill_n(totals, rows * LANES, 0.0f);
    }

    void put_query(int row, const Stored* query) {
        Row* to = queries + row * depth_ * P::PARTS;
        if constexpr (P::WHOLE) {
            const auto packed = P::pack_query(query, shape_.key_dim, to);
            query_factors_[row] = packed.factor;
            query_sums_[row] = packed.sum;
            return;
        }
        P::pack_query(query, shape_.key_dim, to);
        if constexpr (CODES) query_sums_[row] = sum_of(query, shape_.key_dim);
    }

    // Take in `count` keys and values, given as 64 addresses of which those from `count` on are of zeros;
    // `sight(row)` says which of them a row sees. `next` is what will come after them: while these are
    // multiplied it is on its way from memory.
    template <class S>
    void attend(const Addresses<C>& now, const Addresses<C>& next, int count, S sight) {
        const int padded = rounded_up(count, Tiles<P>::keys());
        if constexpr (CODES) {
            scales_.take(now, padded);
            if constexpr (P::WHOLE) scales_.take_logarithms(padded);
        }
        for (int k = 0; k < padded; k += GROUP) {
            P::pack_keys(now.keys + k, shape_.key_dim, keys_ + k);
            for (int near = k; near < k + GROUP; ++near) fetch(next.keys[near], shape_.key_dim);
        }
        multiply<P>(shape_.rows, padded, depth_, queries, depth_ * P::PARTS, keys_, KEYS, scores_, KEYS, {});
        // Each loop by itself: what follows a row's highest score would wait for it.
        for (int row = 0; row < shape_.rows; ++row) find_highest(row, padded, sight(row));
        if constexpr (P::WHOLE) find_powers();
        for (int row = 0; row < shape_.rows; ++row) weigh(row, padded);
        for (const C* value : next.values) fetch(value, shape_.value_dim);
        if constexpr (P::AS_STORED && !CODES)
            add_as_stored(now, count);
        else
            add_packed(now, padded);
    }

    float total(int row) const { return sum(load<Vector>(totals + row * LANES)); }

private:
    static constexpr int WEIGHTS = KEYS / P::PER * P::PARTS;  // elements of a row of them

    const Shape shape_;
    const int depth_;
    TileScales scales_;
    const Tiles<P> tiles_;
    Packed *keys_, *values_;
    Row* weights_;
    float* scores_;
    float* query_sums_;                       // [rows]
    float *found_, *lowest_;                  // [rows] of the last keys, the highest score and that of weight 1
    float *query_factors_, *weight_factors_;  // [rows] what whole numbers are multiples of

    void add_packed(const Addresses<C>& now, int count) {
        for (int k = 0; k < count; k += GROUP)
            P::pack_values(now.values + k, GROUP, shape_.value_dim, width, values_ + k / P::PER * width);
        if constexpr (P::WHOLE)
            multiply<P>(shape_.rows, width, count / P::PER, weights_, WEIGHTS, values_, width, sums, width,
                        weight_factors_);
        else
            multiply<P>(shape_.rows, width, count / P::PER, P::pack_floats(scores_, shape_.rows * KEYS, weights_),
                        WEIGHTS, values_, width, sums, width, true);
    }

    // The same sums, of values that are multiplied where they are, if they lie one behind the other.
    void add_as_stored(const Addresses<C>& now, int count) {
        for (int k = 0; k < count; k += GROUP) {
            const int some = std::min(GROUP, count - k);
            const Packed* values = now.values[k];
            for (int near = 1; near < some && values; ++near)
                if (now.values[k + near] != now.values[k] + near * width) values = nullptr;
            if (!values || width != shape_.value_dim) {
                P::pack_values(now.values + k, some, shape_.value_dim, width, values_);
                values = values_;
            }
            multiply<P>(shape_.rows, width, some, scores_ + k, KEYS, values, width, sums, width, true);
        }
    }

    static float sum_of(const Stored* numbers, int count) {
        Vector lanes{};
        int d = 0;
        for (; d + LANES <= count; d += LANES) lanes += widened_numbers(numbers + d);
        float total = sum(lanes);
        for (; d < count; ++d) total += widened(numbers[d]);
        return total;
    }

    // Into the second level of cache: the first one holds this tile.
    static void fetch(const C* row, int dim) {
        for (int d = 0; d < dim; d += LINE / int(sizeof *row)) __builtin_prefetch(row + d, 0, 2);
    }

    // Sums are relative to a score that need not be the highest: one that is little higher changes nothing.
    void find_highest(int row, int count, Sight sight) {
        constexpr float LITTLE = 8;
        const float found = scale_and_hide(row, count, sight);
        if (found > highest[row] + LITTLE) {
            if (highest[row] != -INFINITY) shrink(row, power_of_two(broadcast(highest[row] - found)));
            highest[row] = found;
        }
        if constexpr (P::WHOLE) found_[row] = found;
    }

    // Weights become multiples of a power of two that makes a row's largest a number of 15 bits.
    void find_powers() {
        constexpr int BITS = 14;
        for (int row = 0; row < shape_.rows; row += LANES) {
            const auto most = load<Vector>(highest + row);
            const Vector reference = most == -INFINITY ? Vector{} : most;
            const Vector below = reference - load<Vector>(found_ + row) + 16.0f;
            const IntVector power = truncated(below < 126.0f ? below : broadcast(126)) + (BITS - 16);
            store(lowest_ + row, reference - floats_of(power));
            store(weight_factors_ + row, (Vector)((127 - power) << 23));
        }
    }

    // A row's scores become weights relative to its highest score so far.
    void weigh(int row, int count) {
        float* scores = scores_ + row * KEYS;
        const float reference = P::WHOLE ? lowest_[row] : highest[row] == -INFINITY ? 0.0f : highest[row];
        Vector total = P::WHOLE ? Vector{} : load<Vector>(totals + row * LANES);
        for (int k = 0; k < count; k += LANES) {
            Vector weights = power_of_two<P::WHOLE>(load<Vector>(scores + k) - reference);
            if constexpr (P::WHOLE) {
                total = fused(weights, load<Vector>(scales_.inverses + k), total);
                store_shorts(weights_ + row * WEIGHTS + k / P::PER, nearest_integers(weights));
                continue;
            }
            total += weights;
            if constexpr (CODES) weights *= load<Vector>(scales_.values + k);
            store(scores + k, weights);
        }
        if constexpr (P::WHOLE)
            total = fused(total, broadcast(weight_factors_[row]), load<Vector>(totals + row * LANES));
        store(totals + row * LANES, total);
    }

    // What a row has come to, relative to a score that is higher.
    void shrink(int row, Vector by) {
        for (int d = row * width; d < (row + 1) * width; d += LANES) store(sums + d, load<Vector>(sums + d) * by);
        store(totals + row * LANES, load<Vector>(totals + row * LANES) * by);
    }

    // The highest of the scores that are seen; the others become -inf, whatever they were.
    float scale_and_hide(int row, int count, Sight sight) {
        if (sight.low >= count || sight.high <= 0) {
            std::fill_n(scores_ + row * KEYS, count, -INFINITY);
            return -INFINITY;
        }
        if (shape_.softcap != 0) return scaled<true, true>(row, count, sight);
        if (sight.low > 0 || sight.high < count) return scaled<false, true>(row, count, sight);
        return scaled<false, false>(row, count, sight);
    }

    template <bool CAPPED, bool HIDDEN>
    float scaled(int row, int count, Sight sight) {
        float* scores = scores_ + row * KEYS;
        const float scale = CAPPED ? shape_.scale : shape_.scale * LOG2_E;
        const Vector factor = broadcast(P::WHOLE ? scale * query_factors_[row] : scale);
        [[maybe_unused]] const Vector query_sum = broadcast(CODES ? query_sums_[row] : 0);
        Vector most = broadcast(-INFINITY);
        for (int k = 0; k < count; k += LANES) {
            Vector score = P::WHOLE ? floats_of(load<IntVector>(scores + k)) : load<Vector>(scores + k);
            if constexpr (CODES)
                score = fused(score, load<Vector>(scales_.keys + k), load<Vector>(scales_.middles + k) * query_sum);
            const Vector shift = P::WHOLE ? load<Vector>(scales_.logarithms + k) : Vector{};
            if constexpr (CAPPED)
                score = capped(score * factor, shape_.softcap) * LOG2_E + shift;
            else
                score = P::WHOLE ? fused(score, factor, shift) : score * factor;
            if constexpr (HIDDEN) {
                const IntVector key = counting() + k;
                score = (key >= sight.low) & (key < sight.high) ? score : broadcast(-INFINITY);
            }
            store(scores + k, score);
            most = score > most ? score : most;
        }
        return largest(most);
    }
};

// What a row's sums come to. A learned sink takes part in the softmax and has no value.
struct Answer {
    float highest, total, factor;

    Answer(float highest_score, float total_weight, const float* sink)
        : highest(highest_score), total(total_weight) {
        const float rest = sink ? *sink * LOG2_E : -INFINITY;
        const float most = std::max(highest, rest);
        const float kept = most == -INFINITY ? 1.0f : std::exp2(highest - most);
        factor = kept / (total * kept + (sink ? std::exp2(rest - most) : 0.0f));
    }
};

inline void narrow(const float* from, float factor, int count, float* to) {
    for (int d = 0; d < count; ++d) to[d] = from[d] * factor;
}

inline void narrow(const float* from, float factor, int count, uint16_t* to) {
    for (int d = 0; d < count; ++d) to[d] = narrowed(from[d] * factor);
}
