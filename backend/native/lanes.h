/* What the sources share: vectors of float32 for any compiler with vector extensions, and elements that are float32
 * or bfloat16. All arithmetic is float32; bfloat16 results are rounded once, to the nearest even. Sizes and strides
 * are in elements unless a name says bytes. Every row is computed as if it were alone, so its bits do not depend on
 * the batch it is in.
 */

#ifndef TRIMTAB_LANES_H
#define TRIMTAB_LANES_H

#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#ifdef __AVX512F__
#define LANES 16
#else
#define LANES 8
#endif

typedef float lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint32_t words __attribute__((vector_size(4 * LANES), aligned(2), may_alias));

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

/* Of two vectors, the first or the second of every two runs of STEP lanes: one step of a transposition. */
#define FIRST(a, b, STEP) __builtin_shufflevector(a, b, FIRST_##STEP)
#define SECOND(a, b, STEP) __builtin_shufflevector(a, b, SECOND_##STEP)
#if LANES == 16
#define FIRST_8 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23
#define SECOND_8 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31
#define FIRST_4 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27
#define SECOND_4 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31
#define FIRST_2 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29
#define SECOND_2 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31
#define FIRST_1 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30
#define SECOND_1 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31
#else
#define FIRST_4 0, 1, 2, 3, 8, 9, 10, 11
#define SECOND_4 4, 5, 6, 7, 12, 13, 14, 15
#define FIRST_2 0, 1, 8, 9, 4, 5, 12, 13
#define SECOND_2 2, 3, 10, 11, 6, 7, 14, 15
#define FIRST_1 0, 8, 2, 10, 4, 12, 6, 14
#define SECOND_1 1, 9, 3, 11, 5, 13, 7, 15
#endif

/* Lane i of the result is the sum over x[i]: a tree in which every step adds halves of two rows, so that n sums
 * take n - 1 additions. The rows come out in the order in which a transposition by such steps leaves them. */
#define ADD(to, from, STEP)                                                                                          \
    for (int i = 0; i < STEP; i++)                                                                                   \
        to[i] = FIRST(from[i], from[i + STEP], STEP) + SECOND(from[i], from[i + STEP], STEP)

INLINE lanes sums(const lanes *x) {
    lanes b[4], c[2], d[1];
#if LANES == 16
    lanes a[8];
    ADD(a, x, 8);
    ADD(b, a, 4);
#else
    ADD(b, x, 4);
#endif
    ADD(c, b, 2);
    ADD(d, c, 1);
    return d[0];
}

#define TURN(STEP)                                                                                                   \
    for (int i = 0; i < LANES; i++)                                                                                  \
        if (!(i & STEP)) {                                                                                           \
            lanes a = x[i], b = x[i + STEP];                                                                         \
            x[i] = FIRST(a, b, STEP);                                                                                \
            x[i + STEP] = SECOND(a, b, STEP);                                                                        \
        }

/* Lane j of x[i] becomes lane i of x[j]. */
INLINE void transpose(lanes *x) {
#if LANES == 16
    TURN(8)
#endif
    TURN(4)
    TURN(2)
    TURN(1)
}

#endif
