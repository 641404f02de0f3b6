/* Runs the primitives of a plan without the interpreter: lanes side by side, one after the other.
   At the end, how an image comes into the order of channels that they want.

   Called by engine/cpu/segments.py, which also writes the code:

       code     segments, then for each segment: lanes, then first and last word of each lane
       a lane   EXECUTE function primitive stream count arguments | WAIT flag | SIGNAL flag,
                any number

   A segment of one lane runs on the calling thread, and its primitives on that thread's OpenMP team.
   A segment of several lanes runs on the team itself, one lane a thread: the threads that oneDNN just
   used are still spinning, so they start within a microsecond, and no thread waits for a core.
   A flag is raised in a run by writing the number of the run into it.

   A run that may be interrupted (slice_ns > 0) looks once in so many nanoseconds whether the descriptor
   ``arrivals`` can be read, and then returns CUT (without a descriptor, each time): every lane stops
   between two primitives, or where it waits. Called again with its bookmark, it goes on there.

   ``stamps``, unless it is null, receives the moment at which each segment began, and the end. */

#define _POSIX_C_SOURCE 200112L

#include <omp.h>
#include <poll.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

enum { EXECUTE, WAIT, SIGNAL };
enum { SPINS = 2000, NAP_NS = 20000, WRONG_TEAM = -1, CUT = -2 };
enum { SEGMENT, HEADER, LANES }; /* of a bookmark, then a word for each lane; 0: from the start */

typedef int (*execute_fn)(void *primitive, void *stream, int count, const void *arguments);

static void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

/* SHA-256 of all sources that this was built from, by name: whoever calls must be as old. */
const char *braid_sources(void) { return BRAID_SOURCES; }

static atomic_int may_spin = 1;

/* Whether lanes of this process that wait for another one spin; else they sleep: a quota of CPU time
   pays for spinning. */
void braid_let_lanes_spin(int spins) {
    atomic_store(&may_spin, spins);
}

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* What the lanes of one call share. */
struct run {
    _Atomic int64_t *flags;
    int64_t number, slice_ns; /* 0: never cut */
    _Atomic int64_t look_ns;  /* when a lane looks next */
    int arrivals;             /* -1: no need to look */
    _Atomic int failed, cut;
};

static int is_over(struct run *run) {
    if (!run->slice_ns)
        return 0;
    if (atomic_load_explicit(&run->cut, memory_order_relaxed))
        return 1;
    int64_t due = atomic_load_explicit(&run->look_ns, memory_order_relaxed), now = now_ns();
    if (now < due)
        return 0;
    if (run->arrivals >= 0) {
        struct pollfd arrivals = {run->arrivals, POLLIN, 0};
        if (!atomic_compare_exchange_strong(&run->look_ns, &due, now + run->slice_ns))
            return 0; /* another lane looks */
        if (!poll(&arrivals, 1, 0))
            return 0;
    }
    atomic_store(&run->cut, 1);
    return 1;
}

/* Runs from a word up to the end, or until a primitive fails or the slice is over: then no lane waits
   any more. Returns the word to go on at. */
static const int64_t *run_lane(const int64_t *word, const int64_t *end, struct run *run) {
    while (word < end) {
        switch (*word) {
        case EXECUTE: {
            execute_fn execute = (execute_fn)word[1];
            int status = execute((void *)word[2], (void *)word[3], (int)word[4],
                                 (const void *)word[5]);
            if (status) {
                atomic_store(&run->failed, status);
                return word;
            }
            word += 6;
            if (is_over(run))
                return word;
            break;
        }
        case WAIT:
            for (int spins = 0; atomic_load_explicit(&run->flags[word[1]], memory_order_acquire) !=
                                run->number;
                 spins++) {
                if (atomic_load_explicit(&run->failed, memory_order_relaxed) ||
                    atomic_load_explicit(&run->cut, memory_order_relaxed))
                    return word;
                if (!atomic_load_explicit(&may_spin, memory_order_relaxed))
                    nanosleep(&(struct timespec){0, NAP_NS}, NULL);
                else if (spins < SPINS)
                    relax();
                else
                    sched_yield();
            }
            word += 2;
            break;
        case SIGNAL:
            atomic_store_explicit(&run->flags[word[1]], run->number, memory_order_release);
            word += 2;
            break;
        }
    }
    return word;
}

/* Runs all segments; returns 0, CUT, a oneDNN status, or WRONG_TEAM if OpenMP gave too few threads. */
int braid_run_lanes(const int64_t *code, int64_t *flag_words, int64_t number,
                    int64_t *bookmark, int64_t slice_ns, int arrivals, int64_t *stamps) {
    struct run run = {(_Atomic int64_t *)flag_words, number, slice_ns,
                      slice_ns ? now_ns() + slice_ns : 0, arrivals, 0, 0};
    if (!bookmark[HEADER])
        bookmark[HEADER] = 1;
    for (; bookmark[SEGMENT] < code[0]; bookmark[SEGMENT]++) {
        int lanes = (int)code[bookmark[HEADER]], finished = 0;
        const int64_t *bounds = code + bookmark[HEADER] + 1;
        int64_t *at = bookmark + LANES;
        if (stamps && !at[0])
            stamps[bookmark[SEGMENT]] = now_ns();
        if (lanes == 1) {
            at[0] = run_lane(code + (at[0] ? at[0] : bounds[0]), code + bounds[1], &run) - code;
        } else {
            /* Lane i on thread i, always: it finds in its cache what it made in an earlier segment. */
#pragma omp parallel num_threads(lanes)
            {
                int lane = omp_get_thread_num();
                if (omp_get_num_threads() < lanes) {
                    atomic_store(&run.failed, WRONG_TEAM);
                } else {
                    const int64_t *from = code + (at[lane] ? at[lane] : bounds[2 * lane]);
                    at[lane] = run_lane(from, code + bounds[2 * lane + 1], &run) - code;
                }
            }
        }
        for (int lane = 0; lane < lanes; lane++)
            finished += at[lane] == bounds[2 * lane + 1];
        int is_cut = atomic_load(&run.cut) && !atomic_load(&run.failed);
        if (finished < lanes && is_cut)
            return CUT;
        for (int lane = 0; lane < lanes; lane++)
            at[lane] = 0;
        if (atomic_load(&run.failed))
            break;
        bookmark[HEADER] += 1 + 2 * lanes;
        if (is_cut && bookmark[SEGMENT] + 1 < code[0]) {
            bookmark[SEGMENT]++;
            return CUT;
        }
    }
    if (stamps)
        stamps[code[0]] = now_ns();
    bookmark[SEGMENT] = bookmark[HEADER] = 0;
    return atomic_load(&run.failed);
}

enum { PIXELS = 512 }; /* of a strip that stays in the nearest cache while its channels are written */
enum { PARTS = 64 };   /* that threads take by themselves */

static inline void interleave(const float *planes, float *pixels, int64_t channels, int64_t plane,
                       int64_t count) {
    for (int64_t channel = 0; channel < channels; channel++)
        for (int64_t pixel = 0; pixel < count; pixel++)
            pixels[pixel * channels + channel] = planes[channel * plane + pixel];
}

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

/* Where each of 48 numbers comes from: of red (0 to 15) and green (16 to 31), and then of what these
   gave and blue. */
static const int32_t RED_GREEN[3][16] = {
    {0, 16, 0, 1, 17, 0, 2, 18, 0, 3, 19, 0, 4, 20, 0, 5},
    {21, 0, 6, 22, 0, 7, 23, 0, 8, 24, 0, 9, 25, 0, 10, 26},
    {0, 11, 27, 0, 12, 28, 0, 13, 29, 0, 14, 30, 0, 15, 31, 0}};
static const int32_t AND_BLUE[3][16] = {
    {0, 1, 16, 3, 4, 17, 6, 7, 18, 9, 10, 19, 12, 13, 20, 15},
    {0, 21, 2, 3, 22, 5, 6, 23, 8, 9, 24, 11, 12, 25, 14, 15},
    {26, 1, 2, 27, 4, 5, 28, 7, 8, 29, 10, 11, 30, 13, 14, 31}};

__attribute__((target("avx512f"))) static void interleave_three(const float *planes, float *pixels,
                                                                int64_t plane, int64_t count) {
    int64_t at = 0;
    for (; at + 16 <= count; at += 16) {
        __m512 red = _mm512_loadu_ps(planes + at), green = _mm512_loadu_ps(planes + plane + at),
               blue = _mm512_loadu_ps(planes + 2 * plane + at);
        for (int part = 0; part < 3; part++) {
            __m512 mixed =
                _mm512_permutex2var_ps(red, _mm512_loadu_si512(RED_GREEN[part]), green);
            mixed = _mm512_permutex2var_ps(mixed, _mm512_loadu_si512(AND_BLUE[part]), blue);
            _mm512_storeu_ps(pixels + 3 * at + 16 * part, mixed);
        }
    }
    interleave(planes + at, pixels + 3 * at, 3, plane, count - at);
}

static int has_wide_vectors(void) { return __builtin_cpu_supports("avx512f"); }
#else
static void interleave_three(const float *planes, float *pixels, int64_t plane, int64_t count) {
    interleave(planes, pixels, 3, plane, count);
}

static int has_wide_vectors(void) { return 0; }
#endif

/* Copies images whose channels lie one after the other, ``plane`` pixels each, to pixels whose
   channels lie side by side. For few channels: each strip is read once for every one of them.

   Each thread has parts of its own, which it will read next, and then takes those that others have
   not begun, from the end: a thread that slept begins 50 to 90 us after the first one. */
void braid_interleave(const float *planes, float *pixels, int64_t images, int64_t channels,
                      int64_t plane, int threads) {
    int64_t strips = (plane + PIXELS - 1) / PIXELS, all = images * strips;
    int wide = channels == 3 && has_wide_vectors();
    _Atomic char taken[PARTS] = {0};
#pragma omp parallel num_threads(threads)
    {
        int thread = omp_get_thread_num(), team = omp_get_num_threads();
        int own = thread * PARTS / team, end = (thread + 1) * PARTS / team;
        for (int turn = 0; turn < PARTS; turn++) {
            int part = own + turn < end ? own + turn : (end - 1 - turn + PARTS) % PARTS;
            if (atomic_exchange(&taken[part], 1))
                continue;
            for (int64_t at = part * all / PARTS; at < (part + 1) * all / PARTS; at++) {
                int64_t image = at / strips, first = at % strips * PIXELS;
                int64_t count = plane - first < PIXELS ? plane - first : PIXELS;
                const float *from = planes + image * channels * plane + first;
                float *to = pixels + (image * plane + first) * channels;
                if (wide)
                    interleave_three(from, to, plane, count);
                else
                    interleave(from, to, channels, plane, count);
            }
        }
    }
}
