/* Round trips of a cache line between two cores: how far they are from each other.

   Called by engine/cpu/core_distance.py. Two threads, one on each core, take turns of writing a number
   that the other one waits for. The quickest of several rounds counts: what interrupts a round makes
   it longer. No wait goes on after the deadline. */

#define _GNU_SOURCE

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

enum { LOOK = 256 };        /* waits in vain after which the clock is read */
enum { STACK = 1 << 20 };   /* bytes of each thread's; most goes to variables of libraries */

static void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

struct pair {
    _Alignas(128) atomic_int line; /* the number that was written last */
    _Alignas(128) int trips, rounds;
    int64_t deadline_ns;
    double best_ns; /* of a trip; < 0: no round came to its end */
};

/* Waits for a number; returns whether it came before the deadline. */
static int came(struct pair *pair, int number) {
    for (int spins = 1; atomic_load_explicit(&pair->line, memory_order_acquire) != number; spins++) {
        relax();
        if (spins % LOOK == 0 && now_ns() > pair->deadline_ns)
            return 0;
    }
    return 1;
}

static void *answer(void *shared) {
    struct pair *pair = shared;
    for (int i = 0; i < (pair->rounds + 1) * pair->trips; i++) {
        if (!came(pair, 2 * i + 1))
            break;
        atomic_store_explicit(&pair->line, 2 * i + 2, memory_order_release);
    }
    return NULL;
}

static void *ask(void *shared) {
    struct pair *pair = shared;
    for (int round = 0, i = 0; round <= pair->rounds; round++) {
        int64_t from_ns = now_ns();
        for (int trip = 0; trip < pair->trips; trip++, i++) {
            atomic_store_explicit(&pair->line, 2 * i + 1, memory_order_release);
            if (!came(pair, 2 * i + 2))
                return NULL;
        }
        double trip_ns = (double)(now_ns() - from_ns) / pair->trips;
        /* In the first round one of them may not have begun yet. */
        if (round && (pair->best_ns < 0 || trip_ns < pair->best_ns))
            pair->best_ns = trip_ns;
    }
    return NULL;
}

/* Starts a thread on a core; returns 0, or an error of the system. */
static int start_on(int core, void *(*work)(void *), struct pair *pair, pthread_t *thread) {
    size_t size = CPU_ALLOC_SIZE(core + 1);
    cpu_set_t *only = CPU_ALLOC(core + 1);
    pthread_attr_t attributes;
    if (!only)
        return -1;
    int error = pthread_attr_init(&attributes);
    if (!error) {
        CPU_ZERO_S(size, only);
        CPU_SET_S(core, size, only);
        error = pthread_attr_setaffinity_np(&attributes, size, only);
        if (!error)
            error = pthread_attr_setstacksize(&attributes, STACK);
        if (!error)
            error = pthread_create(thread, &attributes, work, pair);
        pthread_attr_destroy(&attributes);
    }
    CPU_FREE(only);
    return error;
}

/* Measures pairs of cores one after the other; ``cores`` has two numbers for each. Writes nanoseconds
   of a round trip to ``trip_ns``, or a negative number where nothing could be measured in ``pair_ns``
   nanoseconds. */
void braid_core_distances(const int32_t *cores, int pairs, int trips, int rounds, int64_t pair_ns,
                          double *trip_ns) {
    for (int at = 0; at < pairs; at++) {
        struct pair pair = {
            .trips = trips, .rounds = rounds, .deadline_ns = now_ns() + pair_ns, .best_ns = -1.0};
        pthread_t asking, answering;
        if (!start_on(cores[2 * at], answer, &pair, &answering)) {
            if (!start_on(cores[2 * at + 1], ask, &pair, &asking))
                pthread_join(asking, NULL);
            pthread_join(answering, NULL);
        }
        trip_ns[at] = pair.best_ns;
    }
}
