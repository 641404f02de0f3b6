/* fsync and rename that fail while a number in a shared page says so.
 *
 * Preloaded into a server and its children. FAULTS is the path of the page, given when this is
 * compiled: struct faults, then zeros. skew.c reads the first field of the same page.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

struct faults {
    int64_t clock_offset_s;
    int32_t fsync_errno, rename_errno;
};

static volatile const struct faults *page;

__attribute__((constructor)) static void attach(void) {
    int file = open(FAULTS, O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    void *found = mmap(NULL, sizeof *page, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (found != MAP_FAILED) page = found;
}

static int fails(int32_t number) {
    if (number) errno = number;
    return number;
}

int fsync(int file) {
    return page && fails(page->fsync_errno) ? -1 : (int)syscall(SYS_fsync, file);
}

int fdatasync(int file) {
    return page && fails(page->fsync_errno) ? -1 : (int)syscall(SYS_fdatasync, file);
}

int renameat2(int from, const char *old, int to, const char *new, unsigned flags) {
    if (page && fails(page->rename_errno)) return -1;
    return (int)syscall(SYS_renameat2, from, old, to, new, flags);
}

int renameat(int from, const char *old, int to, const char *new) {
    return renameat2(from, old, to, new, 0);
}

int rename(const char *old, const char *new) {
    return renameat2(AT_FDCWD, old, AT_FDCWD, new, 0);
}
