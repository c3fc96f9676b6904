/* A slow disk for the benchmark: preloaded into Postgres, it makes every flush take a millisecond longer.
 * wal_sync_method must be fdatasync or fsync; with the open_* methods a flush is a write that this does not see. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <time.h>

static void wait_for_the_disk(void)
{
	struct timespec left = {0, 1000000};

	while (nanosleep(&left, &left) == -1 && errno == EINTR)
		;
}

int fsync(int fd)
{
	static int (*real)(int);

	if (!real)
		real = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
	wait_for_the_disk();
	return real(fd);
}

int fdatasync(int fd)
{
	static int (*real)(int);

	if (!real)
		real = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
	wait_for_the_disk();
	return real(fd);
}
