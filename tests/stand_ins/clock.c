/* A node's clock that is wrong, for Python programs: LD_PRELOAD this, and CLOCK_AHEAD="n1:200/n2:-170" has the
 * seconds by which it is ahead on each node. Monotonic clocks and Slurm's own programs keep their time.
 *
 * A wait until a moment by the wall clock would become longer or shorter than on a node whose clock is really
 * wrong. Python waits by the monotonic clock. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long ahead;
static int (*real)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void)
{
    char node[65] = "";
    const char *at = getenv("CLOCK_AHEAD");
    real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    gethostname(node, sizeof node - 1);
    if (strncmp(program_invocation_short_name, "python", 6) != 0)
        return;
    for (; at && *at; at = strchr(at, '/') ? strchr(at, '/') + 1 : NULL)
        if (strncmp(at, node, strlen(node)) == 0 && at[strlen(node)] == ':')
            ahead = atol(at + strlen(node) + 1);
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    if (!real)
        begin();
    int result = real(clock, now);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += ahead;
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec t;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &t);
    now->tv_sec = t.tv_sec;
    now->tv_usec = t.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    if (now)
        *now = t.tv_sec;
    return t.tv_sec;
}
