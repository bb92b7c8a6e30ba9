// C[M, N] (+)= A[M, K] · B[K, N] for small matrices that lie in the processor's cache. A sum is made in the
// order of K whatever M and N are: what a row gets does not depend on who shares its tile.
#pragma once

#include "packing.h"

#if defined(__AVX__) && !defined(__AVX512F__)
constexpr int VECTORS = 2;  // 16 registers: 6 x 2 sums
#else
constexpr int VECTORS = 4;
#endif
constexpr int ROWS = 6;

template <class P, int Rows, int Vectors>
inline void multiply_block(const typename P::Packed* a, int a_stride, const typename P::Packed* b,
                           int b_stride, float* c, int c_stride, int depth, bool add) {
    Vector sums[Rows][Vectors];
    for (int r = 0; r < Rows; ++r)
        for (int v = 0; v < Vectors; ++v)
            sums[r][v] = add ? load<Vector>(c + r * c_stride + v * LANES) : Vector{};
    for (int k = 0; k < depth; ++k, b += b_stride) {
        Vector columns[Vectors];
        for (int v = 0; v < Vectors; ++v) columns[v] = load<Vector>(b + v * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) {
            const Vector row = P::repeated(a[r * a_stride + k]);
#pragma GCC unroll 8
            for (int v = 0; v < Vectors; ++v) sums[r][v] = P::add_product(sums[r][v], row, columns[v]);
        }
    }
    for (int r = 0; r < Rows; ++r)
        for (int v = 0; v < Vectors; ++v) store(c + r * c_stride + v * LANES, sums[r][v]);
}

template <class P, int Vectors>
inline void multiply_columns(int rows, const typename P::Packed* a, int a_stride, const typename P::Packed* b,
                             int b_stride, float* c, int c_stride, int depth, bool add) {
    for (; rows >= ROWS; rows -= ROWS, a += ROWS * a_stride, c += ROWS * c_stride)
        multiply_block<P, ROWS, Vectors>(a, a_stride, b, b_stride, c, c_stride, depth, add);
    switch (rows) {
        case 5: return multiply_block<P, 5, Vectors>(a, a_stride, b, b_stride, c, c_stride, depth, add);
        case 4: return multiply_block<P, 4, Vectors>(a, a_stride, b, b_stride, c, c_stride, depth, add);
        case 3: return multiply_block<P, 3, Vectors>(a, a_stride, b, b_stride, c, c_stride, depth, add);
        case 2: return multiply_block<P, 2, Vectors>(a, a_stride, b, b_stride, c, c_stride, depth, add);
        case 1: return multiply_block<P, 1, Vectors>(a, a_stride, b, b_stride, c, c_stride, depth, add);
    }
}

// `columns` is a multiple of LANES.
template <class P>
void multiply_vectors(int rows, int columns, int depth, const typename P::Packed* a, int a_stride,
                      const typename P::Packed* b, int b_stride, float* c, int c_stride, bool add) {
    int done = 0;
    for (; done + VECTORS * LANES <= columns; done += VECTORS * LANES)
        multiply_columns<P, VECTORS>(rows, a, a_stride, b + done, b_stride, c + done, c_stride, depth, add);
    for (; done < columns; done += LANES)
        multiply_columns<P, 1>(rows, a, a_stride, b + done, b_stride, c + done, c_stride, depth, add);
}

template <class P>
inline void multiply(int rows, int columns, int depth, const typename P::Packed* a, int a_stride,
                     const typename P::Packed* b, int b_stride, float* c, int c_stride, bool add) {
    multiply_vectors<P>(rows, columns, depth, a, a_stride, b, b_stride, c, c_stride, add);
}
