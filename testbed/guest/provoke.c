// SPDX-License-Identifier: BSD-2-Clause
/*
 * Provokes bugs of the kernel, to see that they are reported: by the names that its LKDTM has for
 * them, or PTAT_DATA_RACE (kernel-patch/variants/kcsan-race.patch).  Each by a process of its own,
 * which may not survive it.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define DIRECT	  "/sys/kernel/debug/provoke-crash/DIRECT"
#define DATA_RACE "PTAT_DATA_RACE"
#define RACE	  "/sys/kernel/debug/ptat-race"
#define SELF	  "/sys/kernel/mm/ptat/self"

static int put(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY);

	return fd < 0 || write(fd, text, strlen(text)) < 0;
}

/* A traced process whose children take tables from the region and give them back, without end. */
static void churn(void)
{
	if (put(SELF, "2"))
		_exit(1);
	for (;;) {
		pid_t child = fork();

		if (child == 0)
			_exit(0);
		waitpid(child, NULL, 0);
	}
}

/* Reads what the other changes. */
static int race(void)
{
	char text[64];
	pid_t other = fork();
	int fd, failed;

	if (other < 0)
		return 1;
	if (other == 0)
		churn();
	fd = open(RACE, O_RDONLY);
	failed = fd < 0 || read(fd, text, sizeof(text)) < 0;
	kill(other, SIGKILL);
	return failed;
}

static int provoke(const char *name)
{
	return strcmp(name, DATA_RACE) ? put(DIRECT, name) : race();
}

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		pid_t child;

		printf("provoke: %s\n", argv[i]);
		fflush(stdout);
		child = fork();
		if (child == 0)
			_exit(provoke(argv[i]));
		if (child < 0 || waitpid(child, NULL, 0) != child)
			return 1;
	}
	puts("provoke: done");
	return 0;
}
