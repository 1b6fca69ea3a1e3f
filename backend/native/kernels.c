/* What a step does on the CPU between its matrix products, without a tensor per intermediate result.
 *
 * Plain C for any compiler with vector extensions. Elements are float32 or bfloat16 and all arithmetic is float32;
 * bfloat16 results are rounded once, to the nearest even. Every row is computed as if it were alone, so its bits
 * do not depend on the batch it is in. Sizes and strides are in elements.
 */

#include <math.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#ifdef __AVX512F__
#define LANES 16
#else
#define LANES 8
#endif
#define MOST_PARTS (256 / LANES)
#define MAX_GROUP 4

typedef float lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint32_t words __attribute__((vector_size(4 * LANES), aligned(2), may_alias));

/* -- elements ------------------------------------------------------------------------------------------------ */

INLINE float get(const void *base, int64_t at, int bf16) {
    if (!bf16)
        return ((const float *)base)[at];
    uint32_t bits = (uint32_t)((const uint16_t *)base)[at] << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

INLINE void put(void *base, int64_t at, float value, int bf16) {
    if (!bf16) {
        ((float *)base)[at] = value;
        return;
    }
    uint32_t bits;
    memcpy(&bits, &value, 4);
    ((uint16_t *)base)[at] = (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

/* 2 * LANES elements as two vectors. Of bfloat16 one vector has the even elements and the other the odd ones, which
 * takes no shuffle, and put_pair puts them back in order; whoever only multiplies and adds does not notice. */
INLINE void get_pair(lanes *pair, const void *base, int64_t at, int bf16) {
    if (bf16) {
        words both = *(const words *)((const uint16_t *)base + at);
        pair[0] = (lanes)(both << 16);
        pair[1] = (lanes)(both & 0xffff0000);
    } else {
        pair[0] = *(const lanes *)((const float *)base + at);
        pair[1] = *(const lanes *)((const float *)base + at + LANES);
    }
}

INLINE words rounded(lanes value) {
    words bits = (words)value;
    return bits + 0x7fff + ((bits >> 16) & 1);
}

INLINE void put_pair(void *base, int64_t at, const lanes *pair, int bf16) {
    if (bf16) {
        *(words *)((uint16_t *)base + at) = (rounded(pair[0]) >> 16) | (rounded(pair[1]) & 0xffff0000);
    } else {
        *(lanes *)((float *)base + at) = pair[0];
        *(lanes *)((float *)base + at + LANES) = pair[1];
    }
}

INLINE const void *offset(const void *base, int64_t elements, int bf16) {
    return (const char *)base + elements * (bf16 ? 2 : 4);
}

/* Lane i of the result is the sum over x[i]: a tree in which every step adds halves of two rows, so that n sums
 * take n - 1 additions. The rows come out in the order in which a transposition by such steps leaves them. */
#define ADD(a, b, STEP)                                                                                              \
    (__builtin_shufflevector(a, b, FIRST_##STEP) + __builtin_shufflevector(a, b, SECOND_##STEP))

#if LANES == 16
INLINE lanes sums(const lanes *x) {
#define FIRST_8 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23
#define SECOND_8 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31
#define FIRST_4 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27
#define SECOND_4 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31
#define FIRST_2 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29
#define SECOND_2 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31
#define FIRST_1 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30
#define SECOND_1 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31
    lanes a[8], b[4], c[2];
    for (int i = 0; i < 8; i++)
        a[i] = ADD(x[i], x[i + 8], 8);
    for (int i = 0; i < 4; i++)
        b[i] = ADD(a[i], a[i + 4], 4);
    for (int i = 0; i < 2; i++)
        c[i] = ADD(b[i], b[i + 2], 2);
    return ADD(c[0], c[1], 1);
}
#else
INLINE lanes sums(const lanes *x) {
#define FIRST_4 0, 1, 2, 3, 8, 9, 10, 11
#define SECOND_4 4, 5, 6, 7, 12, 13, 14, 15
#define FIRST_2 0, 1, 8, 9, 4, 5, 12, 13
#define SECOND_2 2, 3, 10, 11, 6, 7, 14, 15
#define FIRST_1 0, 8, 2, 10, 4, 12, 6, 14
#define SECOND_1 1, 9, 3, 11, 5, 13, 7, 15
    lanes a[4], b[2];
    for (int i = 0; i < 4; i++)
        a[i] = ADD(x[i], x[i + 4], 4);
    for (int i = 0; i < 2; i++)
        b[i] = ADD(a[i], a[i + 2], 2);
    return ADD(b[0], b[1], 1);
}
#endif

/* exp(x) within 2 units in the last place: 2^n times the polynomial of Cephes' expf for the rest. */
INLINE float exponential(float x) {
    const float shift = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer, kept in the low bits */
    x = x < -87.0f ? -87.0f : x > 88.0f ? 88.0f : x; /* a NaN passes both comparisons and stays one */
    float shifted = x * 1.44269504088896341f + shift;
    float n = shifted - shift;
    float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    uint32_t bits, power;
    memcpy(&bits, &p, 4);
    memcpy(&power, &shifted, 4);
    bits += power << 23;
    memcpy(&p, &bits, 4);
    return p;
}

/* Ask for a row of the block after the one that `token` is in: blocks lie anywhere, and the hardware cannot guess. */
INLINE void announce(const void *cache, const int32_t *table, int64_t token, int64_t last, int64_t size, int dim,
                     int bf16) {
    int64_t next = token + size;
    if (next < last) {
        const char *row = offset(cache, (table[next / size] * size + next % size) * dim, bf16);
        for (int at = 0; at < dim * (bf16 ? 2 : 4); at += 64)
            __builtin_prefetch(row + at);
    }
}

/* -- rows ---------------------------------------------------------------------------------------------------- */

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
void norm_rows(void *out, void *x, const void *residual, const void *weight, int64_t rows, int64_t width, float eps,
               int bf16, int weight_bf16) {
    for (int64_t row = 0; row < rows; row++) {
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
void gate_rows(void *out, const void *gate_up, int64_t rows, int64_t width, int gelu, int bf16) {
    for (int64_t row = 0; row < rows; row++) {
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

/* Normalise (where there are norms) and rotate, in place, the first heads + kv_heads heads of each row of x. */
void rotate_rows(void *x, int64_t stride, const void *cos, const void *sin, const void *q_norm, const void *k_norm,
                 int64_t rows, int64_t heads, int64_t kv_heads, int64_t dim, float eps, int bf16, int norm_bf16) {
    for (int64_t row = 0; row < rows; row++) {
        const void *c = offset(cos, row * (dim / 2), bf16), *s = offset(sin, row * (dim / 2), bf16);
        for (int64_t head = 0; head < heads + kv_heads; head++) {
            void *at = (void *)offset(x, row * stride + head * dim, bf16);
            const void *weight = head < heads ? q_norm : k_norm;
            if (weight)
                norm_rows(at, at, 0, weight, 1, dim, eps, bf16, norm_bf16);
            if (bf16)
                rotate_head(at, c, s, dim / 2, 1);
            else
                rotate_head(at, c, s, dim / 2, 0);
        }
    }
}

/* -- the KV cache: [kv_heads, num_blocks, block_size, dim] ----------------------------------------------------- */

/* Put row after row of x into its slot; a negative slot stores nothing. */
void store_rows(void *cache, int64_t head_stride, const void *x, int64_t stride, const int64_t *slots, int64_t rows,
                int64_t kv_heads, int64_t dim, int bf16) {
    for (int64_t row = 0; row < rows; row++)
        for (int64_t head = 0; head < kv_heads && slots[row] >= 0; head++)
            memcpy((void *)offset(cache, head * head_stride + slots[row] * dim, bf16),
                   offset(x, row * stride + head * dim, bf16), dim * (bf16 ? 2 : 4));
}

/* Attention of `group` query heads, at most MAX_GROUP, that share one KV head, over the tokens first..last-1. */
INLINE void attend(void *out, const void *q, const void *keys, const void *values, const int32_t *table, int64_t first,
                   int64_t last, int64_t size, int group, int dim, float scale, float *scores, int bf16) {
    const int parts = dim / LANES;
    int64_t count = last - first, space = count + LANES;
    lanes held[MAX_GROUP][MOST_PARTS];
    for (int g = 0; g < group; g++)
        for (int p = 0; p < parts; p += 2) {
            get_pair(held[g] + p, q, g * dim + p * LANES, bf16);
            held[g][p] *= scale;
            held[g][p + 1] *= scale;
        }
    float shares[MAX_GROUP];
    for (int64_t start = first; start < last;) {
        int64_t stop = (start / size + 1) * size;
        stop = stop < last ? stop : last;
        int64_t base = (table[start / size] * size - start / size * size) * dim;
        for (int64_t token = start; token < stop; token += LANES) {
            int many = stop - token < LANES ? (int)(stop - token) : LANES;
            lanes dots[MAX_GROUP][LANES];
            for (int t = 0; t < many; t++) {
                lanes key[MOST_PARTS];
                announce(keys, table, token + t, last, size, dim, bf16);
                for (int p = 0; p < parts; p += 2)
                    get_pair(key + p, keys, base + (token + t) * dim + p * LANES, bf16);
                for (int g = 0; g < group; g++) {
                    lanes dot = held[g][0] * key[0];
                    for (int p = 1; p < parts; p++)
                        dot += held[g][p] * key[p];
                    dots[g][t] = dot;
                }
            }
            for (int g = 0; g < group; g++) {
                for (int t = many; t < LANES; t++)
                    dots[g][t] = (lanes){0};
                *(lanes *)(scores + g * space + token - first) = sums(dots[g]);
            }
        }
        start = stop;
    }
    for (int g = 0; g < group; g++) {
        float sum = 0, top = -INFINITY, *score = scores + g * space;
#pragma omp simd reduction(max : top)
        for (int64_t i = 0; i < count; i++)
            top = score[i] > top ? score[i] : top;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < count; i++) {
            score[i] = exponential(score[i] - top);
            sum += score[i];
        }
        shares[g] = 1.0f / sum;
    }
    for (int g = 0; g < group; g++)
        for (int p = 0; p < parts; p++)
            held[g][p] = (lanes){0};
    for (int64_t start = first; start < last;) {
        int64_t stop = (start / size + 1) * size;
        stop = stop < last ? stop : last;
        int64_t base = (table[start / size] * size - start / size * size) * dim;
        for (int64_t token = start; token < stop; token++) {
            announce(values, table, token, last, size, dim, bf16);
            for (int p = 0; p < parts; p += 2) {
                lanes value[2];
                get_pair(value, values, base + token * dim + p * LANES, bf16);
                for (int g = 0; g < group; g++) {
                    held[g][p] += scores[g * space + token - first] * value[0];
                    held[g][p + 1] += scores[g * space + token - first] * value[1];
                }
            }
        }
        start = stop;
    }
    for (int g = 0; g < group; g++)
        for (int p = 0; p < parts; p += 2) {
            held[g][p] *= shares[g];
            held[g][p + 1] *= shares[g];
            put_pair(out, g * dim + p * LANES, held[g] + p, bf16);
        }
}

#define ATTEND(G, D) attend(out, q, keys, values, table, first, last, size, G, D, scale, scores, bf16)

INLINE void attend_dim(void *out, const void *q, const void *keys, const void *values, const int32_t *table,
                       int64_t first, int64_t last, int64_t size, int group, int dim, float scale, float *scores,
                       int bf16) {
    switch (group) {
    case 1: ATTEND(1, dim); break;
    case 2: ATTEND(2, dim); break;
    case 3: ATTEND(3, dim); break;
    default: ATTEND(4, dim);
    }
}

/* The sizes that models have are constants for the compiler; any other multiple of 2 * LANES up to 256 works too. */
INLINE void attend_any(void *out, const void *q, const void *keys, const void *values, const int32_t *table,
                       int64_t first, int64_t last, int64_t size, int group, int dim, float scale, float *scores,
                       int bf16) {
    switch (dim) {
    case 64: attend_dim(out, q, keys, values, table, first, last, size, group, 64, scale, scores, bf16); break;
    case 128: attend_dim(out, q, keys, values, table, first, last, size, group, 128, scale, scores, bf16); break;
    default: ATTEND(group, dim);
    }
}

/* One query per row, over the tokens starts[row]..stops[row]-1 of its block table [rows, width]. q has rows of
 * `stride`, out is dense [rows, kv_heads * group * dim]; both are indexed by tokens[row]. scores holds
 * MAX_GROUP * (max(stops - starts) + LANES) floats. */
void attend_rows(void *out, const void *q, int64_t stride, const void *keys, const void *values, int64_t head_stride,
                 const int32_t *tables, int64_t width, const int64_t *starts, const int64_t *stops,
                 const int64_t *tokens, int64_t rows, int64_t kv_heads, int64_t group, int64_t dim, int64_t size,
                 float scale, float *scores, int bf16) {
    for (int64_t row = 0; row < rows; row++)
        for (int64_t head = 0; head < kv_heads; head++) {
            const void *k = offset(keys, head * head_stride, bf16), *v = offset(values, head * head_stride, bf16);
            for (int64_t lead = 0; lead < group; lead += MAX_GROUP) {
                int together = (int)(group - lead < MAX_GROUP ? group - lead : MAX_GROUP);
                int64_t at = (head * group + lead) * dim;
                const void *from = offset(q, tokens[row] * stride + at, bf16);
                void *to = (void *)offset(out, tokens[row] * kv_heads * group * dim + at, bf16);
                const int32_t *table = tables + row * width;
                if (bf16)
                    attend_any(to, from, k, v, table, starts[row], stops[row], size, together, (int)dim, scale, scores, 1);
                else
                    attend_any(to, from, k, v, table, starts[row], stops[row], size, together, (int)dim, scale, scores, 0);
            }
        }
}
