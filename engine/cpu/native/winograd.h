/* Convolutions of 3 x 3, stride 1, by Winograd's minimal filtering F(4x4, 3x3): 36 products where the
   definition takes 144 (Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2016).

       Y = A' [ (G g G') * (B' d B') ] A     for each tile: 6 x 6 pixels in, 4 x 4 out

   Images lie in channels_last, so all transforms work on vectors of channels. A thread takes blocks of
   tiles, or a share of their outputs where there are few tiles; for each one it transforms the input,
   multiplies 36 matrices and transforms the result, all in memory of its own:

       input ──> v[36][tiles][in] ──x weights[36][out / 32][in][32]──> m[36][tiles][out] ──> output

   vectors.c includes this behind vectors.h; engine/cpu/kernels/winograd.py fills the structure. */

INLINE vec OWN(plus)(float factor, vec x, vec y) { return factor * x + y; }

/* B' of six vectors. */
INLINE void OWN(into)(const vec *d, ptrdiff_t step, vec *v, ptrdiff_t to) {
    vec d0 = d[0], d1 = d[step], d2 = d[2 * step], d3 = d[3 * step], d4 = d[4 * step],
           d5 = d[5 * step];
    vec even = OWN(plus)(-4, d2, d4), odd = OWN(plus)(-4, d1, d3);
    vec inner = d4 - d2, outer = d3 - d1;
    v[0] = OWN(plus)(4, d0, OWN(plus)(-5, d2, d4));
    v[to] = even + odd;
    v[2 * to] = even - odd;
    v[3 * to] = OWN(plus)(2, outer, inner);
    v[4 * to] = OWN(plus)(-2, outer, inner);
    v[5 * to] = OWN(plus)(4, d1, OWN(plus)(-5, d3, d5));
}

/* A' of six vectors. */
INLINE void OWN(out_of)(const vec *m, ptrdiff_t step, vec *y, ptrdiff_t to) {
    vec m0 = m[0], m1 = m[step], m2 = m[2 * step], m3 = m[3 * step], m4 = m[4 * step],
           m5 = m[5 * step];
    vec near = m1 + m2, far = m3 + m4, near_odd = m1 - m2, far_odd = m3 - m4;
    y[0] = m0 + near + far;
    y[to] = OWN(plus)(2, far_odd, near_odd);
    y[2 * to] = OWN(plus)(4, far, near);
    y[3 * to] = OWN(plus)(8, far_odd, near_odd) + m5;
}

static void OWN(transform_input)(const struct winograd *w, const float *source, int64_t first,
                            int64_t tiles, float *v) {
    int64_t in = w->in;
    for (int64_t number = 0; number < tiles; number++) {
        struct tile tile = tile_at(w, first + number);
        const float *image = source + tile.image * w->height * w->width * in;
        for (int64_t channel = 0; channel < in; channel += LANES) {
            int64_t left = in - channel;
            vec d[POINTS], half[POINTS], full[POINTS];
            for (int i = 0; i < PATCH; i++) {
                int64_t row = tile.row - w->top + i;
                for (int j = 0; j < PATCH; j++) {
                    int64_t column = tile.column - w->left + j;
                    int is_inside = row >= 0 && row < w->height && column >= 0 && column < w->width;
                    const float *pixel = image + (row * w->width + column) * in + channel;
                    d[i * PATCH + j] = is_inside ? OWN(load_first)(pixel, left, 0) : OWN(all)(0);
                }
            }
            for (int j = 0; j < PATCH; j++)
                OWN(into)(d + j, PATCH, half + j, PATCH);
            for (int i = 0; i < PATCH; i++)
                OWN(into)(half + i * PATCH, 1, full + i * PATCH, 1);
            float *to = v + number * in + channel;
            for (int point = 0; point < POINTS; point++)
                OWN(store_first)(to + point * tiles * in, full[point], left);
        }
    }
}

/* Tiles by weights, for each point. */
static void OWN(multiply_points)(const struct winograd *w, const float *weights, int64_t tiles,
                                 struct range outputs, const float *v, float *m) {
    int64_t panels = (w->out + PANEL - 1) / PANEL, out = outputs.end - outputs.first, in = w->in;
    int64_t parts = (tiles + ROWS - 1) / ROWS;
    float ones[ROWS];
    for (int row = 0; row < ROWS; row++)
        ones[row] = 1;
    for (int64_t point = 0; point < POINTS; point++)
        for (int64_t at = 0; at < out; at += VECTORS * LANES) {
            int64_t panel = point * panels * PANEL + outputs.first + at / PANEL * PANEL;
            const float *of = weights + panel * in + at % PANEL;
            int64_t vectors = out - at < VECTORS * LANES ? 1 : VECTORS;
            for (int64_t part = 0; part < parts; part++) { /* of rows that are as equal as can be */
                int64_t first = part * tiles / parts, end = (part + 1) * tiles / parts;
                const float *rows = v + (point * tiles + first) * in;
                float *results = m + (point * tiles + first) * out + at;
                OWN(some_product)(end - first, vectors, rows, in, 1, of, PANEL, in, ones, results, out,
                                  LANES);
            }
        }
}

static void OWN(transform_output)(const struct winograd *w, const struct data *data, int64_t first,
                             int64_t tiles, struct range outputs, const float *m) {
    int64_t out = outputs.end - outputs.first;
    for (int64_t number = 0; number < tiles; number++) {
        struct tile tile = tile_at(w, first + number);
        for (int64_t channel = outputs.first; channel < outputs.end; channel += LANES) {
            vec all[POINTS], half[TILE * PATCH], y[TILE * TILE];
            const float *from = m + number * out + channel - outputs.first;
            for (int point = 0; point < POINTS; point++)
                all[point] = OWN(load)(from + point * tiles * out);
            for (int j = 0; j < PATCH; j++)
                OWN(out_of)(all + j, PATCH, half + j, PATCH);
            for (int i = 0; i < TILE; i++)
                OWN(out_of)(half + i * PATCH, 1, y + i * TILE, 1);
            vec bias = data->bias ? OWN(load)(data->bias + channel) : OWN(all)(0);
            for (int i = 0; i < TILE && tile.row + i < w->out_height; i++)
                for (int j = 0; j < TILE && tile.column + j < w->out_width; j++) {
                    int64_t at = ((tile.image * w->out_height + tile.row + i) * w->out_width +
                                  tile.column + j) * w->out + channel;
                    vec result = y[i * TILE + j] + bias;
                    if (data->residual)
                        result += OWN(load)(data->residual + at);
                    if (w->relu)
                        result = OWN(larger)(result, OWN(all)(0));
                    OWN(store)(data->output + at, result);
                }
        }
    }
}
