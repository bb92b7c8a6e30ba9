// C[M, N] (+)= A[M, K] · B[K, N] for small matrices that lie in the processor's cache, or are soon to.
// A sum is made in the order of K whatever M and N are: what a row gets does not depend on who shares its tile.
#pragma once

#include "packing.h"

// Blocks of sums: enough of them to keep the processor's pipes busy, and no more than fit into its registers
// beside the operands. AVX2 has 16: four rows would get two vectors each, which is too few, and go by twos.
// With AVX-512 what is widened as it is read is widened for twelve rows at once.
#if defined(__AVX__) && !defined(__AVX512F__)
template <class P>
constexpr int rows_of(int left) {
    return left >= 6 ? 6 : left >= 4 ? (left + 1) / 2 : left;
}
constexpr int vectors_of(int rows) { return rows == 1 ? 8 : rows <= 3 ? 4 : 2; }
#else
template <class P>
constexpr int rows_of(int left) {
    return P::PARTS > 1 && left >= 12 ? 12 : left >= 6 ? 6 : left;
}
constexpr int vectors_of(int rows) { return rows > 6 ? 2 : 4; }
#endif

// A vector of sums: floats, or whole numbers in their place.
template <class P>
using Lanes = decltype(P::column(nullptr, 0));

// One more element of B in each column, or a part of it. What there is less of, rows or vectors, waits in
// registers for the other.
template <class P, int Rows, int Vectors>
inline void add_to_rows(Lanes<P> (&sums)[Rows][Vectors], const typename P::Row* a, int a_stride,
                        const typename P::Packed* b, int part) {
    Lanes<P> rows[Rows];
#pragma GCC unroll 12
    for (int r = 0; r < Rows; ++r) rows[r] = P::repeated(a[r * a_stride + part]);
#pragma GCC unroll 12
    for (int v = 0; v < Vectors; ++v) {
        const Lanes<P> column = P::column(b + v * LANES, part);
#pragma GCC unroll 12
        for (int r = 0; r < Rows; ++r) sums[r][v] = P::add_product(sums[r][v], rows[r], column);
    }
}

template <class P, int Rows, int Vectors>
inline void add_to_columns(Lanes<P> (&sums)[Rows][Vectors], const typename P::Row* a, int a_stride,
                           const typename P::Packed* b, int part) {
    Lanes<P> columns[Vectors];
#pragma GCC unroll 12
    for (int v = 0; v < Vectors; ++v) columns[v] = P::column(b + v * LANES, part);
#pragma GCC unroll 12
    for (int r = 0; r < Rows; ++r) {
        const Lanes<P> row = P::repeated(a[r * a_stride + part]);
#pragma GCC unroll 12
        for (int v = 0; v < Vectors; ++v) sums[r][v] = P::add_product(sums[r][v], row, columns[v]);
    }
}

// Ahead: what comes so many elements after what is read is asked for, where B comes from memory.
template <class P, int Ahead, int Rows, int Vectors>
inline void multiply_block(const typename P::Row* a, int a_stride, const typename P::Packed* b,
                           int b_stride, float* c, int c_stride, int depth, typename P::Add add) {
    Lanes<P> sums[Rows][Vectors];
    for (int r = 0; r < Rows; ++r)
        for (int v = 0; v < Vectors; ++v)
            sums[r][v] = !P::WHOLE && add ? load<Lanes<P>>(c + r * c_stride + v * LANES) : Lanes<P>{};
    for (int k = 0; k < depth; ++k, a += P::PARTS, b += b_stride) {
        if constexpr (Ahead > 0)
            for (int v = 0; v < Vectors; ++v) __builtin_prefetch(b + v * LANES + Ahead, 0, 2);
#pragma GCC unroll 2
        for (int part = 0; part < P::PARTS; ++part)
            if constexpr (Rows < Vectors)
                add_to_rows<P>(sums, a, a_stride, b, part);
            else
                add_to_columns<P>(sums, a, a_stride, b, part);
    }
    for (int r = 0; r < Rows; ++r)
        for (int v = 0; v < Vectors; ++v) {
            float* to = c + r * c_stride + v * LANES;
            if constexpr (P::WHOLE)
                if (add) {
                    store(to, fused(floats_of(sums[r][v]), broadcast(add[r]), load<Vector>(to)));
                    continue;
                }
            store(to, sums[r][v]);
        }
}

template <class P, int Ahead, int Rows>
inline void multiply_rows(int columns, const typename P::Row* a, int a_stride, const typename P::Packed* b,
                          int b_stride, float* c, int c_stride, int depth, typename P::Add add) {
    constexpr int vectors = vectors_of(Rows);
    int done = 0;
    for (; done + vectors * LANES <= columns; done += vectors * LANES)
        multiply_block<P, Ahead, Rows, vectors>(a, a_stride, b + done, b_stride, c + done, c_stride, depth,
                                                add);
    for (; done < columns; done += GROUP)
        multiply_block<P, Ahead, Rows, GROUP / LANES>(a, a_stride, b + done, b_stride, c + done, c_stride,
                                                     depth, add);
}

// `columns` is a multiple of 16; `depth` counts elements of B.
template <class P, int Ahead = 0>
void multiply_vectors(int rows, int columns, int depth, const typename P::Row* a, int a_stride,
                      const typename P::Packed* b, int b_stride, float* c, int c_stride, typename P::Add add) {
    const auto go = [&](auto multiply) {
        multiply(columns, a, a_stride, b, b_stride, c, c_stride, depth, add);
    };
    while (rows > 0) {
        const int taken = rows_of<P>(rows);
        switch (taken) {
            case 12:
                if constexpr (P::PARTS > 1) go(multiply_rows<P, Ahead, 12>);
                break;
            case 6: go(multiply_rows<P, Ahead, 6>); break;
            case 5: go(multiply_rows<P, Ahead, 5>); break;
            case 4: go(multiply_rows<P, Ahead, 4>); break;
            case 3: go(multiply_rows<P, Ahead, 3>); break;
            case 2: go(multiply_rows<P, Ahead, 2>); break;
            case 1: go(multiply_rows<P, Ahead, 1>); break;
        }
        rows -= taken;
        if constexpr (P::WHOLE)
            if (add) add += taken;
        a += taken * a_stride;
        c += taken * c_stride;
    }
}

template <class P>
inline void multiply(int rows, int columns, int depth, const typename P::Row* a, int a_stride,
                     const typename P::Packed* b, int b_stride, float* c, int c_stride, typename P::Add add) {
    multiply_vectors<P>(rows, columns, depth, a, a_stride, b, b_stride, c, c_stride, add);
}
