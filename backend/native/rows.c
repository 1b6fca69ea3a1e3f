/* What a step does on the CPU to each token's row between its matrix products: norms, gates, rotations, without a
 * tensor per intermediate result. Each function does the rows from `first` to `last - 1`.
 */

#include <math.h>

#include "kernels.h"
#include "lanes.h"

/* out = x / sqrt(mean(x^2) + eps) * weight, where x += residual first if there is one. The weight may be float32
 * while x is bfloat16. */
INLINE void norm_row(void *out, void *x, const void *residual, const void *weight, int64_t width, float eps, int bf16,
                     int weight_bf16) {
    float sum = 0;
    if (residual) {
#pragma omp simd
        for (int64_t i = 0; i < width; i++)
            put(x, i, get(x, i, bf16) + get(residual, i, bf16), bf16);
    }
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < width; i++) {
        float value = get(x, i, bf16);
        sum += value * value;
    }
    float scale = 1.0f / sqrtf(sum / (float)width + eps);
#pragma omp simd
    for (int64_t i = 0; i < width; i++)
        put(out, i, get(x, i, bf16) * scale * get(weight, i, weight_bf16), bf16);
}

/* [rows, width] each; out and x are dense. */
void norm_rows(void *out, void *x, const void *residual, const void *weight, int64_t width, float eps, int bf16,
               int weight_bf16, int64_t first, int64_t last) {
    for (int64_t row = first; row < last; row++) {
        int64_t at = row * width;
        const void *more = residual ? offset(residual, at, bf16) : 0;
        void *to = (void *)offset(out, at, bf16), *from = (void *)offset(x, at, bf16);
        if (!bf16)
            norm_row(to, from, more, weight, width, eps, 0, 0);
        else if (weight_bf16)
            norm_row(to, from, more, weight, width, eps, 1, 1);
        else
            norm_row(to, from, more, weight, width, eps, 1, 0);
    }
}

/* x * sigmoid(slope(x)): SiLU, and the tanh form of GELU, which is the same with another slope. */
INLINE float activate(float x, int gelu) {
    float slope = gelu ? 1.5957691216f * (x + 0.044715f * x * x * x) : x;
    return x / (1.0f + exponential(-slope));
}

INLINE void gate_row(void *out, const void *gate, const void *up, int64_t width, int gelu, int bf16) {
#pragma omp simd
    for (int64_t i = 0; i < width; i++)
        put(out, i, activate(get(gate, i, bf16), gelu) * get(up, i, bf16), bf16);
}

/* out [rows, width] = activation(gate) * up of gate_up [rows, 2 * width]. */
void gate_rows(void *out, const void *gate_up, int64_t width, int gelu, int bf16, int64_t first, int64_t last) {
    for (int64_t row = first; row < last; row++) {
        const void *gate = offset(gate_up, 2 * row * width, bf16), *up = offset(gate, width, bf16);
        void *to = (void *)offset(out, row * width, bf16);
        if (bf16)
            gate_row(to, gate, up, width, gelu, 1);
        else
            gate_row(to, gate, up, width, gelu, 0);
    }
}

INLINE void rotate_head(void *x, const void *cos, const void *sin, int64_t half, int bf16) {
#pragma omp simd
    for (int64_t i = 0; i < half; i++) {
        float a = get(x, i, bf16), b = get(x, half + i, bf16);
        float c = get(cos, i, bf16), s = get(sin, i, bf16);
        put(x, i, a * c - b * s, bf16);
        put(x, half + i, b * c + a * s, bf16);
    }
}

/* Normalise (where there are norms) and rotate, in place, the first heads + kv_heads heads of each row of x, whose
 * rows lie `stride` apart; cos and sin are dense [rows, dim / 2]. */
void rotate_rows(void *x, int64_t stride, const void *cos, const void *sin, const void *q_norm, const void *k_norm,
                 int64_t heads, int64_t kv_heads, int64_t dim, float eps, int bf16, int norm_bf16, int64_t first,
                 int64_t last) {
    for (int64_t row = first; row < last; row++) {
        const void *c = offset(cos, row * (dim / 2), bf16), *s = offset(sin, row * (dim / 2), bf16);
        for (int64_t head = 0; head < heads + kv_heads; head++) {
            void *at = (void *)offset(x, row * stride + head * dim, bf16);
            const void *weight = head < heads ? q_norm : k_norm;
            if (weight)
                norm_rows(at, at, 0, weight, dim, eps, bf16, norm_bf16, 0, 1);
            if (bf16)
                rotate_head(at, c, s, dim / 2, 1);
            else
                rotate_head(at, c, s, dim / 2, 0);
        }
    }
}
