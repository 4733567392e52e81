/* The parts of a small transformer between its matrix products, in float32, for a processor: kernels.py calls them.
 *
 * Promises: each row, or each pair of sequence and head, is computed by one thread and in one order, so the number of
 * threads changes no bit; nothing outside the memory described is written. The caller checks shapes and types: nothing
 * is checked here. Compiled once for each kind of processor, with vectors of its own width; widths that are no multiple
 * of a vector are padded with zeros in a thread's own memory.
 *
 * One file: the kernels share the vector helpers above them, which the compiler puts inline. */

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));
typedef float anywhere __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

#define EACH(i, count) for (long i = 0; i < (count); i++)
#define INLINE static inline __attribute__((always_inline))

INLINE long up(long value) { return (value + LANES - 1) / LANES * LANES; }
INLINE vec load(const float *at) { return *(const anywhere *)at; }
INLINE void store(float *at, vec value) { *(anywhere *)at = value; }

/* At the end of a row, where less than a vector may be left. */
INLINE vec load_some(const float *at, long left)
{
    vec value = {0};
    if (left >= LANES)
        return load(at);
    memcpy(&value, at, left * sizeof(float));
    return value;
}

INLINE void store_some(float *at, vec value, long left)
{
    if (left >= LANES)
        store(at, value);
    else
        memcpy(at, &value, left * sizeof(float));
}

INLINE vec choose(ints where, vec yes, vec no) { return (vec)(((ints)yes & where) | ((ints)no & ~where)); }

INLINE float total(vec value)
{
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++)
            value[i] += value[i + half];
    return value[0];
}

INLINE float largest_of(vec value)
{
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++)
            value[i] = value[i + half] > value[i] ? value[i + half] : value[i];
    return value[0];
}

/* To about one unit in the last place; 0 below -87, where float32 has little left. */
INLINE vec exponential(vec x)
{
    ints gone = x < -87.0f;
    x = choose(gone, (vec){0} - 87.0f, x);
    x = choose(x > 88.0f, (vec){0} + 88.0f, x);
    vec n = x * 1.44269504f + 12582912.0f - 12582912.0f; /* rounds: beyond 2^23 a float32 has no fraction */
    vec r = x - n * 0.693359375f - n * -2.12194440e-4f;
    vec p = 1.0f / 5040 * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r * r + r + 1;
    vec power = (vec)((__builtin_convertvector(n, ints) + 127) << 23);
    return choose(gone, (vec){0}, p * power);
}

#define MUCH (16l << 20)

/* Memory of this thread that is kept for its next call; much of it only while it is needed. */
static float *room(long floats)
{
    static _Thread_local float *kept;
    static _Thread_local long size;
    if (size < floats || (size > MUCH && floats <= MUCH)) {
        free(kept);
        kept = malloc(floats * sizeof(float));
        if (!kept) {
            fprintf(stderr, "harena: no memory for %ld floats\n", floats);
            abort();
        }
        size = floats;
    }
    return kept;
}

/* ---- a product of small matrices ---- */

/* c[r][0..vectors] (+)= the sum over k of a[r * a_row + k * a_step] * b[k * b_row + v * b_next ...] */
INLINE void tile(int rows, int vectors, const float *a, long a_row, long a_step, const float *b, long b_row, long b_next,
                 float *c, long c_row, long count, int add)
{
    vec sum[8][4] = {0};
    EACH(k, count)
        for (int v = 0; v < vectors; v++) {
            vec right = load(b + k * b_row + v * b_next);
            for (int r = 0; r < rows; r++)
                sum[r][v] += a[r * a_row + k * a_step] * right;
        }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++) {
            float *to = c + r * c_row + v * LANES;
            store(to, add ? load(to) + sum[r][v] : sum[r][v]);
        }
}

/* `columns` is a multiple of LANES; vectors of a row of b are b_next apart. As many sums at once as there are registers. */
static void multiply(long rows, const float *a, long a_row, long a_step, const float *b, long b_row, long b_next,
                     float *c, long c_row, long count, long columns, int add)
{
#define TILES(r, v)                                                                                                  \
    for (; done == r && j + v <= vectors; j += v)                                                                    \
        tile(r, v, a, a_row, a_step, b + j * b_next, b_row, b_next, c + j * LANES, c_row, count, add);
    long vectors = columns / LANES;
    for (long done; rows > 0; rows -= done, a += done * a_row, c += done * c_row) {
        long j = 0;
        done = rows >= 8 && LANES == 16 ? 8 : rows >= 4 ? 4 : rows >= 2 ? 2 : 1;
        if (LANES == 16) {
            TILES(8, 2) TILES(8, 1) TILES(4, 4)
        }
        TILES(4, 2) TILES(4, 1) TILES(2, 4) TILES(2, 2) TILES(2, 1) TILES(1, 4) TILES(1, 1)
    }
#undef TILES
}

/* Rows of softmax's numerators from scores, in place, 0 from `end` on; returns what they sum up to. */
static float weigh(float *scores, long size, long end, float *largest)
{
    vec most = (vec){0} - INFINITY, sum = {0};
    for (long j = end; j < size; j++)
        scores[j] = -INFINITY;
    for (long j = 0; j < size; j += LANES)
        most = choose(load(scores + j) > most, load(scores + j), most);
    *largest = largest_of(most);
    for (long j = 0; j < size; j += LANES) {
        vec value = exponential(load(scores + j) - *largest);
        store(scores + j, value);
        sum += value;
    }
    return total(sum);
}

/* ---- norm: out = x * inverse * weight, inverse = 1 / sqrt(mean of squares + eps) ---- */

INLINE float dot(const float *a, const float *b, long width)
{
    vec sum = {0};
    for (long j = 0; j < width; j += LANES)
        sum += load_some(a + j, width - j) * load_some(b + j, width - j);
    return total(sum);
}

void norm(const float *x, const float *weight, float eps, long rows, long width, float *out, float *inverse, int threads)
{
#pragma omp parallel for num_threads(threads)
    EACH(i, rows) {
        const float *from = x + i * width;
        float scale = inverse[i] = 1 / sqrtf(dot(from, from, width) / width + eps);
        EACH(j, width) out[i * width + j] = from[j] * scale * weight[j];
    }
}

/* Rows are taken in blocks of this size, whose sums are then added in their order. */
#define BLOCK 64

/* `partial` has room for a row of weights for each block. */
void norm_back(const float *grad, const float *x, const float *weight, const float *inverse, long rows, long width,
               float *to_x, float *to_weight, float *partial, int threads)
{
    long blocks = (rows + BLOCK - 1) / BLOCK;
#pragma omp parallel for num_threads(threads)
    EACH(block, blocks) {
        float *sums = partial + block * width;
        long end = (block + 1) * BLOCK < rows ? (block + 1) * BLOCK : rows;
        memset(sums, 0, width * sizeof(float));
        for (long i = block * BLOCK; i < end; i++) {
            const float *g = grad + i * width, *from = x + i * width;
            float scale = inverse[i], *to = to_x + i * width;
            EACH(j, width) {
                to[j] = g[j] * weight[j];
                sums[j] += g[j] * from[j] * scale;
            }
            float pull = -dot(to, from, width) * scale * scale * scale / width;
            EACH(j, width) to[j] = to[j] * scale + from[j] * pull;
        }
    }
    memset(to_weight, 0, width * sizeof(float));
    EACH(block, blocks) EACH(j, width) to_weight[j] += partial[block * width + j];
}

/* ---- gated: silu(gate) * up, of rows that hold both ---- */

void gated(const float *both, long rows, long width, float *out, int threads)
{
#pragma omp parallel for num_threads(threads)
    EACH(i, rows)
        for (long j = 0; j < width; j += LANES) {
            const float *gate = both + 2 * i * width + j, *upper = gate + width;
            long left = width - j;
            vec g = load_some(gate, left);
            store_some(out + i * width + j, g / (1 + exponential(-g)) * load_some(upper, left), left);
        }
}

void gated_back(const float *grad, const float *both, long rows, long width, float *result, int threads)
{
#pragma omp parallel for num_threads(threads)
    EACH(i, rows)
        for (long j = 0; j < width; j += LANES) {
            const float *gate = both + 2 * i * width + j, *upper = gate + width;
            float *to = result + 2 * i * width + j;
            long left = width - j;
            vec back = load_some(grad + i * width + j, left), g = load_some(gate, left);
            vec open = 1 / (1 + exponential(-g)), silu = g * open;
            store_some(to, back * load_some(upper, left) * (open + silu * (1 - open)), left);
            store_some(to + width, back * silu, left);
        }
}

/* ---- attention of whole sequences, one after the other in qkv: tokens x (heads, key heads, value heads) x width ---- */

/* The rotary embedding of one head; `way` -1 undoes it. */
INLINE void turn(const float *restrict x, const float *restrict cos, const float *restrict sin, long width, float way,
                 float scale, float *restrict out)
{
    long half = width / 2;
    EACH(d, half) {
        float low = x[d], high = x[d + half];
        out[d] = (low * cos[d] - way * high * sin[d]) * scale;
        out[d + half] = (high * cos[d + half] + way * low * sin[d + half]) * scale;
    }
}

/* Rows of keys, the first of them number `at`, into blocks of LANES places: within a block, places lie side by side. */
INLINE void spread(const float *from, long at, long rows, long width, long from_row, float *to)
{
    for (long i = at; i < at + rows; i++, from += from_row)
        EACH(d, width) to[i / LANES * LANES * width + d * LANES + i % LANES] = from[d];
}

typedef struct {
    const float *qkv, *cos, *sin;
    const int64_t *starts;
    long heads, kv_heads, width;
} Sequences;

/* One key-value head of one sequence: keys turned, padded with zeros to `wide`, and both spread. */
typedef struct {
    long first, count, wide, places, token;
    float *keys, *values, *flat_keys, *flat_values, *next;
} Head;

static Head open_head(const Sequences *s, long sequence, long kv, float *at)
{
    Head h = {.first = s->starts[sequence], .wide = up(s->width), .token = (s->heads + 2 * s->kv_heads) * s->width};
    h.count = s->starts[sequence + 1] - h.first;
    h.places = up(h.count);
    h.keys = at;
    h.values = h.keys + h.count * h.wide;
    h.flat_keys = h.values + h.count * h.wide;
    h.flat_values = h.flat_keys + s->width * h.places;
    h.next = h.flat_values + s->width * h.places;
    memset(at, 0, (h.next - at) * sizeof(float));
    EACH(i, h.count) {
        const float *token = s->qkv + (h.first + i) * h.token;
        turn(token + (s->heads + kv) * s->width, s->cos + i * s->width, s->sin + i * s->width, s->width, 1, 1,
             h.keys + i * h.wide);
        memcpy(h.values + i * h.wide, token + (s->heads + s->kv_heads + kv) * s->width, s->width * sizeof(float));
    }
    spread(h.keys, 0, h.count, s->width, h.wide, h.flat_keys);
    return h;
}

static long longest(const Sequences *s, long sequences)
{
    long most = 0;
    EACH(i, sequences) most = s->starts[i + 1] - s->starts[i] > most ? s->starts[i + 1] - s->starts[i] : most;
    return most;
}

#define TOGETHER 8 /* queries that are taken at once: they look at as many keys as the last of them */

/* mixed: tokens x heads x width; sums: the logarithm of what softmax divides by, tokens x heads. */
void attend(const float *qkv, const float *cos, const float *sin, const int64_t *starts, long sequences, long heads,
            long kv_heads, long width, float *mixed, float *sums, int threads)
{
    Sequences s = {qkv, cos, sin, starts, heads, kv_heads, width};
    long most = longest(&s, sequences), group = heads / kv_heads, wide = up(width);
    long need = 2 * most * wide + 2 * width * up(most) + TOGETHER * (up(most) + 2 * wide);
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    EACH(task, sequences * kv_heads) {
        long kv = task % kv_heads;
        Head h = open_head(&s, task / kv_heads, kv, room(need));
        float *scores = h.next, *q = scores + TOGETHER * h.places, *out = q + TOGETHER * wide;
        for (long head = kv * group; head < (kv + 1) * group; head++)
            for (long i = 0; i < h.count; i += TOGETHER) {
                long rows = h.count - i < TOGETHER ? h.count - i : TOGETHER, seen = up(i + rows);
                EACH(r, rows)
                    turn(qkv + (h.first + i + r) * h.token + head * width, cos + (i + r) * width, sin + (i + r) * width,
                         width, 1, 1 / sqrtf(width), q + r * wide);
                multiply(rows, q, wide, 1, h.flat_keys, LANES, LANES * width, scores, h.places, width, seen, 0);
                float inverse[TOGETHER];
                EACH(r, rows) {
                    float largest, sum = weigh(scores + r * h.places, seen, i + r + 1, &largest);
                    sums[(h.first + i + r) * heads + head] = largest + logf(sum);
                    inverse[r] = 1 / sum;
                }
                multiply(rows, scores, h.places, 1, h.values, wide, LANES, out, wide, i + rows, wide, 0);
                EACH(r, rows) EACH(d, width)
                    mixed[((h.first + i + r) * heads + head) * width + d] = out[r * wide + d] * inverse[r];
            }
    }
}

void attend_back(const float *grad, const float *qkv, const float *cos, const float *sin, const int64_t *starts,
                 const float *sums, long sequences, long heads, long kv_heads, long width, float *result, int threads)
{
    Sequences s = {qkv, cos, sin, starts, heads, kv_heads, width};
    long most = longest(&s, sequences), group = heads / kv_heads, wide = up(width);
    long need = 6 * most * wide + 2 * width * up(most) + 2 * most * up(most) + TOGETHER * wide;
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    EACH(task, sequences * kv_heads) {
        long kv = task % kv_heads;
        Head h = open_head(&s, task / kv_heads, kv, room(need));
        long block = h.count * wide;
        float *q = h.next, *g = q + block, *to_keys = g + block, *to_values = to_keys + block;
        float *weights = to_values + block, *slopes = weights + h.count * h.places, *out = slopes + h.count * h.places;
        float scale = 1 / sqrtf(width);
        spread(h.values, 0, h.count, width, wide, h.flat_values);
        memset(q, 0, 4 * block * sizeof(float));
        for (long head = kv * group; head < (kv + 1) * group; head++) {
            EACH(i, h.count) {
                turn(qkv + (h.first + i) * h.token + head * width, cos + i * width, sin + i * width, width, 1, scale,
                     q + i * wide);
                memcpy(g + i * wide, grad + ((h.first + i) * heads + head) * width, width * sizeof(float));
            }
            for (long i = 0; i < h.count; i += TOGETHER) {
                long rows = h.count - i < TOGETHER ? h.count - i : TOGETHER, seen = up(i + rows);
                float *w = weights + i * h.places, *slope = slopes + i * h.places;
                multiply(rows, q + i * wide, wide, 1, h.flat_keys, LANES, LANES * width, w, h.places, width, seen, 0);
                multiply(rows, g + i * wide, wide, 1, h.flat_values, LANES, LANES * width, slope, h.places, width, seen, 0);
                EACH(r, rows) {
                    float *wr = w + r * h.places, *sr = slope + r * h.places;
                    float sum = sums[(h.first + i + r) * heads + head];
                    for (long j = i + r + 1; j < seen; j++)
                        wr[j] = -INFINITY;
                    for (long j = 0; j < seen; j += LANES)
                        store(wr + j, exponential(load(wr + j) - sum));
                    float mean = dot(wr, sr, seen);
                    for (long j = 0; j < seen; j += LANES)
                        store(sr + j, load(wr + j) * (load(sr + j) - mean));
                }
                multiply(rows, slope, h.places, 1, h.keys, wide, LANES, out, wide, i + rows, wide, 0);
                EACH(r, rows)
                    turn(out + r * wide, cos + (i + r) * width, sin + (i + r) * width, width, -1, scale,
                         result + (h.first + i + r) * h.token + head * width);
            }
            /* A block of keys is seen by the queries from its own place on; those before have nothing there. */
            for (long j = 0; j < h.count; j += TOGETHER) {
                long rows = h.count - j < TOGETHER ? h.count - j : TOGETHER, left = h.count - j, at = j * h.places + j;
                multiply(rows, slopes + at, 1, h.places, q + j * wide, wide, LANES, to_keys + j * wide, wide, left, wide, 1);
                multiply(rows, weights + at, 1, h.places, g + j * wide, wide, LANES, to_values + j * wide, wide, left, wide, 1);
            }
        }
        EACH(i, h.count) {
            float *token = result + (h.first + i) * h.token + heads * width;
            turn(to_keys + i * wide, cos + i * width, sin + i * width, width, -1, 1, token + kv * width);
            memcpy(token + (kv_heads + kv) * width, to_values + i * wide, width * sizeof(float));
        }
    }
}

/* ---- writing: one token a row ---- */

/* Keys, spread, and values of sequences, kept: slots x kv heads x places x width, and ... x wide. */
void keep(const float *qkv, const float *cos, const float *sin, const int64_t *starts, const int64_t *slots,
          long sequences, long heads, long kv_heads, long width, float *keys, float *values, long places, long wide,
          int threads)
{
    long token = (heads + 2 * kv_heads) * width;
#pragma omp parallel for num_threads(threads)
    EACH(task, sequences * kv_heads) {
        long n = task / kv_heads, kv = task % kv_heads, at = slots[n] * kv_heads + kv;
        float *turned = room(width);
        EACH(i, starts[n + 1] - starts[n]) {
            const float *from = qkv + (starts[n] + i) * token + (heads + kv) * width;
            turn(from, cos + i * width, sin + i * width, width, 1, 1, turned);
            spread(turned, i, 1, width, width, keys + at * width * places);
            memcpy(values + (at * places + i) * wide, from + kv_heads * width, width * sizeof(float));
        }
    }
}

INLINE void fetch(const float *at, long floats)
{
    for (long i = 0; i < floats; i += 16)
        __builtin_prefetch(at + i);
}

/* What `keep` fills, and the same for what rows have written themselves. */
typedef struct {
    float *keys, *values;
    int64_t places;
} Kept;

/* For n-th of `count` rows, which is rows[n]: its token's key and value are kept as number written[rows[n]] of its own,
 * and its queries look at the first lengths[slot] of the prompt in slots[rows[n]] and at all of its own. Rows of one
 * slot that are neighbours read the prompt together. */
void attend_rows(const float *qkv, const float *cos, const float *sin, const int64_t *rows, const int64_t *slots,
                 const int64_t *lengths, const int64_t *positions, const int64_t *written, long count, long heads,
                 long kv_heads, long width, long wide, const Kept *prompts, const Kept *own, float *mixed, int threads)
{
    long group = heads / kv_heads, token = (heads + 2 * kv_heads) * width, size = up(prompts->places) + up(own->places);
    long most = 8 * group, need = most * (size + 2 * wide);
    int64_t *firsts = malloc((count + 1) * sizeof *firsts), parties = 0;
    if (!firsts)
        abort();
    EACH(n, count)
        if (!n || slots[rows[n]] != slots[rows[n - 1]] || n - firsts[parties - 1] == 8)
            firsts[parties++] = n;
    firsts[parties] = count;
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    EACH(task, parties * kv_heads) {
        long first = firsts[task / kv_heads], members = firsts[task / kv_heads + 1] - first, kv = task % kv_heads;
        long slot = slots[rows[first]], seen = lengths[slot], start = up(seen);
        float *scores = room(need), *q = scores + most * size, *out = q + most * wide, inverse[most];
        const float *keys = prompts->keys + (slot * kv_heads + kv) * width * prompts->places;
        const float *values = prompts->values + (slot * kv_heads + kv) * prompts->places * wide;
        EACH(m, members) {
            long at = rows[first + m] * kv_heads + kv, seats = written[rows[first + m]] + 1;
            fetch(own->keys + at * width * own->places, up(seats) * width);
            fetch(own->values + at * own->places * wide, seats * wide);
        }
        EACH(m, members) EACH(g, group) {
            long place = positions[rows[first + m]];
            turn(qkv + (first + m) * token + (kv * group + g) * width, cos + place * width, sin + place * width, width,
                 1, 1 / sqrtf(width), q + (m * group + g) * wide);
        }
        multiply(members * group, q, wide, 1, keys, LANES, LANES * width, scores, size, width, start, 0);
        EACH(m, members) {
            long row = rows[first + m], place = positions[row], at = written[row], end = start + up(at + 1);
            float *own_keys = own->keys + (row * kv_heads + kv) * width * own->places, *turned = out;
            float *own_values = own->values + (row * kv_heads + kv) * own->places * wide;
            const float *from = qkv + (first + m) * token + (heads + kv) * width;
            turn(from, cos + place * width, sin + place * width, width, 1, 1, turned);
            spread(turned, at, 1, width, width, own_keys);
            memcpy(own_values + at * wide, from + kv_heads * width, width * sizeof(float));
            float *mine = scores + m * group * size;
            multiply(group, q + m * group * wide, wide, 1, own_keys, LANES, LANES * width, mine + start, size, width,
                     end - start, 0);
            EACH(g, group) {
                float largest;
                for (long j = seen; j < start; j++)
                    mine[g * size + j] = -INFINITY;
                inverse[m * group + g] = 1 / weigh(mine + g * size, end, start + at + 1, &largest);
            }
        }
        multiply(members * group, scores, size, 1, values, wide, LANES, out, wide, seen, wide, 0);
        EACH(m, members) {
            long row = rows[first + m];
            const float *own_values = own->values + (row * kv_heads + kv) * own->places * wide;
            multiply(group, scores + m * group * size + start, size, 1, own_values, wide, LANES, out + m * group * wide,
                     wide, written[row] + 1, wide, 1);
            EACH(g, group) EACH(d, width)
                mixed[((first + m) * heads + kv * group + g) * width + d] =
                    out[(m * group + g) * wide + d] * inverse[m * group + g];
        }
    }
    free(firsts);
}

/* What a decoder knows of its rows. */
typedef struct {
    int64_t *ids, *at, *count, *limit, *out;
    float *logprobs, *entropy;
    uint8_t *live, *ends;
    int64_t width;
} State;

/* A token for each of rows[0..count] from its logits, noted in the state; marks are random numbers in [0, 1), NULL takes
 * the likeliest. Rows that end here are taken out of `rows`; returns how many are left. */
long sample(const float *logits, long vocab, float heat, const double *marks, int64_t *rows, long count,
            const State *s, int threads)
{
#pragma omp parallel for num_threads(threads)
    EACH(n, count) {
        long row = rows[n], size = up(vocab), token = 0;
        float *weights = room(2 * size), *shifted = weights + size, largest;
        EACH(j, vocab) weights[j] = shifted[j] = logits[n * vocab + j] / heat;
        float sum = weigh(weights, size, vocab, &largest), log_sum = logf(sum);
        EACH(j, vocab) shifted[j] = weights[j] > 0 ? shifted[j] - largest : -FLT_MAX; /* which 0 times is 0 */
        if (marks) {
            double ladder = 0, all = 0;
            EACH(j, vocab) all += weights[j];
            double mark = marks[n] * all;
            for (token = 0; token < vocab - 1; token++)
                if ((ladder += weights[token]) > mark)
                    break;
            while (token && !weights[token]) /* rounding may lead past the last that has a chance */
                token--;
        } else {
            while (token < vocab - 1 && shifted[token] != 0)
                token++;
        }
        long at = s->count[row];
        s->out[row * s->width + at] = s->ids[row] = token;
        s->logprobs[row * s->width + at] = shifted[token] - log_sum;
        s->entropy[row] += log_sum - dot(weights, shifted, vocab) / sum;
        s->count[row]++;
        s->at[row]++;
        s->live[row] = !(s->ends[token] || s->count[row] >= s->limit[row]);
    }
    long left = 0;
    EACH(n, count) if (s->live[rows[n]]) rows[left++] = rows[n];
    return left;
}
