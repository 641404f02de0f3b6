/* Another wall clock for Python, psycopg and obstore: seconds in FLEET_TEST_CLOCK_OFFSET are added.
 * Compiled with OFFSET_FILE, the path of a file, seconds in its first eight bytes: clocks that jump.
 *
 * Preloaded. gRPC, torch and OpenMP see the true one, since they wait for moments of it by futexes,
 * which a library cannot shift; monotonic clocks are as they were, as on any machine with a wrong
 * clock. Deadlines of calls are gRPC's moments, which Python compares with its own clock: such a server
 * registers and follows, but it answers no inference that has a deadline.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#ifdef OFFSET_FILE
static volatile const int64_t *jump;

__attribute__((constructor)) static void attach(void) {
    int file = open(OFFSET_FILE, O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    void *found = mmap(NULL, sizeof *jump, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (found != MAP_FAILED) jump = found;
}

static long offset(void) { return jump ? *jump : 0; }
#else
static long offset(void) {
    const char *text = getenv("FLEET_TEST_CLOCK_OFFSET");
    return text ? atol(text) : 0;
}
#endif

static int is_shifted(const void *caller) {
    Dl_info info;
    if (!dladdr(caller, &info) || !info.dli_fname) return 0;
    return strstr(info.dli_fname, "python") && !strstr(info.dli_fname, "-packages")
        || strstr(info.dli_fname, "psycopg") || strstr(info.dli_fname, "obstore");
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && clock == CLOCK_REALTIME && is_shifted(__builtin_return_address(0)))
        now->tv_sec += offset();
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    int failed = syscall(SYS_gettimeofday, now, zone);
    if (!failed && is_shifted(__builtin_return_address(0))) now->tv_sec += offset();
    return failed;
}

time_t time(time_t *result) {
    struct timespec now;
    syscall(SYS_clock_gettime, CLOCK_REALTIME, &now);
    if (is_shifted(__builtin_return_address(0))) now.tv_sec += offset();
    if (result) *result = now.tv_sec;
    return now.tv_sec;
}
