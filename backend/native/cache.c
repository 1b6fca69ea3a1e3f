/* The KV cache of a layer: keys and values, each [kv_heads, num_blocks, block_size, dim], heads `head_stride` apart.
 * It is larger than any cache of a processor, so what is needed of it is asked for ahead.
 */

#include <math.h>

#include "kernels.h"
#include "lanes.h"

#define MOST_PARTS (256 / LANES)
#define MAX_GROUP 4
#define LINE 64    /* bytes that memory is moved in */
#define TOGETHER 8 /* rows whose places are asked for before the first is written */
#define AHEAD 64   /* tokens between what is asked for and what is attended */

/* Put the rows of k and v into their slots; a negative slot stores nothing. */
void store_rows(void *keys, void *values, int64_t head_stride, const void *k, int64_t k_stride, const void *v,
                int64_t v_stride, const int64_t *slots, int64_t kv_heads, int64_t dim, int bf16, int64_t first,
                int64_t last) {
    int64_t bytes = dim * (bf16 ? 2 : 4);
    for (int64_t start = first; start < last; start += TOGETHER) {
        int64_t stop = start + TOGETHER < last ? start + TOGETHER : last;
        for (int write = 0; write < 2; write++)
            for (int64_t row = start; row < stop; row++)
                for (int64_t head = 0; head < kv_heads && slots[row] >= 0; head++) {
                    int64_t place = head * head_stride + slots[row] * dim;
                    char *key = (char *)offset(keys, place, bf16), *value = (char *)offset(values, place, bf16);
                    if (write) {
                        memcpy(key, offset(k, row * k_stride + head * dim, bf16), bytes);
                        memcpy(value, offset(v, row * v_stride + head * dim, bf16), bytes);
                        continue;
                    }
                    for (int64_t at = 0; at < bytes; at += LINE) {
                        __builtin_prefetch(key + at, 1);
                        __builtin_prefetch(value + at, 1);
                    }
                }
    }
}

/* Goes over the cache some tokens ahead of the one that attends and asks for what that one will need: blocks lie
 * anywhere, and the hardware cannot guess. Keys, then values, of row after row of head after head. */
struct scout {
    const char *at;      /* the next token */
    int64_t left;        /* tokens up to the end of its block or of the context */
    int64_t token, stop; /* where the block after it begins, where the context ends */
    int64_t row, head;
    int in_values;
    /* what does not change */
    const char *keys, *values;
    int64_t head_bytes, token_bytes, block_size, first_row, last_row, heads, width;
    const int32_t *tables;
    const int64_t *starts, *stops;
};

static void next_block(struct scout *s) {
    if (s->token >= s->stop) {
        if (s->in_values && ++s->row == s->last_row) {
            s->row = s->first_row;
            if (++s->head == s->heads) {
                s->left = INT64_MAX; /* nothing follows: stay here */
                s->token_bytes = 0;
                return;
            }
        }
        s->in_values = !s->in_values;
        s->token = s->starts[s->row];
        s->stop = s->stops[s->row];
    }
    int64_t inside = s->token % s->block_size;
    int64_t slot = s->tables[s->row * s->width + s->token / s->block_size] * s->block_size + inside;
    s->at = (s->in_values ? s->values : s->keys) + s->head * s->head_bytes + slot * s->token_bytes;
    s->left = s->block_size - inside < s->stop - s->token ? s->block_size - inside : s->stop - s->token;
    s->token += s->left;
}

INLINE void go_ahead(struct scout *s, int bytes) {
    if (s->left == 0)
        next_block(s);
    for (int at = 0; at < bytes; at += LINE)
        __builtin_prefetch(s->at + at, 0, 2);
    s->at += s->token_bytes;
    s->left--;
}

/* Attention of `group` query heads, at most MAX_GROUP, that share one KV head, over the tokens first..last-1. */
INLINE void attend(void *out, const void *q, const void *keys, const void *values, const int32_t *table,
                   int64_t first, int64_t last, int64_t size, int group, int dim, float scale, float *scores,
                   int bf16, struct scout *scout) {
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
                if (scout)
                    go_ahead(scout, dim * (bf16 ? 2 : 4));
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
            if (scout)
                go_ahead(scout, dim * (bf16 ? 2 : 4));
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

#define ATTEND(G, D) attend(out, q, keys, values, table, first, last, size, G, D, scale, scores, bf16, scout)

INLINE void attend_dim(void *out, const void *q, const void *keys, const void *values, const int32_t *table,
                       int64_t first, int64_t last, int64_t size, int group, int dim, float scale, float *scores,
                       int bf16, struct scout *scout) {
    switch (group) {
    case 1: ATTEND(1, dim); break;
    case 2: ATTEND(2, dim); break;
    case 3: ATTEND(3, dim); break;
    default: ATTEND(4, dim);
    }
}

#define ATTEND_GROUP(D)                                                                                              \
    attend_dim(out, q, keys, values, table, first, last, size, group, D, scale, scores, bf16, scout)

/* The sizes that models have are constants for the compiler; any other multiple of 2 * LANES up to 256 works too. */
INLINE void attend_any(void *out, const void *q, const void *keys, const void *values, const int32_t *table,
                       int64_t first, int64_t last, int64_t size, int group, int dim, float scale, float *scores,
                       int bf16, struct scout *scout) {
    switch (dim) {
    case 64: ATTEND_GROUP(64); break;
    case 128: ATTEND_GROUP(128); break;
    default: ATTEND(group, dim);
    }
}

static void attend_rows(void *out, const void *q, int64_t stride, const void *keys, const void *values,
                        int64_t head_stride, const int32_t *tables, int64_t width, const int64_t *starts,
                        const int64_t *stops, const int64_t *tokens, int64_t kv_heads, int64_t group, int64_t dim,
                        int64_t size, float scale, int bf16, float *scores, int64_t first, int64_t last) {
    int64_t token_bytes = dim * (bf16 ? 2 : 4);
    struct scout scout = {
        .keys = keys, .values = values, .tables = tables, .starts = starts, .stops = stops, .width = width,
        .head_bytes = head_stride * (bf16 ? 2 : 4), .token_bytes = token_bytes, .block_size = size, .heads = kv_heads,
        .row = first, .first_row = first, .last_row = last, .token = starts[first], .stop = stops[first],
    };
    for (int i = 0; i < AHEAD; i++)
        go_ahead(&scout, (int)token_bytes);
    for (int64_t head = 0; head < kv_heads; head++)
        for (int64_t row = first; row < last; row++) {
            const void *k = offset(keys, head * head_stride, bf16), *v = offset(values, head * head_stride, bf16);
            for (int64_t lead = 0; lead < group; lead += MAX_GROUP) {
                int together = (int)(group - lead < MAX_GROUP ? group - lead : MAX_GROUP);
                int64_t at = (head * group + lead) * dim;
                const void *from = offset(q, tokens[row] * stride + at, bf16);
                void *to = (void *)offset(out, tokens[row] * kv_heads * group * dim + at, bf16);
                const int32_t *table = tables + row * width;
                struct scout *ahead = lead == 0 ? &scout : 0; /* the same tokens again are still near */
                if (bf16)
                    attend_any(to, from, k, v, table, starts[row], stops[row], size, together, (int)dim, scale,
                               scores, 1, ahead);
                else
                    attend_any(to, from, k, v, table, starts[row], stops[row], size, together, (int)dim, scale,
                               scores, 0, ahead);
            }
        }
}

/* One query per row, over the tokens starts[row]..stops[row]-1 of its block table in tables [rows, width]. q has rows
 * of `stride`, out is dense [rows, kv_heads * group * dim]; both are indexed by tokens[row]. The rows are cut into
 * parts: part p is cuts[p]..cuts[p + 1]-1, and has scratch of its own in scores, `scores_stride` apart, for
 * MAX_GROUP * (max(stops - starts) + LANES) floats. */
void attend_parts(void *out, const void *q, int64_t stride, const void *keys, const void *values, int64_t head_stride,
                  const int32_t *tables, int64_t width, const int64_t *starts, const int64_t *stops,
                  const int64_t *tokens, int64_t kv_heads, int64_t group, int64_t dim, int64_t size, float scale,
                  int bf16, float *scores, int64_t scores_stride, const int64_t *cuts, int64_t first, int64_t last) {
    for (int64_t part = first; part < last; part++)
        if (cuts[part] < cuts[part + 1])
            attend_rows(out, q, stride, keys, values, head_stride, tables, width, starts, stops, tokens, kv_heads,
                        group, dim, size, scale, bf16, scores + part * scores_stride, cuts[part], cuts[part + 1]);
}
