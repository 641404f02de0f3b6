/* Attention, softmax, normalisations and reductions on vectors of LANES numbers in FP32.

   vectors.c includes this once for each kind of CPU, with LANES, and with ROWS and VECTORS: how many
   rows and vectors of a matrix product stay in registers. */

#define JOINED(name, lanes) name##_##lanes
#define NAMED(name, lanes) JOINED(name, lanes)
#define OWN(name) NAMED(name, LANES)
#define vec OWN(vec)
#define bits OWN(bits)
#define bytes OWN(bytes)

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t bits __attribute__((vector_size(4 * LANES)));
typedef int8_t bytes __attribute__((vector_size(LANES)));

INLINE vec OWN(all)(float x) { return x - (vec){0}; }

INLINE vec OWN(load)(const float *from) {
    vec x;
    memcpy(&x, from, sizeof x);
    return x;
}

INLINE void OWN(store)(float *to, vec x) { memcpy(to, &x, sizeof x); }

/* The first ``count`` numbers, then ``rest``. */
INLINE vec OWN(load_first)(const float *from, int64_t count, float rest) {
    if (count >= LANES)
        return OWN(load)(from);
    vec x = OWN(all)(rest);
    for (int64_t at = 0; at < count; at++)
        x[at] = from[at];
    return x;
}

INLINE void OWN(store_first)(float *to, vec x, int64_t count) {
    if (count >= LANES) {
        OWN(store)(to, x);
        return;
    }
    for (int64_t at = 0; at < count; at++)
        to[at] = x[at];
}

INLINE vec OWN(chosen)(bits mask, vec yes, vec no) {
    return (vec)((mask & (bits)yes) | (~mask & (bits)no));
}

INLINE vec OWN(larger)(vec x, vec y) { return OWN(chosen)(x > y, x, y); }

INLINE float OWN(sum)(vec x) {
    float total = 0;
    for (int lane = 0; lane < LANES; lane++)
        total += x[lane];
    return total;
}

INLINE float OWN(most)(vec x) {
    float most = x[0];
    for (int lane = 1; lane < LANES; lane++)
        most = x[lane] > most ? x[lane] : most;
    return most;
}

/* e^x = 2^n e^r with |r| <= ln 2 / 2, for x up to 88; 0 where x is below -86, or NaN. Coefficients of
   Cephes' expf; errs by 2 units in the last place. */
INLINE vec OWN(exponential)(vec x) {
    const float shift = 12582912.0f; /* 1.5 * 2^23: what is added to it is rounded to a whole number */
    bits counts = x >= OWN(all)(-86.0f);
    vec shifted = x * 1.44269504088896341f + shift, n = shifted - shift;
    vec r = x - n * 0.693359375f + n * 2.12194440e-4f;
    vec y = r * 1.9875691500e-4f + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = y * r * r + r + 1.0f;
    return (vec)(((bits)y + ((bits)shifted << 23)) & counts);
}

INLINE vec OWN(activated)(vec x, int64_t activation) {
    vec zero = {0};
    if (activation == RELU)
        return OWN(larger)(x, zero);
    if (activation == SILU) { /* beyond -86, e^-x is infinite in effect */
        vec least = OWN(larger)(x, OWN(all)(-86.0f));
        return x / (1.0f + OWN(exponential)(-OWN(chosen)(least > 86.0f, OWN(all)(86.0f), least)));
    }
    return x;
}

/* c [rows, vectors * LANES] = factor * a [rows, depth] by b [depth, vectors * LANES]; of the last
   vector only ``last`` numbers are written. */
INLINE void OWN(product)(int rows, int vectors, const float *a, int64_t a_row, int64_t a_step,
                         const float *b, int64_t b_row, int64_t depth, const float *factor, float *c,
                         int64_t c_row, int64_t last) {
    vec sums[ROWS][VECTORS];
#pragma GCC unroll 16
    for (int row = 0; row < rows; row++)
#pragma GCC unroll 2
        for (int part = 0; part < vectors; part++)
            sums[row][part] = (vec){0};
    for (int64_t at = 0; at < depth; at++, b += b_row) {
        vec right[VECTORS];
#pragma GCC unroll 2
        for (int part = 0; part < vectors; part++)
            right[part] = OWN(load)(b + part * LANES);
#pragma GCC unroll 16
        for (int row = 0; row < rows; row++) {
            vec left = OWN(all)(a[row * a_row + at * a_step]);
#pragma GCC unroll 2
            for (int part = 0; part < vectors; part++)
                sums[row][part] += left * right[part];
        }
    }
#pragma GCC unroll 16
    for (int row = 0; row < rows; row++)
#pragma GCC unroll 2
        for (int part = 0; part < vectors; part++)
            OWN(store_first)(c + row * c_row + part * LANES, sums[row][part] * factor[row],
                             part < vectors - 1 ? LANES : last);
}

#define PRODUCT(count, vectors)                                                                        \
    case 2 * (count) + (vectors) - 1:                                                                  \
        OWN(product)(count, vectors, a, a_row, a_step, b, b_row, depth, factor, c, c_row, last);       \
        break;
#define BY_VECTORS(count) PRODUCT(count, 1) PRODUCT(count, VECTORS)

static void OWN(some_product)(int64_t rows, int64_t vectors, const float *a, int64_t a_row,
                              int64_t a_step, const float *b, int64_t b_row, int64_t depth,
                              const float *factor, float *c, int64_t c_row, int64_t last) {
    switch (2 * rows + vectors - 1) {
        PRODUCTS
    }
}

/* ------------------------------------------------------------------------------- attention ----- */

enum { OWN(WIDTH) = VECTORS * LANES, OWN(MOST_ROWS) = 4 * ROWS };

INLINE int64_t OWN(up)(int64_t count, int64_t step) { return (count + step - 1) / step * step; }

static int64_t OWN(attention_scratch)(const struct attention *a) {
    int64_t keys = OWN(up)(a->keys, OWN(WIDTH)), values = OWN(up)(a->value_width, LANES);
    return keys * a->width + a->keys * values + OWN(MOST_ROWS) * keys;
}

/* Keys [keys, width] as panels [width, WIDTH], zeros behind the last one. */
static void OWN(pack_keys)(const struct attention *a, const float *from, float *to) {
    for (int64_t first = 0; first < a->keys; first += OWN(WIDTH), to += OWN(WIDTH) * a->width) {
        int64_t count = a->keys - first < OWN(WIDTH) ? a->keys - first : OWN(WIDTH);
        for (int64_t column = 0; column < a->width; column++) {
            const float *source = from + first * a->k.row + column * a->k.column;
            float *panel = to + column * OWN(WIDTH);
            if (a->k.row == 1)
                memcpy(panel, source, sizeof *panel * count);
            else
                for (int64_t key = 0; key < count; key++)
                    panel[key] = source[key * a->k.row];
            for (int64_t key = count; key < OWN(WIDTH); key++)
                panel[key] = 0;
        }
    }
}

/* Values [keys, value_width], rows filled up with zeros to whole vectors. */
static void OWN(pack_values)(const struct attention *a, const float *from, float *to) {
    int64_t width = OWN(up)(a->value_width, LANES);
    for (int64_t key = 0; key < a->keys; key++, from += a->v.row, to += width) {
        if (a->v.column == 1)
            memcpy(to, from, sizeof *to * a->value_width);
        else
            for (int64_t column = 0; column < a->value_width; column++)
                to[column] = from[column * a->v.column];
        for (int64_t column = a->value_width; column < width; column++)
            to[column] = 0;
    }
}

static void OWN(mask_row)(const struct mask *mask, const void *content, int64_t offset, float *scores,
                          int64_t keys) {
    if (mask->kind == ADDED) {
        const float *from = (const float *)content + offset;
        int64_t at = 0;
        if (mask->at.column == 1)
            for (; at + LANES <= keys; at += LANES)
                OWN(store)(scores + at, OWN(load)(scores + at) + OWN(load)(from + at));
        for (; at < keys; at++)
            scores[at] += from[at * mask->at.column];
        return;
    }
    const int8_t *from = (const int8_t *)content + offset;
    int shown = mask->kind == SHOWN;
    float fill = (float)mask->fill;
    int64_t at = 0;
    if (mask->at.column == 1)
        for (; at + LANES <= keys; at += LANES) {
            bytes flags;
            memcpy(&flags, from + at, sizeof flags);
            bits is_set = __builtin_convertvector(flags, bits) != 0;
            vec kept = OWN(load)(scores + at), filled = OWN(all)(fill);
            OWN(store)(scores + at, shown ? OWN(chosen)(is_set, kept, filled)
                                          : OWN(chosen)(is_set, filled, kept));
        }
    for (; at < keys; at++)
        if ((from[at * mask->at.column] != 0) != shown)
            scores[at] = fill;
}

/* Scores of ``keys`` keys become e^(score - most), zeros up to ``end``; returns one by their sum. */
static float OWN(odds)(float *scores, int64_t keys, int64_t end, int hides_nothing) {
    int64_t whole = OWN(up)(keys, LANES);
    for (int64_t at = keys; at < whole; at++)
        scores[at] = -INFINITY;
    vec high = OWN(all)(-INFINITY), total = {0};
    for (int64_t at = 0; at < whole; at += LANES)
        high = OWN(larger)(OWN(load)(scores + at), high);
    float most = OWN(most)(high);
    if (most == -INFINITY) { /* all keys are hidden */
        for (int64_t at = 0; at < end; at++)
            scores[at] = at < keys && !hides_nothing ? NAN : 0;
        return 1;
    }
    for (int64_t at = 0; at < whole; at += LANES) {
        vec odds = OWN(exponential)(OWN(load)(scores + at) - most);
        total += odds;
        OWN(store)(scores + at, odds);
    }
    for (int64_t at = whole; at < end; at++)
        scores[at] = 0;
    return 1 / OWN(sum)(total);
}

/* ``count`` queries from ``first`` on, of one head. */
static void OWN(attend)(const struct attention *a, struct place head, int64_t first, int64_t count,
                        const float *keys, const float *values, float *scores, const float *queries,
                        float *out, const void *const *masks) {
    int64_t seen = a->keys, row_width = OWN(up)(a->keys, OWN(WIDTH));
    if (a->causal && first + count < seen)
        seen = first + count;
    float factor[OWN(MOST_ROWS)];
    for (int64_t row = 0; row < count; row++)
        factor[row] = (float)a->scale;
    for (int64_t key = 0; key < seen; key += OWN(WIDTH))
        for (int64_t row = 0; row < count; row += ROWS)
            OWN(some_product)(count - row < ROWS ? count - row : ROWS, VECTORS,
                              queries + (first + row) * a->q.row, a->q.row, a->q.column,
                              keys + key * a->width, OWN(WIDTH), a->width, factor + row,
                              scores + row * row_width + key, row_width, LANES);
    for (int64_t row = 0; row < count; row++) {
        float *of_row = scores + row * row_width;
        int64_t own = a->causal && first + row + 1 < seen ? first + row + 1 : seen;
        for (int64_t number = 0; number < a->masks; number++) {
            const struct mask *mask = a->mask + number;
            int64_t offset = mask->at.offset + head.batch * mask->at.batch +
                             head.head * mask->at.head + (first + row) * mask->at.row;
            OWN(mask_row)(mask, masks[number], offset, of_row, own);
        }
        factor[row] = OWN(odds)(of_row, own, seen, a->hidden_rows_are_zero != 0);
    }
    int64_t width = OWN(up)(a->value_width, LANES);
    for (int64_t column = 0; column < width; column += OWN(WIDTH)) {
        int64_t left = a->value_width - column, vectors = left > LANES ? VECTORS : 1;
        int64_t last = left - (vectors - 1) * LANES;
        for (int64_t row = 0; row < count; row += ROWS)
            OWN(some_product)(count - row < ROWS ? count - row : ROWS, vectors,
                              scores + row * row_width, row_width, 1, values + column, width, seen,
                              factor + row, out + (first + row) * a->out.row + column, a->out.row,
                              last);
    }
}

static void OWN(attention)(const struct attention *a, const float *q, const float *k, const float *v,
                           float *out, const void *const *masks, float *scratch) {
    int64_t all = a->batches * a->heads * a->parts, own = OWN(attention_scratch)(a);
    int64_t blocks = (a->queries + ROWS - 1) / ROWS;
#pragma omp parallel num_threads((int)a->threads) if (a->threads > 1)
    {
        int64_t thread = omp_get_thread_num(), team = omp_get_num_threads(), packed = -1;
        float *keys = scratch + thread * own;
        float *values = keys + OWN(up)(a->keys, OWN(WIDTH)) * a->width;
        float *scores = values + a->keys * OWN(up)(a->value_width, LANES);
        for (int64_t task = thread * all / team; task < (thread + 1) * all / team; task++) {
            int64_t number = task / a->parts, part = task % a->parts;
            struct place at = {number / a->heads, number % a->heads};
            struct place read = {at.batch, at.head / a->shared};
            if (number / a->shared != packed) {
                packed = number / a->shared;
                OWN(pack_keys)(a, k + strided(&a->k, read), keys);
                OWN(pack_values)(a, v + strided(&a->v, read), values);
            }
            int64_t end = (part + 1) * blocks / a->parts * ROWS;
            end = end < a->queries ? end : a->queries;
            for (int64_t row = part * blocks / a->parts * ROWS; row < end;
                 row += OWN(MOST_ROWS)) {
                int64_t count = end - row < OWN(MOST_ROWS) ? end - row : OWN(MOST_ROWS);
                OWN(attend)(a, at, row, count, keys, values, scores, q + strided(&a->q, at),
                            out + strided(&a->out, at), masks);
            }
        }
    }
}

/* ---------------------------------------------------------------------- softmax, layer norm ----- */

static void OWN(softmax_row)(const float *from, float *to, int64_t columns, int is_log) {
    vec high = OWN(all)(-INFINITY), total = {0};
    for (int64_t at = 0; at < columns; at += LANES)
        high = OWN(larger)(OWN(load_first)(from + at, columns - at, -INFINITY), high);
    float most = OWN(most)(high);
    for (int64_t at = 0; at < columns; at += LANES) {
        vec odds = OWN(exponential)(OWN(load_first)(from + at, columns - at, -INFINITY) - most);
        total += odds;
        OWN(store_first)(to + at, odds, columns - at);
    }
    float factor = most == -INFINITY ? NAN : 1 / OWN(sum)(total);
    float offset = most + logf(OWN(sum)(total));
    for (int64_t at = 0; at < columns && is_log; at += LANES)
        OWN(store_first)(to + at, OWN(load_first)(from + at, columns - at, 0) - offset, columns - at);
    if (is_log)
        return;
    for (int64_t at = 0; at < columns; at += LANES)
        OWN(store_first)(to + at, OWN(load_first)(to + at, columns - at, 0) * factor, columns - at);
}

static void OWN(norm_row)(const struct rows *r, const float *from, const float *weight,
                          const float *bias, float *to) {
    int64_t columns = r->columns;
    vec total = {0}, squares = {0};
    float mean = 0;
    if (r->kind == LAYER_NORM) {
        for (int64_t at = 0; at < columns; at += LANES)
            total += OWN(load_first)(from + at, columns - at, 0);
        mean = OWN(sum)(total) / (float)columns;
    }
    for (int64_t at = 0; at < columns; at += LANES) {
        vec apart = OWN(load_first)(from + at, columns - at, mean) - mean;
        squares += apart * apart;
    }
    float scale = 1 / sqrtf(OWN(sum)(squares) / (float)columns + (float)r->eps);
    for (int64_t at = 0; at < columns; at += LANES) {
        vec y = (OWN(load_first)(from + at, columns - at, mean) - mean) * scale;
        if (weight)
            y *= OWN(load_first)(weight + at, columns - at, 0);
        if (bias)
            y += OWN(load_first)(bias + at, columns - at, 0);
        OWN(store_first)(to + at, OWN(activated)(y, r->activation), columns - at);
    }
}

static void OWN(rows)(const struct rows *r, const float *from, const float *weight, const float *bias,
                      float *to) {
#pragma omp parallel for num_threads((int)r->threads) schedule(static) if (r->threads > 1)
    for (int64_t row = 0; row < r->rows; row++) {
        const float *source = from + row * r->columns;
        float *target = to + row * r->columns;
        if (r->kind == SOFTMAX || r->kind == LOG_SOFTMAX)
            OWN(softmax_row)(source, target, r->columns, r->kind == LOG_SOFTMAX);
        else
            OWN(norm_row)(r, source, weight, bias, target);
    }
}

/* ------------------------------------------------------------------------------ rotation ----- */

/* From anywhere to [batch, heads, length, width]. */
static void OWN(rotate)(const struct rotation *r, const float *from, const float *cosines,
                        const float *sines, float *to) {
    int64_t width = r->width, half = r->rotated / 2;
    vec scale = OWN(all)((float)r->scale);
#pragma omp parallel for num_threads((int)r->threads) schedule(static) if (r->threads > 1)
    for (int64_t token = 0; token < r->batches * r->length; token++) {
        int64_t batch = token / r->length, place = token % r->length;
        int64_t angle = (r->batches_of_angles > 1 ? token : place) * r->rotated;
        for (int64_t head = 0; head < r->heads; head++) {
            struct place at_head = {batch, head};
            const float *x = from + strided(&r->x, at_head) + place * r->x.row;
            float *y = to + ((batch * r->heads + head) * r->length + place) * width;
            for (int64_t at = 0; at < half; at += LANES) {
                int64_t left = half - at;
                vec one = OWN(load_first)(x + at, left, 0), two = OWN(load_first)(x + half + at, left, 0);
                const float *c = cosines + angle + at, *s = sines + angle + at;
                vec first = one * OWN(load_first)(c, left, 0) - two * OWN(load_first)(s, left, 0);
                vec second = two * OWN(load_first)(c + half, left, 0) +
                             one * OWN(load_first)(s + half, left, 0);
                OWN(store_first)(y + at, first * scale, left);
                OWN(store_first)(y + half + at, second * scale, left);
            }
            for (int64_t at = r->rotated; at < width; at += LANES)
                OWN(store_first)(y + at, OWN(load_first)(x + at, width - at, 0) * scale, width - at);
        }
    }
}

/* ------------------------------------------------------------------------------- reductions ----- */

INLINE vec OWN(joined)(int64_t kind, vec sum, vec x) {
    if (kind == MOST)
        return OWN(larger)(x, sum);
    if (kind == LEAST)
        return -OWN(larger)(-x, -sum);
    return sum + (kind == LENGTH ? x * x : x);
}

/* Vectors at a distance of ``step`` become one, COLUMNS of them side by side. Of each, ``left`` numbers
   are there, and ``shrinks`` fewer in the next. Long sums are made of short ones, which rounds less. */
INLINE void OWN(reduced)(int64_t kind, const float *from, int64_t count, int64_t step, int64_t left,
                         int64_t shrinks, float neutral, int columns, vec *all) {
    enum { BLOCK = 64 };
    vec none = OWN(all)(neutral), some[COLUMNS];
#pragma GCC unroll 4
    for (int column = 0; column < columns; column++)
        all[column] = none;
    for (int64_t first = 0; first < count; first += BLOCK) {
#pragma GCC unroll 4
        for (int column = 0; column < columns; column++)
            some[column] = none;
        for (int64_t at = first; at < count && at < first + BLOCK; at++, from += step, left -= shrinks)
#pragma GCC unroll 4
            for (int column = 0; column < columns; column++) {
                int64_t skipped = column * LANES;
                vec x = OWN(load_first)(from + skipped, left - skipped, neutral);
                some[column] = OWN(joined)(kind, some[column], x);
            }
#pragma GCC unroll 4
        for (int column = 0; column < columns; column++)
            all[column] = kind < MOST ? all[column] + some[column]
                                      : OWN(joined)(kind, all[column], some[column]);
    }
}

static void OWN(reduce)(const struct reduction *r, const float *from, float *to) {
    enum { WIDE = COLUMNS * LANES };
    int64_t is_row = r->inner == 1, steps = is_row ? 1 : (r->inner + WIDE - 1) / WIDE;
    float neutral = r->kind == MOST ? -INFINITY : r->kind == LEAST ? INFINITY : 0;
    float share = r->kind == MEAN ? 1 / (float)r->count : 1;
#pragma omp parallel for num_threads((int)r->threads) schedule(static) if (r->threads > 1)
    for (int64_t task = 0; task < r->outer * steps; task++) {
        int64_t outer = task / steps, first = task % steps * WIDE, left = r->inner - first;
        const float *start = from + outer * r->count * r->inner + first;
        vec all[COLUMNS];
        if (is_row) {
            int64_t vectors = (r->count + LANES - 1) / LANES;
            OWN(reduced)(r->kind, start, vectors, LANES, r->count, LANES, neutral, 1, all);
            float one = r->kind == MOST    ? OWN(most)(all[0])
                        : r->kind == LEAST ? -OWN(most)(-all[0])
                                           : OWN(sum)(all[0]) * share;
            to[outer] = r->kind == LENGTH ? sqrtf(one) : one;
            continue;
        }
        OWN(reduced)(r->kind, start, r->count, r->inner, left, 0, neutral, COLUMNS, all);
        for (int column = 0; column < COLUMNS && column * LANES < left; column++) {
            vec one = all[column] * share;
            for (int lane = 0; lane < LANES && r->kind == LENGTH; lane++)
                one[lane] = sqrtf(one[lane]);
            int64_t skipped = column * LANES;
            OWN(store_first)(to + outer * r->inner + first + skipped, one, left - skipped);
        }
    }
}

/* ------------------------------------------------------------------------------- group norm ----- */

/* Mean and sum of squared distances from it, of each channel over some pixels. Each block of pixels is
   read twice from the nearest cache, then joined to those before it (Chan et al., 1979). */
static void OWN(spread)(const float *pixels, int64_t count, int64_t channels, float *means,
                        float *squares) {
    int64_t block = 4096 / channels > 8 ? 4096 / channels : 8;
    for (int64_t channel = 0; channel < channels; channel++)
        means[channel] = squares[channel] = 0;
    for (int64_t first = 0; first < count; first += block) {
        int64_t size = count - first < block ? count - first : block;
        const float *start = pixels + first * channels;
        float joined = (float)first * (float)size / (float)(first + size);
        float share = (float)size / (float)(first + size);
        for (int64_t channel = 0; channel < channels; channel += LANES) {
            int64_t left = channels - channel;
            vec total = {0}, apart = {0};
            for (int64_t pixel = 0; pixel < size; pixel++)
                total += OWN(load_first)(start + pixel * channels + channel, left, 0);
            vec mean = total / (float)size;
            for (int64_t pixel = 0; pixel < size; pixel++) {
                vec away = OWN(load_first)(start + pixel * channels + channel, left, 0) - mean;
                apart += away * away;
            }
            vec before = OWN(load_first)(means + channel, left, 0), step = mean - before;
            OWN(store_first)(means + channel, before + step * share, left);
            vec all = OWN(load_first)(squares + channel, left, 0) + apart + step * step * joined;
            OWN(store_first)(squares + channel, all, left);
        }
    }
}

static void OWN(scale_pixels)(const struct groups *g, const float *from, int64_t count,
                              const float *factors, const float *bias, float *to) {
    const float *means = factors + g->channels;
    for (int64_t pixel = 0; pixel < count; pixel++, from += g->channels, to += g->channels)
        for (int64_t channel = 0; channel < g->channels; channel += LANES) {
            int64_t left = g->channels - channel;
            vec y = OWN(load_first)(from + channel, left, 0) - OWN(load_first)(means + channel, left, 0);
            y = y * OWN(load_first)(factors + channel, left, 0) +
                OWN(load_first)(bias + channel, left, 0);
            OWN(store_first)(to + channel, OWN(activated)(y, g->activation), left);
        }
}

#include "winograd.h"

#include "recurrent.h"

#undef vec
#undef bits
#undef bytes
#undef OWN
#undef NAMED
#undef JOINED
#undef PRODUCT
#undef BY_VECTORS
