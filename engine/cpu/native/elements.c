/* Elements of any type: copied, converted, compared, chosen and added; slices of tables; the largest
   ones; running sums.

   engine/cpu/kernels/element_units.py fills the structures, on which offsets and strides count
   elements. A network reads its token ids and masks with these: a few thousand numbers, for which the
   way through the interpreter takes longer than the work. */

#pragma GCC optimize("O3") /* the loops below are worth vectors */

#include <omp.h>
#include <string.h>

#include "call.h"

enum { MOST_AXES = 6, MOST_OPERANDS = 3, STRIP = 512 };
enum { FEW_BYTES = 1 << 16 }; /* of a result that one thread writes as fast as several */
enum { TRUTH, UNSIGNED8, SIGNED8, WHOLE32, WHOLE64, FLOAT32, OTHER };
enum {
    COPY, NOT, AND, OR, XOR, WHERE, EQUAL, UNEQUAL, LESS, LESS_EQUAL,
    ADD, SUBTRACT, MULTIPLY, DIVIDE, LARGER, SMALLER
};

struct operand {
    int64_t type, width; /* bytes of an element */
    int64_t offset, strides[MOST_AXES];
};

/* A result whose elements are ``step`` apart, and operands with strides along its axes. */
struct elements {
    data_fn data_of;
    int64_t operation, axes, extents[MOST_AXES];
    int64_t operands;
    struct operand operand[MOST_OPERANDS];
    int64_t type, width; /* of the result */
    int64_t step;
    int64_t threads;
};

/* Slices of a tensor [outer, extents ..., inner], of ``width`` bytes each, by tuples of indices. */
struct gather {
    data_fn data_of;
    int64_t outer, depth, extents[MOST_AXES], inner, width;
    int64_t count, each;        /* tuples; whether every slice of [outer, count, inner] has its own */
    int64_t index_bytes, wraps; /* whether negative indices count from the end */
    int64_t threads;
    int64_t refused, wrong; /* written: which index of a tuple is none, counted from 1, and which it is */
};

/* Of the middle axis of [outer, count, inner] the ``kept`` largest or least elements, in order, and
   where they are; of equal ones the first, or the last. */
struct extremes {
    data_fn data_of;
    int64_t outer, count, inner, kept, type;
    int64_t least, is_last, nan_is_least; /* or larger than all others */
};

/* Sums of all elements so far along the middle axis of [outer, count, inner]. */
struct running {
    data_fn data_of;
    int64_t outer, count, inner, type;
};

#define EVERY_WIDTH OF_WIDTH(uint8_t) OF_WIDTH(uint16_t) OF_WIDTH(uint32_t) OF_WIDTH(uint64_t)
#define EACH for (int64_t i = 0; i < count; i++)

/* Elements that lie side by side, at a distance. */
static void apart(const void *from, int64_t width, int64_t step, int64_t count, char *to) {
#define OF_WIDTH(type)                                                                                 \
    case sizeof(type): {                                                                               \
        const type *source = from;                                                                     \
        type *target = (type *)to;                                                                     \
        EACH target[i * step] = source[i];                                                             \
        break;                                                                                         \
    }
    switch (width) { EVERY_WIDTH }
#undef OF_WIDTH
}

/* Elements at a distance, side by side: where they are, or in ``space``. */
static const void *side_by_side(const char *from, int64_t width, int64_t stride, int64_t count,
                                void *space) {
    if (stride == 1)
        return from;
#define OF_WIDTH(type)                                                                                 \
    case sizeof(type): {                                                                               \
        const type *source = (const type *)from;                                                       \
        type *target = space;                                                                          \
        EACH target[i] = source[i * stride];                                                           \
        break;                                                                                         \
    }
    switch (width) { EVERY_WIDTH }
#undef OF_WIDTH
    return space;
}

static void convert(int64_t type, const void *from, int64_t target, void *to, int64_t count) {
#define TO(kind, target_type, source_type, value)                                                      \
    case kind: {                                                                                       \
        const source_type *source = from;                                                              \
        target_type *result = to;                                                                      \
        EACH result[i] = (target_type)(value);                                                         \
        break;                                                                                         \
    }
#define FROM(kind, source_type)                                                                        \
    case kind:                                                                                         \
        switch (target) {                                                                              \
            TO(TRUTH, uint8_t, source_type, source[i] != 0)                                            \
            TO(UNSIGNED8, uint8_t, source_type, source[i])                                             \
            TO(SIGNED8, int8_t, source_type, source[i])                                                \
            TO(WHOLE32, int32_t, source_type, source[i])                                               \
            TO(WHOLE64, int64_t, source_type, source[i])                                               \
            TO(FLOAT32, float, source_type, source[i])                                                 \
        }                                                                                              \
        break;
    switch (type) {
        FROM(TRUTH, uint8_t)
        FROM(UNSIGNED8, uint8_t)
        FROM(SIGNED8, int8_t)
        FROM(WHOLE32, int32_t)
        FROM(WHOLE64, int64_t)
    case FLOAT32: /* to whole numbers: not here */
        switch (target) { TO(TRUTH, uint8_t, float, source[i] != 0) }
    }
#undef FROM
#undef TO
}

static void choose(const uint8_t *condition, const void *yes, const void *no, int64_t width, void *to,
                   int64_t count) {
#define OF_WIDTH(type)                                                                                 \
    case sizeof(type): {                                                                               \
        const type *a = yes, *b = no;                                                                  \
        type *result = to;                                                                             \
        EACH result[i] = condition[i] ? a[i] : b[i];                                                   \
        break;                                                                                         \
    }
    switch (width) { EVERY_WIDTH }
#undef OF_WIDTH
}

static void join_truths(int64_t operation, const uint8_t *a, const uint8_t *b, uint8_t *to,
                        int64_t count) {
    if (operation == AND)
        EACH to[i] = a[i] & b[i];
    else if (operation == OR)
        EACH to[i] = a[i] | b[i];
    else
        EACH to[i] = a[i] ^ b[i];
}

#define CASE(code, type, result_type, value)                                                           \
    case code: {                                                                                       \
        const type *a = left, *b = right;                                                              \
        result_type *result = to;                                                                      \
        EACH result[i] = (result_type)(value);                                                         \
        break;                                                                                         \
    }
#define COMPARISONS(type)                                                                              \
    CASE(EQUAL, type, uint8_t, a[i] == b[i])                                                           \
    CASE(UNEQUAL, type, uint8_t, a[i] != b[i])                                                         \
    CASE(LESS, type, uint8_t, a[i] < b[i])                                                             \
    CASE(LESS_EQUAL, type, uint8_t, a[i] <= b[i])
#define EXTREMES(type) /* of NaN and a number, NaN */                                                  \
    CASE(LARGER, type, type, a[i] > b[i] || a[i] != a[i] ? a[i] : b[i])                                \
    CASE(SMALLER, type, type, a[i] < b[i] || a[i] != a[i] ? a[i] : b[i])
#define SUMS(type)                                                                                     \
    CASE(ADD, type, type, a[i] + b[i])                                                                 \
    CASE(SUBTRACT, type, type, a[i] - b[i])                                                            \
    CASE(MULTIPLY, type, type, a[i] * b[i])

static void combine(int64_t operation, int64_t type, const void *left, const void *right, void *to,
                    int64_t count) {
    switch (type) {
    case TRUTH:
    case UNSIGNED8:
        switch (operation) { COMPARISONS(uint8_t) }
        break;
    case SIGNED8:
        switch (operation) { COMPARISONS(int8_t) }
        break;
    case WHOLE32: /* sums without a sign: they wrap */
        switch (operation) { COMPARISONS(int32_t) EXTREMES(int32_t) SUMS(uint32_t) }
        break;
    case WHOLE64:
        switch (operation) { COMPARISONS(int64_t) EXTREMES(int64_t) SUMS(uint64_t) }
        break;
    case FLOAT32:
        switch (operation) { COMPARISONS(float) EXTREMES(float) SUMS(float) CASE(DIVIDE, float, float, a[i] / b[i]) }
    }
}

/* Up to STRIP elements of the result, from operands that are at ``from``. */
static void run_strip(const struct elements *e, const char *const *from, char *to, int64_t count) {
    uint64_t space[MOST_OPERANDS][STRIP]; /* the widest elements */
    uint8_t truths[MOST_OPERANDS - 1][STRIP];
    const void *operand[MOST_OPERANDS] = {0};
    for (int64_t at = 0; at < e->operands; at++) {
        const struct operand *o = &e->operand[at];
        int is_last = e->operation == COPY && o->type == e->type && o->width == e->width;
        int64_t stride = o->strides[e->axes - 1];
        operand[at] = side_by_side(from[at], o->width, stride, count, is_last ? (void *)to : space[at]);
        if (is_last && stride == 1)
            memcpy(to, from[at], (size_t)(count * o->width));
        if (is_last)
            return;
    }
    switch (e->operation) {
    case COPY:
        convert(e->operand[0].type, operand[0], e->type, to, count);
        break;
    case NOT:
    case AND:
    case OR:
    case XOR:
        for (int64_t at = 0; at < e->operands; at++)
            convert(e->operand[at].type, operand[at], TRUTH, truths[at], count);
        if (e->operation == NOT)
            memset(truths[1], 1, (size_t)count);
        join_truths(e->operation, truths[0], truths[1], (uint8_t *)to, count);
        break;
    case WHERE:
        choose(operand[0], operand[1], operand[2], e->width, to, count);
        break;
    default:
        combine(e->operation, e->operand[0].type, operand[0], operand[1], to, count);
    }
}

int braid_elements(const struct elements *e, void *stream, int count,
                   const struct argument *arguments) {
    (void)stream;
    const char *data[MOST_OPERANDS];
    char *to = data_at(e->data_of, count, arguments, OUTPUT);
    for (int64_t at = 0; at < e->operands; at++)
        if (!(data[at] = data_at(e->data_of, count, arguments, MANY + (int)at)))
            return FAILED;
    if (!to)
        return FAILED;
    int64_t row_extent = e->extents[e->axes - 1], all = 1;
    for (int64_t axis = 0; axis < e->axes; axis++)
        all *= e->extents[axis];
    int64_t parts = all * e->width > FEW_BYTES ? e->threads : 1;
#pragma omp parallel for num_threads((int)parts) schedule(static) if (parts > 1)
    for (int64_t part = 0; part < parts; part++) {
        int64_t end = (part + 1) * all / parts, size;
        for (int64_t at = part * all / parts; at < end; at += size) {
            const char *from[MOST_OPERANDS];
            int64_t place[MOST_AXES], rest = at;
            for (int64_t axis = e->axes - 1; axis >= 0; axis--) {
                place[axis] = rest % e->extents[axis];
                rest /= e->extents[axis];
            }
            for (int64_t number = 0; number < e->operands; number++) {
                const struct operand *o = &e->operand[number];
                int64_t offset = o->offset;
                for (int64_t axis = 0; axis < e->axes; axis++)
                    offset += place[axis] * o->strides[axis];
                from[number] = data[number] + offset * o->width;
            }
            size = row_extent - place[e->axes - 1];
            size = size < end - at ? size : end - at;
            size = size < STRIP ? size : STRIP;
            if (e->step == 1) {
                run_strip(e, from, to + at * e->width, size);
                continue;
            }
            uint64_t made[STRIP];
            run_strip(e, from, (char *)made, size);
            apart(made, e->width, e->step, size, to + at * e->step * e->width);
        }
    }
    return SUCCESS;
}

/* Where a tuple of indices points to in [extents ...]; -1: nowhere. */
static int64_t place_of(struct gather *g, const void *indices, int64_t tuple) {
    int64_t place = 0;
    for (int64_t axis = 0; axis < g->depth; axis++) {
        int64_t number = tuple * g->depth + axis, extent = g->extents[axis];
        int64_t index = g->index_bytes == 8 ? ((const int64_t *)indices)[number]
                                            : ((const int32_t *)indices)[number];
        int64_t wrapped = index < 0 && g->wraps ? index + extent : index;
        if (wrapped < 0 || wrapped >= extent) {
#pragma omp critical(braid_gather)
            {
                g->refused = axis + 1;
                g->wrong = index;
            }
            return -1;
        }
        place = place * extent + wrapped;
    }
    return place;
}

int braid_gather(struct gather *g, void *stream, int count, const struct argument *arguments) {
    (void)stream;
    const char *from = data_at(g->data_of, count, arguments, SOURCE);
    const void *indices = data_at(g->data_of, count, arguments, SECOND);
    char *to = data_at(g->data_of, count, arguments, OUTPUT);
    int64_t all = g->outer * g->count * g->inner, slices = 1, width = g->width;
    if (!from || !indices || !to)
        return FAILED;
    for (int64_t axis = 0; axis < g->depth; axis++)
        slices *= g->extents[axis];
    int64_t team = all * width > FEW_BYTES ? g->threads : 1;
    g->refused = 0;
#pragma omp parallel for num_threads((int)team) schedule(static) if (team > 1)
    for (int64_t part = 0; part < team; part++) {
        int64_t at = part * all / team, end = (part + 1) * all / team;
        int64_t column = at % g->inner, tuple = at / g->inner % g->count;
        const char *source = from + at / g->inner / g->count * slices * g->inner * width;
        for (; at < end; at++) {
            int64_t place = place_of(g, indices, g->each ? at : tuple);
            if (place >= 0 && width == sizeof(uint32_t))
                memcpy(to + at * width, source + (place * g->inner + column) * width, sizeof(uint32_t));
            else if (place >= 0)
                memcpy(to + at * width, source + (place * g->inner + column) * width, (size_t)width);
            if (++column < g->inner)
                continue;
            column = 0;
            if (++tuple < g->count)
                continue;
            tuple = 0;
            source += slices * g->inner * width;
        }
    }
    return g->refused ? REFUSED : SUCCESS;
}

int braid_extremes(const struct extremes *e, void *stream, int count,
                   const struct argument *arguments) {
    (void)stream;
    const void *from = data_at(e->data_of, count, arguments, SOURCE);
    void *values = data_at(e->data_of, count, arguments, OUTPUT); /* NULL: only where they are */
    int64_t *places = data_at(e->data_of, count, arguments, MANY);
    if (!from || !places)
        return FAILED;
#define OF_TYPE(kind, type)                                                                            \
    case kind:                                                                                         \
        for (int64_t row = 0; row < e->outer * e->inner; row++) {                                      \
            const type *x = (const type *)from + row / e->inner * e->count * e->inner + row % e->inner; \
            int64_t start = row / e->inner * e->kept * e->inner + row % e->inner, known = 0;           \
            int64_t *at = places + start;                                                              \
            for (int64_t number = 0; number < e->count; number++) {                                    \
                type value = x[number * e->inner];                                                     \
                int64_t rank = known;                                                                  \
                for (; rank > 0; rank--) { /* behind those that are not worse */                       \
                    type other = x[at[(rank - 1) * e->inner] * e->inner];                              \
                    int is_larger = value != value && other == other; /* if NaN is larger */           \
                    int is_smaller = other != other && value == value;                                 \
                    int is_less = other < value || (e->nan_is_least ? is_smaller : is_larger);         \
                    int is_more = other > value || (e->nan_is_least ? is_larger : is_smaller);         \
                    if (!(e->least ? is_more : is_less) && !(e->is_last && !is_less && !is_more))      \
                        break;                                                                         \
                }                                                                                      \
                if (rank == e->kept)                                                                   \
                    continue;                                                                          \
                known = known < e->kept ? known + 1 : known;                                           \
                for (int64_t later = known - 1; later > rank; later--)                                 \
                    at[later * e->inner] = at[(later - 1) * e->inner];                                 \
                at[rank * e->inner] = number;                                                          \
            }                                                                                          \
            for (int64_t rank = 0; values && rank < e->kept; rank++)                                    \
                ((type *)values)[start + rank * e->inner] = x[at[rank * e->inner] * e->inner];         \
        }                                                                                              \
        break;
    switch (e->type) {
        OF_TYPE(WHOLE32, int32_t)
        OF_TYPE(WHOLE64, int64_t)
        OF_TYPE(FLOAT32, float)
    }
#undef OF_TYPE
    return SUCCESS;
}

int braid_running(const struct running *r, void *stream, int count, const struct argument *arguments) {
    (void)stream;
    const void *from = data_at(r->data_of, count, arguments, SOURCE);
    void *to = data_at(r->data_of, count, arguments, OUTPUT);
    int64_t size = r->count * r->inner;
    if (!from || !to)
        return FAILED;
#define OF_TYPE(kind, type, sum_type)                                                                  \
    case kind: {                                                                                       \
        const type *x = from;                                                                          \
        type *sums = to;                                                                               \
        for (int64_t outer = 0; outer < r->outer; outer++, x += size, sums += size)                    \
            for (int64_t column = 0; column < r->inner; column++) {                                    \
                sum_type sum = 0;                                                                      \
                for (int64_t at = column; at < size; at += r->inner)                                   \
                    sums[at] = (type)(sum += x[at]);                                                   \
            }                                                                                          \
        break;                                                                                         \
    }
    switch (r->type) {
        OF_TYPE(WHOLE32, uint32_t, uint32_t)
        OF_TYPE(WHOLE64, uint64_t, uint64_t)
        OF_TYPE(FLOAT32, float, double)
    }
#undef OF_TYPE
    return SUCCESS;
}
