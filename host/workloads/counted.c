// SPDX-License-Identifier: BSD-2-Clause
/* counted: run a program that does not say itself which part of it is measured: all of it is. */
#include "counted.h"

#include <sys/wait.h>

static const char usage[] = "usage: counted CMD [ARG…]\n"
			    "prints: counted seconds=S\n"
			    "exits with the status of CMD\n";

int main(int argc, char **argv)
{
	double seconds;
	int status;
	pid_t child;

	if (argc > 1 && !strcmp(argv[1], "--help"))
		help(usage);
	if (argc < 2)
		bad_usage();
	seconds = counted_begin();
	child = fork();
	if (child < 0)
		fail("fork: %s", strerror(errno));
	if (!child) {
		execvp(argv[1], argv + 1);
		fail("%s: %s", argv[1], strerror(errno));
	}
	if (waitpid(child, &status, 0) < 0)
		fail("waitpid: %s", strerror(errno));
	seconds = counted_end(seconds);
	printf("counted seconds=%.6f\n", seconds);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
