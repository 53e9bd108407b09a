// The wall clock of the server that this is loaded into: ahead of the host's by as many microseconds as a file says.
// It asks the kernel itself: looking up what it stands before takes memory, which a server's own allocator times.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *ahead;

__attribute__((constructor)) static void find(void) {
    const char *path = getenv("BUTTRESS_CLOCK");
    int file = path ? open(path, O_RDONLY) : -1;
    void *there = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *ahead, PROT_READ, MAP_SHARED, file, 0);
    if (there == MAP_FAILED) abort();
    ahead = there;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    int done = syscall(SYS_clock_gettime, clock, time);
    if (done == 0 && clock == CLOCK_REALTIME && ahead) {
        int64_t micros = *ahead + time->tv_sec * INT64_C(1000000) + time->tv_nsec / 1000;
        time->tv_nsec = micros % 1000000 * 1000 + time->tv_nsec % 1000;
        time->tv_sec = micros / 1000000;
    }
    return done;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    struct timespec now;
    int done = clock_gettime(CLOCK_REALTIME, &now);
    (void)zone;
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
    return done;
}

time_t time(time_t *into) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (into) *into = now.tv_sec;
    return now.tv_sec;
}
