/* Recurrent layers: what each step adds to its gates from the state before it, and their functions. One
   matrix product of the whole sequence has made the inputs' part.

   vectors.c includes this behind vectors.h; engine/cpu/kernels/recurrent_units.py fills the structure. */

INLINE vec OWN(within)(vec x, float most) {
    return -OWN(larger)(-OWN(larger)(x, OWN(all)(-most)), OWN(all)(-most));
}

INLINE vec OWN(logistic)(vec x) { return 1 / (1 + OWN(exponential)(-OWN(within)(x, 86))); }

INLINE vec OWN(tangent)(vec x) { return 1 - 2 / (1 + OWN(exponential)(2 * OWN(within)(x, 15))); }

/* One state [depth] by all panels: as many sums at once as registers hold. */
static void OWN(times_vector)(const float *state, int64_t depth, const float *panels, int64_t columns,
                              float *to) {
    enum { SUMS = STATE_PANEL / LANES < 8 ? STATE_PANEL / LANES : 8 };
    for (int64_t at = 0; at < columns; at += SUMS * LANES) {
        const float *of = panels + at / STATE_PANEL * STATE_PANEL * depth + at % STATE_PANEL;
        vec sums[SUMS];
#pragma GCC unroll 8
        for (int part = 0; part < SUMS; part++)
            sums[part] = OWN(all)(0);
        for (int64_t row = 0; row < depth; row++, of += STATE_PANEL) {
            vec x = OWN(all)(state[row]);
#pragma GCC unroll 8
            for (int part = 0; part < SUMS; part++)
                sums[part] += x * OWN(load)(of + part * LANES);
        }
#pragma GCC unroll 8
        for (int part = 0; part < SUMS; part++)
            OWN(store)(to + at + part * LANES, sums[part]);
    }
}

static void OWN(times_states)(const float *states, int64_t rows, int64_t depth, const float *panels,
                              int64_t columns, float *to) {
    float ones[ROWS];
    if (rows == 1) {
        OWN(times_vector)(states, depth, panels, columns, to);
        return;
    }
    for (int row = 0; row < ROWS; row++)
        ones[row] = 1;
    for (int64_t at = 0; at < columns; at += VECTORS * LANES) {
        const float *of = panels + at / STATE_PANEL * STATE_PANEL * depth + at % STATE_PANEL;
        for (int64_t first = 0; first < rows; first += ROWS) {
            int64_t some = rows - first < ROWS ? rows - first : ROWS;
            OWN(some_product)(some, VECTORS, states + first * depth, depth, 1, of, STATE_PANEL, depth,
                              ones, to + first * columns + at, columns, LANES);
        }
    }
}

/* New state, and cell, from what the inputs and the state before add to the gates. */
static void OWN(gates)(const struct recurrent *r, const float *x, const float *sums, const float *bias,
                       float *state, float *cell) {
    int64_t size = r->hidden;
    for (int64_t at = 0; at < size; at += LANES) {
        int64_t left = size - at;
        vec gate[4] = {{0}}, of_state[4] = {{0}};
        for (int number = 0; number < r->gates; number++) {
            of_state[number] = OWN(load_first)(sums + number * size + at, left, 0);
            gate[number] = OWN(load_first)(x + number * size + at, left, 0);
        }
        vec before = OWN(load_first)(state + at, left, 0), now;
        if (r->layer == LSTM) {
            vec in = OWN(logistic)(gate[0] + of_state[0]), kept = OWN(logistic)(gate[1] + of_state[1]);
            vec new = OWN(tangent)(gate[2] + of_state[2]), out = OWN(logistic)(gate[3] + of_state[3]);
            vec inside = kept * OWN(load_first)(cell + at, left, 0) + in * new;
            OWN(store_first)(cell + at, inside, left);
            now = out * OWN(tangent)(inside);
        } else if (r->layer == GRU) {
            vec reset = OWN(logistic)(gate[0] + of_state[0]), kept = OWN(logistic)(gate[1] + of_state[1]);
            vec added = of_state[2] + (bias ? OWN(load_first)(bias + at, left, 0) : OWN(all)(0));
            vec new = OWN(tangent)(gate[2] + reset * added);
            now = new + kept * (before - new);
        } else {
            vec sum = gate[0] + of_state[0];
            now = r->layer == RNN_TANH ? OWN(tangent)(sum) : OWN(larger)(sum, OWN(all)(0));
        }
        OWN(store_first)(state + at, now, left);
    }
}

/* Some rows of the batch, in one direction, through the whole sequence. */
static void OWN(recur)(const struct recurrent *r, const struct sequence *s, int64_t direction,
                       int64_t first, int64_t rows, float *scratch) {
    int64_t size = r->hidden, columns = r->columns;
    float *states = scratch, *cells = states + rows * size, *sums = cells + rows * size;
    const float *panels = s->weights + direction * columns * size;
    for (int64_t row = 0; row < rows; row++) {
        int64_t at = direction * r->state_direction + (first + row) * r->state_row;
        for (int64_t column = 0; column < size; column++) {
            states[row * size + column] = s->start ? s->start[at + column] : 0;
            cells[row * size + column] = s->start_cell ? s->start_cell[at + column] : 0;
        }
    }
    for (int64_t step = 0; step < r->steps; step++) {
        int64_t time = direction || r->is_reverse ? r->steps - 1 - step : step;
        OWN(times_states)(states, rows, size, panels, columns, sums);
        for (int64_t row = 0; row < rows; row++) {
            const float *x = s->gates + time * r->gates_time + (first + row) * r->gates_row +
                             direction * r->gates * size;
            const float *bias = s->bias ? s->bias + direction * size : NULL;
            OWN(gates)(r, x, sums + row * columns, bias, states + row * size, cells + row * size);
            memcpy(s->output + time * r->out_time + direction * r->out_direction +
                       (first + row) * r->out_row,
                   states + row * size, (size_t)size * sizeof *states);
        }
    }
    for (int64_t row = 0; row < rows; row++) {
        int64_t at = direction * r->state_direction + (first + row) * r->state_row;
        memcpy(s->end + at, states + row * size, (size_t)size * sizeof *states);
        if (s->end_cell)
            memcpy(s->end_cell + at, cells + row * size, (size_t)size * sizeof *cells);
    }
}
