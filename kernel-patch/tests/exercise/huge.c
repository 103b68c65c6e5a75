// SPDX-License-Identifier: BSD-2-Clause
/* Huge pages of all kinds. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/loop.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "exercise.h"

#define THP	   "/sys/kernel/mm/transparent_hugepage/"
#define DISK_IMAGE "/disk.img"
#define WAIT_TRIES 500
#define WAIT_US	   20000

/* Pages that the kernel has mapped huge here, as a number of KiB. */
static long huge_kib(void)
{
	return number("/proc/self/smaps_rollup", "AnonHugePages");
}

/* ---- Anonymous ---- */

static void faults_and_splits(void)
{
	size_t size = 16 * MB;
	char *p = huge_pages(size), *zero = huge_pages(4 * MB);
	pid_t pid;

	fill(p, size, 1);
	require(huge_kib() >= (long)(size / 1024));
	/* The huge zero page, and a write to it. */
	for (size_t i = 0; i < 4 * MB; i += PAGE)
		require(!zero[i]);
	zero[5 * PAGE] = 1;
	require(!zero[4 * PAGE] && zero[5 * PAGE]);

	/* Ways to split. */
	require(!mprotect(p + 7 * PAGE, PAGE, PROT_READ));
	require(!munmap(p + TABLE_SPAN + 9 * PAGE, PAGE));
	require(!madvise(p + 2 * TABLE_SPAN + 3 * PAGE, 5 * PAGE, MADV_DONTNEED));
	require(mremap(p + 3 * TABLE_SPAN + PAGE, MB, MB, MREMAP_MAYMOVE | MREMAP_FIXED,
		       area(4 * MB, TABLE_SPAN)) != MAP_FAILED);
	require(!madvise(p + 4 * TABLE_SPAN + PAGE, PAGE, MADV_FREE));
	require(!madvise(p + 5 * TABLE_SPAN, TABLE_SPAN, MADV_PAGEOUT));
	require(!mlock(p + 6 * TABLE_SPAN, PAGE));
	check_fill(p, TABLE_SPAN + 9 * PAGE, 1);
	require(!p[2 * TABLE_SPAN + 3 * PAGE]);

	/* Copies of huge pages. */
	pid = fork();
	if (!pid) {
		fill(p + 6 * TABLE_SPAN, 2 * TABLE_SPAN, 2);
		_exit(0);
	}
	finish(pid);
	pid = fork();
	if (!pid)
		_exit(0);
	finish(pid);
	fill(p + 6 * TABLE_SPAN, 2 * TABLE_SPAN, 3);
	check_fill(p + 6 * TABLE_SPAN, 2 * TABLE_SPAN, 3);
	require(!mprotect(p + 7 * TABLE_SPAN, TABLE_SPAN, PROT_NONE));
	require(!mprotect(p + 7 * TABLE_SPAN, TABLE_SPAN, PROT_READ | PROT_WRITE));
	check_fill(p + 6 * TABLE_SPAN, 2 * TABLE_SPAN, 3);
}

static void collapse(char *p, size_t size)
{
	for (size_t i = 0; i < size; i += TABLE_SPAN)
		if (madvise(p + i, TABLE_SPAN, MADV_COLLAPSE))
			/* Pages are on some list of a CPU's: again. */
			require(errno == EAGAIN || errno == EBUSY || errno == EINVAL);
}

static void collapsing(void)
{
	size_t size = 8 * MB;
	char *p = area(size, TABLE_SPAN);
	pid_t pid;

	/* Full, with holes, with pages shared with a child, with pages swapped out. */
	fill(p, TABLE_SPAN, 1);
	fill(p + TABLE_SPAN, 7 * PAGE, 2);
	fill(p + 2 * TABLE_SPAN, TABLE_SPAN, 3);
	fill(p + 3 * TABLE_SPAN, TABLE_SPAN, 4);
	pid = fork();
	if (!pid) {
		fill(p + 2 * TABLE_SPAN, 10 * PAGE, 5);
		collapse(p, size);
		check_fill(p + 2 * TABLE_SPAN, 10 * PAGE, 5);
		check_fill(p + 3 * TABLE_SPAN, TABLE_SPAN, 4);
		_exit(0);
	}
	finish(pid);
	require(!madvise(p + 3 * TABLE_SPAN, 20 * PAGE, MADV_PAGEOUT));
	for (int i = 0; i < 6; i++) {
		collapse(p, size);
		check_fill(p, TABLE_SPAN, 1);
		check_fill(p + TABLE_SPAN, 7 * PAGE, 2);
		check_fill(p + 2 * TABLE_SPAN, TABLE_SPAN, 3);
		check_fill(p + 3 * TABLE_SPAN, TABLE_SPAN, 4);
		/* Tables that were put aside come back. */
		require(!mprotect(p + (i * 77 % 2048) * PAGE, PAGE, PROT_READ));
		require(!mprotect(p, size, PROT_READ | PROT_WRITE));
	}
}

/* By the kernel's own thread, while the process goes on. */
static void khugepaged(void)
{
	size_t size = 16 * MB;
	char *p = small_pages(size);
	int tries;

	set_for_now(THP "khugepaged/scan_sleep_millisecs", "0");
	set_for_now(THP "khugepaged/alloc_sleep_millisecs", "0");
	set_for_now(THP "khugepaged/pages_to_scan", "65536");
	fill(p, size, 1);
	require(!madvise(p, size, MADV_HUGEPAGE));
	for (tries = 0; huge_kib() < (long)(size / 2048) && tries < WAIT_TRIES; tries++) {
		fill(p, size, tries);
		check_fill(p, size, tries);
		usleep(WAIT_US);
	}
	require(tries < WAIT_TRIES);
	fill(p, size, 1);
	check_fill(p, size, 1);
}

static void split_by_debugfs(void)
{
	size_t size = 8 * MB;
	char *p = huge_pages(size), line[128];

	fill(p, size, 1);
	snprintf(line, sizeof(line), "%d,%p,%p", getpid(), (void *)p, (void *)(p + size));
	for (int i = 0; i < 3; i++) {
		if (!try_put(DEBUGFS "split_huge_pages", line))
			skip("no split_huge_pages");
		check_fill(p, size, 1);
		require(huge_kib() == 0);
		collapse(p, size);
		check_fill(p, size, 1);
	}
	fill(p, size, 2);
	check_fill(p, size, 2);
}

static void move_huge(void)
{
	size_t size = 8 * MB;
	char *p = huge_pages(size), *q = area(3 * size, TABLE_SPAN);

	fill(p, size, 1);
	require(mremap(p, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, q) == q);
	check_fill(q, size, 1);
	require(mremap(q, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, q + size + PAGE) ==
		q + size + PAGE);
	check_fill(q + size + PAGE, size, 1);
	p = area(GB, GB);
	require(!madvise(p, GB, MADV_HUGEPAGE));
	fill(p, size, 2);
	q = area(GB, GB);
	require(mremap(p, GB, GB, MREMAP_MAYMOVE | MREMAP_FIXED, q) == q);
	check_fill(q, size, 2);
	require(!mprotect(q + PAGE, PAGE, PROT_READ));
	check_fill(q, size, 2);
}

/* ---- Files ---- */

static void shared_memory(void)
{
	size_t size = 8 * MB;
	char path[64], *p, *q;
	pid_t pid;
	int fd;

	snprintf(path, sizeof(path), "%s/file", mount_new("tmpfs", "tmpfs", "huge=always"));
	fd = open(path, O_RDWR | O_CREAT, 0600);
	require(fd >= 0 && !ftruncate(fd, size));
	p = area(2 * size, TABLE_SPAN);
	q = p + size;
	require(mmap(p, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == p);
	require(mmap(q, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, fd, 0) == q);
	fill(p, size, 1);
	require(number("/proc/self/smaps_rollup", "ShmemPmdMapped") > 0);
	check_fill(q, size, 1);
	fill(q, MB, 2);
	check_fill(p, size, 1);
	check_fill(q, MB, 2);
	require(!mprotect(p + 5 * PAGE, PAGE, PROT_READ));
	pid = fork();
	if (!pid) {
		check_fill(p, size, 1);
		fill(p + TABLE_SPAN, TABLE_SPAN, 3);
		_exit(0);
	}
	finish(pid);
	check_fill(p + TABLE_SPAN, TABLE_SPAN, 3);
	require(!mprotect(p, size, PROT_READ | PROT_WRITE));
	collapse(p, size);
	require(!fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 2 * TABLE_SPAN, MB));
	require(!p[2 * TABLE_SPAN]);
	require(!madvise(p + 3 * TABLE_SPAN, TABLE_SPAN, MADV_REMOVE));
	require(!p[3 * TABLE_SPAN]);
	require(!madvise(p, size, MADV_PAGEOUT));
	check_fill(p, TABLE_SPAN, 1);
	require(!ftruncate(fd, TABLE_SPAN + 3 * PAGE));
	check_fill(p, TABLE_SPAN, 1);
	check_fill(q, MB, 2);
}

/* Tables of all who map a file go when it becomes huge, and come back when it no longer is. */
static void collapse_shared(void)
{
	size_t size = 4 * MB;
	int fd = memfd_create("collapse", 0), go[2];
	char *p = area(size, TABLE_SPAN), c;
	pid_t pids[8];

	require(fd >= 0 && !ftruncate(fd, size) && !pipe(go));
	require(mmap(p, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == p);
	fill(p, size, 1);
	for (int i = 0; i < 8; i++) {
		pids[i] = fork();
		if (!pids[i]) {
			close(go[1]);
			check_fill(p, size, 1);
			(void)!read(go[0], &c, 1);
			check_fill(p, size, 1);
			madvise(p, size, MADV_DONTNEED);
			check_fill(p, size, 1);
			_exit(0);
		}
		require(pids[i] > 0);
	}
	usleep(100000);
	for (int i = 0; i < 4; i++) {
		collapse(p, size);
		check_fill(p, size, 1);
		require(!madvise(p + TABLE_SPAN, 3 * PAGE, MADV_PAGEOUT));
	}
	close(go[1]);
	for (int i = 0; i < 8; i++)
		finish(pids[i]);
}

/* The image of a file system, as a block device. */
static char *disk(void)
{
	struct loop_config config = { 0 };
	static char path[32];
	int number, control = open("/dev/loop-control", O_RDWR), fd;

	config.fd = open(DISK_IMAGE, O_RDWR);
	if (control < 0 || (int)config.fd < 0)
		skip("no disk");
	config.info.lo_flags = LO_FLAGS_AUTOCLEAR;
	number = ioctl(control, LOOP_CTL_GET_FREE);
	require(number >= 0);
	snprintf(path, sizeof(path), "/dev/loop%d", number);
	fd = open(path, O_RDWR);
	require(fd >= 0 && !ioctl(fd, LOOP_CONFIGURE, &config));
	return path;
}

static void file_on_disk(void)
{
	size_t size = 4 * MB;
	char path[64], *p, *q;
	int fd;

	snprintf(path, sizeof(path), "%s/file", mount_new("ext4", disk(), NULL));
	fd = open(path, O_RDWR | O_CREAT, 0700);
	require(fd >= 0 && !ftruncate(fd, size));
	p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	require(p != MAP_FAILED);
	fill(p, size, 1);
	/* Written back pages are clean: they are write-protected, and fault again. */
	for (int i = 1; i < 4; i++) {
		require(!msync(p, size, MS_SYNC));
		check_fill(p, size, i);
		fill(p, size, i + 1);
	}
	require(!msync(p, size, MS_SYNC));
	munmap(p, size);
	close(fd);

	/* Read-only and executable, it may become huge. */
	fd = open(path, O_RDONLY);
	p = area(2 * size, TABLE_SPAN);
	q = p + size;
	require(mmap(p, size, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED, fd, 0) == p);
	require(mmap(q, size, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0) == q);
	check_fill(p, size, 4);
	check_fill(q, size, 4);
	for (int i = 0; i < 3; i++) {
		collapse(p, size);
		check_fill(p, size, 4);
		check_fill(q, size, 4);
	}
	require(!mprotect(p, size, PROT_READ | PROT_WRITE));
	fill(p, MB, 5);
	check_fill(q, size, 4);
	close(fd);
	/* Who writes to it ends that. */
	fd = open(path, O_RDWR);
	require(fd >= 0 && pwrite(fd, "x", 1, 3 * PAGE + 100) == 1);
	check_fill(q, size, 4);
	require(q[3 * PAGE + 100] == 'x');
	check_fill(p, MB, 5);
	/* Private copies of what lies behind the new end go, too. */
	require(!ftruncate(fd, PAGE));
	check_fill(q, PAGE, 4);
	check_fill(p, PAGE, 5);
	unlink(path);
}

/* ---- hugetlb ---- */

#define HUGETLB(name) "/sys/kernel/mm/hugepages/hugepages-" name "/nr_hugepages"

static void *map_hugetlb(size_t size, int flags)
{
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_HUGETLB | flags, -1, 0);

	if (p == MAP_FAILED)
		skip("no huge pages of this size");
	return p;
}

static void hugetlb_of_size(size_t page, int flag)
{
	size_t size = page;
	int fd = memfd_create("hugetlb", MFD_HUGETLB | flag);
	char *p = map_hugetlb(size, MAP_PRIVATE | MAP_ANONYMOUS | flag);
	pid_t pid;

	fill(p, 4 * MB < size ? 4 * MB : size, 1);
	require(!mprotect(p, size, PROT_READ));
	check_fill(p, PAGE, 1);
	require(!mprotect(p, size, PROT_READ | PROT_WRITE));
	/*
	 * Of 1 GiB, Linux 6.12.95 at times copies nothing, patched or not: it takes what its page
	 * held before for the new PUD table's count of sharers, which only PMD tables have.
	 */
	pid = fork();
	if (!pid) {
		if (page < GB)
			check_fill(p, MB, 1);
		_exit(0);
	}
	finish(pid);
	fill(p, MB, 2);
	check_fill(p, MB, 2);
	munmap(p, size);

	require(fd >= 0 && !ftruncate(fd, size));
	p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	require(p != MAP_FAILED);
	fill(p, MB, 3);
	pid = fork();
	if (!pid) {
		check_fill(p, MB, 3);
		fill(p, MB, 4);
		_exit(0);
	}
	finish(pid);
	check_fill(p, MB, 4);
	require(!madvise(p, size, MADV_DONTNEED));
	check_fill(p, MB, 4);
	require(!fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, size));
	require(!p[0] && !p[size - 1]);
	require(!ftruncate(fd, 0));
	close(fd);
}

static void hugetlb(void)
{
	size_t size = 32 * MB;
	char *p, *q;
	pid_t pid;

	set_for_now(HUGETLB("2048kB"), "64");
	hugetlb_of_size(TABLE_SPAN, 21 << MAP_HUGE_SHIFT);
	p = map_hugetlb(size, MAP_PRIVATE | MAP_ANONYMOUS);
	fill(p, size, 1);
	q = area(2 * size, TABLE_SPAN);
	require(mremap(p, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, q) == q);
	check_fill(q, size, 1);
	pid = fork();
	if (!pid) {
		fill(q, 4 * MB, 2);
		check_fill(q, 4 * MB, 2);
		_exit(0);
	}
	finish(pid);
	check_fill(q, size, 1);
	fill(q, size, 2);
	require(!munmap(q + 4 * MB, 4 * MB));
	check_fill(q, 4 * MB, 2);
	require(!mprotect(q, 4 * MB, PROT_NONE) && !mprotect(q, 4 * MB, PROT_READ | PROT_WRITE));
	check_fill(q, 4 * MB, 2);
}

/* A gigabyte of the same file at the same place in several processes: they could share tables. */
static void hugetlb_shared(void)
{
	int fd;
	char *p = area(GB, GB);
	pid_t pids[4];

	set_for_now(HUGETLB("2048kB"), "16");
	fd = memfd_create("hugetlb", MFD_HUGETLB);
	require(fd >= 0 && !ftruncate(fd, GB));
	if (mmap(p, GB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd, 0) != p)
		skip("no huge pages");
	fill(p, 16 * MB, 1);
	for (int i = 0; i < 4; i++) {
		pids[i] = fork();
		if (!pids[i]) {
			check_fill(p, 16 * MB, 1);
			if (i == 1)
				put(SYSFS "self", "0");
			if (i % 2)
				require(!munmap(p + 8 * MB, 4 * MB));
			require(!mprotect(p, 8 * MB, PROT_READ));
			check_fill(p, 8 * MB, 1);
			_exit(0);
		}
		require(pids[i] > 0);
	}
	for (int i = 0; i < 4; i++)
		finish(pids[i]);
	fill(p, 16 * MB, 2);
	check_fill(p, 16 * MB, 2);
	require(!ftruncate(fd, 8 * MB));
	check_fill(p, 8 * MB, 2);
}

/*
 * More than the region has tables: those that wait for a split are not the region's. Most of the
 * pages are the one of zeroes, so that it takes no memory.
 */
static void more_than_tables(void)
{
	size_t count = stat_number("pages") + 100;
	long used = stat_number("used"), fallbacks = stat_number("fallbacks");
	char *p = huge_pages(count * TABLE_SPAN);

	fill(p, 16 * MB, 1);
	for (size_t i = 8; i < count; i++)
		require(!p[i * TABLE_SPAN]);
	require(huge_kib() >= (long)(16 * MB / 1024));
	/* Nine or ten PMD tables, and those of this program. */
	require(stat_number("used") < used + 64);
	require(stat_number("fallbacks") == fallbacks);
	require(!mprotect(p + PAGE, PAGE, PROT_READ));
	check_fill(p, 16 * MB, 1);
}

static void hugetlb_gigabyte(void)
{
	hugetlb_of_size(GB, 30 << MAP_HUGE_SHIFT);
}

const struct group huge_groups[] = {
	{ "huge pages: faults and splits", faults_and_splits },
	{ "huge pages: collapse", collapsing },
	{ "huge pages: khugepaged", khugepaged },
	{ "huge pages: split_huge_pages", split_by_debugfs },
	{ "huge pages: mremap", move_huge },
	{ "huge pages: more than the region has tables", more_than_tables },
	{ "huge pages: tmpfs", shared_memory },
	{ "huge pages: collapse of what others map", collapse_shared },
	{ "file on a disk", file_on_disk },
	{ "hugetlb: 2 MiB", hugetlb },
	{ "hugetlb: shared", hugetlb_shared },
	{ "hugetlb: 1 GiB", hugetlb_gigabyte },
	{ 0 },
};
