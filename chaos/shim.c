/* Preloaded into a server: moves its wall clock, and makes flushing to disk slow.
 *
 * What to do is read from a small file that is mapped into memory, so that it can change while the server runs:
 * two 64-bit integers, the seconds that the clock is ahead, and the microseconds that a flush takes longer.
 * System calls are made directly: looking the real functions up could itself ask for the time. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct control { volatile int64_t ahead, flush; };
static struct control nothing, *control = &nothing;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("DRR_CHAOS_CONTROL");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *map = mmap(NULL, sizeof *control, PROT_READ, MAP_SHARED, file, 0);
    if (map != MAP_FAILED) control = map;
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += control->ahead;
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    int failed = syscall(SYS_gettimeofday, now, zone);
    if (!failed) now->tv_sec += control->ahead;
    return failed;
}

time_t time(time_t *where) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (where) *where = now.tv_sec;
    return now.tv_sec;
}

static int flush(long call, int file) {
    int64_t micros = control->flush;
    if (micros > 0) {
        struct timespec pause = {micros / 1000000, micros % 1000000 * 1000};
        syscall(SYS_nanosleep, &pause, NULL);
    }
    return syscall(call, file);
}

int fsync(int file) { return flush(SYS_fsync, file); }
int fdatasync(int file) { return flush(SYS_fdatasync, file); }
