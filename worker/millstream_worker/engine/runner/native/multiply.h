// C[M, N] (+)= A[M, K] · B[K, N] for small matrices that lie in the processor's cache, or are soon to.
// A sum is made in the order of K whatever M and N are: what a row gets does not depend on who shares its tile.
#pragma once

#include "packing.h"

// Blocks of sums: enough of them to keep the processor's pipes busy, and no more than fit into its registers
// beside the operands. AVX2 has 16: four rows would get two vectors each, which is too few, and go by twos.
#if defined(__AVX__) && !defined(__AVX512F__)
constexpr int rows_of(int left) { return left >= 6 ? 6 : left >= 4 ? (left + 1) / 2 : left; }
constexpr int vectors_of(int rows) { return rows == 1 ? 8 : rows <= 3 ? 4 : 2; }
#else
constexpr int rows_of(int left) { return left >= 6 ? 6 : left; }
constexpr int vectors_of(int) { return 4; }
#endif

// One more k. What there is less of, rows or vectors, waits in registers for the other.
template <class P, int Rows, int Vectors>
inline void add_to_rows(Vector (&sums)[Rows][Vectors], const typename P::Packed* a, int a_stride,
                        const typename P::Packed* b) {
    Vector rows[Rows];
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) rows[r] = P::repeated(a[r * a_stride]);
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) {
        const Vector column = load<Vector>(b + v * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) sums[r][v] = P::add_product(sums[r][v], rows[r], column);
    }
}

template <class P, int Rows, int Vectors>
inline void add_to_columns(Vector (&sums)[Rows][Vectors], const typename P::Packed* a, int a_stride,
                           const typename P::Packed* b) {
    Vector columns[Vectors];
    for (int v = 0; v < Vectors; ++v) columns[v] = load<Vector>(b + v * LANES);
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
        const Vector row = P::repeated(a[r * a_stride]);
#pragma GCC unroll 8
        for (int v = 0; v < Vectors; ++v) sums[r][v] = P::add_product(sums[r][v], row, columns[v]);
    }
}

template <class P, int Rows, int Vectors>
inline void multiply_block(const typename P::Packed* a, int a_stride, const typename P::Packed* b,
                           int b_stride, float* c, int c_stride, int depth, bool add) {
    Vector sums[Rows][Vectors];
    for (int r = 0; r < Rows; ++r)
        for (int v = 0; v < Vectors; ++v)
            sums[r][v] = add ? load<Vector>(c + r * c_stride + v * LANES) : Vector{};
    for (int k = 0; k < depth; ++k, a += 1, b += b_stride)
        if constexpr (Rows < Vectors)
            add_to_rows<P>(sums, a, a_stride, b);
        else
            add_to_columns<P>(sums, a, a_stride, b);
    for (int r = 0; r < Rows; ++r)
        for (int v = 0; v < Vectors; ++v) store(c + r * c_stride + v * LANES, sums[r][v]);
}

template <class P, int Rows>
inline void multiply_rows(int columns, const typename P::Packed* a, int a_stride, const typename P::Packed* b,
                          int b_stride, float* c, int c_stride, int depth, bool add) {
    constexpr int vectors = vectors_of(Rows);
    int done = 0;
    for (; done + vectors * LANES <= columns; done += vectors * LANES)
        multiply_block<P, Rows, vectors>(a, a_stride, b + done, b_stride, c + done, c_stride, depth, add);
    for (; done < columns; done += GROUP)
        multiply_block<P, Rows, GROUP / LANES>(a, a_stride, b + done, b_stride, c + done, c_stride, depth, add);
}

// `columns` is a multiple of 16.
template <class P>
void multiply_vectors(int rows, int columns, int depth, const typename P::Packed* a, int a_stride,
                      const typename P::Packed* b, int b_stride, float* c, int c_stride, bool add) {
    while (rows > 0) {
        const int taken = rows_of(rows);
        switch (taken) {
            case 6: multiply_rows<P, 6>(columns, a, a_stride, b, b_stride, c, c_stride, depth, add); break;
            case 5: multiply_rows<P, 5>(columns, a, a_stride, b, b_stride, c, c_stride, depth, add); break;
            case 4: multiply_rows<P, 4>(columns, a, a_stride, b, b_stride, c, c_stride, depth, add); break;
            case 3: multiply_rows<P, 3>(columns, a, a_stride, b, b_stride, c, c_stride, depth, add); break;
            case 2: multiply_rows<P, 2>(columns, a, a_stride, b, b_stride, c, c_stride, depth, add); break;
            case 1: multiply_rows<P, 1>(columns, a, a_stride, b, b_stride, c, c_stride, depth, add); break;
        }
        rows -= taken;
        a += taken * a_stride;
        c += taken * c_stride;
    }
}

template <class P>
inline void multiply(int rows, int columns, int depth, const typename P::Packed* a, int a_stride,
                     const typename P::Packed* b, int b_stride, float* c, int c_stride, bool add) {
    multiply_vectors<P>(rows, columns, depth, a, a_stride, b, b_stride, c, c_stride, add);
}
