// SPDX-License-Identifier: BSD-2-Clause
/*
 * forkexec: children that touch memory shared with their parent, then exec and touch their own.
 */
#include "workload.h"

#include <sys/wait.h>
#include <unistd.h>

static const char usage[] =
	"usage: forkexec [--children N] [--bytes SIZE]\n"
	"  --children N  run at the same time (default: 4)\n"
	"  --bytes SIZE  memory that each process touches, page by page (default: 4M)\n"
	"prints for each process: forkexec pid=N first=ADDRESS pages=N\n";

static void touch(volatile char *memory, uint64_t bytes)
{
	for (uint64_t at = 0; at < bytes; at += BASE_PAGE_BYTES)
		memory[at] = 1;
}

static void touch_own(uint64_t bytes)
{
	volatile char *memory = map_pages(bytes, 0);

	touch(memory, bytes);
	printf("forkexec pid=%d first=%p pages=%lu\n", getpid(), (void *)memory,
	       round_up(bytes, BASE_PAGE_BYTES) / BASE_PAGE_BYTES);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "children", required_argument, NULL, 'c' },
		{ "bytes", required_argument, NULL, 'b' },
		{ "help", no_argument, NULL, 'h' },
		{},
	};
	uint64_t children = 4, bytes = 4UL << 20;
	volatile char *inherited;
	char *bytes_text = "4M";
	int option, status, failed = 0;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (option) {
		case 'c':
			children = parse_count("--children", optarg, 1, 1024);
			break;
		case 'b':
			bytes_text = optarg;
			bytes = parse_size("--bytes", optarg);
			break;
		case 'h':
			help(usage);
		default:
			bad_usage();
		}
	}
	/* A single operand marks a child that has been executed. */
	if (argc - optind == 1 && !strcmp(argv[optind], "leaf")) {
		touch_own(bytes);
		return 0;
	}
	if (optind != argc)
		bad_usage();

	inherited = map_pages(bytes, 0);
	touch(inherited, bytes);
	for (uint64_t i = 0; i < children; i++) {
		pid_t child = fork();

		if (child < 0)
			fail("fork: %s", strerror(errno));
		if (!child) {
			touch(inherited, bytes);
			execlp(program_invocation_name, "forkexec", "--bytes", bytes_text, "leaf",
			       NULL);
			fail("exec: %s", strerror(errno));
		}
	}
	while (wait(&status) > 0)
		failed += status != 0;
	touch_own(bytes);
	return failed != 0;
}
