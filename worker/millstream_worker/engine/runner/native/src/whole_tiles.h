// Products of codes on processors with AMX: one instruction multiplies a group of inputs of 16 rows with those of
// 16 outputs. Sums are exact, as those of vectors are.
#pragma once

#include "amx.h"
#include "whole_numbers.h"

#if defined(__AMX_INT8__) && defined(__AMX_BF16__) && defined(__AVX512BF16__) && defined(__linux__)

constexpr int TILE_ROWS = SIDE;
inline bool tiles_pay(int rows) { return rows > SIDE / 2 && may_use_tiles(); }

// Tiles for 16 rows and groups of `inputs`, until the end of its life: 0 sums, 1 rows, 2 weights.
class WholeTiles {
public:
    WholeTiles(int inputs, bool used) : used_(used) {
        if (!used) return;
        TileShape shape;
        shape.rows[0] = shape.rows[1] = SIDE;
        shape.rows[2] = uint8_t(inputs / 4);
        shape.bytes[0] = shape.bytes[2] = SIDE * 4;
        shape.bytes[1] = uint16_t(inputs);
        _tile_loadconfig(&shape);
    }
    ~WholeTiles() {
        if (used_) _tile_release();
    }
    WholeTiles(const WholeTiles&) = delete;
    WholeTiles& operator=(const WholeTiles&) = delete;

    // `codes` of rows lie `stride` bytes apart, `weights` as [inputs / 4][16][4], `sums` as [rows][16].
    static void multiply(const int8_t* codes, int64_t stride, const int8_t* weights, int32_t* sums) {
        asm volatile("" ::: "memory");  // GCC does not know that tiles are loaded from there
        _tile_zero(0);
        _tile_loadd(1, codes, stride);
        _tile_loadd(2, weights, SIDE * 4);
        _tile_dpbssd(0, 1, 2);
        _tile_stored(0, sums, SIDE * 4);
        asm volatile("" ::: "memory");
    }

private:
    const bool used_;
};
#else

constexpr int TILE_ROWS = 1;
inline bool tiles_pay(int) { return false; }

struct WholeTiles {
    WholeTiles(int, bool) {}
    static void multiply(const int8_t*, int64_t, const int8_t*, int32_t*) {}
};
#endif
