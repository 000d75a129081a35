// Products of bfloat16 by AMX, whose tiles are 16 rows of 64 bytes.
#pragma once

#include "matmul.h"

#if defined(__AMX_BF16__) && defined(__linux__)
#define BATON_TILES
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

// Whether the kernel lets this process use tiles, which it asks for. Threads that exist may use them as well.
inline bool tiles_allowed() {
    constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    static const bool allowed = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
    return allowed;
}

// GCC's intrinsics do not say that they read memory: what was stored must be there.
inline void written_back() { asm volatile("" ::: "memory"); }

// Shapes of the thread's tiles, until the end of the scope: 16 rows of 64 bytes each. oneDNN loads its own before it
// computes.
struct TileShapes {
    TileShapes() {
        struct {
            uint8_t palette = 1, start_row = 0, reserved[14] = {};
            uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
            uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
        } shapes;
        written_back();
        _tile_loadconfig(&shapes);
    }
    ~TileShapes() { _tile_release(); }
};

// `multiply` for rows, columns and depth that are multiples of 32. Four tiles of c stay in registers, so each of a and b
// is used twice.
inline void multiply_tiles(int64_t rows, int64_t columns, int64_t depth, const bf16* a, int64_t a_stride,
                           const bf16_pair* b, int64_t b_stride, float* c, int64_t c_stride, bool add) {
    int64_t a_bytes = a_stride * sizeof(bf16), b_bytes = b_stride * sizeof(bf16_pair), c_bytes = c_stride * sizeof(float);
    written_back();
    for (int64_t column = 0; column < columns; column += 32)
        for (int64_t row = 0; row < rows; row += 32) {
            const bf16 *above = a + row * a_stride, *below = above + 16 * a_stride;
            float *top = c + row * c_stride + column, *bottom = top + 16 * c_stride;
            if (add) {
                _tile_loadd(0, top, c_bytes);
                _tile_loadd(1, top + 16, c_bytes);
                _tile_loadd(2, bottom, c_bytes);
                _tile_loadd(3, bottom + 16, c_bytes);
            } else {
                _tile_zero(0);
                _tile_zero(1);
                _tile_zero(2);
                _tile_zero(3);
            }
            const bf16_pair* pairs = b + column;
            for (int64_t k = 0; k < depth; k += 32, pairs += 16 * b_stride) {
                _tile_loadd(4, above + k, a_bytes);
                _tile_loadd(5, below + k, a_bytes);
                _tile_loadd(6, pairs, b_bytes);
                _tile_loadd(7, pairs + 16, b_bytes);
                _tile_dpbf16ps(0, 4, 6);
                _tile_dpbf16ps(1, 4, 7);
                _tile_dpbf16ps(2, 5, 6);
                _tile_dpbf16ps(3, 5, 7);
            }
            _tile_stored(0, top, c_bytes);
            _tile_stored(1, top + 16, c_bytes);
            _tile_stored(2, bottom, c_bytes);
            _tile_stored(3, bottom + 16, c_bytes);
        }
    written_back();
}
#else
inline bool tiles_allowed() { return false; }
#endif
