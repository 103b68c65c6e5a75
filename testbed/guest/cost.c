// SPDX-License-Identifier: BSD-2-Clause
/*
 * PID 1 of the guests of ptat_testbed.suites.kernel_cost: counts the instructions that operations
 * of lmbench's kind take.  QEMU's -icount makes the time stamp counter count instructions; one CPU
 * and nothing else to run make the counts repeatable.  Of each, a handful is user space's.
 *
 * Prints "cost NAME MEDIAN" for each operation: means have timer ticks and deferred work in them.
 * With "traced" in the kernel's command line, the process that does it all is traced, and so are
 * its children; with "beside", it is not, but another process is.
 */
#include <err.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <x86intrin.h>

#define KIB	     (1UL << 10)
#define MIB	     (1UL << 20)

#define PAGE	     (4 * KIB)
#define FAULT_AROUND (64 * KIB)
#define HUGE	     (2 * MIB)

#define WARM_UP	     32
#define FORKS	     512
#define REPETITIONS  4096
#define LARGE_FORK   (16 * MIB)
#define UNMAPPED     (1 * MIB)

#define MEASURE	     "measure"
#define SELF	     "/sys/kernel/mm/ptat/self"
#define FILE_AT	     "/cost.data"

struct samples {
	const char *name;
	size_t number;
	uint64_t count[REPETITIONS];
};

/* Shared with children. */
static volatile struct {
	uint64_t begun;
	uint64_t ended;
} *child;

static void add(struct samples *samples, uint64_t count)
{
	samples->count[samples->number++] = count;
}

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static void report(struct samples *samples)
{
	qsort(samples->count, samples->number, sizeof(samples->count[0]), compare);
	printf("cost %s %lu\n", samples->name, samples->count[samples->number / 2]);
}

static char *map(size_t size, int flags, int fd)
{
	char *p = mmap(NULL, size, PROT_READ | PROT_WRITE, flags, fd, 0);

	if (p == MAP_FAILED)
		err(1, "mmap");
	return p;
}

static void release(char *p, size_t size)
{
	if (size && munmap(p, size))
		err(1, "munmap");
}

/* Aligned to 2 MiB, so that huge pages fit, and unmapped areas have page tables of their own. */
static char *area(size_t size, int advice)
{
	char *p = map(size + HUGE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	char *aligned = (char *)(((uintptr_t)p + HUGE - 1) & ~(HUGE - 1));

	release(p, aligned - p);
	release(aligned + size, p + HUGE - aligned);
	if (madvise(aligned, size, advice))
		err(1, "madvise");
	return aligned;
}

static void touch(char *p, size_t size)
{
	for (size_t i = 0; i < size; i += PAGE)
		p[i] = 1;
}

/* A fork lasts until the child runs, an exit until the parent does. */
static void forks(const char *fork_name, const char *exit_name)
{
	struct samples forked = { .name = fork_name }, exited = { .name = exit_name };

	for (int i = -WARM_UP; i < FORKS; i++) {
		uint64_t start = __rdtsc();
		long pid = syscall(SYS_fork);

		if (pid == 0) {
			child->begun = __rdtsc();
			child->ended = __rdtsc();
			syscall(SYS_exit_group, 0);
		}
		if (pid < 0 || syscall(SYS_wait4, pid, NULL, 0, NULL) != pid)
			err(1, "fork");
		if (i >= 0) {
			add(&exited, __rdtsc() - child->ended);
			add(&forked, child->begun - start);
		}
	}
	report(&forked);
	report(&exited);
}

static void small_and_large_forks(void)
{
	char *p;

	forks("fork", "exit");
	p = area(LARGE_FORK, MADV_NOHUGEPAGE);
	touch(p, LARGE_FORK);
	forks("fork_16m", "exit_16m");
	release(p, LARGE_FORK);
}

/* An execve() lasts until the first instruction of the new program, see cost_exec.c. */
static void execs(void)
{
	static char *const argv[] = { "/cost_exec", NULL };
	struct samples samples = { .name = "exec" };
	int pipes[2];

	if (pipe(pipes))
		err(1, "pipe");
	for (int i = -WARM_UP; i < FORKS; i++) {
		uint64_t begun;
		pid_t pid = fork();

		if (pid == 0) {
			dup2(pipes[1], 3);
			child->begun = __rdtsc();
			syscall(SYS_execve, argv[0], argv, NULL);
			_exit(127);
		}
		if (pid < 0 || waitpid(pid, NULL, 0) != pid ||
		    read(pipes[0], &begun, sizeof(begun)) != sizeof(begun))
			err(1, "%s", argv[0]);
		if (i >= 0)
			add(&samples, begun - child->begun);
	}
	report(&samples);
}

/* First accesses, `step` apart. */
static void faults(const char *name, volatile char *p, size_t step, size_t number, bool write)
{
	struct samples samples = { .name = name };

	for (; number; p += step, number--) {
		uint64_t start = __rdtsc();

		if (write)
			*p = 1;
		else
			(void)*p;
		add(&samples, __rdtsc() - start);
	}
	report(&samples);
}

static void all_faults(void)
{
	size_t size = REPETITIONS * PAGE, huge_size = 64 * HUGE, file_size = 64 * MIB;
	int fd = open(FILE_AT, O_RDWR | O_CREAT, 0600);
	char *p;

	p = area(size, MADV_NOHUGEPAGE);
	faults("fault_anon", p, PAGE, REPETITIONS, true);
	release(p, size);

	if (fd < 0 || ftruncate(fd, file_size))
		err(1, FILE_AT);
	p = map(file_size, MAP_SHARED, fd);
	touch(p, file_size);
	release(p, file_size);
	p = map(file_size, MAP_SHARED, fd);
	faults("fault_file", p, FAULT_AROUND, file_size / FAULT_AROUND, false);
	release(p, file_size);
	p = map(size, MAP_PRIVATE, fd);
	faults("fault_copy", p, PAGE, REPETITIONS, true);
	release(p, size);

	p = area(huge_size, MADV_HUGEPAGE);
	faults("fault_thp", p, HUGE, huge_size / HUGE, true);
	release(p, huge_size);
	p = area(huge_size, MADV_HUGEPAGE);
	(void)*(volatile char *)p; /* makes the one huge page of zeroes */
	faults("fault_thp_zero", p + HUGE, HUGE, huge_size / HUGE - 1, false);
	release(p, huge_size);
}

static void maps(void)
{
	struct samples mapped = { .name = "mmap" };
	struct samples unmapped = { .name = "munmap" }, unmapped_full = { .name = "munmap_1m" };

	for (int i = -WARM_UP; i < REPETITIONS; i++) {
		uint64_t start = __rdtsc(), middle, end;
		char *p = map(UNMAPPED, MAP_PRIVATE | MAP_ANONYMOUS, -1);

		middle = __rdtsc();
		release(p, UNMAPPED);
		end = __rdtsc();
		if (i >= 0) {
			add(&mapped, middle - start);
			add(&unmapped, end - middle);
		}
	}
	report(&mapped);
	report(&unmapped);
	for (int i = -WARM_UP; i < FORKS; i++) {
		char *p = area(UNMAPPED, MADV_NOHUGEPAGE);
		uint64_t start;

		touch(p, UNMAPPED);
		start = __rdtsc();
		release(p, UNMAPPED);
		if (i >= 0)
			add(&unmapped_full, __rdtsc() - start);
	}
	report(&unmapped_full);
}

static void measure(void)
{
	child = (void *)map(PAGE, MAP_SHARED | MAP_ANONYMOUS, -1);
	/* Its page is there: no fault of ours is counted. */
	child->begun = 0;
	small_and_large_forks();
	execs();
	all_faults();
	maps();
}

static void mount_at(const char *type, const char *path)
{
	mkdir(path, 0755);
	if (mount(type, path, type, 0, NULL))
		err(1, "%s", path);
}

static bool asked_for(const char *word)
{
	char command_line[1024] = "";
	int fd = open("/proc/cmdline", O_RDONLY);

	if (read(fd, command_line, sizeof(command_line) - 1) < 0)
		err(1, "/proc/cmdline");
	close(fd);
	return strstr(command_line, word);
}

static void trace_self(void)
{
	int fd = open(SELF, O_WRONLY);

	if (fd < 0 || write(fd, "2", 1) != 1)
		err(1, SELF);
	close(fd);
}

/* Starts a traced process, and waits until it is. */
static void trace_another(void)
{
	int pipes[2];
	char byte = 0;
	pid_t pid;

	if (pipe(pipes))
		err(1, "pipe");
	pid = fork();
	if (pid == 0) {
		trace_self();
		if (write(pipes[1], &byte, 1) == 1)
			pause();
		_exit(1);
	}
	if (pid < 0 || read(pipes[0], &byte, 1) != 1)
		err(1, "trace another process");
	close(pipes[0]);
	close(pipes[1]);
}

/* Runs itself again, in an address space that is traced from its first page on. */
static void run(char *program)
{
	char *const argv[] = { program, MEASURE, NULL };
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		if (asked_for("traced"))
			trace_self();
		execv(program, argv);
		err(1, "%s", program);
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid || status)
		errx(1, "failed");
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOFBF, 1 << 16);
	/* The kernel gives words that it does not know to its init. */
	if (argc > 1 && !strcmp(argv[argc - 1], MEASURE)) {
		measure();
		return 0;
	}
	mount_at("proc", "/proc");
	mount_at("sysfs", "/sys");
	if (asked_for("beside"))
		trace_another();
	run(argv[0]);
	puts("cost: done");
	fflush(stdout);
	reboot(RB_POWER_OFF);
}
