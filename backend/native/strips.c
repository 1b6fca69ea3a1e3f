/* Products of float32 matrices.
 *
 * A decode step reads every weight once and does little with each, so the weights lie in memory in the order in which
 * they are used: in strips of columns, and of each strip a slice of rows after another. While the rows of x pass over
 * one slice, a few at a time, the next one is asked for. A row's sums run along the row alone, one element after
 * another: its bits do not depend on the batch it is in.
 */

#include "kernels.h"
#include "lanes.h"

#define COLUMNS (2 * LANES) /* of a strip */
#define DEPTH 128           /* of a slice, at most: it stays in the first cache while the rows pass */
#ifdef __AVX512F__
#define MOST_ROWS 12 /* whose sums fit into the registers, beside a row of a strip */
#else
#define MOST_ROWS 6
#endif
#define MOST_GROUPS 16 /* of a part, so that their sums stay in the second cache from slice to slice */

int64_t strip_columns(void) { return COLUMNS; }

/* Rows are computed in parts, parts in groups: as many, and as even, as there must be. */
static int64_t parts_of(int64_t rows) { return (rows + MOST_GROUPS * MOST_ROWS - 1) / (MOST_GROUPS * MOST_ROWS); }
static int64_t groups_of(int64_t rows) { return (rows + MOST_ROWS - 1) / MOST_ROWS; }

static void lay_out_group(float *panel, const float *x, int64_t rows, int64_t depth) {
    int64_t k = 0;
    for (; k + LANES <= depth; k += LANES) {
        lanes square[LANES];
        for (int row = 0; row < LANES; row++)
            square[row] = row < rows ? *(const lanes *)(x + row * depth + k) : (lanes){0};
        transpose(square);
        for (int i = 0; i < LANES; i++)
            *(lanes *)(panel + (k + i) * rows) = square[i]; /* the next one writes over what is too much */
    }
    for (; k < depth; k++)
        for (int64_t row = 0; row < rows; row++)
            panel[k * rows + row] = x[row * depth + k];
}

/* The panel that multiply_strips reads: the groups of x [rows, depth] one after another, each as [depth, its rows],
 * so that whoever goes along the rows of a group reads one place after another. It has room for LANES floats more.
 * Places are written before their time, and again: it is not shared out. */
void lay_out_rows(float *panel, const float *x, int64_t rows, int64_t depth, int64_t first, int64_t last) {
    (void)first, (void)last;
    for (int64_t part = 0, parts = parts_of(rows); part < parts; part++) {
        int64_t first = rows * part / parts, many = rows * (part + 1) / parts - first;
        for (int64_t group = 0, groups = groups_of(many); group < groups; group++) {
            int64_t row = many * group / groups, few = many * (group + 1) / groups - row;
            lay_out_group(panel + (first + row) * depth, x + (first + row) * depth, few, depth);
        }
    }
}

/* The products of one slice of a strip with the rows of a group, added to `before` [rows, COLUMNS], or to the bias
 * where the slice is the first. Of what lies `ahead` one line in `turns` is asked for. */
INLINE void sum_slice(float *out, int64_t stride, const float *before, const float *bias, const float *panel,
                      const float *slice, int rows, int64_t depth, const float *ahead, int64_t turns) {
    lanes sums[MOST_ROWS][2];
    for (int row = 0; row < rows; row++)
        for (int half = 0; half < 2; half++)
            sums[row][half] = before ? *(const lanes *)(before + row * COLUMNS + half * LANES)
                              : bias ? *(const lanes *)(bias + half * LANES)
                                     : (lanes){0};
    int64_t turn = 0;
    for (int64_t k = 0; k < depth; k++, slice += COLUMNS, panel += rows) {
        lanes low = *(const lanes *)slice, high = *(const lanes *)(slice + LANES);
        if (turns == 1 || --turn < 0) {
            turn = turns - 1;
            for (int at = 0; at < COLUMNS; at += 16)
                __builtin_prefetch(ahead + at, 0, 2);
            ahead += COLUMNS;
        }
        for (int row = 0; row < rows; row++) {
            sums[row][0] += panel[row] * low;
            sums[row][1] += panel[row] * high;
        }
    }
    for (int row = 0; row < rows; row++)
        for (int half = 0; half < 2; half++)
            *(lanes *)(out + row * stride + half * LANES) = sums[row][half];
}

#define SUM(ROWS)                                                                                                    \
    case ROWS:                                                                                                       \
        if (turns == 1)                                                                                              \
            sum_slice(out, stride, before, bias, panel, slice, ROWS, depth, ahead, 1);                               \
        else                                                                                                         \
            sum_slice(out, stride, before, bias, panel, slice, ROWS, depth, ahead, turns);                           \
        break;

static void sum_group(float *out, int64_t stride, const float *before, const float *bias, const float *panel,
                      const float *slice, int64_t rows, int64_t depth, const float *ahead, int64_t turns) {
    switch (rows) {
        SUM(1) SUM(2) SUM(3) SUM(4) SUM(5) SUM(6)
#if MOST_ROWS > 6
        SUM(7) SUM(8) SUM(9) SUM(10) SUM(11) SUM(12)
#endif
    }
}

/* The columns of one strip for some rows of x; `weight` is the strip. */
static void multiply_strip(float *out, int64_t width, const float *panel, const float *weight, const float *bias,
                           int64_t rows, int64_t depth) {
    float sums[MOST_GROUPS * MOST_ROWS * COLUMNS] __attribute__((aligned(64)));
    int64_t groups = groups_of(rows), slices = (depth + DEPTH - 1) / DEPTH;
    for (int64_t number = 0; number < slices; number++) {
        int64_t k = depth * number / slices, deep = depth * (number + 1) / slices - k;
        const float *slice = weight + k * COLUMNS, *next = slice + deep * COLUMNS;
        for (int64_t group = 0; group < groups; group++) {
            int64_t row = rows * group / groups, many = rows * (group + 1) / groups - row;
            float *mine = sums + row * COLUMNS, *before = number ? mine : 0;
            const float *ahead = next + deep * group / groups * COLUMNS, *from = panel + row * depth + k * many;
            if (number + 1 < slices)
                sum_group(mine, COLUMNS, before, bias, from, slice, many, deep, ahead, groups);
            else
                sum_group(out + row * width, width, before, bias, from, slice, many, deep, ahead, groups);
        }
    }
}

/* out [rows, width] = x W^T + bias for the columns from COLUMNS * first to COLUMNS * last - 1 of out. The panel is x
 * [rows, depth] as lay_out_rows leaves it, which is x itself where it has one row. The weight is
 * [width / COLUMNS, depth, COLUMNS]. Rows of out are dense. */
void multiply_strips(float *out, const float *panel, const float *weight, const float *bias, int64_t rows,
                     int64_t depth, int64_t width, int64_t first, int64_t last) {
    for (int64_t part = 0, parts = parts_of(rows); part < parts; part++) {
        int64_t row = rows * part / parts, many = rows * (part + 1) / parts - row;
        for (int64_t strip = first; strip < last; strip++)
            multiply_strip(out + row * width + strip * COLUMNS, width, panel + row * depth,
                           weight + strip * COLUMNS * depth, bias ? bias + strip * COLUMNS : 0, many, depth);
    }
}
