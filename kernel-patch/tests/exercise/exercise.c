// SPDX-License-Identifier: BSD-2-Clause
/*
 * Does everything that makes, moves, changes or frees page tables, group by group, each untraced
 * and traced: a process must not be able to tell. TAP on stdout.
 *
 *   exercise [-n] [GROUP...]	groups whose names contain one of the words; -n: for a process that
 *				is recorded: each group once, without comparing region and twins
 *
 *   exercise --reclaim		major faults of a traced process under memory pressure
 *
 * Beside all that runs, a process compares the region with its twins, over and over. After each
 * group, all of the region must be free again, and the kernel must not have warned.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "exercise.h"

#define TAINTED		"/proc/sys/kernel/tainted"
#define GROUP_TIMEOUT_S 240
#define FREE_TRIES	300
#define FREE_WAIT_US	10000

static const struct group *const all_groups[] = { mapping_groups, process_groups, huge_groups,
						  reclaim_groups };

/* What the process that compares has seen. */
static volatile struct watch {
	long samples, present, mismatches;
} *watch;

static void sample(void *unused)
{
	(void)unused;
	for (;;) {
		static char text[4096];
		long mismatches;

		if (!get(CHECK, text, sizeof(text)))
			wrong("read %s", CHECK);
		mismatches = number_in(text, "mismatches");
		if (mismatches && !watch->mismatches)
			fprintf(stderr, "# region and twins differ:\n%s", text);
		watch->mismatches += mismatches;
		watch->present += number_in(text, "present") > 0;
		watch->samples++;
	}
}

struct outcome {
	int status;
	double seconds;
	char text[8192];
};

static double now_s(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

static void run_group(const struct group *group, bool traced, struct outcome *outcome)
{
	int out = memfd_create("out", 0);
	double start_s = now_s();
	pid_t pid;

	require(out >= 0);
	fflush(stdout);
	pid = fork();
	require(pid >= 0);
	if (!pid) {
		setpgid(0, 0);
		dup2(out, STDOUT_FILENO);
		if (traced)
			put(SYSFS "self", "2");
		alarm(GROUP_TIMEOUT_S);
		execute("--group", group->name);
		_exit(127);
	}
	require(waitpid(pid, &outcome->status, 0) == pid);
	kill(-pid, SIGKILL); /* what a failed one has left */
	outcome->seconds = now_s() - start_s;
	outcome->text[pread(out, outcome->text, sizeof(outcome->text) - 1, 0)] = 0;
	close(out);
}

/* All tables have come back, some only after a grace period. */
static long used(void)
{
	long pages = 0;

	for (int tries = 0; tries < FREE_TRIES; tries++) {
		pages = stat_number("used");
		if (!pages)
			break;
		usleep(FREE_WAIT_US);
	}
	return pages;
}

static long tainted(void)
{
	char text[32];

	require(get(TAINTED, text, sizeof(text)));
	return atol(text);
}

static void comment(const char *what, const char *text)
{
	for (; *text; text += strcspn(text, "\n"), text += *text == '\n')
		printf("# %s: %.*s\n", what, (int)strcspn(text, "\n"), text);
}

static bool skipped(const struct outcome *outcome)
{
	return WIFEXITED(outcome->status) && WEXITSTATUS(outcome->status) == EXIT_SKIP;
}

/* One line of TAP, and what it is about if something is wrong. */
static bool judge(int number, const struct group *group, bool once)
{
	static struct outcome untraced, traced;
	static long taint, left;
	long samples = watch->samples, mismatches = watch->mismatches;
	long taint_before = taint, left_before = left;
	bool good, same = true;

	run_group(group, false, &untraced);
	if (!once) {
		run_group(group, true, &traced);
		same = untraced.status == traced.status && !strcmp(untraced.text, traced.text);
		left = used();
	}
	taint = tainted();
	good = same && (!untraced.status || skipped(&untraced)) && taint == taint_before &&
	       left == left_before && watch->mismatches == mismatches;
	printf("%sok %d - %s", good ? "" : "not ", number, group->name);
	if (skipped(&untraced))
		printf(" # SKIP %.*s", (int)strcspn(untraced.text, "\n"), untraced.text);
	printf("\n# %.1f s untraced, %.1f s traced, %ld times compared\n", untraced.seconds,
	       traced.seconds, watch->samples - samples);
	if (!good) {
		printf("# exit status %#x and %#x, %ld pages not free, %ld mismatches, taint "
		       "%#lx\n",
		       untraced.status, traced.status, left, watch->mismatches - mismatches, taint);
		comment("untraced", untraced.text);
		comment("traced", traced.text);
	}
	fflush(stdout);
	return good;
}

static bool chosen(const char *name, char **words)
{
	bool found = !*words;

	for (; *words; words++)
		found |= strstr(name, *words) != NULL;
	return found;
}

static const struct group *find(const char *name)
{
	for (size_t i = 0; i < ARRAY_SIZE(all_groups); i++)
		for (const struct group *group = all_groups[i]; group->name; group++)
			if (!strcmp(group->name, name))
				return group;
	wrong("no group %s", name);
}

int main(int argc, char **argv)
{
	bool once = argc > 1 && !strcmp(argv[1], "-n");
	int count = 0, bad = 0;
	pid_t sampler = 0;

	if (argc > 1 && !strcmp(argv[1], "--reclaim")) {
		measure_reclaim();
		return 0;
	}
	if (argc > 2) {
		if (!strcmp(argv[1], "--group")) {
			find(argv[2])->run();
			return 0;
		}
		if (executed(argv[1], argv[2]))
			return 0;
	}
	watch = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	require(watch != MAP_FAILED);
	if (!once)
		sampler = start(sample, NULL);
	puts("TAP version 13");
	for (size_t i = 0; i < ARRAY_SIZE(all_groups); i++)
		for (const struct group *group = all_groups[i]; group->name; group++)
			if (chosen(group->name, argv + 1 + once))
				bad += !judge(++count, group, once);
	printf("1..%d\n", count);
	if (sampler) {
		kill(sampler, SIGKILL);
		waitpid(sampler, NULL, 0);
		printf("# compared %ld times, %ld times with present entries, %ld mismatches\n",
		       watch->samples, watch->present, watch->mismatches);
	}
	return bad || !count;
}
