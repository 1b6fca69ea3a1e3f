/* Products of bfloat16 matrices in the tile registers of a processor that has them (Intel's AMX), accumulated in
 * float32 and rounded once.
 *
 * A decode step reads every weight once and does little with each, so the weights lie in memory in the order in which
 * they are used, and are asked for ahead of their use. A row's sums run along the row alone: its bits do not depend on
 * the batch it is in.
 */

#include <stdint.h>
#include <string.h>

#if defined(__AMX_BF16__) && defined(__AVX512BF16__) && defined(__linux__)

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ROWS 16    /* of a tile */
#define DEPTH 32   /* elements of the inner dimension in a tile */
#define COLUMNS 32 /* of a block of the weight: two tiles side by side */
#define TILE (ROWS * DEPTH)
#define AHEAD (8 * TILE)
#define GROUP 8 /* blocks of the weight that stay in the second cache while all rows pass */

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

static inline void ask_for(const uint16_t *weight) {
    for (int at = 0; at < 2 * TILE; at += 32)
        __builtin_prefetch(weight + at, 0, 2);
}

/* The sums of up to 2 * ROWS rows of x with one block of the weight, [2 * ROWS, COLUMNS]. */
static inline __attribute__((always_inline)) void sum_block(float *sums, const uint16_t *x, int64_t depth,
                                                            const uint16_t *weight, int two, int first) {
    _tile_zero(0);
    _tile_zero(1);
    if (two) {
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t k = 0; k < depth; k += DEPTH, weight += 2 * TILE) {
        if (first)
            ask_for(weight + AHEAD);
        _tile_loadd(4, x + k, depth * 2);
        _tile_loadd(6, weight, 64);
        _tile_loadd(7, weight + TILE, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if (two) {
            _tile_loadd(5, x + ROWS * depth + k, depth * 2);
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

/* out [rows, width] = x [rows, depth] W^T + bias for the columns from 32 * first to 32 * last - 1 of out, bfloat16 or,
 * where `wide`, float32. The weight is [width / 32, depth / 32, 2, 16, 16, 2]: block, step, half, pair, column,
 * element. x is dense, and so are rows of out. */
void multiply_tiles(void *out, const uint16_t *x, const uint16_t *weight, const uint16_t *bias, int64_t rows,
                   int64_t depth, int64_t width, int64_t first, int64_t last, int wide) {
    float sums[2 * ROWS * COLUMNS] __attribute__((aligned(64)));
    int64_t laid_out = 0;
    for (int64_t start = first; start < last; start += GROUP) {
        int64_t stop = start + GROUP < last ? start + GROUP : last;
        for (int64_t row = 0; row < rows; row += 2 * ROWS) {
            int64_t many = rows - row < 2 * ROWS ? rows - row : 2 * ROWS;
            if (many != laid_out)
                configure(many < ROWS ? (int)many : ROWS, many > ROWS ? (int)many - ROWS : ROWS);
            laid_out = many;
            for (int64_t block = start; block < stop; block++) {
                const uint16_t *columns = weight + block * COLUMNS * depth;
                int64_t at = row * width + block * COLUMNS;
                if (many > ROWS)
                    sum_block(sums, x + row * depth, depth, columns, 1, row == 0);
                else
                    sum_block(sums, x + row * depth, depth, columns, 0, row == 0);
                put_block(out, at, sums, bias ? bias + block * COLUMNS : 0, many, width, wide);
            }
        }
    }
    _tile_release();
}

#else

int tiles_ready(void) { return 0; }

void multiply_tiles(void *out, const uint16_t *x, const uint16_t *weight, const uint16_t *bias, int64_t rows,
                   int64_t depth, int64_t width, int64_t first, int64_t last, int wide) {
    (void)out, (void)x, (void)weight, (void)bias, (void)rows, (void)depth, (void)width, (void)first, (void)last,
        (void)wide;
    __builtin_trap(); /* nobody calls it where tiles are not ready */
}

#endif
