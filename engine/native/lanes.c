/* Runs the primitives of a plan without the interpreter: lanes side by side, one after the other.

   Called by engine/executor/native.py, which also writes the code:

       code     segments, then for each segment: lanes, then first and last word of each lane
       a lane   EXECUTE primitive stream count arguments | WAIT flag | SIGNAL flag, any number

   A segment of one lane runs on the calling thread, and its primitives on that thread's OpenMP team.
   A segment of several lanes runs on the team itself, one lane a thread: the threads that oneDNN just
   used are still spinning, so they start within a microsecond, and no thread waits for a core.
   A flag is raised in a run by writing the number of the run into it. */

#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>

enum { EXECUTE, WAIT, SIGNAL };
enum { SPINS = 2000, WRONG_TEAM = -1 };

typedef int (*execute_fn)(void *primitive, void *stream, int count, const void *arguments);

static void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

/* Returns 0, or the status of the first primitive that failed; then nobody waits any more. */
static int run_lane(const int64_t *word, const int64_t *end, execute_fn execute,
                    _Atomic int64_t *flags, int64_t run, _Atomic int *failed) {
    while (word < end) {
        switch (*word) {
        case EXECUTE: {
            int status = execute((void *)word[1], (void *)word[2], (int)word[3],
                                 (const void *)word[4]);
            if (status) {
                atomic_store(failed, status);
                return status;
            }
            word += 5;
            break;
        }
        case WAIT:
            for (int spins = 0; atomic_load_explicit(&flags[word[1]], memory_order_acquire) != run;
                 spins++) {
                if (atomic_load_explicit(failed, memory_order_relaxed))
                    return 0;
                if (spins < SPINS)
                    relax();
                else
                    sched_yield();
            }
            word += 2;
            break;
        case SIGNAL:
            atomic_store_explicit(&flags[word[1]], run, memory_order_release);
            word += 2;
            break;
        }
    }
    return 0;
}

/* Runs all segments; returns 0, a oneDNN status, or WRONG_TEAM if OpenMP gave too few threads. */
int braid_run_lanes(const int64_t *code, int64_t *flag_words, int64_t run, void *execute_pointer) {
    execute_fn execute = (execute_fn)execute_pointer;
    _Atomic int64_t *flags = (_Atomic int64_t *)flag_words;
    _Atomic int failed = 0;
    const int64_t *word = code + 1;
    for (int64_t segment = 0; segment < code[0] && !atomic_load(&failed); segment++) {
        int lanes = (int)word[0];
        const int64_t *bounds = word + 1;
        word = bounds + 2 * lanes;
        if (lanes == 1) {
            run_lane(code + bounds[0], code + bounds[1], execute, flags, run, &failed);
            continue;
        }
        int started = 0;
        /* One iteration a thread, and all of them at once: lanes wait for each other. */
#pragma omp parallel num_threads(lanes)
        {
            int lane;
#pragma omp atomic capture
            lane = started++;
            /* Give way until the whole team is here: with fewer threads a wait would never end. */
#pragma omp barrier
            if (started < lanes) {
                atomic_store(&failed, WRONG_TEAM);
            } else if (lane < lanes) {
                run_lane(code + bounds[2 * lane], code + bounds[2 * lane + 1], execute, flags, run,
                         &failed);
            }
        }
    }
    return atomic_load(&failed);
}
