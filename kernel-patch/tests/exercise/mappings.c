// SPDX-License-Identifier: BSD-2-Clause
/* Mappings that are moved, cut, protected, and watched. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "exercise.h"

/* ---- Faults that the process is to get ---- */

static sigjmp_buf at_fault;

static void on_fault(int number)
{
	siglongjmp(at_fault, number);
}

/* The signal that reading, or writing, such a page gives; 0 if none. */
static int fault_of(volatile char *p, bool write)
{
	struct sigaction action = { .sa_handler = on_fault }, old_segv, old_bus;
	int number;

	sigaction(SIGSEGV, &action, &old_segv);
	sigaction(SIGBUS, &action, &old_bus);
	number = sigsetjmp(at_fault, 1);
	if (!number) {
		if (write)
			*p = *p;
		else
			(void)*p;
	}
	sigaction(SIGSEGV, &old_segv, NULL);
	sigaction(SIGBUS, &old_bus, NULL);
	return number;
}

static bool segv(void *p, bool write)
{
	return fault_of(p, write) == SIGSEGV;
}

/* ---- mmap, munmap, brk ---- */

static void map_fixed(char *p, size_t size)
{
	require(mmap(p, size, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) == p);
}

static void unmapping(void)
{
	size_t size = 16 * MB;
	char *p = small_pages(size);

	fill(p, size, 1);
	/* A page, a piece over a table's border, a table, and the rest of one. */
	require(!munmap(p + 3 * PAGE, PAGE));
	require(!munmap(p + 2 * TABLE_SPAN - PAGE, 2 * PAGE));
	require(!munmap(p + 3 * TABLE_SPAN, TABLE_SPAN));
	require(!munmap(p + 5 * TABLE_SPAN + PAGE, TABLE_SPAN - PAGE));
	require(segv(p + 3 * PAGE, false) && segv(p + 2 * TABLE_SPAN - PAGE, false));
	require(segv(p + 3 * TABLE_SPAN, true) && segv(p + 5 * TABLE_SPAN + PAGE, true));
	check_fill(p, 3 * PAGE, 1);
	/* Into the holes, and over what is there. */
	map_fixed(p + 3 * TABLE_SPAN, TABLE_SPAN);
	map_fixed(p + TABLE_SPAN + 5 * PAGE, 3 * TABLE_SPAN);
	require(!p[3 * TABLE_SPAN] && !p[TABLE_SPAN + 5 * PAGE]);
	map_fixed(p, size);
	for (size_t i = 0; i < size; i += PAGE)
		require(!p[i]);
	fill(p, size, 2);
	check_fill(p, size, 2);
	for (int i = 0; i < 200; i++) {
		size_t at = below(size / PAGE) * PAGE, length = (1 + below(700)) * PAGE;

		if (at + length > size)
			continue;
		if (below(2))
			munmap(p + at, length);
		else
			map_fixed(p + at, length);
		map_fixed(p + at, length);
		fill(p + at, length, i);
		check_fill(p + at, length, i);
	}
}

static void breaks(void)
{
	char *start = sbrk(0);

	for (int i = 0; i < 4; i++) {
		size_t size = (1 + i * 9) * MB + i * PAGE;

		require(sbrk(size) == start);
		fill(start, size, i);
		require(sbrk(-(intptr_t)size / 2 / PAGE * PAGE) != (void *)-1);
		check_fill(start, size / 2 / PAGE * PAGE, i);
		require(!brk(start));
		require(segv(start + PAGE, false));
	}
}

static void deep(int depth)
{
	volatile char frame[16 * 1024];

	frame[0] = depth;
	if (depth)
		deep(depth - 1);
	require(frame[0] == (char)depth);
}

static void stacks(void)
{
	uintptr_t here = (uintptr_t)__builtin_frame_address(0);

	deep(300);
	/* Far below what is in use. */
	require(!madvise((char *)(here & -PAGE) - 4 * MB, 2 * MB, MADV_DONTNEED));
	deep(300);
}

static void protections(void)
{
	size_t size = 8 * MB;
	char *p = small_pages(size);

	fill(p, size, 1);
	require(!mprotect(p, size, PROT_READ));
	check_fill(p, size, 1);
	require(segv(p + 5 * PAGE, true));
	require(!mprotect(p, size, PROT_NONE));
	require(segv(p + 5 * PAGE, false));
	/* Aging looks at such pages, too. */
	put("/proc/self/clear_refs", "1");
	compare_region();
	require(!mprotect(p, size, PROT_READ | PROT_WRITE));
	check_fill(p, size, 1);
	for (int i = 0; i < 300; i++) {
		size_t at = below(size / PAGE);
		bool write = below(2);

		require(!mprotect(p + at * PAGE, PAGE, write ? PROT_READ | PROT_WRITE : PROT_READ));
		require(segv(p + at * PAGE, true) != write);
	}
	require(!mprotect(p, size, PROT_READ | PROT_WRITE));
	check_fill(p, size, 1);
}

/* ---- mremap ---- */

static void move_to(char *p, size_t size, char *q, int seed)
{
	require(mremap(p, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, q) == q);
	check_fill(q, size, seed);
	require(segv(p, false) && segv(p + size - PAGE, false));
}

static void moving(void)
{
	size_t size = 8 * MB;
	char *p = small_pages(size), *q = area(4 * size, TABLE_SPAN);

	fill(p, size, 1);
	move_to(p, size, q, 1);			  /* tables */
	move_to(q, size, q + size + 3 * PAGE, 1); /* pages */
	move_to(q + size + 3 * PAGE, size, p, 1); /* and back */
	require(!mprotect(p, size, PROT_READ));	  /* read-only ones */
	move_to(p, size, q, 1);
	require(!mprotect(q, size, PROT_READ | PROT_WRITE));
	require(!madvise(q, size, MADV_PAGEOUT)); /* swapped ones */
	move_to(q, size, q + 2 * size + PAGE, 1);
	fill(q + 2 * size + PAGE, size, 2);
}

/* To where the old place begins or ends, or not far from it. */
static void moving_nearby(void)
{
	size_t size = 4 * MB;
	char *room = area(6 * size, TABLE_SPAN), *p = room + 2 * size;

	require(!madvise(room, 6 * size, MADV_NOHUGEPAGE));
	fill(p, size, 1);
	require(mremap(p, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, p + PAGE) == MAP_FAILED);
	require(errno == EINVAL);
	for (size_t step = size; step <= 2 * size; step += 511 * PAGE) {
		move_to(p, size, p + step, 1);
		move_to(p + step, size, p, 1);
		move_to(p, size, p - step, 1);
		move_to(p - step, size, p, 1);
	}
}

static void resizing(void)
{
	size_t size = 4 * MB;
	char *p = small_pages(size);

	fill(p, size, 1);
	for (int i = 0; i < 8; i++) {
		size_t bigger = size + (i + 1) * 700 * PAGE;

		p = mremap(p, size, bigger, MREMAP_MAYMOVE);
		require(p != MAP_FAILED);
		check_fill(p, size, 1);
		require(!p[bigger - PAGE]);
		fill(p, bigger, 1);
		require(mremap(p, bigger, size, 0) == p);
		check_fill(p, size, 1);
		require(segv(p + size, false));
	}
}

static void moving_without_unmap(void)
{
	size_t size = 4 * MB;
	char *p = small_pages(size), *q;

	fill(p, size, 1);
	q = mremap(p, size, size, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
	require(q != MAP_FAILED);
	check_fill(q, size, 1);
	for (size_t i = 0; i < size; i += PAGE)
		require(!p[i]);
	fill(p, size, 2);
	check_fill(q, size, 1);
	check_fill(p, size, 2);
}

/* Whole tables of tables. */
static void moving_a_gigabyte(void)
{
	char *p = area(2 * GB, GB), *q = area(2 * GB, GB);

	require(!madvise(p, 2 * GB, MADV_NOHUGEPAGE));
	for (size_t i = 0; i < 2 * GB; i += TABLE_SPAN)
		fill(p + i + i / TABLE_SPAN % 512 * PAGE, PAGE, i / TABLE_SPAN);
	require(mremap(p, 2 * GB, 2 * GB, MREMAP_MAYMOVE | MREMAP_FIXED, q) == q);
	for (size_t i = 0; i < 2 * GB; i += TABLE_SPAN)
		check_fill(q + i + i / TABLE_SPAN % 512 * PAGE, PAGE, i / TABLE_SPAN);
	/* New tables below the moved ones, and then off by a table. */
	fill(q + 5 * PAGE, 4 * TABLE_SPAN, 3);
	require(mremap(q, GB, GB, MREMAP_MAYMOVE | MREMAP_FIXED, p + TABLE_SPAN) == p + TABLE_SPAN);
	check_fill(p + TABLE_SPAN + 5 * PAGE, 4 * TABLE_SPAN, 3);
	munmap(p + TABLE_SPAN, GB);
	munmap(q + GB, GB);
}

/* ---- madvise ---- */

static void advice(void)
{
	size_t size = 8 * MB;
	char *p = small_pages(size);
	pid_t pid;

	fill(p, size, 1);
	require(!madvise(p, size, MADV_COLD));
	check_fill(p, size, 1);
	require(!madvise(p, size, MADV_PAGEOUT));
	check_fill(p, size, 1);
	require(!madvise(p, size / 2, MADV_FREE));
	fill(p, size / 2, 1);
	check_fill(p, size, 1);
	require(!madvise(p + PAGE, size / 2, MADV_DONTNEED));
	require(!p[PAGE] && !p[size / 2]);
	check_fill(p, PAGE, 1);
	require(!madvise(p, size, MADV_POPULATE_READ));
	require(!madvise(p, size, MADV_POPULATE_WRITE));
	fill(p, size, 2);
	require(!madvise(p, size, MADV_WIPEONFORK));
	pid = fork();
	if (!pid)
		_exit(p[0] || p[size - PAGE]);
	finish(pid);
	require(!madvise(p, size, MADV_KEEPONFORK) && !madvise(p, size, MADV_DONTFORK));
	pid = fork();
	if (!pid)
		_exit(!segv(p, false));
	finish(pid);
	check_fill(p, size, 2);
}

/* ---- userfaultfd ---- */

struct watch {
	int fd;
	char *start, *source;
	size_t size;
	int mode;
};

static struct watch watched(char *start, size_t size, int mode, int features)
{
	struct watch watch = { .start = start, .size = size, .mode = mode };
	struct uffdio_api api = { .api = UFFD_API, .features = features };
	struct uffdio_register registration = {
		.range = { (uintptr_t)start, size },
		.mode = mode,
	};

	watch.fd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
	if (watch.fd < 0)
		skip("no userfaultfd");
	require(!ioctl(watch.fd, UFFDIO_API, &api));
	require(!ioctl(watch.fd, UFFDIO_REGISTER, &registration));
	watch.source = small_pages(size);
	fill(watch.source, size, 5);
	return watch;
}

static void protect(const struct watch *watch, char *start, size_t size, bool on)
{
	struct uffdio_writeprotect argument = {
		.range = { (uintptr_t)start, size },
		.mode = on ? UFFDIO_WRITEPROTECT_MODE_WP : 0,
	};

	require(!ioctl(watch->fd, UFFDIO_WRITEPROTECT, &argument));
}

static void resolve(const struct watch *watch, const struct uffd_msg *message)
{
	char *at = (char *)(uintptr_t)(message->arg.pagefault.address & -PAGE);
	struct uffdio_copy copy = {
		.dst = (uintptr_t)at,
		.src = (uintptr_t)watch->source + (at - watch->start),
		.len = PAGE,
	};
	struct uffdio_zeropage zero = { .range = { (uintptr_t)at, PAGE } };
	struct uffdio_continue next = { .range = { (uintptr_t)at, PAGE } };

	if (message->arg.pagefault.flags & UFFD_PAGEFAULT_FLAG_WP)
		protect(watch, at, PAGE, false);
	else if (message->arg.pagefault.flags & UFFD_PAGEFAULT_FLAG_MINOR)
		require(!ioctl(watch->fd, UFFDIO_CONTINUE, &next));
	else if ((at - watch->start) / PAGE % 8 == 7)
		require(!ioctl(watch->fd, UFFDIO_ZEROPAGE, &zero));
	else
		require(!ioctl(watch->fd, UFFDIO_COPY, &copy));
}

static void *watching(void *argument)
{
	struct watch *watch = argument;
	struct pollfd poll_fd = { .fd = watch->fd, .events = POLLIN };
	struct uffd_msg message;

	for (;;) {
		pthread_testcancel();
		if (poll(&poll_fd, 1, 100) > 0 &&
		    read(watch->fd, &message, sizeof(message)) == sizeof(message))
			resolve(watch, &message);
	}
	return NULL;
}

static pthread_t watcher(struct watch *watch)
{
	pthread_t thread;

	require(!pthread_create(&thread, NULL, watching, watch));
	return thread;
}

static void end_watch(struct watch *watch, pthread_t thread)
{
	pthread_cancel(thread);
	pthread_join(thread, NULL);
	close(watch->fd);
}

static void userfault_missing(void)
{
	size_t size = 2 * TABLE_SPAN;
	char *p = small_pages(size);
	struct watch watch = watched(p, size, UFFDIO_REGISTER_MODE_MISSING, 0);
	pthread_t thread = watcher(&watch);

	for (size_t i = 0; i < size; i += PAGE)
		require(*(uint64_t *)(p + i) ==
			(i / PAGE % 8 == 7 ? 0 : *(uint64_t *)(watch.source + i)));
	require(!madvise(p, size, MADV_DONTNEED));
	require(*(uint64_t *)(p + PAGE) == *(uint64_t *)(watch.source + PAGE));
	end_watch(&watch, thread);
}

static void userfault_write_protect(void)
{
	size_t size = 4 * TABLE_SPAN;
	char *p = area(size, TABLE_SPAN);
	struct watch watch;
	pthread_t thread;
	pid_t pid;

	require(!madvise(p, size / 2, MADV_HUGEPAGE));
	fill(p, size, 1);
	watch = watched(p, size, UFFDIO_REGISTER_MODE_WP, 0);
	protect(&watch, p, size, true);
	thread = watcher(&watch);
	check_fill(p, size, 1);
	fill(p, size / 4, 2);
	require(!madvise(p, size, MADV_PAGEOUT));
	check_fill(p, size / 4, 2);
	check_fill(p, size / 4, 2);
	pid = fork();
	if (!pid) {
		fill(p, size, 3);
		_exit(0);
	}
	finish(pid);
	fill(p, size, 4);
	check_fill(p, size, 4);
	end_watch(&watch, thread);
}

static void userfault_minor(void)
{
	size_t size = 2 * TABLE_SPAN;
	int fd = memfd_create("minor", 0);
	char *p, *q;
	struct watch watch;
	pthread_t thread;

	require(fd >= 0 && !ftruncate(fd, size));
	p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	q = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	fill(q, size, 1);
	watch = watched(p, size, UFFDIO_REGISTER_MODE_MINOR, UFFD_FEATURE_MINOR_SHMEM);
	thread = watcher(&watch);
	check_fill(p, size, 1);
	require(!madvise(p, size, MADV_DONTNEED));
	check_fill(p, size, 1);
	end_watch(&watch, thread);
}

#ifndef UFFDIO_MOVE
#define UFFD_FEATURE_MOVE (1 << 16)
struct uffdio_move {
	__u64 dst, src, len, mode;
	__s64 move;
};
#define UFFDIO_MOVE _IOWR(UFFDIO, 0x05, struct uffdio_move)
#endif
#ifndef UFFDIO_POISON
#define UFFD_FEATURE_POISON (1 << 14)
struct uffdio_poison {
	struct uffdio_range range;
	__u64 mode;
	__s64 updated;
};
#define UFFDIO_POISON _IOWR(UFFDIO, 0x08, struct uffdio_poison)
#endif

static void userfault_move(void)
{
	size_t size = 4 * TABLE_SPAN;
	char *p = area(size, TABLE_SPAN), *from = area(size, TABLE_SPAN);
	struct watch watch;

	require(!madvise(from, size / 2, MADV_HUGEPAGE));
	require(!madvise(from + size / 2, size / 2, MADV_NOHUGEPAGE));
	fill(from, size, 1);
	watch = watched(p, size, UFFDIO_REGISTER_MODE_MISSING, UFFD_FEATURE_MOVE);
	/* A huge page, half of one, single pages. */
	for (size_t at = 0, length; at < size; at += length) {
		struct uffdio_move move = { (uintptr_t)p + at, (uintptr_t)from + at, 0, 0, 0 };

		length = at < TABLE_SPAN ? TABLE_SPAN : at < 2 * TABLE_SPAN ? MB : 16 * PAGE;
		move.len = length;
		require(!ioctl(watch.fd, UFFDIO_MOVE, &move) && move.move == (long)length);
	}
	check_fill(p, size, 1);
	for (size_t i = 0; i < size; i += PAGE)
		require(!from[i]);
	close(watch.fd);
}

/* Marks of poisoned pages in a table that collapsing the file frees as it is. */
static void userfault_poison(void)
{
	size_t size = 2 * TABLE_SPAN;
	struct uffdio_poison poison = { .range = { .len = PAGE } };
	int fd = memfd_create("poison", 0);
	struct watch watch;
	char *p, *q;

	require(fd >= 0 && !ftruncate(fd, size));
	p = area(2 * size, TABLE_SPAN);
	q = p + size;
	require(mmap(p, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == p);
	require(mmap(q, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == q);
	fill(q, size, 1);
	watch = watched(p, size, UFFDIO_REGISTER_MODE_MISSING, UFFD_FEATURE_POISON);
	for (size_t at = 3 * PAGE; at < size; at += 100 * PAGE) {
		poison.range.start = (uintptr_t)p + at;
		require(!ioctl(watch.fd, UFFDIO_POISON, &poison));
		require(fault_of(p + at, false) == SIGBUS);
	}
	for (size_t at = 0; at < size; at += TABLE_SPAN)
		require(!madvise(q + at, TABLE_SPAN, MADV_COLLAPSE));
	check_fill(q, size, 1);
	close(watch.fd);
	munmap(p, size);
	/* Tables that were freed just now are used again: a region of 8 MiB has 2,000. */
	for (int i = 0; i < 3; i++) {
		char *r = small_pages(2 * GB);

		for (size_t at = 0; at < 2 * GB; at += TABLE_SPAN) {
			r[at] = 1;
			require(!r[at + 3 * PAGE] && !r[at + 103 * PAGE]);
		}
		munmap(r, 2 * GB);
	}
}

/* ---- Files in memory ---- */

static void memfd(void)
{
	size_t size = 8 * MB;
	int fd = memfd_create("file", MFD_ALLOW_SEALING);
	char *shared, *private;

	require(fd >= 0 && !ftruncate(fd, size));
	shared = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	private = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	require(shared != MAP_FAILED && private != MAP_FAILED);
	fill(shared, size, 1);
	check_fill(private, size, 1);
	fill(private, size / 2, 2);
	check_fill(shared, size, 1);
	fill(shared + size / 2, size / 2, 3);
	check_fill(private + size / 2, size / 2, 3);
	require(!madvise(shared, size, MADV_PAGEOUT));
	check_fill(shared, size / 2, 1);
	require(!fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, size / 4, MB));
	require(!shared[size / 4] && private[size / 4 + PAGE]);
	require(!ftruncate(fd, size / 2));
	require(fault_of(shared + size / 2, false) == SIGBUS);
	check_fill(private, size / 4, 2);
	munmap(shared, size);
	require(!fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE));
	require(mmap(NULL, size / 2, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
	shared = mmap(NULL, size / 2, PROT_READ, MAP_SHARED, fd, 0);
	require(shared != MAP_FAILED);
	check_fill(shared, size / 4, 1);
}

static void memfd_of_secrets(void)
{
	size_t size = MB;
	int fd = syscall(SYS_memfd_secret, O_CLOEXEC);
	char *p;
	pid_t pid;

	if (fd < 0)
		skip("no memfd_secret");
	require(!ftruncate(fd, size));
	p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	require(p != MAP_FAILED);
	fill(p, size, 1);
	pid = fork();
	if (!pid) {
		check_fill(p, size, 1);
		fill(p, size, 2);
		_exit(0);
	}
	finish(pid);
	check_fill(p, size, 2);
}

static void locking(void)
{
	struct rlimit limit = { RLIM_INFINITY, RLIM_INFINITY };
	size_t size = 8 * MB;
	char *p = small_pages(size), *q;

	require(!setrlimit(RLIMIT_MEMLOCK, &limit));
	fill(p, size, 1);
	require(!mlock(p, size / 2));
	require(!madvise(p + size / 2, size / 2, MADV_PAGEOUT));
	require(madvise(p, size / 2, MADV_PAGEOUT) && errno == EINVAL);
	check_fill(p, size, 1);
	require(!munlock(p, size / 2));
	require(!madvise(p, size, MADV_PAGEOUT));
	require(!mlock2(p, size, MLOCK_ONFAULT));
	check_fill(p, size, 1);
	require(!mlockall(MCL_CURRENT | MCL_FUTURE));
	q = huge_pages(size);
	fill(q, size, 2);
	q = mremap(q, size, size * 2, MREMAP_MAYMOVE);
	require(q != MAP_FAILED);
	check_fill(q, size, 2);
	require(!munlockall());
	check_fill(p, size, 1);
}

/* ---- What the process learns of its pages ---- */

#define SOFT_DIRTY 55

static void soft_dirty(void)
{
	size_t size = 4 * MB;
	char *p = small_pages(size), *q = huge_pages(size);

	fill(p, size, 1);
	fill(q, size, 1);
	put("/proc/self/clear_refs", "4");
	for (size_t i = 0; i < size; i += 7 * PAGE)
		p[i] = 2;
	q[5 * PAGE] = 2;
	for (size_t i = 0; i < size; i += PAGE)
		require(pagemap_bit(p + i, SOFT_DIRTY) == (i % (7 * PAGE) == 0));
	require(pagemap_bit(q + 5 * PAGE, SOFT_DIRTY) && !pagemap_bit(q + 3 * MB, SOFT_DIRTY));
	require(mremap(p, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, q) == q);
	require(pagemap_bit(q, SOFT_DIRTY));
}

#define PRESENT 63
#define SWAPPED 62

static void maps_of_self(void)
{
	size_t size = 4 * MB, swapped = 0;
	char *p = small_pages(size);
	static char text[1 << 18];

	fill(p, size / 2, 1);
	for (size_t i = 0; i < size; i += PAGE)
		require(pagemap_bit(p + i, PRESENT) == (i < size / 2));
	require(!madvise(p, size / 2, MADV_PAGEOUT));
	for (size_t i = 0; i < size / 2; i += PAGE)
		swapped += pagemap_bit(p + i, SWAPPED);
	printf("%zu of %zu pages are in swap space\n", swapped, size / 2 / PAGE);
	check_fill(p, size / 2, 1);
	for (int i = 1; i <= 5; i++) {
		char digit[] = { '0' + i, 0 };

		put("/proc/self/clear_refs", digit);
		require(get("/proc/self/smaps", text, sizeof(text)) && strstr(text, "Rss:"));
		require(get("/proc/self/numa_maps", text, sizeof(text)) || errno == ENOENT);
		check_fill(p, size / 2, 1);
	}
	require(number("/proc/self/smaps_rollup", "Rss") > (long)size / 2 / 1024);
}

const struct group mapping_groups[] = {
	{ "munmap and MAP_FIXED", unmapping },
	{ "brk", breaks },
	{ "stack", stacks },
	{ "mprotect", protections },
	{ "mremap", moving },
	{ "mremap nearby", moving_nearby },
	{ "mremap to another size", resizing },
	{ "mremap that leaves the old mapping", moving_without_unmap },
	{ "mremap of gigabytes", moving_a_gigabyte },
	{ "madvise", advice },
	{ "userfaultfd: missing pages", userfault_missing },
	{ "userfaultfd: write protection", userfault_write_protect },
	{ "userfaultfd: minor faults", userfault_minor },
	{ "userfaultfd: move", userfault_move },
	{ "userfaultfd: poison, then collapse", userfault_poison },
	{ "memfd", memfd },
	{ "memfd_secret", memfd_of_secrets },
	{ "mlock", locking },
	{ "soft-dirty", soft_dirty },
	{ "pagemap, smaps and clear_refs", maps_of_self },
	{ 0 },
};
