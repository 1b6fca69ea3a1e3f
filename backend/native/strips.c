/* Products of float32 matrices.
 *
 * A decode step reads every weight once and does little with each, so the weights lie in memory in the order in which
 * they are used, in strips of columns, and are asked for ahead of their use. A row's sums run along the row alone, one
 * element after another: its bits do not depend on the batch it is in.
 */

#include <stdint.h>

#define INLINE static inline __attribute__((always_inline))
#ifdef __AVX512F__
#define LANES 16
#define MOST_ROWS 6 /* whose sums fit into the registers, beside a strip of the weight */
#else
#define LANES 8
#define MOST_ROWS 2
#endif
#define COLUMNS 64
#define VECTORS (COLUMNS / LANES)
#define HALVES (VECTORS / 4)

typedef float lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

/* Some rows of x with four vectors of columns of a strip. One line in `turns` of the strip after it is asked for, from
 * number `turn` on: the passes over one strip, one for each few rows, divide the next among them. */
INLINE void sum_strip(float *out, const float *x, const float *strip, const float *bias, int rows, int64_t depth,
                      int64_t width, int64_t turn, int64_t turns) {
    lanes sums[MOST_ROWS][4];
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < 4; v++)
            sums[r][v] = bias ? *(const lanes *)(bias + v * LANES) : (lanes){0};
    for (int64_t k = 0; k < depth; k++, strip += COLUMNS) {
        lanes weight[4];
        for (int v = 0; v < 4; v++) {
            weight[v] = *(const lanes *)(strip + v * LANES);
        }
        if (turn-- == 0) {
            turn = turns - 1;
            for (int at = 0; at < COLUMNS; at += 16)
                __builtin_prefetch(strip + depth * COLUMNS + at, 0, 2);
        }
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < 4; v++)
                sums[r][v] += x[r * depth + k] * weight[v];
    }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < 4; v++)
            *(lanes *)(out + r * width + v * LANES) = sums[r][v];
}

#define SUM(R) sum_strip(out, x, strip, bias, R, depth, width, turn, turns)

INLINE void sum_rows(float *out, const float *x, const float *strip, const float *bias, int64_t rows, int64_t depth,
                     int64_t width, int64_t turn, int64_t turns) {
    switch (rows) {
    case 1: SUM(1); break;
    case 2: SUM(2); break;
#if MOST_ROWS > 2
    case 3: SUM(3); break;
    case 4: SUM(4); break;
    case 5: SUM(5); break;
#endif
    default: SUM(MOST_ROWS);
    }
}

/* out [rows, width] = x [rows, depth] W^T + bias for the columns from 64 * first to 64 * last - 1 of out. The weight
 * is [width / 64, depth, 64]. x is dense, and so are rows of out. */
void multiply_strips(float *out, const float *x, const float *weight, const float *bias, int64_t rows, int64_t depth,
                     int64_t width, int64_t first, int64_t last) {
    int64_t turns = (rows + MOST_ROWS - 1) / MOST_ROWS * HALVES;
    for (int64_t block = first; block < last; block++)
        for (int64_t row = 0; row < rows; row += MOST_ROWS)
            for (int half = 0; half < HALVES; half++) {
                int64_t many = rows - row < MOST_ROWS ? rows - row : MOST_ROWS;
                int64_t column = block * COLUMNS + half * 4 * LANES;
                sum_rows(out + row * width + column, x + row * depth,
                         weight + block * COLUMNS * depth + half * 4 * LANES, bias ? bias + column : 0, many, depth,
                         width, row / MOST_ROWS * HALVES + half, turns);
            }
}
