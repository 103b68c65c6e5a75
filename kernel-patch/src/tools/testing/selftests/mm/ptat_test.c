// SPDX-License-Identifier: GPL-2.0
/*
 * PTAT: does a traced process still see its own memory, does the region agree
 * with the kernel's tables after it did all that changes page tables, and do
 * all tables come back?
 *
 *   ptat_test [-n]	-n: while a trace is recorded: neither read the region
 *			nor change which levels are traced
 *   ptat_test [-r] -d [FILE]
 *			does all go on without the region?  It is given up by
 *			writing 1 to FILE, or by somebody else meanwhile; there
 *			is no way back before the next boot.
 *			-r: read back before TLB flushes, and leave it at that
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/capability.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../kselftest.h"

/* What kselftest.h of older kernels lacks. */
#ifndef __noreturn
#define __noreturn		__attribute((noreturn))
#define __printf(a, b)		__attribute((format(printf, a, b)))
#define ksft_exit_fail_perror(msg)					\
	ksft_exit_fail_msg("%s: %s (%d)\n", msg, strerror(errno), errno)
#endif

#define SYSFS		"/sys/kernel/mm/ptat/"
#define CHECK		"/sys/kernel/debug/ptat/check"
#define CGROUPS		"/sys/fs/cgroup/"
#define CGROUP		CGROUPS "ptat_test/"
#define PAGE		4096UL
#define KB		1024UL
#define MB		(KB * KB)
#define GB		(MB * KB)
#define TABLE_SPAN	(2 * MB)	/* served by a PTE table */

#ifndef MADV_COLD
#define MADV_COLD	20
#define MADV_PAGEOUT	21
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE	25
#endif

static bool recorded;
static const char *program;

/* Ends this child with a word about why. */
static __noreturn __printf(1, 2) void fail(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	printf("# ");
	vprintf(format, args);
	printf("\n");
	va_end(args);
	fflush(stdout);
	_exit(KSFT_FAIL);
}

#define require(condition)						\
	do {								\
		if (!(condition))					\
			fail("line %d: %s (%s)", __LINE__, #condition,	\
			     strerror(errno));				\
	} while (0)

static int write_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY);
	ssize_t n;

	if (fd < 0)
		return -errno;
	n = write(fd, text, strlen(text));
	n = n < 0 ? -errno : 0;
	close(fd);
	return n;
}

static bool read_file(const char *path, char *text, size_t size)
{
	int fd = open(path, O_RDONLY);
	ssize_t n;

	if (fd < 0)
		return false;
	n = read(fd, text, size - 1);
	close(fd);
	if (n < 0)
		return false;
	text[n] = '\0';
	return true;
}

/* The number behind @name in a file of lines "name number". */
static unsigned long number(const char *path, const char *name)
{
	char text[4096], *line, *save;
	size_t length = strlen(name);

	if (!read_file(path, text, sizeof(text)))
		fail("can't read %s: %s", path, strerror(errno));
	for (line = strtok_r(text, "\n", &save); line;
	     line = strtok_r(NULL, "\n", &save))
		if (!strncmp(line, name, length) && line[length] == ' ')
			return strtoul(line + length, NULL, 0);
	fail("no %s in %s", name, path);
}

/* The number in the file @name below @directory. */
static unsigned long file_number(const char *directory, const char *name)
{
	char path[128], text[64];

	snprintf(path, sizeof(path), "%s/%s", directory, name);
	if (!read_file(path, text, sizeof(text)))
		fail("can't read %s: %s", path, strerror(errno));
	return strtoul(text, NULL, 0);
}

static unsigned long stat_number(const char *name)
{
	return file_number(SYSFS "stat", name);
}

static void check_region(void)
{
	unsigned long mismatches;

	if (recorded)
		return;
	mismatches = number(CHECK, "mismatches");
	if (mismatches)
		fail("%lu entries of the region differ", mismatches);
}

static void trace_self(const char *mode)
{
	require(!write_file(SYSFS "self", mode));
}

static bool self_is(const char *mode)
{
	char text[16];

	return read_file(SYSFS "self", text, sizeof(text)) &&
	       text[0] == mode[0];
}

/* Anonymous memory at a multiple of @align. */
static char *area(size_t size, size_t align)
{
	size_t room = size + align;
	char *p = mmap(NULL, room, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	char *start = (char *)(((uintptr_t)p + align - 1) & ~(align - 1));

	require(p != MAP_FAILED);
	if (start > p)
		munmap(p, start - p);
	if (start + size < p + room)
		munmap(start + size, p + room - (start + size));
	return start;
}

static char *small_pages(size_t size)
{
	char *p = area(size, TABLE_SPAN);

	require(!madvise(p, size, MADV_NOHUGEPAGE));
	return p;
}

static char *huge_pages(size_t size)
{
	char *p = area(size, TABLE_SPAN);

	require(!madvise(p, size, MADV_HUGEPAGE));
	return p;
}

static char tag(size_t offset)
{
	return offset / PAGE * 7 + 1;
}

static void fill(char *p, size_t size)
{
	size_t i;

	for (i = 0; i < size; i += PAGE)
		p[i] = tag(i);
}

/* Make the compiler read and write memory, not remember it. */
static void touch_memory(void)
{
	asm volatile("" ::: "memory");
}

static size_t wrong(const char *p, size_t size)
{
	size_t i, count = 0;

	touch_memory();
	for (i = 0; i < size; i += PAGE)
		count += p[i] != tag(i);
	return count;
}

static void wait_for(pid_t pid)
{
	int status;

	require(pid > 0 && waitpid(pid, &status, 0) == pid);
	if (!WIFEXITED(status) || WEXITSTATUS(status))
		fail("child ended with status %#x", status);
}

static void first_touch(void)
{
	char *p = small_pages(32 * MB);

	fill(p, 32 * MB);
	check_region();
	require(!wrong(p, 32 * MB));
	munmap(p, 32 * MB);
	check_region();
}

static void protection(void)
{
	size_t size = 8 * MB;
	char *p = small_pages(size);

	fill(p, size);
	require(!mprotect(p, size, PROT_READ));
	require(!wrong(p, size));
	check_region();
	require(!mprotect(p, size, PROT_NONE));
	check_region();
	require(!mprotect(p, size, PROT_READ | PROT_WRITE));
	require(!wrong(p, size));
	fill(p + PAGE, size - PAGE);
	check_region();
}

static void aging(void)
{
	size_t size = 8 * MB;
	char *p = small_pages(size);

	fill(p, size);
	require(!write_file("/proc/self/clear_refs", "1"));
	check_region();
	require(!wrong(p, size));
	require(!madvise(p, size, MADV_COLD));
	require(!wrong(p, size));
	require(!madvise(p, size, MADV_FREE));
	fill(p, size);
	require(!wrong(p, size));
	require(!madvise(p, size, MADV_DONTNEED));
	require(p[PAGE] == 0);
	check_region();
}

/* Pages without access rights are young or old, too. */
static void aging_without_access(void)
{
	size_t size = 4 * MB;
	char *p = small_pages(size);

	fill(p, size);
	require(!mprotect(p, size, PROT_NONE));
	require(!write_file("/proc/self/clear_refs", "1"));
	check_region();
	require(!mprotect(p, size, PROT_READ | PROT_WRITE));
	require(!wrong(p, size));
}

/* In units of KiB, what was used of the memory since clear_refs. */
/* In KiB. */
static unsigned long rollup(const char *name)
{
	char text[8192], *line;

	require(read_file("/proc/self/smaps_rollup", text, sizeof(text)));
	line = strstr(text, name);
	require(line);
	return strtoul(line + strlen(name), NULL, 10);
}

static unsigned long referenced(void)
{
	return rollup("Referenced:");
}

static void aging_off(void)
{
	size_t size = 4 * MB;
	char *p = small_pages(size);

	if (recorded)
		_exit(KSFT_SKIP);
	fill(p, size);
	require(!write_file(SYSFS "aging", "off"));
	require(!write_file("/proc/self/clear_refs", "1"));
	require(!write_file(SYSFS "aging", "on"));
	require(referenced() >= size / KB);
	require(!write_file("/proc/self/clear_refs", "1"));
	require(referenced() < size / KB);
	require(!wrong(p, size));
	check_region();
}

/* Needs swap space to be of use; harmless without. */
static void swapping(void)
{
	size_t size = 16 * MB;
	char *p = small_pages(size);

	fill(p, size);
	require(!madvise(p, size, MADV_PAGEOUT));
	check_region();
	require(!wrong(p, size));
	check_region();
}

static void migration(void)
{
	size_t size = 8 * MB;
	char *p = small_pages(size), *q = huge_pages(size);

	fill(p, size);
	fill(q, size);
	write_file("/proc/sys/vm/compact_memory", "1");
	require(!wrong(p, size) && !wrong(q, size));
	check_region();
}

static void fork_small(void)
{
	size_t size = 16 * MB;
	char *p = small_pages(size);
	pid_t pid;

	fill(p, size);
	pid = fork();
	if (!pid) {
		require(self_is("2"));
		require(!wrong(p, size));
		memset(p, 0, size / 2);
		check_region();
		require(!wrong(p + size / 2, size / 2));
		_exit(0);
	}
	require(!wrong(p, size));
	wait_for(pid);
	require(!wrong(p, size));
	fill(p, size);
	check_region();
}

static void fork_storm(void)
{
	int i;

	for (i = 0; i < 60; i++) {
		pid_t pid = fork();

		if (!pid) {
			char *p = area(6 * MB, TABLE_SPAN);

			fill(p, 6 * MB);
			if (i % 3 == 0)
				execl(program, program, "--nothing", NULL);
			_exit(wrong(p, 6 * MB) ? KSFT_FAIL : 0);
		}
		require(pid > 0);
		if (i % 4 == 3)
			while (wait(NULL) > 0)
				;
	}
	while (wait(NULL) > 0)
		;
	check_region();
}

static void run_program(const char *option, bool by_vfork)
{
	pid_t pid = by_vfork ? vfork() : fork();

	if (!pid) {
		execl(program, program, option, NULL);
		_exit(127);
	}
	wait_for(pid);
}

static void inherit_children(void)
{
	run_program("--expect-2", false);
	run_program("--expect-2", true);
	execl(program, program, "--expect-2", NULL);
	fail("exec: %s", strerror(errno));
}

static void inherit_process(void)
{
	pid_t pid;

	trace_self("1");
	pid = fork();
	if (!pid)
		_exit(self_is("0") ? 0 : KSFT_FAIL);
	wait_for(pid);
	run_program("--expect-0", false);
	run_program("--expect-0", true);
	execl(program, program, "--expect-1", NULL);
	fail("exec: %s", strerror(errno));
}

static void failing_exec(void)
{
	char path[] = "/tmp/ptat_test.XXXXXX";
	int i, fd = mkstemp(path);

	require(fd >= 0 && write(fd, "\177ELFgarbage", 11) == 11);
	require(!fchmod(fd, 0755));
	close(fd);
	for (i = 0; i < 10; i++)
		require(execl(path, path, NULL) < 0 && errno == ENOEXEC);
	unlink(path);
	require(self_is("2"));
	check_region();
}

static void on_and_off(void)
{
	char *p = small_pages(4 * MB);
	unsigned long allocs;

	fill(p, 2 * MB);
	trace_self("0");
	allocs = stat_number("allocs");
	fill(p + 2 * MB, 2 * MB);
	require(stat_number("allocs") == allocs);
	check_region();
	trace_self("1");
	require(!wrong(p, 2 * MB));
	munmap(p, 4 * MB);
	check_region();
}

/* Root without CAP_SYS_ADMIN may not, be it with a file that was open before. */
static void capability(void)
{
	struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[2] = { 0 };
	int fd = open(SYSFS "self", O_WRONLY);
	char text[256];

	require(fd >= 0);
	require(!syscall(__NR_capget, &header, data));
	data[0].effective &= ~(1U << CAP_SYS_ADMIN);
	require(!syscall(__NR_capset, &header, data));
	require(write(fd, "0", 1) < 0 && errno == EPERM);
	close(fd);
	require(write_file(SYSFS "self", "0") == -EPERM);
	require(write_file(SYSFS "levels", "pte") == -EPERM);
	require(write_file(SYSFS "aging", "off") == -EPERM);
	require(write_file(SYSFS "marker", "1") == -EPERM);
	require(write_file(SYSFS "secureexec", "on") == -EPERM);
	require(!read_file(SYSFS "region/base", text, sizeof(text)));
	require(self_is("2"));
}

static void mremap_pages(void)
{
	size_t size = 8 * MB;
	char *p = small_pages(size), *q = area(size + TABLE_SPAN, TABLE_SPAN);

	fill(p, size);
	q += 3 * PAGE;
	require(mremap(p, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, q) == q);
	require(!wrong(q, size));
	check_region();
}

static void mremap_tables(void)
{
	size_t size = 16 * MB;
	char *p = small_pages(size), *q = area(size, TABLE_SPAN);

	fill(p, size);
	require(mremap(p, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, q) == q);
	require(!wrong(q, size));
	check_region();
}

static void mremap_pmd_table(void)
{
	char *p = area(GB, GB), *q = area(GB, GB);
	size_t i;

	require(!madvise(p, GB, MADV_NOHUGEPAGE));
	for (i = 0; i < GB; i += TABLE_SPAN)
		p[i + 5 * PAGE] = tag(i);
	require(mremap(p, GB, GB, MREMAP_MAYMOVE | MREMAP_FIXED, q) == q);
	for (i = 0; i < GB; i += TABLE_SPAN)
		require(q[i + 5 * PAGE] == tag(i));
	check_region();
	/* New tables below the moved one. */
	munmap(q, 4 * TABLE_SPAN);
	p = mmap(q, 4 * TABLE_SPAN, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	require(p == q);
	fill(p, 4 * TABLE_SPAN);
	require(!wrong(p, 4 * TABLE_SPAN));
	check_region();
}

static void thp(void)
{
	size_t size = 16 * MB, i;
	char *p = huge_pages(size), *q;
	char *zero;
	pid_t pid;

	fill(p, size);
	check_region();
	require(!mprotect(p + 7 * PAGE, PAGE, PROT_READ));
	require(!wrong(p, size));
	munmap(p + TABLE_SPAN + 9 * PAGE, PAGE);
	require(!wrong(p, TABLE_SPAN + 9 * PAGE));
	check_region();

	pid = fork();
	if (!pid) {
		require(!wrong(p + 4 * MB, size - 4 * MB));
		memset(p + 4 * MB, 0, TABLE_SPAN);
		check_region();
		_exit(0);
	}
	wait_for(pid);
	require(!wrong(p + 4 * MB, size - 4 * MB));

	require(!mprotect(p + 4 * MB, 4 * MB, PROT_NONE));
	check_region();
	require(!mprotect(p + 4 * MB, 4 * MB, PROT_READ | PROT_WRITE));
	require(!wrong(p + 4 * MB, size - 4 * MB));

	q = area(8 * MB, TABLE_SPAN);
	require(mremap(p + 4 * MB, 8 * MB, 8 * MB,
		       MREMAP_MAYMOVE | MREMAP_FIXED, q) == q);
	for (i = 0; i < 8 * MB; i += PAGE)
		require(q[i] == tag(i + 4 * MB));
	check_region();

	zero = huge_pages(4 * MB);
	for (i = 0; i < 4 * MB; i += PAGE)
		require(zero[i] == 0);
	zero[PAGE] = 1;
	zero[TABLE_SPAN + PAGE] = 1;
	touch_memory();
	require(zero[0] == 0 && zero[PAGE] == 1 && zero[2 * PAGE] == 0);
	check_region();
}

static void collapse(void)
{
	size_t size = 8 * MB;
	char *p = small_pages(size), *shared;
	int fd;

	fill(p, size);
	require(!madvise(p, size, MADV_HUGEPAGE));
	require(!madvise(p, size, MADV_COLLAPSE));
	require(!wrong(p, size));
	check_region();
	require(!madvise(p + MB, PAGE, MADV_DONTNEED));
	require(p[MB] == 0);
	check_region();

	fd = memfd_create("ptat_test", 0);
	require(fd >= 0 && !ftruncate(fd, size));
	shared = area(size, TABLE_SPAN);
	require(mmap(shared, size, PROT_READ | PROT_WRITE,
		     MAP_SHARED | MAP_FIXED, fd, 0) == shared);
	fill(shared, size);
	/* It may be refused; what counts is what the tables hold then. */
	madvise(shared, size, MADV_COLLAPSE);
	require(!wrong(shared, size));
	close(fd);
	check_region();
}

static char *map_hugetlb(int fd)
{
	char *p = mmap(area(GB, GB), GB, PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd, 0);

	require(p != MAP_FAILED);
	return p;
}

static void hugetlb(void)
{
	unsigned long allocs;
	char *p, *q;
	pid_t pid;
	int fd;

	if (write_file("/proc/sys/vm/nr_hugepages", "16"))
		_exit(KSFT_SKIP);
	fd = memfd_create("ptat_test", MFD_HUGETLB);
	require(fd >= 0 && !ftruncate(fd, GB));
	p = map_hugetlb(fd);
	p[0] = 1;
	p[2 * MB] = 2;
	p[4 * MB] = 3;
	check_region();
	pid = fork();
	if (!pid) {
		require(p[0] == 1 && p[2 * MB] == 2 && p[4 * MB] == 3);
		p[6 * MB] = 9;
		check_region();
		_exit(0);
	}
	wait_for(pid);
	require(p[6 * MB] == 9);

	/* Others would share the PMD table now. */
	q = map_hugetlb(fd);
	allocs = stat_number("allocs");
	require(q[2 * MB] == 2);
	require(stat_number("allocs") == allocs + 1);

	require(!mprotect(p, 8 * MB, PROT_READ));
	check_region();
	require(!mprotect(p, 8 * MB, PROT_READ | PROT_WRITE));
	p[0] = 2;
	require(q[0] == 2);
	munmap(p, GB);
	munmap(q, GB);
	close(fd);
	write_file("/proc/sys/vm/nr_hugepages", "0");
	check_region();
}

static void *churn(void *arg)
{
	char *p = small_pages(4 * MB);
	int i;

	for (i = 0; i < 20; i++) {
		fill(p, 4 * MB);
		require(!wrong(p, 4 * MB));
		require(!madvise(p, 4 * MB, MADV_DONTNEED));
	}
	munmap(p, 4 * MB);
	return NULL;
}

static void threads(void)
{
	pthread_t thread[8];
	int i;

	for (i = 0; i < 8; i++)
		require(!pthread_create(&thread[i], NULL, churn, NULL));
	/* The region is compared while entries change. */
	check_region();
	for (i = 0; i < 8; i++)
		require(!pthread_join(thread[i], NULL));
	check_region();
}

static void userfault_wp(void)
{
	struct uffdio_api api = { .api = UFFD_API };
	size_t size = 4 * MB;
	char *p = small_pages(size);
	struct uffdio_register reg = {
		.range = { (uintptr_t)p, size },
		.mode = UFFDIO_REGISTER_MODE_WP,
	};
	struct uffdio_writeprotect wp = {
		.range = { (uintptr_t)p, size },
		.mode = UFFDIO_WRITEPROTECT_MODE_WP,
	};
	int fd = syscall(__NR_userfaultfd, O_CLOEXEC);

	if (fd < 0)
		_exit(KSFT_SKIP);
	fill(p, size);
	require(!ioctl(fd, UFFDIO_API, &api));
	require(!ioctl(fd, UFFDIO_REGISTER, &reg));
	require(!ioctl(fd, UFFDIO_WRITEPROTECT, &wp));
	check_region();
	require(!wrong(p, size));
	wp.mode = 0;
	require(!ioctl(fd, UFFDIO_WRITEPROTECT, &wp));
	fill(p, size);
	close(fd);
	check_region();
}

static void remote_access(void)
{
	size_t size = MB;
	char *p = small_pages(size), buffer[PAGE];
	struct iovec local = { buffer, PAGE };
	struct iovec remote = { p + 10 * PAGE, PAGE };
	pid_t pid;

	fill(p, size);
	pid = fork();
	if (!pid) {
		pause();
		_exit(0);
	}
	require(process_vm_readv(pid, &local, 1, &remote, 1, 0) == PAGE);
	require(buffer[0] == tag(10 * PAGE));
	buffer[0]++;
	require(process_vm_writev(pid, &local, 1, &remote, 1, 0) == PAGE);
	require(!wrong(p, size));
	check_region();
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

/* One page in each of more tables than there are. */
static void region_full(void)
{
	unsigned long tables = stat_number("pages") + 64;
	unsigned long before = stat_number("fallbacks");
	size_t i, size = tables * TABLE_SPAN;
	char *p = small_pages(size);

	if (tables > 32 * KB)
		_exit(KSFT_SKIP);
	for (i = 0; i < size; i += TABLE_SPAN)
		p[i + PAGE] = tag(i);
	require(stat_number("fallbacks") > before);
	for (i = 0; i < size; i += TABLE_SPAN)
		require(p[i + PAGE] == tag(i));
	check_region();

	/* PMD tables still find room. */
	before = stat_number("allocs");
	area(GB, GB)[0] = 1;
	require(stat_number("allocs") > before);
	munmap(p, size);

	before = stat_number("fallbacks");
	first_touch();
	require(stat_number("fallbacks") == before);
}

static void pte_level_only(void)
{
	pid_t pid;
	int status;

	if (recorded)
		_exit(KSFT_SKIP);
	require(!write_file(SYSFS "levels", "pte"));
	pid = fork();
	if (!pid) {
		first_touch();
		thp();
		mremap_tables();
		mremap_pmd_table();
		_exit(0);
	}
	waitpid(pid, &status, 0);
	require(!write_file(SYSFS "levels", "pte+pmd"));
	require(!status);
}

/*
 * memory.stat lags: it is summed up every two seconds, and what a freed table
 * was charged may come back only after a grace period.
 */
static bool memory_stat(const char *key, unsigned long least, unsigned long most)
{
	unsigned long value;
	int tries;

	for (tries = 0; tries < 100; tries++) {
		value = number(CGROUP "memory.stat", key);
		if (value >= least && value <= most)
			return true;
		usleep(50 * 1000);
	}
	return false;
}

/* Tables from the region are charged as others are. */
static void memory_cgroup(void)
{
	size_t i, size = 256 * TABLE_SPAN;
	char *p;

	if (write_file(CGROUPS "cgroup.subtree_control", "+memory") ||
	    (mkdir(CGROUP, 0755) && errno != EEXIST))
		_exit(KSFT_SKIP);
	require(!write_file(CGROUP "cgroup.procs", "0"));
	p = small_pages(size);
	for (i = 0; i < size; i += TABLE_SPAN)
		p[i] = 1;
	require(memory_stat("pagetables", 256 * PAGE, ULONG_MAX));
	require(memory_stat("kernel", 256 * PAGE, ULONG_MAX));
	munmap(p, size);
	require(memory_stat("pagetables", 0, 128 * PAGE));
	require(memory_stat("kernel", 0, 128 * PAGE));
	require(!write_file(CGROUPS "cgroup.procs", "0"));
	rmdir(CGROUP);
}

static void control(void)
{
	unsigned long seq = stat_number("seq");

	require(!write_file(SYSFS "marker", "42"));
	require(stat_number("seq") > seq);
	require(write_file(SYSFS "marker", "x") == -EINVAL);
	require(write_file(SYSFS "self", "3") == -EINVAL);
	require(write_file(SYSFS "levels", "pud") == -EINVAL);
	require(write_file(SYSFS "marker_access", "both") == -EINVAL);
	require(write_file(SYSFS "aging", "perhaps") == -EINVAL);
	require(write_file(SYSFS "readback", "perhaps") == -EINVAL);
	require(write_file(SYSFS "detach", "0") == -EINVAL);
	require(!stat_number("detached"));
	require(write_file(SYSFS "secureexec", "perhaps") == -EINVAL);
	require(file_number(SYSFS "region", "marker_slots") == 1024);
	require(file_number(SYSFS "region", "marker_stride") == 64);
	require(file_number(SYSFS "region", "size") == (stat_number("pages") + 16) * PAGE);
	require(!seteuid(65534));
	require(access(SYSFS "self", F_OK) == 0 &&
		open(SYSFS "self", O_RDWR) < 0 && errno == EACCES);
	require(open(SYSFS "marker", O_WRONLY) < 0 && errno == EACCES);
	require(open(SYSFS "stat/used", O_RDONLY) < 0 && errno == EACCES);
}

/* Runs @path as nobody; what it exits with must be 0. */
static void run_as_nobody(const char *path, const char *argument)
{
	pid_t pid = fork();

	if (!pid) {
		require(!setresuid(65534, 65534, 65534));
		execl(path, path, argument, NULL);
		fail("exec %s: %s", path, strerror(errno));
	}
	wait_for(pid);
}

/* Tracing ends where a program gains privileges, unless root wants it to go on. */
static void set_uid_program(void)
{
	char path[] = "/tmp/ptat_test.XXXXXX", text[64];
	unsigned long before = stat_number("secureexecs");
	int from = open(program, O_RDONLY), to = mkstemp(path);
	struct stat st;
	void *image;

	require(from >= 0 && to >= 0 && !fstat(from, &st));
	image = mmap(NULL, st.st_size, PROT_READ, MAP_PRIVATE, from, 0);
	require(image != MAP_FAILED && write(to, image, st.st_size) == st.st_size);
	require(!fchmod(to, 04755));
	close(to);
	close(from);

	run_as_nobody(path, "--expect-0");
	require(stat_number("secureexecs") == before + 1);
	check_region();
	require(!write_file(SYSFS "secureexec", "on"));
	run_as_nobody(path, "--expect-2");
	require(!write_file(SYSFS "secureexec", "off"));
	require(stat_number("secureexecs") == before + 1);
	require(read_file(SYSFS "secureexec", text, sizeof(text)) && !strcmp(text, "off\n"));
	unlink(path);
	require(self_is("2"));
}

/* The tables that wait for the split of a huge page are not the region's. */
static void huge_pages_without_tables(void)
{
	size_t i, size = 64 * TABLE_SPAN;
	char *p = huge_pages(size);
	unsigned long used;

	p[0] = 1;
	used = stat_number("used");
	for (i = 0; i < size; i += TABLE_SPAN)
		p[i] = tag(i);
	if (rollup("AnonHugePages:") < size / KB)
		_exit(KSFT_SKIP);
	require(stat_number("used") < used + 8);

	/* Split one, and collapse it again. */
	used = stat_number("used");
	require(!mprotect(p + PAGE, PAGE, PROT_READ));
	require(stat_number("used") > used);
	require(p[0] == tag(0));
	check_region();
	require(!mprotect(p + PAGE, PAGE, PROT_READ | PROT_WRITE));
	/* Tables of what the checks above have mapped stay. */
	used = stat_number("used");
	if (madvise(p, TABLE_SPAN, MADV_COLLAPSE))
		_exit(KSFT_SKIP);
	require(stat_number("used") < used);
	for (i = 0; i < size; i += TABLE_SPAN)
		require(p[i] == tag(i));
	check_region();
}

/* The region is detached while the machine sleeps, and used again after that. */
static void sleeping(void)
{
	size_t size = 8 * MB;
	char *p = small_pages(size), *other;
	unsigned long detaches = stat_number("detaches"), allocs;

	if (recorded || write_file("/sys/power/pm_test", "devices"))
		_exit(KSFT_SKIP);
	write_file("/sys/module/suspend/parameters/pm_test_delay", "1");
	fill(p, size);
	require(!write_file("/sys/power/state", "freeze"));
	require(!write_file("/sys/power/pm_test", "none"));
	require(stat_number("detaches") == detaches + 1);
	require(!stat_number("detached"));
	require(!wrong(p, size));
	check_region();

	/* The hardware walks the region again: it sets no accessed bits in the twins. */
	require(!write_file("/proc/self/clear_refs", "1"));
	other = small_pages(MB);
	fill(other, MB);
	munmap(other, MB);	/* flushes the TLB */
	require(!wrong(p, size));
	require(referenced() < size / KB);
	allocs = stat_number("allocs");
	first_touch();
	require(stat_number("allocs") > allocs);
	check_region();
}

/* What else is there to see that reads come before flushes, on a CPU? */
static void readback(void)
{
	char text[16], before[16];

	if (recorded)
		_exit(KSFT_SKIP);
	require(read_file(SYSFS "readback", before, sizeof(before)));
	require(!write_file(SYSFS "readback", "on"));
	require(read_file(SYSFS "readback", text, sizeof(text)) &&
		!strcmp(text, "on\n"));
	threads();
	protection();
	mremap_tables();
	thp();
	/* A region that is a device needs it. */
	require(!write_file(SYSFS "readback", before));
	require(read_file(SYSFS "readback", text, sizeof(text)) &&
		!strcmp(text, before));
}

/* That it is a load, a recorder sees. */
static void marks_by_load(void)
{
	unsigned long seq = stat_number("seq");
	char text[16];

	if (recorded)
		_exit(KSFT_SKIP);
	require(!write_file(SYSFS "marker_access", "load"));
	require(read_file(SYSFS "marker_access", text, sizeof(text)) &&
		!strcmp(text, "load\n"));
	first_touch();
	threads();
	require(stat_number("seq") > seq);
	require(!write_file(SYSFS "marker_access", "store"));
	check_region();
}

static bool detached;

static void *churn_until_detached(void *arg)
{
	while (!__atomic_load_n(&detached, __ATOMIC_RELAXED))
		churn(NULL);
	return NULL;
}

/* At no time may what is dropped be seen any more. */
static void *drop_until_detached(void *arg)
{
	/* In a table that nothing else has brought. */
	char *p = small_pages(4 * MB) + 2 * MB;

	while (!__atomic_load_n(&detached, __ATOMIC_RELAXED)) {
		p[0] = 1;
		require(!madvise(p, PAGE, MADV_DONTNEED));
		touch_memory();
		require(!p[0]);
	}
	return NULL;
}

/*
 * Takes the tables back for good: to be asked for.  With a file, what does it
 * is to write 1 there; without, somebody else.
 */
static void detach_region(const char *file)
{
	size_t size = 8 * MB;
	char *p = small_pages(size), *huge = huge_pages(size);
	pthread_t thread[6];
	char text[64];
	int i, tries = 3000;

	fill(p, size);
	fill(huge, size);
	for (i = 0; i < 6; i++)
		require(!pthread_create(&thread[i], NULL,
					i < 2 ? churn_until_detached :
						drop_until_detached, NULL));
	/* Let them come to where tables come and go. */
	usleep(500000);
	if (file)
		require(!write_file(file, "1"));
	else
		ksft_print_msg("waiting for the region to go\n");
	while (!stat_number("detached") && --tries) {
		require(!wrong(p, size));
		run_program("--nothing", false);
		usleep(10000);
	}
	__atomic_store_n(&detached, true, __ATOMIC_RELAXED);
	for (i = 0; i < 6; i++)
		require(!pthread_join(thread[i], NULL));
	require(tries);
	require(!wrong(p, size) && !wrong(huge, size));

	/* From here on it is the hardware again that sets accessed bits. */
	require(!write_file("/proc/self/clear_refs", "1"));
	require(referenced() < size / KB);
	/* That has not flushed the TLB; this does. */
	require(!mprotect(p, size, PROT_READ));
	require(!mprotect(p, size, PROT_READ | PROT_WRITE));
	require(!wrong(p, size) && !wrong(huge, size));
	require(referenced() >= size / KB);

	require(write_file(SYSFS "self", "1") == -ENODEV);
	require(!read_file(SYSFS "region/base", text, sizeof(text)) && errno == ENODEV);
	if (!recorded)
		require(!read_file(CHECK, text, sizeof(text)) && errno == ENODEV);
	/* All that moves, makes and frees tables goes on. */
	recorded = true;
	fork_small();
	fork_storm();
	mremap_tables();
	mremap_pmd_table();
	thp();
	collapse();
	require(!write_file(SYSFS "self", "0"));
}

static const struct {
	const char *name;
	void (*run)(void);
} tests[] = {
	{ "control", control },
	{ "first touch", first_touch },
	{ "protection", protection },
	{ "aging", aging },
	{ "aging without access", aging_without_access },
	{ "aging off", aging_off },
	{ "swap", swapping },
	{ "migration", migration },
	{ "fork", fork_small },
	{ "fork storm", fork_storm },
	{ "self 2 reaches children", inherit_children },
	{ "self 1 stays in the process", inherit_process },
	{ "failing exec", failing_exec },
	{ "on and off", on_and_off },
	{ "capability", capability },
	{ "mremap pages", mremap_pages },
	{ "mremap tables", mremap_tables },
	{ "mremap 1G", mremap_pmd_table },
	{ "huge pages", thp },
	{ "collapse", collapse },
	{ "hugetlb", hugetlb },
	{ "threads", threads },
	{ "userfaultfd", userfault_wp },
	{ "remote access", remote_access },
	{ "region full", region_full },
	{ "PTE level only", pte_level_only },
	{ "memory cgroup", memory_cgroup },
	{ "set-uid program", set_uid_program },
	{ "huge pages without tables", huge_pages_without_tables },
	{ "sleep", sleeping },
	{ "read back", readback },
	{ "marks by load", marks_by_load },
};

/* In a traced child; all but detaching is one of the tests. */
static void run(unsigned int i, const char *detach_by)
{
	const char *name = i < ARRAY_SIZE(tests) ? tests[i].name : "detaching";
	pid_t pid;
	int status;

	fflush(stdout);
	pid = fork();
	if (!pid) {
		trace_self("2");
		if (i < ARRAY_SIZE(tests))
			tests[i].run();
		else
			detach_region(detach_by);
		_exit(0);
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		ksft_exit_fail_perror("fork");
	if (WIFEXITED(status) && WEXITSTATUS(status) == KSFT_SKIP)
		ksft_test_result_skip("%s\n", name);
	else
		ksft_test_result(!status, "%s\n", name);
}

/* When no traced process is left. */
static void all_came_back(void)
{
	unsigned long used, allocs, frees;

	if (!self_is("0")) {
		ksft_test_result_skip("all tables came back: this process has some\n");
		return;
	}
	used = stat_number("used");
	allocs = stat_number("allocs");
	frees = stat_number("frees");
	ksft_print_msg("used %lu allocs %lu frees %lu\n", used, allocs, frees);
	ksft_test_result(!used && allocs && allocs == frees,
			 "all tables came back\n");
}

int main(int argc, char **argv)
{
	bool only_detach = false;
	unsigned int i;
	int option;

	program = "/proc/self/exe";
	if (argc > 1 && !strcmp(argv[1], "--nothing"))
		return 0;
	if (argc > 1 && !strncmp(argv[1], "--expect-", 9))
		return self_is(argv[1] + 9) ? 0 : KSFT_FAIL;
	while ((option = getopt(argc, argv, "ndr")) != -1) {
		switch (option) {
		case 'n':
			recorded = true;
			break;
		case 'd':
			only_detach = true;
			break;
		case 'r':
			require(!write_file(SYSFS "readback", "on"));
			break;
		default:
			return KSFT_FAIL;
		}
	}

	ksft_print_header();
	if (geteuid())
		ksft_exit_skip("needs root\n");
	if (access(SYSFS, F_OK))
		ksft_exit_skip("no " SYSFS ": boot with ptat=SIZE\n");
	if (!recorded && access(CHECK, F_OK))
		ksft_exit_skip("no " CHECK ": mount debugfs, or use -n\n");

	ksft_set_plan(only_detach ? 2 : ARRAY_SIZE(tests) + 1);
	if (only_detach)
		run(ARRAY_SIZE(tests), argv[optind]);
	else
		for (i = 0; i < ARRAY_SIZE(tests); i++)
			run(i, NULL);
	all_came_back();
	ksft_finished();
}
