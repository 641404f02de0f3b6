/* close() that tells of every number that is not open: it has been closed before.
 *
 * Preloaded into a process. Nothing has to take the number in between, so each second close shows.
 * Appends a line "PID NUMBER" to the file that CLOSED_TWICE names.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static void tell(int number) {
    const char *path = getenv("CLOSED_TWICE");
    if (!path) return;
    int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (file < 0) return;
    char line[64];
    int size = snprintf(line, sizeof line, "%d %d\n", (int)getpid(), number);
    if (write(file, line, size) < 0) abort();
    syscall(SYS_close, file);
}

int close(int number) {
    int result = (int)syscall(SYS_close, number);
    if (result < 0 && errno == EBADF) {
        tell(number);
        errno = EBADF;
    }
    return result;
}
