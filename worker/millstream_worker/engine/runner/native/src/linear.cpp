// C[M, out] = A[M, in] · W[out, in]ᵀ + bias. The weights lie in panels: [out / PANEL][in][PANEL], in elements.
// Those of bfloat16 are multiplied with rows of their own type, or with those of float32, which is exact.
// A row's sums are made in one order whatever other rows there are: it gets the same alone and among many.
#include "panel_tiles.h"
#include "pieces.h"
#include "rates.h"
#include "scratch.h"

namespace {

// The same with rows and sums of float32.
struct HalvesOfFloats : Halves {
    using Stored = float;
};

// Outputs that lie side by side: as many as a block of few rows computes at once, so that memory is read from
// one end to the other.
#if defined(__AVX512F__)
constexpr int PANEL = 64;
#else
constexpr int PANEL = 16;
#endif
constexpr int DEPTH = 512;  // elements of `in` that are gone through at a time: a core's cache holds a panel's
constexpr int ROWS = 120;   // that go through them while they are there
// Elements between what is read and what is asked for: with few rows 1.4 times as fast on a Xeon, whose own
// guesses end with each page of memory.
constexpr int AHEAD = 2048;
// So many rows share weights that were widened for all of them; never with AVX-512, whose blocks have rows
// enough to widen what they read themselves.
constexpr int MANY = LANES == 16 ? ROWS + 1 : 48;

inline int parts_of(int size, int most) { return (size + most - 1) / most; }

inline float wide(float value) { return value; }
inline float wide(uint16_t value) { return widened(value); }

inline void leave_as(float* to, const float* sums, int width) { std::memcpy(to, sums, width * sizeof *to); }

inline void leave_as(uint16_t* to, const float* sums, int width) {
#if defined(__AVX512BF16__)
    alignas(64) uint32_t halves[PANEL / 2];
    std::memcpy(to, Pairs::pack_floats(sums, width, halves), width * sizeof *to);
#else
    for (int n = 0; n < width; ++n) to[n] = narrowed(sums[n]);
#endif
}

template <class P>
struct Product {
    using Stored = typename P::Stored;
    using Row = typename P::Row;
    using Packed = typename P::Packed;

    const Row* rows;
    const Packed* panels;
    const Stored* bias;  // or null
    Stored* to;
    int64_t count;
    int depth, outputs;  // elements of a column of weights, columns

    void compute_all(int threads) const {
        const int64_t chunks = (count + ROWS - 1) / ROWS;
        const int across = parts_of(outputs, PANEL);
        if (chunks > 1 && chunks * across >= 4 * threads)
            compute_panels(chunks, across, threads);
        else
            compute_shares(threads);
    }

    void compute_panels(int64_t chunks, int across, int threads) const {
        one_by_one(chunks * across, threads, [&](int64_t item) {
            compute(item / across * ROWS, int(item % across) * PANEL, outputs);
        });
    }

    // Few rows: each thread reads an equal share of the weights, in pieces of whole panels.
    void compute_shares(int threads) const {
        const Span groups{0, parts_of(outputs, GROUP)};
        in_pieces(threads, PIECES, [&](int share, int piece, bool) {
            const Span own = groups.part(share, threads);
            const int first = int(own.first) * GROUP, end = std::min(int(own.end) * GROUP, outputs);
            const Span panels = Span{first / PANEL, parts_of(end, PANEL)}.part(piece, PIECES);
            for (int64_t row = 0; row < count; row += ROWS)
                for (int64_t panel = panels.first; panel < panels.end; ++panel)
                    compute(row, std::max(int(panel) * PANEL, first), std::min(int(panel + 1) * PANEL, end));
        });
    }

    // For up to ROWS rows, what one panel has of the outputs [column, end).
    void compute(int64_t row, int column, int end) const {
        alignas(64) static thread_local float sums[ROWS * PANEL];
        const int some = int(std::min<int64_t>(ROWS, count - row));
        const int width = std::min(PANEL - column % PANEL, end - column);
        const Packed* panel = panels + int64_t(column / PANEL) * depth * PANEL + column % PANEL;
        const int deep = parts_of(depth, parts_of(depth, DEPTH / P::PARTS));
        for (int k = 0; k < depth; k += deep)
            add_products(some, rounded_up(width, GROUP), std::min(deep, depth - k),
                         rows + (row * depth + k) * P::PARTS, panel + int64_t(k) * PANEL, sums, k > 0);
        for (int r = 0; r < some; ++r)
            leave(sums + r * PANEL, bias ? bias + column : nullptr, width, to + (row + r) * outputs + column);
    }

    void add_products(int some, int width, int deep, const Row* from, const Packed* panel, float* sums,
                      bool add) const {
        if constexpr (P::PARTS > 1 && MANY <= ROWS)
            if (some >= MANY) {
                alignas(64) static thread_local float wider[DEPTH * PANEL];
                widen(width, deep, panel, wider);
                multiply_vectors<Float32>(some, width, deep * P::PARTS, from, depth * P::PARTS, wider, PANEL,
                                          sums, PANEL, add);
                return;
            }
        multiply_vectors<P, AHEAD>(some, width, deep, from, depth * P::PARTS, panel, PANEL, sums, PANEL, add);
    }

    static void widen(int width, int deep, const Packed* panel, float* to) {
        for (int k = 0; k < deep; ++k, panel += PANEL)
            for (int part = 0; part < P::PARTS; ++part, to += PANEL)
                for (int n = 0; n < width; n += LANES) store(to + n, P::column(panel + n, part));
    }

    static void leave(float* sums, const Stored* bias, int width, Stored* to) {
        if (bias)
            for (int n = 0; n < width; ++n) sums[n] += wide(bias[n]);
        leave_as(to, sums, width);
    }
};

template <class P>
void multiply_all(const void* rows, const void* panels, const void* bias, void* to, int64_t count, int in,
                  int outputs, int threads) {
    using Stored = typename P::Stored;
    const Product<P> product{static_cast<const typename P::Row*>(rows),
                             static_cast<const typename P::Packed*>(panels),
                             static_cast<const Stored*>(bias), static_cast<Stored*>(to),
                             count, in / P::PER, outputs};
    product.compute_all(threads);
}

// The rows are bfloat16, too.
void multiply_widened(const void* rows, const void* panels, const void* bias, void* to, int64_t count, int in,
                      int outputs, int threads) {
    // As many rows at a time as keep all threads busy with panels.
    const int chunks = std::clamp(parts_of(4 * threads, parts_of(outputs, PANEL)), 4, 8);
    const int64_t most = std::min<int64_t>(count, chunks * ROWS);
    static thread_local Scratch scratch;
    scratch.reserve(Scratch::bytes<float>(int(most) * in));
    auto* wider = scratch.take<float>(int(most) * in);
    for (int64_t first = 0; first < count; first += most) {
        const int64_t some = std::min(most, count - first);
        const auto* from = static_cast<const uint16_t*>(rows) + first * in;
        in_spans(some, some >= ROWS ? threads : 1, [&](Span rows) {
            for (int64_t n = rows.first * in; n < rows.end * in; ++n) wider[n] = widened(from[n]);
        });
        multiply_all<Halves>(wider, panels, bias, static_cast<uint16_t*>(to) + first * outputs, some, in,
                             outputs, threads);
    }
}

#if !defined(__AMX_BF16__) || !defined(__AVX512BF16__) || !defined(__linux__)
void multiply_tiles(const void*, const void*, const void*, void*, int64_t, int, int, int) {}
constexpr int TILE_PANEL = PANEL;
#else
void multiply_tiles(const void* rows, const void* panels, const void* bias, void* to, int64_t count, int in,
                    int outputs, int threads) {
    TileProduct(rows, panels, bias, to, in, outputs).compute_all(count, threads);
}
constexpr int TILE_PANEL = TileProduct::PANEL;
#endif

}  // namespace

#define ENTRY(name, compute)                                                                                 \
    extern "C" void name(const void* rows, const void* panels, const void* bias, void* to, int64_t count,    \
                         int in, int outputs, int threads) {                                                 \
        compute(rows, panels, bias, to, count, in, outputs, threads);                                        \
    }

#if defined(__AVX512BF16__)
#define MULTIPLY_BFLOAT16                                                                                    \
    (may_use_tiles() ? multiply_tiles : pairs_pay() ? multiply_all<Pairs> : multiply_widened)
#else
#define MULTIPLY_BFLOAT16 multiply_widened
#endif

// Rows and weights of these types; in the last, rows of float32 and weights of bfloat16.
ENTRY(multiply_float32, multiply_all<Float32>)
ENTRY(multiply_bfloat16, MULTIPLY_BFLOAT16)
ENTRY(multiply_halves, multiply_all<HalvesOfFloats>)

// Outputs in a panel, for rows of each type; 0 where this processor has no vectors for sums of products.
#if defined(__FMA__) || defined(__AVX512F__)
extern "C" int panel_width_float32() { return PANEL; }
extern "C" int panel_width_bfloat16() { return may_use_tiles() ? TILE_PANEL : PANEL; }
#else
extern "C" int panel_width_float32() { return 0; }
extern "C" int panel_width_bfloat16() { return 0; }
#endif
