// x · σ(linear · x + cubic · x³): GELU by its tanh, QuickGELU, SiLU.
#include "pieces.h"
#include "vectors.h"

namespace {

template <class T>
void gate(const T* from, T* to, int64_t count, float linear, float cubic, int threads) {
    in_spans((count + LANES - 1) / LANES, threads, [&](Span vectors) {
        const int64_t end = std::min(vectors.end * LANES, count);
        for (int64_t n = vectors.first * LANES; n < end; n += LANES) {
            const int some = int(std::min<int64_t>(LANES, end - n));
            const Vector x = load_some(from + n, some);
            Vector power = (cubic * x * x + linear) * x * -LOG2_E;
            power = power > 126.0f ? broadcast(126.0f) : power;
            store_some(to + n, x / (power_of_two(power) + 1.0f), some);
        }
    });
}

}  // namespace

extern "C" void gate_bfloat16(const uint16_t* from, uint16_t* to, int64_t count, float linear, float cubic,
                              int threads) {
    gate(from, to, count, linear, cubic, threads);
}

extern "C" void gate_float32(const float* from, float* to, int64_t count, float linear, float cubic,
                             int threads) {
    gate(from, to, count, linear, cubic, threads);
}
