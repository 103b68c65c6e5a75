// SPDX-License-Identifier: BSD-2-Clause
/* Address spaces that come, are copied, fail to come, and go. */
#define _GNU_SOURCE
#include <asm/ldt.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "exercise.h"

/* ---- fork, vfork, clone and exec in all orders ---- */

/* Each letter is a way to go on: Fork, Vfork, Clone with shared memory, Thread, eXec. */
static const char ways[] = "FVCTX";

#define CHAIN_BYTES (TABLE_SPAN + 8 * PAGE)

static void follow(const char *chain);

static int follow_in_clone(void *chain)
{
	follow(chain);
	return 0;
}

static void *follow_in_thread(void *chain)
{
	follow(chain);
	return NULL;
}

static void wait_for(pid_t pid)
{
	int status;

	require(pid > 0 && waitpid(pid, &status, __WALL) == pid && !status);
}

/* Takes the first step of `chain`, and what runs then takes the next. */
static void follow(const char *chain)
{
	static char stack[1 << 16];
	pthread_t thread;
	char *p;
	pid_t pid;

	if (!*chain)
		return;
	p = small_pages(CHAIN_BYTES) + TABLE_SPAN - 8 * PAGE;
	fill(p, 16 * PAGE, *chain);
	switch (*chain) {
	case 'F':
		pid = fork();
		if (!pid) {
			check_fill(p, 16 * PAGE, *chain);
			fill(p, 16 * PAGE, 1);
			follow(chain + 1);
			_exit(0);
		}
		wait_for(pid);
		break;
	case 'V': /* may only execute */
		pid = vfork();
		if (!pid) {
			execute("--follow", chain + 1);
			_exit(127);
		}
		wait_for(pid);
		break;
	case 'C':
		wait_for(clone(follow_in_clone, stack + sizeof(stack), CLONE_VM | SIGCHLD,
			       (void *)(chain + 1)));
		break;
	case 'T':
		require(!pthread_create(&thread, NULL, follow_in_thread, (void *)(chain + 1)));
		require(!pthread_join(thread, NULL));
		break;
	case 'X':
		/* Not in place of whom others wait for. */
		pid = fork();
		if (!pid) {
			execute("--follow", chain + 1);
			_exit(127);
		}
		wait_for(pid);
		break;
	}
	check_fill(p, 16 * PAGE, *chain);
	munmap(p - (TABLE_SPAN - 8 * PAGE), CHAIN_BYTES);
}

static void chains(void)
{
	char chain[4] = { 0 };

	for (int i = 0; i < 125; i++) {
		chain[0] = ways[i / 25];
		chain[1] = ways[i / 5 % 5];
		chain[2] = ways[i % 5];
		/* A clone shares its stack area with a clone below it. */
		if (strchr(chain, 'C') != strrchr(chain, 'C'))
			continue;
		follow(chain);
	}
}

static void exec_in_threads(void)
{
	for (int i = 0; i < 20; i++) {
		pthread_t thread;
		pid_t pid = fork();

		if (!pid) {
			for (int j = 0; j < 3; j++)
				pthread_create(&thread, NULL, follow_in_thread, "FF");
			execute("--follow", i % 2 ? "F" : "T");
			_exit(127);
		}
		wait_for(pid);
	}
}

static void spawn(void)
{
	char *arguments[] = { "exercise", "--follow", "FX", NULL };

	for (int i = 0; i < 20; i++) {
		pid_t pid;

		require(!posix_spawn(&pid, "/proc/self/exe", NULL, NULL, arguments, NULL));
		finish(pid);
	}
}

/* ---- Allocations that fail, at every depth ---- */

#define FAIL_NTH "/proc/thread-self/fail-nth"

static void allow_failures(void)
{
	static const char *const kinds[] = { DEBUGFS "failslab/", DEBUGFS "fail_page_alloc/" };
	static char paths[2][2][128];

	if (access(FAIL_NTH, F_OK))
		skip("no fault injection");
	for (int i = 0; i < 2; i++) {
		snprintf(paths[i][0], sizeof(paths[i][0]), "%signore-gfp-wait", kinds[i]);
		snprintf(paths[i][1], sizeof(paths[i][1]), "%sverbose", kinds[i]);
		set_for_now(paths[i][0], "N");
		set_for_now(paths[i][1], "0");
	}
	set_for_now(DEBUGFS "fail_page_alloc/ignore-gfp-highmem", "N");
	set_for_now(DEBUGFS "fail_page_alloc/min-order", "0");
}

/* From now on, the nth allocation fails; through a descriptor, for opening one allocates. */
static void fail_nth(int fd, int nth)
{
	char text[16];
	int length = snprintf(text, sizeof(text), "%d", nth);

	require(pwrite(fd, text, length, 0) == length);
}

/* Ends it; was there none that failed? */
static bool none_failed(int fd)
{
	char text[16] = "";

	require(pread(fd, text, sizeof(text) - 1, 0) > 0);
	require(pwrite(fd, "0", 1, 0) == 1);
	return atoi(text) > 0;
}

#define DEPTH_MAX 4000

static void failed_fork(void)
{
	size_t size = 6 * MB;
	char *p = small_pages(size);
	int fd, failed = 0;
	bool whole = false;

	allow_failures();
	fill(p, size, 1);
	fd = open(FAIL_NTH, O_RDWR);
	require(fd >= 0);
	for (int nth = 1; !whole && nth < DEPTH_MAX; nth++) {
		pid_t pid;

		fail_nth(fd, nth);
		pid = fork();
		if (!pid) {
			check_fill(p, size, 1);
			fill(p, size, 2);
			_exit(0);
		}
		whole = none_failed(fd);
		failed += pid < 0;
		if (pid > 0)
			finish(pid);
		fill(p, size, 1);
	}
	check_fill(p, size, 1);
	require(whole && failed > 20);
}

static void failed_exec(void)
{
	bool whole = false;
	int failed = 0;

	allow_failures();
	for (int nth = 1; !whole && nth < DEPTH_MAX; nth++) {
		int status, report[2];
		pid_t pid;

		require(!pipe(report));
		pid = fork();
		if (!pid) {
			char number[16];
			int fd = open(FAIL_NTH, O_RDWR);

			snprintf(number, sizeof(number), "%d", report[1]);
			fail_nth(fd, nth);
			execute("--none-failed", number);
			none_failed(fd);
			_exit(1);
		}
		close(report[1]);
		require(waitpid(pid, &status, 0) == pid);
		failed += status != 0;
		/* One byte, if the new program came to the end of it without a failure. */
		whole = read(report[0], &status, 1) == 1;
		close(report[0]);
	}
	require(whole && failed > 20);
}

static void failed_calls(void)
{
	size_t size = 4 * MB;
	char *p = small_pages(size), *q = area(2 * size, TABLE_SPAN), *r = huge_pages(size);
	bool whole = false;
	int fd;

	allow_failures();
	fd = open(FAIL_NTH, O_RDWR);
	require(fd >= 0);
	for (int nth = 1; !whole && nth < DEPTH_MAX; nth += 1 + nth / 64) {
		char *at = p, *moved;

		fill(p, size, nth);
		fill(r, size, nth);
		fail_nth(fd, nth);
		mprotect(p + 5 * PAGE, TABLE_SPAN, PROT_READ);
		mprotect(p, size, PROT_READ | PROT_WRITE);
		mprotect(r + 7 * PAGE, PAGE, PROT_NONE);
		madvise(p, 16 * PAGE, MADV_PAGEOUT);
		madvise(r, TABLE_SPAN, MADV_COLLAPSE);
		moved = mremap(p, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, q + TABLE_SPAN);
		whole = none_failed(fd);
		if (moved != MAP_FAILED)
			at = moved;
		require(!mprotect(at, size, PROT_READ | PROT_WRITE));
		require(!mprotect(r, size, PROT_READ | PROT_WRITE));
		check_fill(at, size, nth);
		check_fill(r, size, nth);
		if (at != p)
			require(mremap(at, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, p) == p);
		check_fill(p, size, nth);
	}
	require(whole);
}

/* ---- Being killed ---- */

static void churn(void *unused)
{
	size_t size = 8 * MB;

	(void)unused;
	for (;;) {
		char *p = below(2) ? small_pages(size) : huge_pages(size);
		pid_t pid;

		fill(p, size, 1);
		mprotect(p + below(8 * 256) * PAGE, PAGE, PROT_READ);
		pid = fork();
		if (!pid) {
			mremap(p, size, size, MREMAP_MAYMOVE | MREMAP_FIXED,
			       area(2 * size, TABLE_SPAN) + TABLE_SPAN);
			_exit(0);
		}
		if (below(2))
			madvise(p, size, below(2) ? MADV_PAGEOUT : MADV_DONTNEED);
		munmap(p, size);
		waitpid(pid, NULL, 0);
	}
}

static void kill_at_random(void)
{
	for (int i = 0; i < 100; i++) {
		struct timespec wait = { .tv_nsec = below(12000000) };
		pid_t pid = fork();

		if (!pid) {
			/* With all that it starts. */
			setpgid(0, 0);
			for (int j = 0; j < i; j++)
				below(2);
			churn(NULL);
		}
		setpgid(pid, pid);
		nanosleep(&wait, NULL);
		kill(-pid, SIGKILL);
		require(waitpid(pid, NULL, 0) == pid);
	}
}

static void out_of_memory(void)
{
	limit_memory(48 * MB);
	set_for_now("/proc/sys/kernel/printk", "4 4 1 7");
	for (int i = 0; i < 3; i++) {
		int status;
		pid_t pid = fork();

		if (!pid) {
			char *p = i % 2 ? huge_pages(GB) : small_pages(GB);

			mlockall(MCL_FUTURE); /* not to swap space */
			mlock(p, GB);
			_exit(0);
		}
		require(waitpid(pid, &status, 0) == pid);
		require(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	}
}

/* ---- Many at once ---- */

static void hundred_processes(void)
{
	const int count = 100;
	size_t size = 4 * MB;
	int go[2];
	char *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t pids[count];
	char c;

	require(p != MAP_FAILED && !pipe(go));
	fill(p, size, 1);
	for (int i = 0; i < count; i++) {
		pids[i] = fork();
		if (!pids[i]) {
			close(go[1]);
			check_fill(p, size, 1);
			p[i * PAGE + 100] = i;
			(void)!read(go[0], &c, 1);
			/* What the others wrote. */
			for (int j = 0; j < count; j++)
				require(p[j * PAGE + 100] == (char)j);
			madvise(p, size, MADV_DONTNEED);
			check_fill(p, size, 1);
			_exit(0);
		}
		require(pids[i] > 0);
	}
	for (int i = 0; i < count; i++)
		while (*(volatile char *)(p + i * PAGE + 100) != (char)i)
			usleep(1000);
	close(go[1]);
	for (int i = 0; i < count; i++)
		finish(pids[i]);
}

#define CHURN_BYTES (4 * MB)

static char *shared_by_threads;

static void half_is_left(void *mine)
{
	require(*(uint64_t *)mine && !((char *)mine)[CHURN_BYTES / 2]);
}

static void *thread_churn(void *argument)
{
	size_t size = CHURN_BYTES;
	char *mine = shared_by_threads + (uintptr_t)argument * size;

	for (int i = 1; i <= 12; i++) {
		fill(mine, size, i);
		require(!mprotect(mine, size, PROT_READ));
		check_fill(mine, size, i);
		require(!mprotect(mine, size, PROT_READ | PROT_WRITE));
		require(!madvise(mine + size / 2, size / 2, MADV_DONTNEED));
		check_fill(mine, size / 2, i);
		if (i % 4 == 0)
			finish(start(half_is_left, mine));
	}
	return NULL;
}

static void threads(void)
{
	pthread_t thread[8];

	shared_by_threads = area(8 * CHURN_BYTES, TABLE_SPAN);
	for (uintptr_t i = 0; i < 8; i++)
		require(!pthread_create(&thread[i], NULL, thread_churn, (void *)i));
	for (int i = 0; i < 8; i++)
		require(!pthread_join(thread[i], NULL));
}

/* ---- What another thread sees meanwhile ---- */

#define SEEN_BYTES TABLE_SPAN

static char *seen;
static atomic_ulong *passes; /* over `seen`, shared with children */
static atomic_ulong turn;

static volatile unsigned long *value(size_t offset)
{
	return (volatile unsigned long *)(seen + offset);
}

/* Until the other thread has looked at each page once more. */
static void another_pass(void)
{
	unsigned long before = *passes;

	while (*passes < before + 2)
		sched_yield();
}

static pthread_t seen_by(void *(*run)(void *), char *memory)
{
	pthread_t thread;

	seen = memory;
	passes = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	require(passes != MAP_FAILED);
	turn = 0;
	require(!pthread_create(&thread, NULL, run, NULL));
	return thread;
}

#define DROP_TURNS 12UL

/* In odd turns pages are filled and dropped; in even ones none of it may be seen. */
static void *look(void *unused)
{
	(void)unused;
	for (unsigned long now; (now = turn) <= DROP_TURNS; ++*passes)
		for (size_t i = 0; i < SEEN_BYTES; i += PAGE) {
			unsigned long shown = *value(i);

			require(!shown || (now % 2 && shown == now));
		}
	return NULL;
}

static void drop_again(char *memory, void (*drop)(int), int fd)
{
	pthread_t thread = seen_by(look, memory);

	while (turn < DROP_TURNS) {
		turn++;
		another_pass();
		for (size_t i = 0; i < SEEN_BYTES; i += PAGE)
			*value(i) = turn;
		another_pass();
		drop(fd);
		turn++;
		another_pass();
	}
	turn++;
	require(!pthread_join(thread, NULL));
}

static void by_advice(int unused)
{
	(void)unused;
	require(!madvise(seen, SEEN_BYTES, MADV_DONTNEED));
}

static void by_mmap(int unused)
{
	(void)unused;
	require(mmap(seen, SEEN_BYTES, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == seen);
}

static void by_hole(int fd)
{
	require(!fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, SEEN_BYTES));
}

static void dropped_meanwhile(void)
{
	int fd = memfd_create("seen", 0);
	char *file = area(SEEN_BYTES, TABLE_SPAN);

	drop_again(small_pages(SEEN_BYTES), by_advice, -1);
	drop_again(small_pages(SEEN_BYTES), by_mmap, -1);
	require(fd >= 0 && !ftruncate(fd, SEEN_BYTES));
	require(mmap(file, SEEN_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) ==
		file);
	drop_again(file, by_hole, fd);
	close(fd);
}

#define FORK_TURNS 12UL

static void *count(void *unused)
{
	(void)unused;
	for (; turn < FORK_TURNS; ++*passes)
		for (size_t i = 0; i < SEEN_BYTES; i += PAGE)
			++*value(i);
	return NULL;
}

/* What the parent's threads write must not come to the child. */
static void stays(void *unused)
{
	static unsigned long before[SEEN_BYTES / PAGE];

	(void)unused;
	for (size_t i = 0; i < SEEN_BYTES; i += PAGE)
		before[i / PAGE] = *value(i);
	another_pass();
	for (size_t i = 0; i < SEEN_BYTES; i += PAGE)
		require(before[i / PAGE] == *value(i));
}

static void forked_meanwhile(void)
{
	pthread_t thread = seen_by(count, small_pages(SEEN_BYTES));

	for (; turn < FORK_TURNS; turn++)
		finish(start(stays, NULL));
	require(!pthread_join(thread, NULL));
}

/* ---- The memory of another process ---- */

static void write_to_other(void)
{
	size_t size = 2 * MB;
	char *p = small_pages(size), page[PAGE];
	char *constant = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct iovec local = { page, PAGE }, remote = { p + 10 * PAGE, PAGE };
	int fd, status;
	pid_t pid;

	fill(p, size, 1);
	pid = fork();
	if (!pid) {
		ptrace(PTRACE_TRACEME, 0, NULL, NULL);
		raise(SIGSTOP);
		_exit(p[10 * PAGE + 9] == 7 && constant[5] == 8 ? 0 : 1);
	}
	require(waitpid(pid, &status, 0) == pid && WIFSTOPPED(status));
	require(process_vm_readv(pid, &local, 1, &remote, 1, 0) == PAGE);
	page[9] = 7;
	require(process_vm_writev(pid, &local, 1, &remote, 1, 0) == PAGE);
	/* ptrace may write where the process may not. */
	snprintf(page, sizeof(page), "/proc/%d/mem", pid);
	fd = open(page, O_RDWR);
	require(fd >= 0 && pwrite(fd, "\10", 1, (uintptr_t)constant + 5) == 1);
	close(fd);
	require(!ptrace(PTRACE_CONT, pid, NULL, NULL));
	finish(pid);
	check_fill(p, size, 1);
	require(!constant[5]);
}

/* With page-table isolation, user space has page tables of the LDT's own. */
static void local_descriptors(void)
{
	struct user_desc descriptor = {
		.entry_number = 1,
		.limit = 0xfffff,
		.seg_32bit = 1,
		.limit_in_pages = 1,
	};
	unsigned short selector = 1 << 3 | 7;
	static char word = 42;
	char *low = mmap(NULL, PAGE, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
	pid_t pid;
	char seen;

	require(low != MAP_FAILED);
	*low = word;
	descriptor.base_addr = (uintptr_t)low;
	if (syscall(SYS_modify_ldt, 1, &descriptor, sizeof(descriptor)))
		skip("no LDT: %s", strerror(errno));
	pid = fork();
	__asm__ volatile("mov %1, %%gs\n\tmovb %%gs:0, %0"
			 : "=r"(seen)
			 : "r"((unsigned int)selector)
			 : "memory");
	if (!pid)
		_exit(seen == word ? 0 : EXIT_WRONG);
	finish(pid);
	require(seen == word);
}

/* ---- What an option of the program does ---- */

bool executed(const char *option, const char *argument)
{
	if (!strcmp(option, "--follow")) {
		follow(argument);
	} else if (!strcmp(option, "--none-failed")) {
		int fd = open(FAIL_NTH, O_RDWR);

		if (fd >= 0 && none_failed(fd))
			(void)!write(atoi(argument), "", 1);
	} else {
		return false;
	}
	return true;
}

const struct group process_groups[] = {
	{ "fork, vfork, clone and exec in all orders", chains },
	{ "exec while threads fork", exec_in_threads },
	{ "posix_spawn", spawn },
	{ "fork that fails at every depth", failed_fork },
	{ "exec that fails at every depth", failed_exec },
	{ "calls that fail at every depth", failed_calls },
	{ "killed at random moments", kill_at_random },
	{ "killed for want of memory", out_of_memory },
	{ "shared mapping of 100 processes", hundred_processes },
	{ "threads", threads },
	{ "threads look while pages are dropped", dropped_meanwhile },
	{ "threads write while others fork", forked_meanwhile },
	{ "memory of another process", write_to_other },
	{ "local descriptor table", local_descriptors },
	{ 0 },
};
