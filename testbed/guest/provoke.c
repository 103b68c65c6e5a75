// SPDX-License-Identifier: BSD-2-Clause
/*
 * Provokes bugs of the kernel, by the names that its LKDTM has for them, to see that they are
 * reported.  Each by a process of its own, which may not survive it.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define DIRECT "/sys/kernel/debug/provoke-crash/DIRECT"

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		pid_t child;

		printf("provoke: %s\n", argv[i]);
		fflush(stdout);
		child = fork();
		if (child == 0) {
			int fd = open(DIRECT, O_WRONLY);

			_exit(fd < 0 || write(fd, argv[i], strlen(argv[i])) < 0);
		}
		if (child < 0 || waitpid(child, NULL, 0) != child)
			return 1;
	}
	puts("provoke: done");
	return 0;
}
