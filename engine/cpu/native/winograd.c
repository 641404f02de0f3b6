/* Convolutions of 3 x 3, stride 1, by Winograd's minimal filtering F(4x4, 3x3): 36 products where the
   definition takes 144 (Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2016).

       Y = A' [ (G g G') * (B' d B') ] A     for each tile: 6 x 6 pixels in, 4 x 4 out

   Images lie in channels_last, so all transforms work on vectors of channels. A thread takes blocks of
   tiles, or a share of their outputs where there are few tiles; for each one it transforms the input,
   multiplies 36 matrices and transforms the result, all in memory of its own:

       input ──> v[36][tiles][in] ──x weights[36][out / 32][in][32]──> m[36][tiles][out] ──> output

   engine/cpu/kernels/winograd.py fills the structure. */

#include <omp.h>

#include "call.h"

enum { POINTS = 36, TILE = 4, PATCH = 6, LANES = 16, PANEL = 32, ROWS = 12 };

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

static int data_of(const struct winograd *w, int count, const struct argument *arguments,
                   struct data *data) {
    for (int at = 0; at < count; at++) {
        void *found = NULL;
        if (w->data_of(arguments[at].memory, &found))
            return FAILED;
        switch (arguments[at].index) {
        case SOURCE: data->source = found; break;
        case OUTPUT: data->output = found; break;
        case WEIGHTS: data->weights = found; break;
        case BIAS: data->bias = found; break;
        case SCRATCH: data->scratch = found; break;
        case RESIDUAL: data->residual = found; break;
        default: return FAILED;
        }
    }
    return SUCCESS;
}

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#pragma GCC push_options
#pragma GCC target("avx512f")

typedef __m512 vector;
#define INLINE static inline __attribute__((always_inline))

INLINE vector times(float factor, vector x) { return _mm512_mul_ps(_mm512_set1_ps(factor), x); }
INLINE vector plus(float factor, vector x, vector y) { /* factor * x + y */
    return _mm512_fmadd_ps(_mm512_set1_ps(factor), x, y);
}

/* B' of six vectors. */
INLINE void into(const vector *d, ptrdiff_t step, vector *v, ptrdiff_t to) {
    vector d0 = d[0], d1 = d[step], d2 = d[2 * step], d3 = d[3 * step], d4 = d[4 * step],
           d5 = d[5 * step];
    vector even = plus(-4, d2, d4), odd = plus(-4, d1, d3);
    vector inner = d4 - d2, outer = d3 - d1;
    v[0] = plus(4, d0, plus(-5, d2, d4));
    v[to] = even + odd;
    v[2 * to] = even - odd;
    v[3 * to] = plus(2, outer, inner);
    v[4 * to] = plus(-2, outer, inner);
    v[5 * to] = plus(4, d1, plus(-5, d3, d5));
}

/* A' of six vectors. */
INLINE void out_of(const vector *m, ptrdiff_t step, vector *y, ptrdiff_t to) {
    vector m0 = m[0], m1 = m[step], m2 = m[2 * step], m3 = m[3 * step], m4 = m[4 * step],
           m5 = m[5 * step];
    vector near = m1 + m2, far = m3 + m4, near_odd = m1 - m2, far_odd = m3 - m4;
    y[0] = m0 + near + far;
    y[to] = plus(2, far_odd, near_odd);
    y[2 * to] = plus(4, far, near);
    y[3 * to] = plus(8, far_odd, near_odd) + m5;
}

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

static void transform_input(const struct winograd *w, const float *source, int64_t first,
                            int64_t tiles, float *v) {
    int64_t in = w->in;
    for (int64_t number = 0; number < tiles; number++) {
        struct tile tile = tile_at(w, first + number);
        const float *image = source + tile.image * w->height * w->width * in;
        for (int64_t channel = 0; channel < in; channel += LANES) {
            __mmask16 mask = in - channel < LANES ? (1u << (in - channel)) - 1 : 0xffff;
            vector d[POINTS], half[POINTS], full[POINTS];
            for (int i = 0; i < PATCH; i++) {
                int64_t row = tile.row - w->top + i;
                for (int j = 0; j < PATCH; j++) {
                    int64_t column = tile.column - w->left + j;
                    int is_inside = row >= 0 && row < w->height && column >= 0 && column < w->width;
                    const float *pixel = image + (row * w->width + column) * in + channel;
                    d[i * PATCH + j] =
                        is_inside ? _mm512_maskz_loadu_ps(mask, pixel) : _mm512_setzero_ps();
                }
            }
            for (int j = 0; j < PATCH; j++)
                into(d + j, PATCH, half + j, PATCH);
            for (int i = 0; i < PATCH; i++)
                into(half + i * PATCH, 1, full + i * PATCH, 1);
            float *to = v + number * in + channel;
            for (int point = 0; point < POINTS; point++)
                _mm512_mask_storeu_ps(to + point * tiles * in, mask, full[point]);
        }
    }
}

/* ``rows`` rows of m, ``vectors`` vectors of channels: v [rows, in] by a panel [in, 32] of weights. */
INLINE void multiply(int rows, int vectors, const float *v, int64_t in, const float *panel, float *m,
                     int64_t out) {
    vector sums[ROWS][2];
#pragma GCC unroll 12
    for (int row = 0; row < rows; row++)
#pragma GCC unroll 2
        for (int part = 0; part < vectors; part++)
            sums[row][part] = _mm512_setzero_ps();
    for (int64_t channel = 0; channel < in; channel++, panel += PANEL) {
        vector weights[2];
#pragma GCC unroll 2
        for (int part = 0; part < vectors; part++)
            weights[part] = _mm512_loadu_ps(panel + part * LANES);
#pragma GCC unroll 12
        for (int row = 0; row < rows; row++) {
            vector x = _mm512_set1_ps(v[row * in + channel]);
#pragma GCC unroll 2
            for (int part = 0; part < vectors; part++)
                sums[row][part] = _mm512_fmadd_ps(x, weights[part], sums[row][part]);
        }
    }
#pragma GCC unroll 12
    for (int row = 0; row < rows; row++)
#pragma GCC unroll 2
        for (int part = 0; part < vectors; part++)
            _mm512_storeu_ps(m + row * out + part * LANES, sums[row][part]);
}

#define OF_ROWS(count)                                                                                 \
    case count:                                                                                        \
        if (vectors == 2)                                                                              \
            multiply(count, 2, v, in, panel, m, out);                                                  \
        else                                                                                           \
            multiply(count, 1, v, in, panel, m, out);                                                  \
        break;

static void multiply_rows(int rows, int vectors, const float *v, int64_t in, const float *panel,
                          float *m, int64_t out) {
    switch (rows) {
        OF_ROWS(1) OF_ROWS(2) OF_ROWS(3) OF_ROWS(4) OF_ROWS(5) OF_ROWS(6)
        OF_ROWS(7) OF_ROWS(8) OF_ROWS(9) OF_ROWS(10) OF_ROWS(11) OF_ROWS(12)
    }
}

static void multiply_points(const struct winograd *w, const float *weights, int64_t tiles,
                            struct range outputs, const float *v, float *m) {
    int64_t panels = (w->out + PANEL - 1) / PANEL, out = outputs.end - outputs.first;
    int64_t parts = (tiles + ROWS - 1) / ROWS;
    for (int64_t point = 0; point < POINTS; point++) {
        const float *rows = v + point * tiles * w->in;
        float *results = m + point * tiles * out;
        for (int64_t at = 0; at < out; at += PANEL) {
            const float *of = weights + (point * panels * PANEL + outputs.first + at) * w->in;
            int vectors = out - at < PANEL ? 1 : 2;
            for (int64_t part = 0; part < parts; part++) { /* of rows that are as equal as can be */
                int64_t first = part * tiles / parts, end = (part + 1) * tiles / parts;
                multiply_rows((int)(end - first), vectors, rows + first * w->in, w->in, of,
                              results + first * out + at, out);
            }
        }
    }
}

static void transform_output(const struct winograd *w, const struct data *data, int64_t first,
                             int64_t tiles, struct range outputs, const float *m) {
    int64_t out = outputs.end - outputs.first;
    for (int64_t number = 0; number < tiles; number++) {
        struct tile tile = tile_at(w, first + number);
        for (int64_t channel = outputs.first; channel < outputs.end; channel += LANES) {
            vector all[POINTS], half[TILE * PATCH], y[TILE * TILE];
            const float *from = m + number * out + channel - outputs.first;
            for (int point = 0; point < POINTS; point++)
                all[point] = _mm512_loadu_ps(from + point * tiles * out);
            for (int j = 0; j < PATCH; j++)
                out_of(all + j, PATCH, half + j, PATCH);
            for (int i = 0; i < TILE; i++)
                out_of(half + i * PATCH, 1, y + i * TILE, 1);
            vector bias = data->bias ? _mm512_loadu_ps(data->bias + channel) : _mm512_setzero_ps();
            for (int i = 0; i < TILE && tile.row + i < w->out_height; i++)
                for (int j = 0; j < TILE && tile.column + j < w->out_width; j++) {
                    int64_t at = ((tile.image * w->out_height + tile.row + i) * w->out_width +
                                  tile.column + j) * w->out + channel;
                    vector result = y[i * TILE + j] + bias;
                    if (data->residual)
                        result += _mm512_loadu_ps(data->residual + at);
                    if (w->relu)
                        result = _mm512_max_ps(result, _mm512_setzero_ps());
                    _mm512_storeu_ps(data->output + at, result);
                }
        }
    }
}

#pragma GCC pop_options

int braid_has_winograd(void) { return __builtin_cpu_supports("avx512f") != 0; }

int braid_winograd(const struct winograd *w, void *stream, int count,
                   const struct argument *arguments) {
    (void)stream;
    struct data data = {0};
    if (data_of(w, count, arguments, &data))
        return FAILED;
    int64_t across = (w->out_width + TILE - 1) / TILE, down = (w->out_height + TILE - 1) / TILE;
    int64_t all = w->images * across * down, panels = (w->out + PANEL - 1) / PANEL;
#pragma omp parallel for num_threads((int)w->threads) schedule(static) if (w->threads > 1)
    for (int64_t part = 0; part < w->blocks * w->shares; part++) {
        int64_t block = part / w->shares, share = part % w->shares;
        int64_t first = block * all / w->blocks, tiles = (block + 1) * all / w->blocks - first;
        int64_t end = (share + 1) * panels / w->shares * PANEL;
        struct range outputs = {share * panels / w->shares * PANEL, end < w->out ? end : w->out};
        float *v = data.scratch + omp_get_thread_num() * w->scratch;
        float *m = v + tiles * POINTS * w->in;
        transform_input(w, data.source, first, tiles, v);
        multiply_points(w, data.weights, tiles, outputs, v, m);
        transform_output(w, &data, first, tiles, outputs, m);
    }
    return SUCCESS;
}
#else
int braid_has_winograd(void) { return 0; }

int braid_winograd(const struct winograd *w, void *stream, int count,
                   const struct argument *arguments) {
    (void)w, (void)stream, (void)count, (void)arguments;
    return FAILED;
}
#endif
