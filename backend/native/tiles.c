/* Products of bfloat16 matrices in the tile registers of a processor that has them (Intel's AMX), accumulated in
 * float32 and rounded once.
 *
 * A decode step reads every weight once and does little with each, so the weights lie in memory in the order in which
 * they are used, and are asked for ahead of their use. A row's sums run along the row alone: its bits do not depend
 * on the batch it is in.
 */

#include <string.h>

#include "kernels.h"

#if defined(__AMX_BF16__) && defined(__AVX512BF16__) && defined(__linux__)

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ROWS 16    /* of a tile */
#define DEPTH 32   /* elements of the inner dimension in a tile */
#define COLUMNS 32 /* of a block of the weight: two tiles side by side */
#define TILE (ROWS * DEPTH)
#define LINE 32          /* elements that memory is moved in */
#define AHEAD (8 * TILE) /* elements between what is asked for and what is multiplied */
#define SLICE 192        /* of the inner dimension, at most: that much of a block stays in the first cache */
#define PART 256         /* rows whose sums are kept while the slices of a block come and go */

/* Linux lends tile registers to processes that ask for them; the answer holds for all threads. */
int tiles_ready(void) {
    const int request_permission = 0x1023, tile_data = 18;
    return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

struct __attribute__((packed)) config {
    uint8_t palette, start, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

/* Tiles 0 to 3 are the sums of two times two blocks, 4 and 5 rows of x, 6 and 7 columns of the weight. */
static void configure(int upper, int lower) {
    const int rows[8] = {upper, upper, lower, lower, upper, lower, ROWS, ROWS};
    struct config config = {.palette = 1};
    for (int tile = 0; tile < 8; tile++) {
        config.rows[tile] = (uint8_t)rows[tile];
        config.row_bytes[tile] = 64;
    }
    _tile_loadconfig(&config);
}

/* The products of up to 2 * ROWS rows of x, `stride` apart, with one slice of a block of the weight, in or added to
 * sums [2 * ROWS, COLUMNS]. With every step some lines from `ahead` on are asked for. */
static inline __attribute__((always_inline)) void sum_slice(float *sums, const uint16_t *x, int64_t stride,
                                                            const uint16_t *weight, int64_t depth, int two, int more,
                                                            const uint16_t *ahead, int64_t lines) {
    if (more) {
        _tile_loadd(0, sums, COLUMNS * 4);
        _tile_loadd(1, sums + COLUMNS / 2, COLUMNS * 4);
    } else {
        _tile_zero(0);
        _tile_zero(1);
    }
    if (two && more) {
        _tile_loadd(2, sums + ROWS * COLUMNS, COLUMNS * 4);
        _tile_loadd(3, sums + ROWS * COLUMNS + COLUMNS / 2, COLUMNS * 4);
    } else if (two) {
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t k = 0; k < depth; k += DEPTH, weight += 2 * TILE) {
#pragma GCC unroll 4
        for (int64_t line = 0; line < lines; line++, ahead += LINE)
            __builtin_prefetch(ahead, 0, 2);
        _tile_loadd(4, x + k, stride * 2);
        _tile_loadd(6, weight, 64);
        _tile_loadd(7, weight + TILE, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if (two) {
            _tile_loadd(5, x + ROWS * stride + k, stride * 2);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, sums, COLUMNS * 4);
    _tile_stored(1, sums + COLUMNS / 2, COLUMNS * 4);
    if (two) {
        _tile_stored(2, sums + ROWS * COLUMNS, COLUMNS * 4);
        _tile_stored(3, sums + ROWS * COLUMNS + COLUMNS / 2, COLUMNS * 4);
    }
}

/* The first rows of `sums` plus the bias, rounded unless `wide`, to where `at` is in out. */
static inline void put_block(void *out, int64_t at, const float *sums, const uint16_t *bias, int64_t rows,
                             int64_t width, int wide) {
    __m512 more[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    for (int half = 0; bias && half < 2; half++) {
        __m256i narrow = _mm256_loadu_si256((const __m256i *)(bias + half * COLUMNS / 2));
        more[half] = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow), 16));
    }
    for (int64_t row = 0; row < rows; row++, at += width, sums += COLUMNS) {
        __m512 low = _mm512_load_ps(sums) + more[0], high = _mm512_load_ps(sums + COLUMNS / 2) + more[1];
        if (wide) {
            _mm512_storeu_ps((float *)out + at, low);
            _mm512_storeu_ps((float *)out + at + COLUMNS / 2, high);
        } else {
            _mm512_storeu_si512((uint16_t *)out + at, (__m512i)_mm512_cvtne2ps_pbh(high, low));
        }
    }
}

/* sums [rows, COLUMNS] of up to 2 * ROWS rows with a block of the weight, which is read once: it is memory that is
 * waited for. */
static void sum_few(float *sums, const uint16_t *x, const uint16_t *weight, int64_t rows, int64_t depth) {
    if (rows > ROWS)
        sum_slice(sums, x, depth, weight, depth, 1, 0, weight + AHEAD, 2 * TILE / LINE);
    else
        sum_slice(sums, x, depth, weight, depth, 0, 0, weight + AHEAD, 2 * TILE / LINE);
}

/* The same of more rows, in passes of `together` rows each, of which the last may begin before the one before it
 * ends: sums [passes, together, COLUMNS]. All pass over a slice of the weight while the next one is asked for. */
static void sum_many(float *sums, const uint16_t *x, const uint16_t *weight, int64_t rows, int64_t passes,
                     int64_t together, int64_t depth) {
    int64_t steps = depth / DEPTH, slices = (depth + SLICE - 1) / SLICE;
    int64_t lines = (2 * TILE / LINE + passes - 1) / passes;
    for (int64_t slice = 0; slice < slices; slice++) {
        int64_t k = steps * slice / slices * DEPTH, deep = steps * (slice + 1) / slices * DEPTH - k;
        const uint16_t *here = weight + k * COLUMNS, *ahead = here + deep * COLUMNS;
        for (int64_t pass = 0; pass < passes; pass++, ahead += lines * deep) {
            int64_t row = pass + 1 < passes ? pass * together : rows - together;
            const uint16_t *from = x + row * depth + k;
            sum_slice(sums + pass * together * COLUMNS, from, depth, here, deep, 1, slice > 0, ahead, lines);
        }
    }
}

/* out [rows, width] = x [rows, depth] W^T + bias for the columns from 32 * first to 32 * last - 1 of out, bfloat16
 * or, where `wide`, float32. The weight is [width / 32, depth / 32, 2, 16, 16, 2]: block, step, half, pair, column,
 * element. x is dense, and so are rows of out. */
void multiply_tiles(void *out, const uint16_t *x, const uint16_t *weight, const uint16_t *bias, int64_t rows,
                    int64_t depth, int64_t width, int wide, int64_t first, int64_t last) {
    float sums[(PART + PART / ROWS) * COLUMNS] __attribute__((aligned(64)));
    for (int64_t start = 0; start < rows; start += PART) {
        int64_t many = rows - start < PART ? rows - start : PART;
        int64_t passes = (many + 2 * ROWS - 1) / (2 * ROWS), together = (many + passes - 1) / passes;
        configure(together < ROWS ? (int)together : ROWS, together > ROWS ? (int)together - ROWS : ROWS);
        for (int64_t block = first; block < last; block++) {
            const uint16_t *from = x + start * depth, *columns = weight + block * COLUMNS * depth;
            if (passes == 1)
                sum_few(sums, from, columns, many, depth);
            else
                sum_many(sums, from, columns, many, passes, together, depth);
            for (int64_t pass = 0; pass < passes; pass++) {
                int64_t row = start + (pass + 1 < passes ? pass * together : many - together);
                put_block(out, row * width + block * COLUMNS, sums + pass * together * COLUMNS,
                          bias ? bias + block * COLUMNS : 0, together, width, wide);
            }
        }
    }
    _tile_release();
}

#else

int tiles_ready(void) { return 0; }

void multiply_tiles(void *out, const uint16_t *x, const uint16_t *weight, const uint16_t *bias, int64_t rows,
                    int64_t depth, int64_t width, int wide, int64_t first, int64_t last) {
    (void)out, (void)x, (void)weight, (void)bias, (void)rows, (void)depth, (void)width, (void)first, (void)last,
        (void)wide;
    __builtin_trap(); /* nobody calls it where tiles are not ready */
}

#endif
