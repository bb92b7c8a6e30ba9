// AMX's tiles, emulated: what is computed with them is tested on processors that have none. Products are summed
// as Intel's Software Developer's Manual defines TDPBF16PS: those of the first and of the second numbers of
// pairs apart. A tile that is used as it was not configured ends the process, as it would there.
#pragma once

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

#undef _tile_loadd
#undef _tile_stream_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#undef _tile_dpbssd

namespace emulated {

struct Tile {
    int rows = 0, bytes = 0;
    uint32_t elements[16][16];
};
inline thread_local Tile tiles[8];

inline Tile& configured(int number) {
    if (tiles[number].rows == 0) std::abort();
    return tiles[number];
}

inline void configure(const void* shape) {
    const auto* bytes = static_cast<const uint8_t*>(shape);
    for (int t = 0; t < 8; ++t) {
        std::memcpy(&tiles[t].bytes, bytes + 16 + 2 * t, 2);
        tiles[t].rows = bytes[48 + t];
        if (tiles[t].rows > 16 || tiles[t].bytes > 64 || bytes[0] != 1) std::abort();
        std::memset(tiles[t].elements, 0, sizeof tiles[t].elements);
    }
}

inline void release() {
    for (Tile& tile : tiles) tile.rows = 0;
}

inline void load(int number, const void* from, int64_t stride) {
    Tile& tile = configured(number);
    for (int r = 0; r < tile.rows; ++r)
        std::memcpy(tile.elements[r], static_cast<const char*>(from) + r * stride, tile.bytes);
}

inline void put(int number, void* to, int64_t stride) {
    const Tile& tile = configured(number);
    for (int r = 0; r < tile.rows; ++r)
        std::memcpy(static_cast<char*>(to) + r * stride, tile.elements[r], tile.bytes);
}

inline void clear(int number) {
    Tile& tile = configured(number);
    std::memset(tile.elements, 0, sizeof tile.elements);
}

inline float half(uint32_t pair, int odd) {
    const uint32_t bits = odd ? pair & 0xffff0000 : pair << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

inline void add_products(int to, int left, int right) {
    Tile &sums = configured(to), &a = configured(left), &b = configured(right);
    if (a.rows != sums.rows || b.bytes != sums.bytes || b.rows != a.bytes / 4) std::abort();
    for (int m = 0; m < sums.rows; ++m)
        for (int n = 0; n < sums.bytes / 4; ++n) {
            float parts[2] = {}, sum;
            for (int k = 0; k < b.rows; ++k)
                for (int odd = 0; odd < 2; ++odd)
                    parts[odd] += half(a.elements[m][k], odd) * half(b.elements[k][n], odd);
            std::memcpy(&sum, &sums.elements[m][n], 4);
            sum += parts[0] + parts[1];
            std::memcpy(&sums.elements[m][n], &sum, 4);
        }
}

// Of bytes with signs, four to an element, as TDPBSSD's are.
inline void add_byte_products(int to, int left, int right) {
    Tile &sums = configured(to), &a = configured(left), &b = configured(right);
    if (a.rows != sums.rows || b.bytes != sums.bytes || b.rows != a.bytes / 4) std::abort();
    for (int m = 0; m < sums.rows; ++m)
        for (int n = 0; n < sums.bytes / 4; ++n)
            for (int k = 0; k < b.rows; ++k)
                for (int part = 0; part < 32; part += 8)
                    sums.elements[m][n] += int8_t(a.elements[m][k] >> part) * int8_t(b.elements[k][n] >> part);
}

}  // namespace emulated

#ifndef __AMX_BF16__
#define __AMX_BF16__ 1
#endif
#ifndef __AMX_INT8__
#define __AMX_INT8__ 1
#endif
#define syscall(...) 0L  // the kernel's leave to use tiles
#define _tile_loadconfig emulated::configure
#define _tile_release emulated::release
#define _tile_loadd emulated::load
#define _tile_stream_loadd emulated::load
#define _tile_stored emulated::put
#define _tile_zero emulated::clear
#define _tile_dpbf16ps emulated::add_products
#define _tile_dpbssd emulated::add_byte_products
