// AMX's tiles in C++, so that what is computed with them can be tested on processors without them. The compiler
// includes this file before any other, and is told that there is AMX.
#pragma once

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#define _tile_loadconfig emulated::configure
#define _tile_release emulated::release
#define _tile_zero(tile) emulated::zero(tile)
#define _tile_loadd(tile, from, stride) emulated::load(tile, from, stride)
#define _tile_stored(tile, to, stride) emulated::store(tile, to, stride)
#define _tile_dpbf16ps(to, a, b) emulated::multiply_add(to, a, b)

namespace emulated {
struct Shapes {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

inline thread_local Shapes shapes;
inline thread_local char tiles[8][16][64];

// What hardware refuses ends the process, as it does there.
inline void require(bool holds) {
    if (!holds) __builtin_trap();
}

inline void check(int tile) { require(shapes.palette == 1 && shapes.rows[tile] == 16 && shapes.row_bytes[tile] == 64); }

inline void configure(const void* from) {
    memcpy(&shapes, from, sizeof shapes);
    memset(tiles, 0, sizeof tiles);
}

inline void release() { shapes = {}; }

inline void zero(int tile) {
    check(tile);
    memset(tiles[tile], 0, sizeof tiles[tile]);
}

inline void load(int tile, const void* from, int64_t stride) {
    check(tile);
    for (int row = 0; row < 16; row++) memcpy(tiles[tile][row], (const char*)from + row * stride, 64);
}

inline void store(int tile, void* to, int64_t stride) {
    check(tile);
    for (int row = 0; row < 16; row++) memcpy((char*)to + row * stride, tiles[tile][row], 64);
}

inline float number(int tile, int row, int at) {
    uint16_t half;
    memcpy(&half, tiles[tile][row] + 2 * at, 2);
    uint32_t bits = uint32_t(half) << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

// Row r of b holds rows 2 r and 2 r + 1 of the right side, in pairs.
inline void multiply_add(int to, int a, int b) {
    check(to), check(a), check(b);
    for (int row = 0; row < 16; row++)
        for (int column = 0; column < 16; column++) {
            float total;
            memcpy(&total, tiles[to][row] + 4 * column, 4);
            for (int k = 0; k < 32; k++) total += number(a, row, k) * number(b, k / 2, 2 * column + k % 2);
            memcpy(tiles[to][row] + 4 * column, &total, 4);
        }
}
}  // namespace emulated
