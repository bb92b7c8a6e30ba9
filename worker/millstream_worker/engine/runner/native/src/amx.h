// The products of bfloat16 on processors with AMX, whose tiles hold 16 rows of 16 pairs: what is left of K is
// multiplied by vectors, after them. A row gets the same sums in a tile of any number of rows.
#pragma once

#include "multiply.h"

// Tiles for blocks of `rows` rows, until the end of its life: for this thread, which has other users of them.
template <class P>
struct Tiles {
    explicit Tiles(int) {}

    // Keys are taken in by multiples of this.
    static int keys() { return GROUP; }
};

#if !defined(__AMX_BF16__) || !defined(__AVX512BF16__) || !defined(__linux__)
inline bool may_use_tiles() { return false; }
#else
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

constexpr int SIDE = 16;

// The kernel gives tiles to processes that ask for them.
inline bool may_use_tiles() {
    constexpr int REQUEST = 0x1023, TILE_DATA = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    static const bool may = syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
    return may;
}

struct alignas(64) TileShape {
    uint8_t palette = 1, start = 0, reserved[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};
};

// 0 to 2: two blocks of sums and one of A with 16 rows each; 3 to 5: with the rows that are left; 6, 7: B.
template <>
struct Tiles<Pairs> {
    explicit Tiles(int rows) {
        if (!may_use_tiles()) return;
        TileShape shape;
        const int left = rows % SIDE ? rows % SIDE : SIDE;
        for (int tile = 0; tile < 8; ++tile) {
            shape.bytes[tile] = 64;
            shape.rows[tile] = tile >= 3 && tile <= 5 ? left : SIDE;
        }
        _tile_loadconfig(&shape);
    }
    ~Tiles() {
        if (may_use_tiles()) _tile_release();
    }
    Tiles(const Tiles&) = delete;
    Tiles& operator=(const Tiles&) = delete;

    // Of a tile: vectors round otherwise, and which of them multiplied would depend on a step's last key.
    static int keys() { return may_use_tiles() ? 2 * SIDE : GROUP; }
};

// One block of rows. (The numbers of tiles are part of instructions.)
#define MULTIPLY_TILES(name, SUMS, MORE_SUMS, A)                                                            \
    inline void name(int columns, int depth, const uint32_t* a, int a_stride, const uint32_t* b,            \
                     int b_stride, float* c, int c_stride, bool add) {                                      \
        int n = 0;                                                                                          \
        for (; n + 2 * SIDE <= columns; n += 2 * SIDE) {                                                    \
            if (add) {                                                                                      \
                _tile_loadd(SUMS, c + n, c_stride * 4);                                                     \
                _tile_loadd(MORE_SUMS, c + n + SIDE, c_stride * 4);                                         \
            } else {                                                                                        \
                _tile_zero(SUMS);                                                                           \
                _tile_zero(MORE_SUMS);                                                                      \
            }                                                                                               \
            for (int k = 0; k < depth; k += SIDE) {                                                         \
                _tile_loadd(A, a + k, a_stride * 4);                                                        \
                _tile_loadd(6, b + k * b_stride + n, b_stride * 4);                                         \
                _tile_loadd(7, b + k * b_stride + n + SIDE, b_stride * 4);                                  \
                _tile_dpbf16ps(SUMS, A, 6);                                                                 \
                _tile_dpbf16ps(MORE_SUMS, A, 7);                                                            \
            }                                                                                               \
            _tile_stored(SUMS, c + n, c_stride * 4);                                                        \
            _tile_stored(MORE_SUMS, c + n + SIDE, c_stride * 4);                                            \
        }                                                                                                   \
        if (n == columns) return;                                                                           \
        if (add)                                                                                            \
            _tile_loadd(SUMS, c + n, c_stride * 4);                                                         \
        else                                                                                                \
            _tile_zero(SUMS);                                                                               \
        for (int k = 0; k < depth; k += SIDE) {                                                             \
            _tile_loadd(A, a + k, a_stride * 4);                                                            \
            _tile_loadd(6, b + k * b_stride + n, b_stride * 4);                                             \
            _tile_dpbf16ps(SUMS, A, 6);                                                                     \
        }                                                                                                   \
        _tile_stored(SUMS, c + n, c_stride * 4);                                                            \
    }

MULTIPLY_TILES(multiply_whole_tiles, 0, 1, 2)
MULTIPLY_TILES(multiply_last_tiles, 3, 4, 5)
#undef MULTIPLY_TILES

// `rows` are those that the thread's `Tiles` were made for.
template <>
inline void multiply<Pairs>(int rows, int columns, int depth, const uint32_t* a, int a_stride,
                            const uint32_t* b, int b_stride, float* c, int c_stride, bool add) {
    const int whole = may_use_tiles() ? depth / SIDE * SIDE : 0;
    if (whole) {
        asm volatile("" ::: "memory");  // GCC does not know that tiles are loaded from there
        int row = 0;
        for (; row + SIDE <= rows; row += SIDE)
            multiply_whole_tiles(columns, whole, a + row * a_stride, a_stride, b, b_stride, c + row * c_stride,
                                 c_stride, add);
        if (row < rows)
            multiply_last_tiles(columns, whole, a + row * a_stride, a_stride, b, b_stride, c + row * c_stride,
                                c_stride, add);
    }
    if (whole < depth)
        multiply_vectors<Pairs>(rows, columns, depth - whole, a + whole, a_stride, b + whole * b_stride,
                                b_stride, c, c_stride, add || whole);
}
#endif
