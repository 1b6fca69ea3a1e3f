/* The kernels, as they are called: whoever computes a range of something takes it as the last two arguments. */

#ifndef TRIMTAB_KERNELS_H
#define TRIMTAB_KERNELS_H

#include <stdint.h>

void norm_rows(void *out, void *x, const void *residual, const void *weight, int64_t width, float eps, int bf16,
               int weight_bf16, int64_t first, int64_t last);
void gate_rows(void *out, const void *gate_up, int64_t width, int gelu, int bf16, int64_t first, int64_t last);
void rotate_rows(void *x, int64_t stride, const void *cos, const void *sin, const void *q_norm, const void *k_norm,
                 int64_t heads, int64_t kv_heads, int64_t dim, float eps, int bf16, int norm_bf16, int64_t first,
                 int64_t last);
void store_rows(void *keys, void *values, int64_t head_stride, const void *k, int64_t k_stride, const void *v,
                int64_t v_stride, const int64_t *slots, int64_t kv_heads, int64_t dim, int bf16, int64_t first,
                int64_t last);
void attend_parts(void *out, const void *q, int64_t stride, const void *keys, const void *values, int64_t head_stride,
                  const int32_t *tables, int64_t width, const int64_t *starts, const int64_t *stops,
                  const int64_t *tokens, int64_t kv_heads, int64_t group, int64_t dim, int64_t size, float scale,
                  int bf16, float *scores, int64_t scores_stride, const int64_t *cuts, int64_t first, int64_t last);
void lay_out_rows(float *panel, const float *x, int64_t rows, int64_t depth, int64_t first, int64_t last);
void multiply_strips(float *out, const float *panel, const float *weight, const float *bias, int64_t rows,
                     int64_t depth, int64_t width, int64_t first, int64_t last);
void multiply_tiles(void *out, const uint16_t *x, const uint16_t *weight, const uint16_t *bias, int64_t rows,
                    int64_t depth, int64_t width, int wide, int64_t first, int64_t last);

#endif
