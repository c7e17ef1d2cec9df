/* The arithmetic of a Llama-shaped forward pass on a CPU, for many short sequences at once.

   Every number of a token is computed by the same operations in the same order, whatever other tokens are in the call,
   whatever thread takes it, and whether the token was sampled or read: results are a bitwise function of the token and
   what stands before it. Hence no sum is ever split by the size of the call.

   Matrices of weights are packed: (N, K) becomes [N / 16][K][16], so that a tile of rows reads them in one stream.
   Keys and values live in pages of 16 tokens. A page holds, for each layer and key-value head, keys as [E][16 tokens]
   and values as [E / 16][16 tokens][16]: both products of attention are then the same tile as the matrix product.

   N, K, E are multiples of 16. All arrays are float32, rows are contiguous. `threads` is the number to use. */

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
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
enum { PATIENCE = 400 };                      /* turns of the processor that a thread gives away before it sleeps */

/* --- a team of threads ----------------------------------------------------------------------------------------------

   A pass makes fifty calls of some ten microseconds. To sleep and be woken costs more than such a call, and to wait for
   all threads at its end costs most where another process has a core. So threads look out for a while, giving way to
   whoever wants the core, before they sleep; items are claimed one by one; and the caller, who claims them too, waits
   for claimed items only, never for a thread that came late. */

typedef void (*Work)(const void *job, int64_t item);

static struct {
  pthread_mutex_t owner; /* of the call that the team works for */
  _Atomic uint64_t next; /* (number of the call << 32) + the first item that nobody has claimed */
  _Atomic int64_t items, done;
  _Atomic(Work) work;
  _Atomic(const void *) job;
  _Atomic int wanted, asleep; /* threads beside the caller */
  int size;
  pthread_mutex_t door;
  pthread_cond_t bell;
} team = {.owner = PTHREAD_MUTEX_INITIALIZER, .door = PTHREAD_MUTEX_INITIALIZER, .bell = PTHREAD_COND_INITIALIZER};

/* Claims and does one item; 0 when there is none. */
static int help(void) {
  uint64_t next = atomic_load(&team.next);
  int64_t item = (int64_t)(next & UINT32_MAX);
  Work work = atomic_load(&team.work);
  const void *job = atomic_load(&team.job);
  if (item >= atomic_load(&team.items)) return 0;
  /* nothing is claimed unless `next` still stands: then what was read belongs to its call */
  if (!atomic_compare_exchange_strong(&team.next, &next, next + 1)) return 1;
  work(job, item);
  atomic_fetch_add(&team.done, 1);
  return 1;
}

static void *serve(void *place) {
  for (int idle = 0;;) {
    if ((intptr_t)place < atomic_load(&team.wanted) && help()) {
      idle = 0;
    } else if (++idle < PATIENCE) {
      sched_yield();
    } else {
      pthread_mutex_lock(&team.door);
      atomic_fetch_add(&team.asleep, 1);
      uint64_t seen = atomic_load(&team.next);
      if ((int64_t)(seen & UINT32_MAX) >= atomic_load(&team.items)) pthread_cond_wait(&team.bell, &team.door);
      atomic_fetch_sub(&team.asleep, 1);
      pthread_mutex_unlock(&team.door);
      idle = 0;
    }
  }
  return NULL;
}

static void forget(void) { /* a forked child has no other threads */
  team.size = 0;
  atomic_store(&team.asleep, 0);
  atomic_store(&team.wanted, 0); /* nor may it go on with a call of its parent */
  atomic_store(&team.items, 0);
  pthread_mutex_init(&team.owner, NULL);
  pthread_mutex_init(&team.door, NULL);
  pthread_cond_init(&team.bell, NULL);
}

static void grow(int size) {
  static int guarded = 0;
  if (!guarded) guarded = !pthread_atfork(NULL, NULL, forget);
  pthread_t thread;
  for (; team.size < size; team.size++) {
    if (pthread_create(&thread, NULL, serve, (void *)(intptr_t)team.size)) return; /* then with those there are */
    pthread_detach(thread);
  }
}

/* work(job, 0) ... work(job, items - 1), in any order, by at most `threads` threads. */
static void run(Work work, const void *job, int64_t items, int threads) {
  if (threads < 2 || items < 2 || pthread_mutex_trylock(&team.owner)) { /* busy: for another thread of the process */
    for (int64_t i = 0; i < items; i++) work(job, i);
    return;
  }
  uint64_t call = ((atomic_load(&team.next) >> 32) + 1) << 32;
  atomic_store(&team.next, call | UINT32_MAX); /* nothing to claim while the call is written down */
  atomic_store(&team.items, items);
  atomic_store(&team.done, 0);
  atomic_store(&team.work, work);
  atomic_store(&team.job, job);
  atomic_store(&team.wanted, threads - 1);
  atomic_store(&team.next, call);
  grow(threads - 1);
  if (atomic_load(&team.asleep)) {
    pthread_mutex_lock(&team.door);
    pthread_cond_broadcast(&team.bell);
    pthread_mutex_unlock(&team.door);
  }
  while (help()) {
  }
  while (atomic_load(&team.done) < items) sched_yield();
  pthread_mutex_unlock(&team.owner);
}

/* --- arithmetic ---------------------------------------------------------------------------------------------------- */

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

typedef struct {
  const float *x, *packed;
  int64_t rows, panels, depth;
  float *out;
  int add;
} Linear;

/* One panel for one block of rows. */
static void linear(const void *job, int64_t item) {
  const Linear *l = job;
  int64_t depth = l->depth, width = l->panels * 16, blocks = (l->rows + ROWS - 1) / ROWS;
  int64_t b = item / l->panels, panel = item % l->panels;
  int64_t top = l->rows * b / blocks, high = l->rows * (b + 1) / blocks - top, count = tiles(high);
  const float *w = l->packed + panel * depth * 16, *next = panel + 1 < l->panels ? w + depth * 16 : NULL;
  for (int64_t t = 0; t < count; t++) {
    int64_t first = top + high * t / count, last = top + high * (t + 1) / count;
    tile((int)(last - first), l->x + first * depth, depth, w, depth, l->out + first * width + panel * 16, width, l->add,
         next ? next + depth * t / count * 16 : NULL, count);
  }
}

/* out (rows, width) (+)= x (rows, depth) times packed weights. */
void lt_linear(const float *x, const float *packed, int64_t rows, int64_t width, int64_t depth, float *out, int add,
               int threads) {
  Linear job = {x, packed, rows, width / 16, depth, out, add};
  int64_t blocks = (rows + ROWS - 1) / ROWS;
  run(linear, &job, blocks * job.panels, rows * width * depth >= WORTH_PRODUCTS ? threads : 1);
}

/* Packs rows [first, first + rows) of a matrix (N, K) from `weight` (rows, K); rows and first are multiples of 16. */
void lt_pack(const float *weight, int64_t first, int64_t rows, int64_t depth, float *packed) {
  for (int64_t n = 0; n < rows; n++) {
    float *to = packed + (first + n) / 16 * depth * 16 + (first + n) % 16;
    for (int64_t k = 0; k < depth; k++) to[k * 16] = weight[n * depth + k];
  }
}

typedef struct {
  const float *x, *weight;
  const int64_t *positions;
  int64_t rows, width, stride, heads;
  float eps;
  float *out;
} Rows; /* what is done row by row, BATCH rows an item */

enum { BATCH = 8 };

static void run_rows(Work work, const Rows *job, int threads) {
  run(work, job, (job->rows + BATCH - 1) / BATCH, job->rows >= WORTH ? threads : 1);
}

static int64_t end_of(const Rows *r, int64_t item) { return (item + 1) * BATCH < r->rows ? (item + 1) * BATCH : r->rows; }

static void rms_norm(const void *job, int64_t item) {
  const Rows *r = job;
  for (int64_t n = item * BATCH; n < end_of(r, item); n++) {
    const float *from = r->x + n * r->width;
    float *to = r->out + n * r->width;
    vec square = all(0.0f);
    for (int64_t c = 0; c < r->width; c += 8) square += load(from + c) * load(from + c);
    vec scale = all(1.0f / sqrtf(sum8(square) / (float)r->width + r->eps));
    for (int64_t c = 0; c < r->width; c += 8) store(to + c, load(from + c) * scale * load(r->weight + c));
  }
}

void lt_rms_norm(const float *x, const float *weight, int64_t rows, int64_t width, float eps, float *out, int threads) {
  run_rows(rms_norm, &(Rows){.x = x, .weight = weight, .rows = rows, .width = width, .eps = eps, .out = out}, threads);
}

static void gate(const void *job, int64_t item) {
  const Rows *r = job;
  for (int64_t n = item * BATCH; n < end_of(r, item); n++) {
    const float *left = r->x + 2 * n * r->width, *right = left + r->width;
    for (int64_t c = 0; c < r->width; c += 8)
      store(r->out + n * r->width + c, load(left + c) / (all(1.0f) + exp8(-load(left + c))) * load(right + c));
  }
}

/* out (rows, width) = silu(x[:, :width]) * x[:, width:] */
void lt_gate(const float *x, int64_t rows, int64_t width, float *out, int threads) {
  run_rows(gate, &(Rows){.x = x, .rows = rows, .width = width, .out = out}, threads);
}

static void rope(const void *job, int64_t item) {
  const Rows *r = job;
  for (int64_t n = item * BATCH; n < end_of(r, item); n++)
    for (int64_t h = 0; h < r->heads; h++) {
      float *p = r->out + n * r->stride + h * r->width;
      const float *turn = r->weight + r->positions[n] * r->width;
      for (int64_t c = 0; c < r->width; c += 2) {
        float a = p[c], b = p[c + 1];
        p[c] = a * turn[c] - b * turn[c + 1];
        p[c + 1] = a * turn[c + 1] + b * turn[c];
      }
    }
}

/* Rotates the first `heads` heads of each row in place. Numbers that turn together stand side by side; `table` has
   (cos, sin) pairs, (positions, E). */
void lt_rope(float *x, int64_t rows, int64_t stride, int64_t heads, int64_t width, const int64_t *positions,
             const float *table, int threads) {
  Rows job = {.weight = table, .positions = positions, .rows = rows, .width = width, .stride = stride, .heads = heads,
              .out = x};
  run_rows(rope, &job, threads);
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

/* Keys and values of one token to their page. */
static void write(const void *job, int64_t token) {
  const Attention *a = job;
  int64_t at = a->positions[token] % PAGE;
  for (int64_t head = 0; head < a->kv_heads; head++) {
    float *keys = block(a, token, a->positions[token] / PAGE, head), *values = keys + PAGE * a->width;
    const float *key = a->key + token * a->key_token + head * a->key_head;
    const float *value = a->value + token * a->value_token + head * a->value_head;
    for (int64_t e = 0; e < a->width; e++) keys[e * PAGE + at] = key[e];
    for (int64_t e = 0; e < a->width; e += 16) memcpy(values + e * PAGE + at * 16, value + e, 16 * sizeof(float));
  }
}

/* Room of this thread for `count` numbers; NULL when there is no memory. */
static float *scratch(int64_t count) {
  static __thread float *room;
  static __thread int64_t size;
  if (count > size) {
    free(room);
    size = 2 * count;
    room = malloc(sizeof(float) * (size_t)size);
    if (!room) size = 0;
  }
  return room;
}

static _Atomic int no_memory;

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

static int64_t parts_of(const Attention *a) { return (a->heads / a->kv_heads + QUERIES - 1) / QUERIES; }

/* One token, one key-value head, and at most QUERIES of the queries that share it. */
static void look(const void *job, int64_t item) {
  const Attention *a = job;
  int64_t group = a->heads / a->kv_heads, parts = parts_of(a);
  int64_t token = item / (a->kv_heads * parts), head = item / parts % a->kv_heads, part = item % parts;
  int64_t first = head * group + group * part / parts, rows = head * group + group * (part + 1) / parts - first;
  float *scores = scratch(QUERIES * (a->longest + PAGE));
  if (!scores) {
    atomic_store(&no_memory, 1);
    return;
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

/* Writes the keys and values of all tokens, then attends. Returns 0, or 1 when there is no memory. */
int lt_attend(const Attention *a, int threads) {
  int some = a->tokens * a->heads * a->longest * a->width >= WORTH_PRODUCTS ? threads : 1;
  run(write, a, a->tokens, a->tokens >= WORTH ? threads : 1);
  run(look, a, a->tokens * a->kv_heads * parts_of(a), some);
  return atomic_exchange(&no_memory, 0);
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

typedef struct {
  const float *logits;
  int64_t stride, vocab;
  const double *uniform;
  int64_t *ids;
  double *logprobs, *log_totals;
} Draw;

static void draw(const void *job, int64_t n) {
  const Draw *d = job;
  int64_t vocab = d->vocab, blocks = (vocab + BLOCK - 1) / BLOCK;
  float *chances = scratch(blocks * BLOCK);
  if (!chances) {
    atomic_store(&no_memory, 1);
    return;
  }
  const float *row = d->logits + n * d->stride;
  float most = -INFINITY;
  for (int64_t v = 0; v < vocab; v++) most = row[v] > most ? row[v] : most;
  for (int64_t v = 0; v < blocks * BLOCK; v++) chances[v] = v < vocab ? row[v] - most : -INFINITY;
  double total = 0;
  for (int64_t b = 0; b < blocks; b++) total += block_sum(chances + b * BLOCK, 1);
  int64_t id = find(chances, vocab, fmin(d->uniform[n] * total, nextafter(total, 0)));
  d->ids[n] = id;
  d->logprobs[n] = (double)row[id] - (double)most - log(total);
  d->log_totals[n] = (double)most + log(total);
}

/* Draws one token per row by the inverse CDF of softmax(logits) at `uniform`. Gives its log-probability and the log of the
   sum of exp(logits); that is not finite when some logit is not (but -inf is a chance of 0). Returns as lt_attend. */
int lt_draw(const float *logits, int64_t stride, int64_t rows, int64_t vocab, const double *uniform, int64_t *ids,
            double *logprobs, double *log_totals, int threads) {
  Draw job = {logits, stride, vocab, uniform, ids, logprobs, log_totals};
  run(draw, &job, rows, rows * vocab >= WORTH_PRODUCTS / 8 ? threads : 1);
  return atomic_exchange(&no_memory, 0);
}
