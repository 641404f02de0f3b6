/* How functions are called: as dnnl_primitive_execute is, with oneDNN's memory objects. */

#include <stddef.h>
#include <stdint.h>

enum { SUCCESS = 0, FAILED = 6, REFUSED = 100 }; /* REFUSED: a value that nothing can be done with */
enum { SOURCE = 1, SECOND = 2, THIRD = 3, OUTPUT = 17, WEIGHTS = 33, BIAS = 41, SCRATCH = 80 };
enum { MANY = 1024, RESIDUAL = 32770 };

typedef int (*data_fn)(const void *memory, void **data);

struct argument {
    int index;
    void *memory;
};

/* What an argument points to; NULL: it was not given. */
static inline void *data_at(data_fn data_of, int count, const struct argument *arguments, int index) {
    for (int at = 0; at < count; at++) {
        void *data = NULL;
        if (arguments[at].index == index)
            return data_of(arguments[at].memory, &data) ? NULL : data;
    }
    return NULL;
}
