// C[M, out] = A[M, in] · W[out, in]ᵀ + bias, with weights of whole numbers. In each group of inputs a weight is
// scale · code + offset; with codes of 4 bits and without offsets it is scale · (code - 8).
//
// Codes lie in panels of 16 outputs: [out / 16][in / 4][16][4] of 8 bits each; of 4 bits [out / 16][in / 8][16][4],
// four inputs in the low halves of bytes and the next four in the high ones.
// Scales and offsets lie as [out / 16][in / group][16] in float16. What is missing of 32 inputs, or 16 outputs,
// is 0. Rows become codes of 8 bits with one scale for 32 of them. A row gets the same whoever shares its step:
// sums within a group are exact, and groups are added up in one order.
#include "pieces.h"
#include "quantized_rows.h"

#if defined(WHOLE_NUMBERS)
namespace {

constexpr int PANEL = 16;  // outputs
constexpr int VECTORS = PANEL / WIDE;
constexpr int GROUP = Rows::GROUP;
// Panels of a thread that make it quantise all rows for itself: it has them in its own cache then, which took
// 0.83 of the time of 32 rows on 2 threads of an EPYC. With fewer that costs more than it saves.
// So do many rows, which one thread alone would quantise for long.
constexpr int OWN = 8;
constexpr int SLAB = 512;   // rows that are quantised at a time
constexpr int CHUNK = 64;   // of them, that go through a thread's panels while the caches hold them
constexpr int AT_ONCE = WIDE == 16 ? 8 : 4;  // of them, whose sums are in registers
constexpr int MOST = std::max(AT_ONCE, TILE_ROWS);
constexpr int AHEAD = 4;    // groups whose products of tiles are in memory at a time

template <class Stored>
struct Operands {
    const Stored* rows;
    const int8_t* codes;
    const uint16_t* scales;
    const uint16_t* offsets;  // or null
    const Stored* bias;       // or null
    Stored* to;
    int64_t count;
    int in, outputs;
};

// Codes of a kind, and how many inputs share a scale.
template <class Codes, int Inputs, class Stored>
struct Product {
    static constexpr int LINES = Inputs / 4 / Codes::PARTS;
    static constexpr int LINE = PANEL * 4;  // bytes
    static constexpr int PER = GROUP / Inputs;

    const Operands<Stored>& given;
    Rows rows;

    Product(const Operands<Stored>& given, int zero)
        : given(given), rows{parts_of(given.in, GROUP), PER, Codes::ZERO + zero} {}

    void compute_all(int threads) {
        const bool alone = panels() >= OWN * threads && given.count <= CHUNK;
        take_room();
        for (int64_t first = 0; first < given.count; first += SLAB) {
            const int count = int(std::min<int64_t>(SLAB, given.count - first));
            alone ? compute_alone(first, count, threads) : compute_together(first, count, threads);
        }
    }

    int panels() const { return parts_of(given.outputs, PANEL); }

    // Each thread quantises all rows into memory of its own.
    void compute_alone(int64_t first, int count, int threads) const {
        in_pieces(threads, PIECES, [&](int share, int piece, bool begins) {
            Product own(*this);
            own.take_room();
            if (begins) {
                for (int row = 0; row < count; ++row) own.quantise(first, row);
                own.rows.clear_missing(count);
            }
            own.compute_piece(first, count, share, threads, piece);
        });
    }

    void compute_together(int64_t first, int count, int threads) const {
        in_spans(count, threads, [&](Span rows) {
            for (int64_t row = rows.first; row < rows.end; ++row) quantise(first, int(row));
        });
        rows.clear_missing(count);
        in_pieces(threads, PIECES, [&](int share, int piece, bool) {
            compute_piece(first, count, share, threads, piece);
        });
    }

    // A thread's memory stays as it is between two pieces of one work.
    void take_room() {
        static thread_local Scratch scratch;
        rows.take(scratch, int(std::min<int64_t>(given.count, SLAB)));
    }

    void quantise(int64_t first, int row) const {
        rows.quantise(row, given.rows + (first + row) * given.in, given.in);
    }

    void compute_piece(int64_t first, int count, int share, int threads, int piece) const {
        const Span own = Span{0, panels()}.part(share, threads).part(piece, PIECES);
        const WholeTiles tiles(Inputs, tiles_pay(count));
        for (int row = 0; row < count; row += CHUNK)
            for (int64_t panel = own.first; panel < own.end; ++panel)
                compute(first, row, std::min(count, row + CHUNK), int(panel));
    }

    void compute(int64_t first, int row, int end, int panel) const {
        const int8_t* weights = tiles_pay(end - row) ? whole(panel) : nullptr;
        while (row < end) {
            const bool tiles = tiles_pay(end - row);
            const int some = std::min(tiles ? TILE_ROWS : AT_ONCE, end - row);
            alignas(64) float sums[MOST * PANEL];
            tiles ? multiply_tiles(row, weights, panel, sums) : multiply(some, row, panel, sums);
            for (int r = 0; r < some; ++r) leave(sums + r * PANEL, first + row + r, panel * PANEL);
            row += some;
        }
    }

    // A panel's codes as tiles take them: [in / 4][16][4] of 8 bits, with signs.
    const int8_t* whole(int64_t panel) const {
        const int lines = rows.groups * PER * LINES;
        const int8_t* from = given.codes + panel * lines * LINE;
        if constexpr (Codes::PARTS > 1) {
            static thread_local Scratch scratch;
            scratch.reserve(Scratch::bytes<int8_t>(lines * Codes::PARTS * LINE));
            auto* to = scratch.take<int8_t>(lines * Codes::PARTS * LINE);
            for (int n = 0; n < lines; ++n, from += LINE)
                for (int part = 0; part < Codes::PARTS; ++part)
                    for (int k = 0; k < LINE; k += WIDE * 4)
                        store(to + (n * Codes::PARTS + part) * LINE + k,
                              Codes::signed_codes(load<Ints>(from + k), part, rows.zero));
            return to;
        }
        return from;
    }

    void multiply(int some, int row, int panel, float* sums) const {
        switch (some) {
            case 8: return multiply<8>(row, panel, sums);
            case 7: return multiply<7>(row, panel, sums);
            case 6: return multiply<6>(row, panel, sums);
            case 5: return multiply<5>(row, panel, sums);
            case 4: return multiply<4>(row, panel, sums);
            case 3: return multiply<3>(row, panel, sums);
            case 2: return multiply<2>(row, panel, sums);
            default: return multiply<1>(row, panel, sums);
        }
    }

    // Tiles take codes with their signs: nothing is to be taken off. Sums of all 16 rows stay in registers. While a
    // group is scaled the products of the next ones are on their way: what a tile leaves in memory takes a while.
    void multiply_tiles(int row, const int8_t* weights, int panel, float* to) const {
        if constexpr (TILE_ROWS > 1) {
            const int64_t groups = int64_t(rows.groups) * PER, first = rows.at(row, 0);
            alignas(64) int32_t parts[AHEAD][TILE_ROWS * PANEL];
            const auto begin = [&](int64_t g) {
                WholeTiles::multiply(codes_at(first + g / PER * TILE_ROWS, g), GROUP,
                                     weights + g * Inputs * PANEL, parts[g % AHEAD]);
            };
            Floats sums[TILE_ROWS][VECTORS] = {};
            for (int64_t g = 0; g < std::min<int64_t>(AHEAD - 1, groups); ++g) begin(g);
            for (int64_t g = 0; g < groups; ++g) {
                if (g + AHEAD - 1 < groups) begin(g + AHEAD - 1);
                Ints totals[TILE_ROWS][VECTORS];
#pragma GCC unroll 16
                for (int r = 0; r < TILE_ROWS; ++r)
                    for (int v = 0; v < VECTORS; ++v)
                        totals[r][v] = load<Ints>(parts[g % AHEAD] + r * PANEL + v * WIDE);
                scale_group(sums, totals, first + g / PER * TILE_ROWS, 1, (panel * groups + g) * PANEL);
            }
            for (int r = 0; r < TILE_ROWS; ++r)
                for (int v = 0; v < VECTORS; ++v) store(to + r * PANEL + v * WIDE, sums[r][v]);
        }
    }

    template <int Count>
    void multiply(int row, int panel, float* to) const {
        if constexpr (Count <= AT_ONCE) {
            const int64_t groups = int64_t(rows.groups) * PER, begin = panel * groups * PANEL;
            const int64_t first = rows.at(row, 0), apart = rows.apart();
            const int8_t* line = given.codes + panel * groups * LINES * LINE;
            Floats sums[Count][VECTORS] = {};
            for (int64_t g = 0; g < groups; ++g, line += LINES * LINE) {
                const int64_t place = first + g / PER * rows.side();
                const int32_t* shifts = rows.shifts + place * PER + g % PER;
                typename Codes::Sums parts[Count][VECTORS];
                for (int r = 0; r < Count; ++r)
                    for (int v = 0; v < VECTORS; ++v) parts[r][v] = Codes::begin(shifts[r * apart * PER]);
                add_group<Count>(parts, codes_at(place, g), apart * GROUP, line);
                Ints totals[Count][VECTORS];
                for (int r = 0; r < Count; ++r)
                    for (int v = 0; v < VECTORS; ++v)
                        totals[r][v] = Codes::total(parts[r][v], shifts[r * apart * PER]);
                scale_group(sums, totals, place, apart, begin + g * PANEL);
            }
            for (int r = 0; r < Count; ++r)
                for (int v = 0; v < VECTORS; ++v) store(to + r * PANEL + v * WIDE, sums[r][v]);
        }
    }

    const int8_t* codes_at(int64_t place, int64_t g) const { return rows.codes + place * GROUP + g % PER * Inputs; }

    template <int Count>
    static void add_group(typename Codes::Sums (&sums)[Count][VECTORS], const int8_t* from, int64_t depth,
                          const int8_t* line) {
#pragma GCC unroll 8
        for (int n = 0; n < LINES; ++n, line += LINE)
#pragma GCC unroll 2
            for (int part = 0; part < Codes::PARTS; ++part) {
                typename Codes::Weights weights[VECTORS];
                for (int v = 0; v < VECTORS; ++v)
                    weights[v] = Codes::weights(load<Ints>(line + v * WIDE * 4), part);
#pragma GCC unroll 8
                for (int r = 0; r < Count; ++r) {
                    const Ints row = repeated(load<int32_t>(from + r * depth + (n * Codes::PARTS + part) * 4));
                    for (int v = 0; v < VECTORS; ++v) Codes::add(sums[r][v], weights[v], row);
                }
            }
    }

    // `group`: where the first row's scale lies; the next one's is `apart` from it. `place`: where the weights' lie.
    template <int Count>
    [[gnu::always_inline]] inline void scale_group(Floats (&sums)[Count][VECTORS],
                                                   const Ints (&totals)[Count][VECTORS], int64_t group,
                                                   int64_t apart, int64_t place) const {
#pragma GCC unroll 16
        for (int r = 0; r < Count; ++r) {
            const Floats by = repeated(rows.scales[group + r * apart]);
            for (int v = 0; v < VECTORS; ++v)
                sums[r][v] = add_product(floats(totals[r][v]), halves(given.scales + place + v * WIDE) * by,
                                         sums[r][v]);
        }
        if (!given.offsets) return;
#pragma GCC unroll 16
        for (int r = 0; r < Count; ++r)
            for (int v = 0; v < VECTORS; ++v)
                sums[r][v] = add_product(halves(given.offsets + place + v * WIDE),
                                         repeated(rows.totals[group + r * apart]), sums[r][v]);
    }

    void leave(const float* sums, int64_t row, int column) const {
        Stored* to = given.to + row * given.outputs + column;
        const Stored* bias = given.bias ? given.bias + column : nullptr;
        if (column + PANEL <= given.outputs)
            for (int n = 0; n < PANEL; n += WIDE)
                narrow(bias ? load<Floats>(sums + n) + wide_vector(bias + n) : load<Floats>(sums + n), to + n);
        else
            for (int n = 0; column + n < given.outputs; ++n) narrow(bias ? sums[n] + wide(bias[n]) : sums[n], to[n]);
    }
};

template <class Stored>
void multiply(const void* rows, const void* codes, const void* scales, const void* offsets, const void* bias,
              void* to, int64_t count, int in, int outputs, int bits, int group, int threads) {
    const int zero = bits == 4 && !offsets ? 8 : 0;
    const Operands<Stored> given{static_cast<const Stored*>(rows),
                                 static_cast<const int8_t*>(codes),
                                 static_cast<const uint16_t*>(scales),
                                 static_cast<const uint16_t*>(offsets),
                                 static_cast<const Stored*>(bias),
                                 static_cast<Stored*>(to),
                                 count, in, outputs};
    if (bits == 4)
        Product<Nibbles, 32, Stored>(given, zero).compute_all(threads);
    else if (group == 16)
        Product<Bytes, 16, Stored>(given, zero).compute_all(threads);
    else
        Product<Bytes, 32, Stored>(given, zero).compute_all(threads);
}

}  // namespace
#endif

#define ENTRY(name, Stored)                                                                                  \
    extern "C" void name(const void* rows, const void* codes, const void* scales, const void* offsets,       \
                         const void* bias, void* to, int64_t count, int in, int outputs, int bits, int group, \
                         int threads) {                                                                      \
        QUANTIZED(Stored);                                                                                   \
    }

#if defined(WHOLE_NUMBERS)
#define QUANTIZED(Stored)                                                                                    \
    multiply<Stored>(rows, codes, scales, offsets, bias, to, count, in, outputs, bits, group, threads)
extern "C" bool multiplies_codes() { return true; }
#else
#define QUANTIZED(Stored)
extern "C" bool multiplies_codes() { return false; }
#endif

ENTRY(multiply_codes_float32, float)
ENTRY(multiply_codes_bfloat16, uint16_t)
