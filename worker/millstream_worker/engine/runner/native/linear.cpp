// C[M, out] = A[M, in] · W[out, in]ᵀ + bias. The weights lie in panels: [out / PANEL][in][PANEL], in elements.
// A row's sums are made in one order whatever other rows there are: it gets the same alone and among many.
#include <algorithm>

#include "multiply.h"

namespace {

// Outputs that lie side by side: as many as a block of six rows computes at once, so that memory is read from
// one end to the other.
#if defined(__AVX512F__)
constexpr int PANEL = 64;
#else
constexpr int PANEL = 16;
#endif
constexpr int DEPTH = 512;  // elements of `in` that are gone through at a time: a core's cache holds a panel's
constexpr int ROWS = 120;   // that go through them while they are there

inline int parts_of(int size, int most) { return (size + most - 1) / most; }

inline float wide(float value) { return value; }
inline float wide(uint16_t value) { return widened(value); }

template <class P>
struct Product {
    using Stored = typename P::Stored;
    using Packed = typename P::Packed;

    const Packed* rows;
    const Packed* panels;
    const Stored* bias;  // or null
    Stored* to;
    int64_t count;
    int depth, outputs;

    void compute_all(int threads) const {
        const int64_t chunks = (count + ROWS - 1) / ROWS;
        const int across = parts_of(outputs, PANEL);
        if (chunks > 1 && chunks * across >= 4 * threads)
            compute_panels(chunks, across, threads);
        else
            compute_shares(threads);
    }

    void compute_panels(int64_t chunks, int across, int threads) const {
#pragma omp parallel for schedule(dynamic) num_threads(threads)
        for (int64_t item = 0; item < chunks * across; ++item)
            compute(item / across * ROWS, int(item % across) * PANEL, outputs);
    }

    // Few rows: each thread reads an equal share of the weights.
    void compute_shares(int threads) const {
        const int64_t groups = parts_of(outputs, GROUP);
#pragma omp parallel for schedule(static) num_threads(threads)
        for (int share = 0; share < threads; ++share) {
            const int first = int(groups * share / threads) * GROUP;
            const int end = std::min(int(groups * (share + 1) / threads) * GROUP, outputs);
            for (int64_t row = 0; row < count; row += ROWS)
                for (int column = first; column < end; column += PANEL - column % PANEL) compute(row, column, end);
        }
    }

    // For up to ROWS rows, what one panel has of the outputs [column, end).
    void compute(int64_t row, int column, int end) const {
        alignas(64) static thread_local float sums[ROWS * PANEL];
        const int some = int(std::min<int64_t>(ROWS, count - row));
        const int width = std::min(PANEL - column % PANEL, end - column);
        const Packed* panel = panels + int64_t(column / PANEL) * depth * PANEL + column % PANEL;
        const int deep = parts_of(depth, parts_of(depth, DEPTH));
        for (int k = 0; k < depth; k += deep)
            multiply_vectors<P>(some, rounded_up(width, GROUP), std::min(deep, depth - k),
                                rows + row * depth + k, depth, panel + int64_t(k) * PANEL, PANEL, sums, PANEL,
                                k > 0);
        for (int r = 0; r < some; ++r)
            leave(sums + r * PANEL, bias ? bias + column : nullptr, width, to + (row + r) * outputs + column);
    }

    static void leave(float* sums, const Stored* bias, int width, Stored* to) {
        alignas(64) Packed space[PANEL];
        if (bias)
            for (int n = 0; n < width; ++n) sums[n] += wide(bias[n]);
        std::memcpy(to, P::pack_floats(sums, width, space), width * sizeof *to);
    }
};

template <class P>
void multiply_all(const void* rows, const void* panels, const void* bias, void* to, int64_t count, int in,
                  int outputs, int threads) {
    using Stored = typename P::Stored;
    using Packed = typename P::Packed;
    const Product<P> product{static_cast<const Packed*>(rows), static_cast<const Packed*>(panels),
                             static_cast<const Stored*>(bias), static_cast<Stored*>(to),
                             count, in / P::PER, outputs};
    product.compute_all(threads);
}

}  // namespace

// Outputs in a panel, and numbers in an element of it; 0 of what this processor has no vectors for.
extern "C" int panel_width() { return PANEL; }
#if defined(__FMA__) || defined(__AVX512F__)
extern "C" int panel_float32() { return Float32::PER; }
#else
extern "C" int panel_float32() { return 0; }
#endif
#if defined(__AVX512BF16__)
extern "C" int panel_bfloat16() { return BFloat16::PER; }
#else
extern "C" int panel_bfloat16() { return 0; }
#endif

#define ENTRY(name, P)                                                                                       \
    extern "C" void name(const void* rows, const void* panels, const void* bias, void* to, int64_t count,    \
                         int in, int outputs, int threads) {                                                 \
        multiply_all<P>(rows, panels, bias, to, count, in, outputs, threads);                                \
    }

ENTRY(multiply_float32, Float32)
#if defined(__AVX512BF16__)
ENTRY(multiply_bfloat16, BFloat16)
#endif
