// C[M, out] = A[M, in] · W[out, in]ᵀ + bias in bfloat16 by AMX's tiles, in blocks of 32 rows and 32 outputs. A
// row's sums are made in the order of `in` in a block of any number of rows: it gets the same alone and among
// many. On two cores of a Xeon 1.3 to 1.8 times as fast as oneDNN with one row, 1.2 to 1.5 times with 32, 0.8 to
// 1.4 with 512, 0.7 to 0.9 with 2,048; whole workloads of a 135M model 1.02 to 1.45 times.
#pragma once

#include "amx.h"
#include "pieces.h"
#include "scratch.h"

#if defined(__AMX_BF16__) && defined(__AVX512BF16__) && defined(__linux__)
namespace {

class TileProduct {
public:
    static constexpr int PANEL = 2 * SIDE;  // outputs that lie side by side: [out / 32][in / 2][32], in pairs

    TileProduct(const void* rows, const void* panels, const void* bias, void* to, int in, int outputs)
        : rows_(static_cast<const uint16_t*>(rows)), panels_(static_cast<const uint32_t*>(panels)),
          bias_(static_cast<const uint16_t*>(bias)), to_(static_cast<uint16_t*>(to)), in_(in),
          outputs_(outputs) {}

    // Few rows: each thread reads an equal share of the weights, else some shares, whichever is free.
    void compute_all(int64_t count, int threads) const {
        const int64_t across = (outputs_ + PANEL - 1) / PANEL;
        if (count <= PANEL)
            return in_spans(across, threads, [&](Span panels) {
                compute(0, int(count), int(panels.first), int(panels.end));
            });
        const int chunk = std::clamp(CHUNK_BYTES / (2 * in_), 4 * PANEL, 16 * PANEL) / PANEL * PANEL;
        const int64_t chunks = (count + chunk - 1) / chunk;
        const int64_t each = std::clamp<int64_t>(across / (TOGETHER * threads), 1, 4);
        const int64_t shares = std::min<int64_t>(across, each * threads);
        one_by_one(chunks * shares, threads, [&](int64_t item) {
            const int64_t first = item / shares * chunk;
            const Span panels = Span{0, across}.part(item % shares, shares);
            compute(first, int(std::min<int64_t>(chunk, count - first)), int(panels.first), int(panels.end));
        });
    }

private:
    static constexpr int STEP = 2 * SIDE;           // elements of `in` that a product of tiles adds up
    static constexpr int CHUNK_BYTES = 1 << 20;     // of rows: the second level of cache holds them, and
    static constexpr int PANELS_BYTES = 400 << 10;  // of panels that are multiplied with them together,
    static constexpr int TOGETHER = 4;              // at most, while the first level holds
    static constexpr int DEPTH = 400;               // elements of a block of rows

    const uint16_t* const rows_;
    const uint32_t* const panels_;
    const uint16_t* const bias_;  // or null
    uint16_t* const to_;
    const int in_, outputs_;

    // What panels [panel, end) have of `count` rows. While many rows are multiplied with some panels the next
    // ones are on their way from memory; with few rows the processor's own guesses are better.
    void compute(int64_t first, int count, int panel, int end) const {
        const int blocks = (count + PANEL - 1) / PANEL;
        const int lines = blocks > 1 ? (PANEL + blocks - 1) / blocks : 0;
        const int parts = blocks > 1 ? (in_ + DEPTH - 1) / DEPTH : 1;
        const int deep = rounded_up((in_ + parts - 1) / parts, STEP);
        const int together = std::clamp(PANELS_BYTES / (PANEL * 2 * in_), 2, TOGETHER);
        int shaped = 0;
        for (; panel < end; panel += together) {
            const int some = std::min(together, end - panel);
            const char* next = reinterpret_cast<const char*>(panel_at(panel + some, 0));
            for (int block = 0; block < blocks; ++block) {
                const int rows = std::min(PANEL, count - block * PANEL);
                if (rows != shaped) shape_tiles(shaped = rows);
                next = compute_block(first + block * PANEL, rows, panel, some, deep, next, lines);
            }
        }
        _tile_release();
    }

    const char* compute_block(int64_t row, int rows, int panel, int some, int most, const char* next,
                              int lines) const {
        alignas(64) static thread_local float sums[TOGETHER][PANEL * PANEL];
        const uint16_t* from = rows_ + row * in_;
        for (int k = 0; k < in_; k += most) {
            const int steps = std::min(most, in_ - k) / STEP;
            for (int p = 0; p < some; ++p, next += steps * lines * LINE) {
                if (rows > SIDE)
                    multiply_steps<true>(steps, from + k, panel_at(panel + p, k), next, lines, sums[p], k > 0);
                else
                    multiply_steps<false>(steps, from + k, panel_at(panel + p, k), next, lines, sums[p], k > 0);
                if (k + most >= in_) finish(row, rows, panel + p, sums[p]);
            }
        }
        return next;
    }

    // With the elements that are no whole step, and the bias.
    void finish(int64_t row, int rows, int panel, float* sums) const {
        const int whole = in_ / STEP * STEP;
        if (whole < in_)
            multiply_vectors<Pairs>(rows, PANEL, (in_ - whole) / 2,
                                    reinterpret_cast<const uint32_t*>(rows_ + row * in_ + whole), in_ / 2,
                                    panel_at(panel, whole), PANEL, sums, PANEL, true);
        for (int r = 0; r < rows; ++r) leave(sums + r * PANEL, row + r, panel * PANEL);
    }

    const uint32_t* panel_at(int panel, int k) const {
        return panels_ + (int64_t(panel) * in_ + k) / 2 * PANEL;
    }

    void leave(const float* sums, int64_t row, int column) const {
        const auto some = __mmask32(~0u >> (PANEL - std::min(PANEL, outputs_ - column)));
        Vector low = load<Vector>(sums), high = load<Vector>(sums + LANES);
        if (bias_) {
            const __m512i bias = _mm512_maskz_loadu_epi16(some, bias_ + column);
            low += widened(_mm512_castsi512_si256(bias));
            high += widened(_mm512_extracti64x4_epi64(bias, 1));
        }
        _mm512_mask_storeu_epi16(to_ + row * outputs_ + column, some,
                                 (__m512i)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low));
    }

    static Vector widened(__m256i halves) {
        return (Vector)_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16);
    }

    // 0 to 3: sums, those of the first 16 rows before those of the others; 4, 5: rows; 6, 7: weights.
    static void shape_tiles(int rows) {
        TileShape shape;
        for (int tile = 0; tile < 8; ++tile) {
            const bool second = tile == 2 || tile == 3 || tile == 5;
            const int left = second ? std::max(rows - SIDE, 1) : std::min(rows, SIDE);
            shape.rows[tile] = tile >= 6 ? SIDE : left;
            shape.bytes[tile] = 64;
        }
        _tile_loadconfig(&shape);
    }

    // Both: there are more than 16 rows.
    template <bool Both>
    void multiply_steps(int steps, const uint16_t* a, const uint32_t* b, const char* next, int lines,
                        float* sums, bool add) const {
        constexpr int STRIDE = PANEL * 4;
        const int64_t a_stride = int64_t(in_) * 2;
        float* below = sums + SIDE * PANEL;
        asm volatile("" ::: "memory");  // GCC does not know that tiles are loaded from there
        if (add) {
            _tile_loadd(0, sums, STRIDE);
            _tile_loadd(1, sums + SIDE, STRIDE);
            if constexpr (Both) {
                _tile_loadd(2, below, STRIDE);
                _tile_loadd(3, below + SIDE, STRIDE);
            }
        } else {
            _tile_zero(0);
            _tile_zero(1);
            if constexpr (Both) {
                _tile_zero(2);
                _tile_zero(3);
            }
        }
        for (int k = 0; k < steps; ++k, a += STEP, b += SIDE * PANEL) {
            for (int line = 0; line < lines; ++line, next += LINE) __builtin_prefetch(next, 0, 2);
            _tile_loadd(4, a, a_stride);
            _tile_stream_loadd(6, b, STRIDE);  // the first level of cache is for the rows
            _tile_stream_loadd(7, b + SIDE, STRIDE);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            if constexpr (Both) {
                _tile_loadd(5, a + SIDE * in_, a_stride);
                _tile_dpbf16ps(2, 5, 6);
                _tile_dpbf16ps(3, 5, 7);
            }
        }
        _tile_stored(0, sums, STRIDE);
        _tile_stored(1, sums + SIDE, STRIDE);
        if constexpr (Both) {
            _tile_stored(2, below, STRIDE);
            _tile_stored(3, below + SIDE, STRIDE);
        }
        asm volatile("" ::: "memory");
    }
};

}  // namespace
#endif
