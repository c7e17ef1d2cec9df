/* The arithmetic of a Llama-shaped forward pass on a CPU, for many short sequences at once.

   Every number of a token is computed by the same operations in the same order, whatever other tokens are in the call,
   whatever thread takes it, and whether the token was sampled or read: results are a bitwise function of the token and
   what stands before it. Hence no sum is ever split by the size of the call.

   Matrices of weights are packed: (N, K) becomes [N / 16][K][16], so that a tile of rows reads them in one stream.
   Keys and values live in pages of 16 tokens. A page holds, for each layer and key-value head, keys as [E][16 tokens]
   and values as [E / 16][16 tokens][16]: both products of attention are then the same tile as the matrix product.

   N, K, E are multiples of 16. All arrays are float32, rows are contiguous. `threads` is the number to use. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef float vec __attribute__((vector_size(32)));
typedef float loose __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(32)));
typedef float wide __attribute__((vector_size(64)));
typedef float loose_wide __attribute__((vector_size(64), aligned(4), may_alias));

enum { PAGE = 16, BLOCK = 64, QUERIES = 6 };
#ifdef __AVX512F__
enum { TILE = 12 }; /* rows of a tile: their sums fill the registers */
#else
enum { TILE = 6 };
#endif
enum { AHEAD = 2 };  /* pages between the one read and the one fetched */
enum { ROWS = 120 }; /* rows of x that pass over all weights together: they stay in the processor's cache */
enum { WORTH = 64, WORTH_PRODUCTS = 400000 }; /* rows, or products, that pay for a second thread */

static inline vec load(const float *p) { return *(const loose *)p; }
static inline void store(float *p, vec v) { *(loose *)p = v; }
static inline vec all(float x) { return (vec){x, x, x, x, x, x, x, x}; }
static inline vec pick(ivec mask, vec yes, vec no) { return (vec)((mask & (ivec)yes) | (~mask & (ivec)no)); }

static inline float sum8(vec v) { return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7])); }

/* e^x, to 1e-7 relative; 0 below -87. */
static inline vec exp8(vec x) {
  ivec low = x < all(-87.0f);
  x = pick(low, all(-87.0f), x);
  x = pick(x > all(88.0f), all(88.0f), x);
  const vec magic = all(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer */
  vec n = (x * all(1.44269504f) + magic) - magic;
  vec r = x - n * all(0.693359375f);
  r = r - n * all(-2.12194440e-4f);
  vec p = all(1.9875691500e-4f);
  p = p * r + all(1.3981999507e-3f);
  p = p * r + all(8.3334519073e-3f);
  p = p * r + all(4.1665795894e-2f);
  p = p * r + all(1.6666665459e-1f);
  p = p * r + all(5.0000001201e-1f);
  p = p * r * r + r + all(1.0f);
  ivec power = (__builtin_convertvector(n, ivec) + 127) << 23;
  return pick(low, all(0.0f), p * (vec)power);
}

/* out[r][16 p ..] (+)= sum over k of x[r][k] * w[p][k][0..16], for R rows and P panels of weights. Meanwhile one row of each
   `ahead` is fetched every `every` steps: whoever reads it next finds it in the processor's cache. */
static inline __attribute__((always_inline)) void tile_of(const int R, const int P, const float *x, int64_t ldx,
                                                          const float *const w[P], int64_t depth, float *out,
                                                          int64_t ldo, int add, const float *const ahead[P],
                                                          int64_t every) {
  wide a[P][R];
  for (int r = 0; r < R; r++)
    for (int p = 0; p < P; p++) {
      a[p][r] = (wide){0};
      if (add) a[p][r] = *(const loose_wide *)(out + r * ldo + 16 * p);
    }
  for (int64_t start = 0, step = 0; start < depth; start += every, step++) {
    int64_t end = start + every < depth ? start + every : depth;
    for (int p = 0; p < P; p++)
      if (ahead[p]) __builtin_prefetch(ahead[p] + 16 * step);
    for (int64_t k = start; k < end; k++)
      for (int p = 0; p < P; p++) {
        wide b = *(const loose_wide *)(w[p] + 16 * k);
        for (int r = 0; r < R; r++) a[p][r] += x[r * ldx + k] * b;
      }
  }
  for (int r = 0; r < R; r++)
    for (int p = 0; p < P; p++) *(loose_wide *)(out + r * ldo + 16 * p) = a[p][r];
}

/* One panel, for `rows` rows, at most TILE. */
static inline void tile(int rows, const float *x, int64_t ldx, const float *w, int64_t depth, float *out, int64_t ldo,
                        int add, const float *ahead, int64_t every) {
#define CASE(R) \
  case R: tile_of(R, 1, x, ldx, &w, depth, out, ldo, add, &ahead, every); break;
  switch (rows) {
    CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
#ifdef __AVX512F__
    CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
#endif
  }
#undef CASE
}

static int64_t tiles(int64_t rows) { return (rows + TILE - 1) / TILE; }

/* out (rows, width) (+)= x (rows, depth) times packed weights. */
void lt_linear(const float *x, const float *packed, int64_t rows, int64_t width, int64_t depth, float *out, int add,
               int threads) {
  int64_t panels = width / 16, blocks = (rows + ROWS - 1) / ROWS;
#pragma omp parallel for schedule(dynamic, 2) num_threads(threads) if (rows * width * depth >= WORTH_PRODUCTS)
  for (int64_t i = 0; i < blocks * panels; i++) {
    int64_t b = i / panels, panel = i % panels, top = rows * b / blocks, high = rows * (b + 1) / blocks - top;
    const float *w = packed + panel * depth * 16;
    int64_t count = tiles(high);
    const float *next = panel + 1 < panels ? w + depth * 16 : NULL;
    for (int64_t t = 0; t < count; t++) {
      int64_t first = top + high * t / count, last = top + high * (t + 1) / count;
      tile((int)(last - first), x + first * depth, depth, w, depth, out + first * width + panel * 16, width, add,
           next ? next + depth * t / count * 16 : NULL, count);
    }
  }
}

/* Packs rows [first, first + rows) of a matrix (N, K) from `weight` (rows, K); rows and first are multiples of 16. */
void lt_pack(const float *weight, int64_t first, int64_t rows, int64_t depth, float *packed) {
  for (int64_t n = 0; n < rows; n++) {
    float *to = packed + (first + n) / 16 * depth * 16 + (first + n) % 16;
    for (int64_t k = 0; k < depth; k++) to[k * 16] = weight[n * depth + k];
  }
}

void lt_rms_norm(const float *x, const float *weight, int64_t rows, int64_t width, float eps, float *out, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (rows >= WORTH)
  for (int64_t n = 0; n < rows; n++) {
    const float *from = x + n * width;
    float *to = out + n * width;
    vec square = all(0.0f);
    for (int64_t c = 0; c < width; c += 8) square += load(from + c) * load(from + c);
    vec scale = all(1.0f / sqrtf(sum8(square) / (float)width + eps));
    for (int64_t c = 0; c < width; c += 8) store(to + c, load(from + c) * scale * load(weight + c));
  }
}

/* out (rows, width) = silu(x[:, :width]) * x[:, width:] */
void lt_gate(const float *x, int64_t rows, int64_t width, float *out, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (rows >= WORTH)
  for (int64_t n = 0; n < rows; n++) {
    const float *gate = x + 2 * n * width, *up = gate + width;
    for (int64_t c = 0; c < width; c += 8)
      store(out + n * width + c, load(gate + c) / (all(1.0f) + exp8(-load(gate + c))) * load(up + c));
  }
}

/* Rotates the first `heads` heads of each row in place. Numbers that turn together stand side by side; `table` has
   (cos, sin) pairs, (positions, E). */
void lt_rope(float *x, int64_t rows, int64_t stride, int64_t heads, int64_t width, const int64_t *positions,
             const float *table, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (rows >= WORTH)
  for (int64_t n = 0; n < rows; n++)
    for (int64_t h = 0; h < heads; h++) {
      float *p = x + n * stride + h * width;
      const float *turn = table + positions[n] * width;
      for (int64_t c = 0; c < width; c += 2) {
        float a = p[c], b = p[c + 1];
        p[c] = a * turn[c] - b * turn[c + 1];
        p[c + 1] = a * turn[c + 1] + b * turn[c];
      }
    }
}

typedef struct {
  const float *query, *key, *value; /* (tokens, heads, E) in any order of the first two */
  int64_t query_token, query_head, key_token, key_head, value_token, value_head; /* strides, in floats */
  int64_t tokens, heads, kv_heads, width;
  const int32_t *const *tables; /* of each token: the pages of its sequence */
  const int64_t *positions;     /* of each token in its sequence; all before it are in the pages or in this call */
  int64_t longest;              /* largest position + 1 */
  float *pages;                 /* of this layer: page p starts at pages + p * page_stride */
  int64_t page_stride;
  float scale;
  float *out; /* (tokens, heads, E) */
} Attention;

static inline float *block(const Attention *a, int64_t token, int64_t page, int64_t head) {
  return a->pages + a->tables[token][page] * a->page_stride + head * 2 * PAGE * a->width;
}

static void write(const Attention *a, int64_t token, int64_t head) {
  int64_t at = a->positions[token] % PAGE;
  float *keys = block(a, token, a->positions[token] / PAGE, head), *values = keys + PAGE * a->width;
  const float *key = a->key + token * a->key_token + head * a->key_head;
  const float *value = a->value + token * a->value_token + head * a->value_head;
  for (int64_t e = 0; e < a->width; e++) keys[e * PAGE + at] = key[e];
  for (int64_t e = 0; e < a->width; e += 16) memcpy(values + e * PAGE + at * 16, value + e, 16 * sizeof(float));
}

/* Scores of one query -> weights, not normalized; returns one over their sum. `count` keys, room for whole pages. */
static float soften(float *score, int64_t count, float scale) {
  int64_t padded = (count + PAGE - 1) / PAGE * PAGE;
  for (int64_t i = count; i < padded; i++) score[i] = -INFINITY;
  vec top = all(-INFINITY);
  for (int64_t i = 0; i < padded; i += 8) {
    vec s = load(score + i);
    top = pick(s > top, s, top);
  }
  float most = top[0];
  for (int i = 1; i < 8; i++) most = top[i] > most ? top[i] : most;
  vec total = all(0.0f);
  for (int64_t i = 0; i < padded; i += 8) {
    vec p = exp8((load(score + i) - all(most)) * all(scale));
    total += p;
    store(score + i, p);
  }
  return 1.0f / sum8(total);
}

/* `rows` queries of one token that share a key-value head. Pages lie anywhere: the processor cannot guess the next. */
static inline __attribute__((always_inline)) void attend(const Attention *a, int64_t token, int64_t head, int64_t first,
                                                         const int rows, float *scores) {
  int64_t count = a->positions[token] + 1, pages = (count + PAGE - 1) / PAGE, room = pages * PAGE;
  const float *query = a->query + token * a->query_token + first * a->query_head;
  float *out = a->out + (token * a->heads + first) * a->width;
  for (int64_t p = 0; p < pages; p += 2) {
    const float *keys[2], *ahead[2];
    for (int i = 0; i < 2; i++) {
      keys[i] = p + i < pages ? block(a, token, p + i, head) : NULL;
      ahead[i] = p + i + AHEAD < pages ? block(a, token, p + i + AHEAD, head) : NULL;
    }
    if (keys[1])
      tile_of(rows, 2, query, a->query_head, keys, a->width, scores + p * PAGE, room, 0, ahead, 1);
    else
      tile_of(rows, 1, query, a->query_head, keys, a->width, scores + p * PAGE, room, 0, ahead, 1);
  }
  float share[QUERIES];
  for (int r = 0; r < rows; r++) share[r] = soften(scores + r * room, count, a->scale);
  for (int64_t p = 0; p < pages; p++) {
    const float *values = block(a, token, p, head) + PAGE * a->width;
    const float *next = p + AHEAD < pages ? block(a, token, p + AHEAD, head) + PAGE * a->width : NULL;
    int64_t depth = p + 1 < pages ? PAGE : count - p * PAGE;
    for (int64_t e = 0; e < a->width; e += 32) {
      const float *panels[2] = {values + e * PAGE, values + (e + 16) * PAGE};
      const float *ahead[2] = {next ? next + e * PAGE : NULL, next ? next + (e + 16) * PAGE : NULL};
      if (e + 16 < a->width)
        tile_of(rows, 2, scores + p * PAGE, room, panels, depth, out + e, a->width, p > 0, ahead, 1);
      else
        tile_of(rows, 1, scores + p * PAGE, room, panels, depth, out + e, a->width, p > 0, ahead, 1);
    }
  }
  for (int r = 0; r < rows; r++)
    for (int64_t e = 0; e < a->width; e += 8) store(out + r * a->width + e, load(out + r * a->width + e) * all(share[r]));
}

/* Writes the keys and values of all tokens, then attends. Returns 0, or 1 when there is no memory. */
int lt_attend(const Attention *a, int threads) {
  int64_t group = a->heads / a->kv_heads, parts = (group + QUERIES - 1) / QUERIES, failed = 0;
  int64_t products = a->tokens * a->heads * a->longest * a->width;
#pragma omp parallel num_threads(threads) if (products >= WORTH_PRODUCTS)
  {
    float *scores = malloc(sizeof(float) * QUERIES * (size_t)(a->longest + PAGE));
#pragma omp for schedule(static)
    for (int64_t i = 0; i < a->tokens * a->kv_heads; i++) write(a, i / a->kv_heads, i % a->kv_heads);
#pragma omp for schedule(dynamic, 2)
    for (int64_t i = 0; i < a->tokens * a->kv_heads * parts; i++) {
      int64_t token = i / (a->kv_heads * parts), head = i / parts % a->kv_heads, part = i % parts;
      int64_t first = head * group + group * part / parts, rows = head * group + group * (part + 1) / parts - first;
      if (!scores) {
#pragma omp atomic write
        failed = 1;
        continue;
      }
      switch (rows) {
        case 1: attend(a, token, head, first, 1, scores); break;
        case 2: attend(a, token, head, first, 2, scores); break;
        case 3: attend(a, token, head, first, 3, scores); break;
        case 4: attend(a, token, head, first, 4, scores); break;
        case 5: attend(a, token, head, first, 5, scores); break;
        default: attend(a, token, head, first, 6, scores); break;
      }
    }
    free(scores);
  }
  return (int)failed;
}

/* Sum of a block, in an order that nothing changes; takes exp first if asked, in place. */
static double block_sum(float *chances, int take_exp) {
  vec sum = all(0.0f);
  for (int64_t i = 0; i < BLOCK; i += 8) {
    if (take_exp) store(chances + i, exp8(load(chances + i)));
    sum += load(chances + i);
  }
  return (double)sum8(sum);
}

/* The first token whose running sum of chances exceeds `goal`, which is below the sum of all; never one of chance 0. */
static int64_t find(float *chances, int64_t vocab, double goal) {
  int64_t token = 0, last;
  double before = 0, sum;
  for (; token + BLOCK < vocab; token += BLOCK, before += sum)
    if (before + (sum = block_sum(chances + token, 0)) > goal) break;
  last = token;
  for (int64_t i = token; i < vocab && i < token + BLOCK; i++) {
    before += (double)chances[i];
    if (chances[i] > 0) last = i;
    if (before > goal) break;
  }
  return last; /* the sum of a block and its running sum round differently: then its last token with a chance */
}

/* Draws one token per row by the inverse CDF of softmax(logits) at `uniform`. Gives its log-probability and the log of the
   sum of exp(logits); that is not finite when some logit is not (but -inf is a chance of 0). Returns as lt_attend. */
int lt_draw(const float *logits, int64_t stride, int64_t rows, int64_t vocab, const double *uniform, int64_t *ids,
            double *logprobs, double *log_totals, int threads) {
  int64_t blocks = (vocab + BLOCK - 1) / BLOCK;
  int failed = 0;
#pragma omp parallel num_threads(threads) if (rows * vocab >= WORTH_PRODUCTS / 8)
  {
    float *chances = malloc(sizeof(float) * (size_t)(blocks * BLOCK));
#pragma omp for schedule(static)
    for (int64_t n = 0; n < rows; n++) {
      if (!chances) {
#pragma omp atomic write
        failed = 1;
        continue;
      }
      const float *row = logits + n * stride;
      float most = -INFINITY;
      for (int64_t v = 0; v < vocab; v++) most = row[v] > most ? row[v] : most;
      for (int64_t v = 0; v < blocks * BLOCK; v++) chances[v] = v < vocab ? row[v] - most : -INFINITY;
      double total = 0;
      for (int64_t b = 0; b < blocks; b++) total += block_sum(chances + b * BLOCK, 1);
      ids[n] = find(chances, vocab, fmin(uniform[n] * total, nextafter(total, 0)));
      logprobs[n] = (double)row[ids[n]] - (double)most - log(total);
      log_totals[n] = (double)most + log(total);
    }
    free(chances);
  }
  return failed;
}
