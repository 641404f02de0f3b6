/* Attention over heads, softmax, normalisations, reductions and Winograd's convolutions, in FP32.

   engine/cpu/kernels/native_units.py fills the structures, on which all strides and offsets are in
   numbers, not bytes.

   Attention packs the keys and values of one head into memory of the thread, and then takes some rows
   of queries through all of it, so that scores never leave the nearest caches:

       keys ──> panels [width, 32] ──q──> scores ──masks, softmax──> odds ──x values──> out */

#include <math.h>
#include <omp.h>
#include <string.h>

#include "call.h"

enum { NO_ACTIVATION, RELU, SILU };
enum { ADDED, SHOWN, HIDDEN }; /* kinds of masks: numbers; keys that are seen; keys that are not */
enum { LAYER_NORM, RMS_NORM, SOFTMAX, LOG_SOFTMAX };
enum { SUM, MEAN, LENGTH, MOST, LEAST }; /* kinds of reductions; LENGTH: root of the sum of squares */
enum { MOST_MASKS = 4, COLUMNS = 4 };
enum { LSTM, GRU, RNN_TANH, RNN_RELU }; /* recurrent layers */
enum { STATE_PANEL = 64 };              /* columns of their weights that lie side by side */
enum { POINTS = 36, TILE = 4, PATCH = 6, PANEL = 32 }; /* of winograd.h */

#define INLINE static inline __attribute__((always_inline))

/* Distances between neighbours, and what comes before the first one. */
struct view {
    int64_t offset, batch, head, row, column;
};

struct place {
    int64_t batch, head;
};

struct mask {
    int64_t kind;
    double fill; /* what the score of a hidden key becomes */
    struct view at;
};

struct attention {
    data_fn data_of;
    int64_t batches, heads, queries, keys, width, value_width;
    struct view q, k, v, out; /* out.column is 1 */
    double scale;
    int64_t causal, hidden_rows_are_zero; /* rows without any key are NaN otherwise */
    int64_t shared; /* heads of queries, one after the other, that read one head of keys */
    int64_t masks;
    struct mask mask[MOST_MASKS];
    int64_t threads, parts; /* of the queries of a head */
};

/* Rows of numbers side by side. */
struct rows {
    data_fn data_of;
    int64_t kind, rows, columns;
    double eps;
    int64_t activation, threads;
};

/* Images whose channels lie side by side. */
struct groups {
    data_fn data_of;
    int64_t images, pixels, channels, groups;
    double eps;
    int64_t activation, threads;
};

/* Heads whose halves are turned by positions. */
struct rotation {
    data_fn data_of;
    int64_t batches, heads, length, width;
    struct view x; /* x.column is 1 */
    int64_t rotated, batches_of_angles;
    double scale;
    int64_t threads;
};

/* The middle axis of [outer, count, inner] becomes one number. */
struct reduction {
    data_fn data_of;
    int64_t kind, outer, count, inner, threads;
};

/* One convolution. ``in`` and ``out`` are multiples of 8 and 16. */
struct winograd {
    data_fn data_of;
    int64_t images, height, width, in, out, out_height, out_width, top, left;
    int64_t blocks, shares, threads, relu; /* of tiles; of the outputs of one block */
    int64_t scratch;                       /* numbers for each thread */
};

struct data {
    const float *source, *weights, *bias, *residual;
    float *output, *scratch;
};

struct range {
    int64_t first, end;
};

struct tile {
    int64_t image, row, column; /* of its first output */
};

static struct tile tile_at(const struct winograd *w, int64_t number) {
    int64_t across = (w->out_width + TILE - 1) / TILE, down = (w->out_height + TILE - 1) / TILE;
    struct tile tile = {number / (across * down), number / across % down * TILE,
                        number % across * TILE};
    return tile;
}

/* A recurrent layer over sequences, in one or both directions. */
struct recurrent {
    data_fn data_of;
    int64_t layer, gates, steps, rows, hidden, columns; /* sums of a step: of all gates, and some more */
    int64_t directions, is_reverse;
    int64_t gates_time, gates_row; /* distances of steps and of sequences, in numbers */
    int64_t out_time, out_direction, out_row, state_direction, state_row;
    int64_t parts, threads; /* of the batch */
    int64_t scratch;        /* numbers of a part */
};

struct sequence {
    const float *gates, *weights, *bias, *start, *start_cell;
    float *output, *end, *end_cell;
};

INLINE int64_t strided(const struct view *view, struct place at) {
    return view->offset + at.batch * view->batch + at.head * view->head;
}

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define HAS_WIDE_VECTORS

#pragma GCC push_options
#pragma GCC target("avx512f")
#define LANES 16
#define ROWS 12
#define VECTORS 2
#define PRODUCTS                                                                                       \
    BY_VECTORS(1) BY_VECTORS(2) BY_VECTORS(3) BY_VECTORS(4) BY_VECTORS(5) BY_VECTORS(6) BY_VECTORS(7)  \
    BY_VECTORS(8) BY_VECTORS(9) BY_VECTORS(10) BY_VECTORS(11) BY_VECTORS(12)
#include "vectors.h"
#undef LANES
#undef ROWS
#undef PRODUCTS
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define LANES 8
#define ROWS 6
#define PRODUCTS                                                                                       \
    BY_VECTORS(1) BY_VECTORS(2) BY_VECTORS(3) BY_VECTORS(4) BY_VECTORS(5) BY_VECTORS(6)
#include "vectors.h"
#undef LANES
#undef ROWS
#undef PRODUCTS
#pragma GCC pop_options

#define VARIANTS(name) {name##_4, name##_8, name##_16}

static int level(void) {
    if (__builtin_cpu_supports("avx512f"))
        return 2;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
#else
#define VARIANTS(name) {name##_4}
#define VECTORS 2

static int level(void) { return 0; }
#endif

#define LANES 4
#define ROWS 4
#define PRODUCTS BY_VECTORS(1) BY_VECTORS(2) BY_VECTORS(3) BY_VECTORS(4)
#include "vectors.h"

static int64_t (*const attention_scratch[])(const struct attention *) = VARIANTS(attention_scratch);
static void (*const attention[])(const struct attention *, const float *, const float *, const float *,
                                 float *, const void *const *, float *) = VARIANTS(attention);
static void (*const rows[])(const struct rows *, const float *, const float *, const float *,
                            float *) = VARIANTS(rows);
static void (*const rotate[])(const struct rotation *, const float *, const float *, const float *,
                              float *) = VARIANTS(rotate);
static void (*const reduce[])(const struct reduction *, const float *, float *) = VARIANTS(reduce);
static void (*const spread[])(const float *, int64_t, int64_t, float *, float *) = VARIANTS(spread);
static void (*const recur[])(const struct recurrent *, const struct sequence *, int64_t, int64_t, int64_t,
                             float *) = VARIANTS(recur);
static void (*const transform_input[])(const struct winograd *, const float *, int64_t, int64_t,
                                       float *) = VARIANTS(transform_input);
static void (*const multiply_points[])(const struct winograd *, const float *, int64_t, struct range,
                                       const float *, float *) = VARIANTS(multiply_points);
static void (*const transform_output[])(const struct winograd *, const struct data *, int64_t, int64_t,
                                        struct range, const float *) = VARIANTS(transform_output);
static void (*const scale_pixels[])(const struct groups *, const float *, int64_t, const float *,
                                    const float *, float *) = VARIANTS(scale_pixels);

/* The widest vectors that run here (0: of 4 numbers, 1: of 8, 2: of 16), or fewer: for tests. */
static int most_level = 2;

void braid_limit_vectors(int most) { most_level = most; }

static int chosen(void) {
    int here = level();
    return here < most_level ? here : most_level;
}

/* Numbers of scratch memory that all threads of a call take. */
int64_t braid_attention_scratch(const struct attention *a) {
    int64_t most = 0;
    for (int here = 0; here <= level(); here++) {
        int64_t own = attention_scratch[here](a);
        most = own > most ? own : most;
    }
    return most * a->threads;
}

int braid_attention(const struct attention *a, void *stream, int count,
                    const struct argument *arguments) {
    (void)stream;
    const float *q = data_at(a->data_of, count, arguments, SOURCE);
    const float *k = data_at(a->data_of, count, arguments, SECOND);
    const float *v = data_at(a->data_of, count, arguments, THIRD);
    float *out = data_at(a->data_of, count, arguments, OUTPUT);
    float *scratch = data_at(a->data_of, count, arguments, SCRATCH);
    const void *masks[MOST_MASKS];
    for (int64_t number = 0; number < a->masks; number++)
        if (!(masks[number] = data_at(a->data_of, count, arguments, MANY + (int)number)))
            return FAILED;
    if (!q || !k || !v || !out || !scratch)
        return FAILED;
    attention[chosen()](a, q, k, v, out, masks, scratch);
    return SUCCESS;
}

int braid_rows(const struct rows *r, void *stream, int count, const struct argument *arguments) {
    (void)stream;
    const float *from = data_at(r->data_of, count, arguments, SOURCE);
    const float *weight = data_at(r->data_of, count, arguments, WEIGHTS);
    const float *bias = data_at(r->data_of, count, arguments, BIAS);
    float *to = data_at(r->data_of, count, arguments, OUTPUT);
    if (!from || !to)
        return FAILED;
    rows[chosen()](r, from, weight, bias, to);
    return SUCCESS;
}

int braid_rotate(const struct rotation *r, void *stream, int count,
                 const struct argument *arguments) {
    (void)stream;
    const float *from = data_at(r->data_of, count, arguments, SOURCE);
    const float *cosines = data_at(r->data_of, count, arguments, SECOND);
    const float *sines = data_at(r->data_of, count, arguments, THIRD);
    float *to = data_at(r->data_of, count, arguments, OUTPUT);
    if (!from || !cosines || !sines || !to)
        return FAILED;
    rotate[chosen()](r, from, cosines, sines, to);
    return SUCCESS;
}

int braid_reduce(const struct reduction *r, void *stream, int count,
                 const struct argument *arguments) {
    (void)stream;
    const float *from = data_at(r->data_of, count, arguments, SOURCE);
    float *to = data_at(r->data_of, count, arguments, OUTPUT);
    if (!from || !to)
        return FAILED;
    reduce[chosen()](r, from, to);
    return SUCCESS;
}

int braid_recurrent(const struct recurrent *r, void *stream, int count,
                    const struct argument *arguments) {
    (void)stream;
    struct sequence s = {0};
    s.gates = data_at(r->data_of, count, arguments, SOURCE);
    s.weights = data_at(r->data_of, count, arguments, WEIGHTS);
    s.bias = data_at(r->data_of, count, arguments, BIAS);
    s.start = data_at(r->data_of, count, arguments, SECOND);
    s.start_cell = data_at(r->data_of, count, arguments, THIRD);
    s.output = data_at(r->data_of, count, arguments, OUTPUT);
    s.end = data_at(r->data_of, count, arguments, MANY);
    s.end_cell = data_at(r->data_of, count, arguments, MANY + 1);
    float *scratch = data_at(r->data_of, count, arguments, SCRATCH);
    if (!s.gates || !s.weights || !s.output || !s.end || !scratch)
        return FAILED;
    int here = chosen();
#pragma omp parallel for num_threads((int)r->threads) schedule(static) if (r->threads > 1)
    for (int64_t task = 0; task < r->directions * r->parts; task++) {
        int64_t direction = task / r->parts, part = task % r->parts;
        int64_t first = part * r->rows / r->parts, end = (part + 1) * r->rows / r->parts;
        recur[here](r, &s, direction, first, end - first, scratch + task * r->scratch);
    }
    return SUCCESS;
}

/* Factors of each channel of an image, then means, from what each thread found. */
static void factors_of(const struct groups *g, const float *found, int64_t team, const float *weight,
                       float *factors) {
    int64_t channels = g->channels, of_group = channels / g->groups;
    for (int64_t group = 0; group < g->groups; group++) {
        double total = 0, mean = 0, squares = 0;
        for (int64_t thread = 0; thread < team; thread++) {
            double size = (double)((thread + 1) * g->pixels / team - thread * g->pixels / team);
            const float *means = found + thread * 2 * channels;
            for (int64_t channel = group * of_group; size && channel < (group + 1) * of_group;
                 channel++) {
                double step = means[channel] - mean, both = total + size;
                squares += means[channels + channel] + step * step * total * size / both;
                mean += step * size / both;
                total = both;
            }
        }
        double scale = 1 / sqrt(squares / total + g->eps);
        for (int64_t channel = group * of_group; channel < (group + 1) * of_group; channel++) {
            factors[channel] = (float)(scale * weight[channel]);
            factors[channels + channel] = (float)mean;
        }
    }
}

/* Each thread has its pixels of every image. Scratch: mean and squares of each image and thread, then
   factors of each image. */
int braid_groups(const struct groups *g, void *stream, int count, const struct argument *arguments) {
    (void)stream;
    const float *from = data_at(g->data_of, count, arguments, SOURCE);
    const float *weight = data_at(g->data_of, count, arguments, WEIGHTS);
    const float *bias = data_at(g->data_of, count, arguments, BIAS);
    float *to = data_at(g->data_of, count, arguments, OUTPUT);
    float *scratch = data_at(g->data_of, count, arguments, SCRATCH);
    if (!from || !weight || !bias || !to || !scratch)
        return FAILED;
    int64_t size = g->pixels * g->channels, pair = 2 * g->channels;
    float *factors = scratch + g->images * g->threads * pair;
    int here = chosen();
#pragma omp parallel num_threads((int)g->threads) if (g->threads > 1)
    {
        int64_t thread = omp_get_thread_num(), team = omp_get_num_threads();
        int64_t first = thread * g->pixels / team, own = (thread + 1) * g->pixels / team - first;
        for (int64_t image = 0; image < g->images; image++) {
            float *found = scratch + (image * team + thread) * pair;
            spread[here](from + image * size + first * g->channels, own, g->channels, found,
                         found + g->channels);
        }
#pragma omp barrier
#pragma omp for schedule(static)
        for (int64_t image = 0; image < g->images; image++)
            factors_of(g, scratch + image * team * pair, team, weight, factors + image * pair);
        for (int64_t image = 0; image < g->images; image++) {
            int64_t start = image * size + first * g->channels;
            scale_pixels[here](g, from + start, own, factors + image * pair, bias, to + start);
        }
    }
    return SUCCESS;
}

int braid_has_winograd(void) { return level() > 0; }

int braid_winograd(const struct winograd *w, void *stream, int count,
                   const struct argument *arguments) {
    (void)stream;
    struct data data = {0};
    data.source = data_at(w->data_of, count, arguments, SOURCE);
    data.weights = data_at(w->data_of, count, arguments, WEIGHTS);
    data.bias = data_at(w->data_of, count, arguments, BIAS);
    data.residual = data_at(w->data_of, count, arguments, RESIDUAL);
    data.output = data_at(w->data_of, count, arguments, OUTPUT);
    data.scratch = data_at(w->data_of, count, arguments, SCRATCH);
    if (!data.source || !data.weights || !data.output || !data.scratch)
        return FAILED;
    int64_t across = (w->out_width + TILE - 1) / TILE, down = (w->out_height + TILE - 1) / TILE;
    int64_t all = w->images * across * down, panels = (w->out + PANEL - 1) / PANEL;
    int here = chosen();
#pragma omp parallel for num_threads((int)w->threads) schedule(static) if (w->threads > 1)
    for (int64_t part = 0; part < w->blocks * w->shares; part++) {
        int64_t block = part / w->shares, share = part % w->shares;
        int64_t first = block * all / w->blocks, tiles = (block + 1) * all / w->blocks - first;
        int64_t end = (share + 1) * panels / w->shares * PANEL;
        struct range outputs = {share * panels / w->shares * PANEL, end < w->out ? end : w->out};
        float *v = data.scratch + omp_get_thread_num() * w->scratch;
        float *m = v + tiles * POINTS * w->in;
        transform_input[here](w, data.source, first, tiles, v);
        multiply_points[here](w, data.weights, tiles, outputs, v, m);
        transform_output[here](w, &data, first, tiles, outputs, m);
    }
    return SUCCESS;
}
