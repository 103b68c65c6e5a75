// SPDX-License-Identifier: BSD-2-Clause
/* What the kernel does to pages of its own accord: it evicts, merges and moves them. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/swap.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "exercise.h"

#define KSM	    "/sys/kernel/mm/ksm/"
#define LRU_GEN	    "/sys/kernel/mm/lru_gen/"
#define SWAP_DEVICE "/dev/zram0"
#define WAIT_TRIES  500
#define WAIT_US	    20000

/* ---- Swap space ---- */

static void need_swap(void)
{
	static char text[4096];

	if (!get("/proc/swaps", text, sizeof(text)) || !strstr(text, SWAP_DEVICE))
		skip("no swap space");
}

static void swapping(void)
{
	size_t size = 40 * MB;
	char *p;
	pid_t pid;

	need_swap();
	evict_above(24 * MB);
	p = small_pages(size);
	fill(p, size, 1);
	check_fill(p, size, 1);
	for (int i = 0; i < 20000; i++) {
		size_t at = below(size / PAGE) * PAGE;

		check_page(p, at, 1);
	}
	/* Entries of swapped pages are copied, changed and freed. */
	pid = fork();
	if (!pid) {
		check_fill(p, size, 1);
		fill(p, size / 2, 2);
		check_fill(p, size / 2, 2);
		_exit(0);
	}
	finish(pid);
	check_fill(p, size, 1);
	require(!madvise(p, size / 2, MADV_DONTNEED));
	fill(p, size / 2, 3);
	require(!mprotect(p, size, PROT_READ));
	check_fill(p, size / 2, 3);
}

static void swapoff_and_on(void)
{
	size_t size = 32 * MB;
	char *p = small_pages(size);

	need_swap();
	fill(p, size, 1);
	for (int i = 0; i < 3; i++) {
		require(!madvise(p, size, MADV_PAGEOUT));
		require(!swapoff(SWAP_DEVICE));
		check_fill(p, size, 1);
		require(!swapon(SWAP_DEVICE, 0));
		check_fill(p, size, 1);
	}
}

/* ---- Memory that is short ---- */

static void pressure(void)
{
	size_t size = 40 * MB;
	char *p, *q;

	need_swap();
	evict_above(32 * MB);
	p = small_pages(size);
	q = huge_pages(8 * MB);
	for (int i = 0; i < 4; i++) {
		fill(p, size, i);
		fill(q, 8 * MB, i);
		require(!madvise(p, 4 * MB, MADV_FREE));
		require(!madvise(p + 8 * MB, 4 * MB, MADV_COLD));
		fill(p, 4 * MB, i);
		check_fill(p, size, i);
		check_fill(q, 8 * MB, i);
	}
}

static void pressure_on_old_lists(void)
{
	set_for_now(LRU_GEN "enabled", "0");
	pressure();
}

static void pressure_on_generations(void)
{
	set_for_now(LRU_GEN "enabled", "7");
	pressure();
}

/* Generations are made and evicted on request, while the process runs. */
static void forced_aging(void)
{
	size_t size = 16 * MB;
	char *p = small_pages(size), text[8192], command[64];
	long memcg = 0, node = 0, low, high;

	need_swap();
	set_for_now(LRU_GEN "enabled", "7");
	for (int i = 0; i < 6; i++) {
		fill(p, size, i);
		if (!get(DEBUGFS "lru_gen", text, sizeof(text)))
			skip("no lru_gen in debugfs");
		/* "memcg 1 /", " node 0", then a line for each generation. */
		low = LONG_MAX;
		high = -1;
		for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
			long generation = atol(line);

			if (sscanf(line, "memcg %ld", &memcg) == 1)
				low = LONG_MAX, high = -1;
			else if (sscanf(line, " node %ld", &node) != 1) {
				low = generation < low ? generation : low;
				high = generation > high ? generation : high;
			}
		}
		require(high >= 0);
		snprintf(command, sizeof(command), "+ %ld %ld %ld 1 1", memcg, node, high);
		require(try_put(DEBUGFS "lru_gen", command) || errno == EINVAL);
		check_fill(p, size, i);
		snprintf(command, sizeof(command), "- %ld %ld %ld 200 2000", memcg, node, low);
		require(try_put(DEBUGFS "lru_gen", command) || errno == EINVAL);
		check_fill(p, size, i);
	}
}

/* ---- What reclaim takes from whom ---- */

#define HOT_BYTES    (8 * MB)
#define STREAM_BYTES (40 * MB)
#define LIMIT_BYTES  (32 * MB)
#define ROUNDS	     4
#define REPEATS	     5

static pid_t start_traced(bool trace)
{
	pid_t pid;

	fflush(stdout);
	pid = fork();
	require(pid >= 0);
	if (!pid && trace)
		put(SYSFS "self", "1");
	return pid;
}

/* Major faults of a process that uses all its memory, beside one that streams through more. */
static long faults_beside_stream(bool trace)
{
	struct rusage usage;
	int over[2], status;
	char *hot, *stream, c;
	pid_t pid;

	require(!pipe(over));
	pid = start_traced(trace);
	if (!pid) {
		close(over[1]);
		require(!fcntl(over[0], F_SETFL, O_NONBLOCK));
		hot = small_pages(HOT_BYTES);
		fill(hot, HOT_BYTES, 1);
		while (read(over[0], &c, 1) < 0)
			check_fill(hot, HOT_BYTES, 1);
		_exit(0);
	}
	close(over[0]);
	stream = small_pages(STREAM_BYTES);
	for (int i = 0; i < ROUNDS; i++)
		fill(stream, STREAM_BYTES, i);
	close(over[1]);
	require(wait4(pid, &status, 0, &usage) == pid && !status);
	munmap(stream, STREAM_BYTES);
	return usage.ru_majflt;
}

void measure_reclaim(void)
{
	static const struct {
		const char *name, *value;
	} lists[] = { { "two lists", "0" }, { "generations", "7" } };
	static const struct {
		const char *name, *aging;
		bool trace;
	} ways[] = {
		{ "untraced", "on", false },
		{ "traced, aging on", "on", true },
		{ "traced, aging off", "off", true },
	};

	need_swap();
	limit_memory(LIMIT_BYTES);
	for (size_t i = 0; i < ARRAY_SIZE(lists); i++) {
		set_for_now(LRU_GEN "enabled", lists[i].value);
		for (size_t j = 0; j < REPEATS * ARRAY_SIZE(ways); j++) {
			size_t way = j % ARRAY_SIZE(ways);

			put(SYSFS "aging", ways[way].aging);
			printf("reclaim: %s: %s: %ld major faults\n", lists[i].name, ways[way].name,
			       faults_beside_stream(ways[way].trace));
			fflush(stdout);
		}
		put(SYSFS "aging", "on");
	}
}

#define IDLE_BITMAP "/sys/kernel/mm/page_idle/bitmap"

static void idle_tracking(void)
{
	static uint64_t all[512];
	size_t size = 8 * MB;
	char *p = small_pages(size);
	int fd = open(IDLE_BITMAP, O_RDWR);

	if (fd < 0)
		skip("no idle tracking");
	fill(p, size, 1);
	memset(all, -1, sizeof(all));
	for (off_t at = 0; pwrite(fd, all, sizeof(all), at) == sizeof(all); at += sizeof(all))
		;
	check_fill(p, size, 1);
	for (off_t at = 0; pread(fd, all, sizeof(all), at) == sizeof(all); at += sizeof(all))
		;
	check_fill(p, size, 1);
	close(fd);
}

/* ---- Pages that are the same ---- */

static void merging(void)
{
	size_t size = 8 * MB;
	char *p = small_pages(size), *q = small_pages(size);
	pid_t pid;
	int tries;

	for (size_t i = 0; i < size; i += PAGE) {
		memset(p + i, 1 + i / PAGE % 16, PAGE);
		memset(q + i, 1 + i / PAGE % 16, PAGE);
	}
	set_for_now(KSM "pages_to_scan", "20000");
	set_for_now(KSM "sleep_millisecs", "1");
	set_for_now(KSM "run", "1");
	require(!madvise(p, size, MADV_MERGEABLE) && !madvise(q, size, MADV_MERGEABLE));
	for (tries = 0; number("/proc/self/ksm_stat", "ksm_merging_pages") < 3000; tries++) {
		require(tries < WAIT_TRIES);
		usleep(WAIT_US);
	}
	for (size_t i = 0; i < size; i += PAGE)
		require(p[i] == q[i] && p[i + 99] == (char)(1 + i / PAGE % 16));
	pid = fork();
	if (!pid) {
		fill(p, size, 2);
		check_fill(p, size, 2);
		_exit(0);
	}
	finish(pid);
	fill(p, size, 3);
	check_fill(p, size, 3);
	require(!madvise(q, size / 2, MADV_UNMERGEABLE));
	for (size_t i = 0; i < size; i += PAGE)
		require(q[i + 99] == (char)(1 + i / PAGE % 16));
	put(KSM "run", "2");
	for (size_t i = 0; i < size; i += PAGE)
		require(q[i + 99] == (char)(1 + i / PAGE % 16));
}

/* ---- Pages that move ---- */

enum { BIND = 2, MOVE = 1 << 1 };

static void two_nodes(void)
{
	if (access("/sys/devices/system/node/node1", F_OK))
		skip("one node only");
}

static void bind_to(void *p, size_t size, int node)
{
	unsigned long mask = 1 << node;

	require(!syscall(SYS_mbind, p, size, BIND, &mask, 64, MOVE));
}

static void migrating(void)
{
	size_t size = 8 * MB, count = size / PAGE;
	char *p = small_pages(size), *q = huge_pages(size);
	void **pages = calloc(count, sizeof(*pages));
	int *nodes = calloc(count, sizeof(*nodes)), *status = calloc(count, sizeof(*status));
	unsigned long from, to;
	int end;
	pid_t pid;

	two_nodes();
	fill(p, size, 1);
	fill(q, size, 2);
	pid = fork();
	if (!pid) {
		for (;;) {
			check_fill(p, size, 1);
			fill(q, TABLE_SPAN, 3);
		}
	}
	for (int i = 0; i < 6; i++) {
		for (size_t j = 0; j < count; j++) {
			pages[j] = p + j * PAGE;
			nodes[j] = (i + j) % 2;
		}
		require(syscall(SYS_move_pages, 0, count, pages, nodes, status, 1 << 2) >= 0);
		bind_to(q, size, i % 2);
		bind_to(q + PAGE, 5 * PAGE, !(i % 2));
		from = 1 << i % 2;
		to = 1 << !(i % 2);
		require(syscall(SYS_migrate_pages, pid, 64, &from, &to) >= 0);
		check_fill(p, size, 1);
		check_fill(q, size, 2);
	}
	kill(pid, SIGKILL);
	require(waitpid(pid, &end, 0) == pid && WIFSIGNALED(end));
}

static void compaction(void)
{
	size_t size = 64 * MB;
	char *p = small_pages(size);

	fill(p, size, 1);
	/* Holes make work. */
	for (size_t i = 0; i < size; i += 3 * PAGE)
		require(!madvise(p + i, PAGE, MADV_DONTNEED));
	for (int i = 0; i < 3; i++) {
		put("/proc/sys/vm/compact_memory", "1");
		for (size_t j = PAGE; j < size; j += 3 * PAGE)
			require(*(uint64_t *)(p + j) != 0);
		require(!p[0] && !p[300 * PAGE]);
	}
}

static void on_cpu(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	sched_setaffinity(0, sizeof(set), &set);
}

static void balancing(void)
{
	size_t size = 8 * MB;
	char *p, *q;
	long before;
	int tries;

	two_nodes();
	set_for_now("/proc/sys/kernel/numa_balancing", "1");
	try_put(DEBUGFS "sched/numa_balancing/scan_delay_ms", "10");
	try_put(DEBUGFS "sched/numa_balancing/scan_period_min_ms", "10");
	on_cpu(0);
	p = small_pages(size);
	q = huge_pages(size);
	fill(p, size, 1);
	fill(q, size, 2);
	on_cpu(1);
	before = number("/proc/vmstat", "numa_hint_faults");
	for (tries = 0; number("/proc/vmstat", "numa_hint_faults") < before + 200; tries++) {
		require(tries < 10 * WAIT_TRIES);
		check_fill(p, size, 1);
		check_fill(q, size, 2);
	}
	fill(p, size, 3);
	check_fill(p, size, 3);
	check_fill(q, size, 2);
}

static void poisoned_pages(void)
{
	size_t size = 8 * MB;
	char *p = small_pages(size), *q = huge_pages(size);
	int status;
	pid_t pid;

	set_for_now("/proc/sys/kernel/printk", "4 4 1 7");
	fill(p, size, 1);
	fill(q, size, 1);
	for (int i = 0; i < 8; i++) {
		if (madvise(p + i * 11 * PAGE, PAGE, MADV_SOFT_OFFLINE))
			skip("no memory failure");
		check_fill(p, size, 1);
	}
	require(!madvise(q + 5 * PAGE, PAGE, MADV_SOFT_OFFLINE));
	check_fill(q, size, 1);
	pid = fork();
	if (!pid) {
		fill(p, size, 2);
		require(!madvise(p + 3 * PAGE, PAGE, MADV_HWPOISON));
		require(!madvise(q + TABLE_SPAN + 3 * PAGE, PAGE, MADV_HWPOISON));
		*(volatile char *)(p + 3 * PAGE) = 1;
		_exit(0);
	}
	require(waitpid(pid, &status, 0) == pid);
	require(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
	check_fill(p, size, 1);
}

#define MEMORY_BLOCKS "/sys/devices/system/memory/"

/* Memory that goes takes nothing with it. */
static void memory_offline(void)
{
	size_t size = 32 * MB;
	char *p = small_pages(size), path[300];
	struct dirent *entry;
	int blocks = 0;
	DIR *dir = opendir(MEMORY_BLOCKS);

	if (!dir)
		skip("no memory hotplug");
	fill(p, size, 1);
	while ((entry = readdir(dir)) && blocks < 4) {
		if (strncmp(entry->d_name, "memory", 6))
			continue;
		snprintf(path, sizeof(path), MEMORY_BLOCKS "%s/state", entry->d_name);
		/* What cannot be moved keeps its block. */
		if (!try_put(path, "offline"))
			continue;
		blocks++;
		check_fill(p, size, 1);
		put(path, "online_movable");
	}
	closedir(dir);
	require(blocks > 0);
	check_fill(p, size, 1);
}

/* ---- The region ---- */

static bool traced(void)
{
	char text[16];

	return get(SYSFS "self", text, sizeof(text)) && text[0] != '0';
}

static void region_full(void)
{
	long pages = stat_number("pages"), fallbacks;
	size_t size;
	char *p, *q;

	if (pages > 8192)
		skip("a region of this size is never full");
	size = (pages + 200) * TABLE_SPAN;
	for (int i = 0; i < 3; i++) {
		fallbacks = stat_number("fallbacks");
		p = small_pages(size);
		for (size_t at = 0; at < size; at += TABLE_SPAN)
			p[at + at / TABLE_SPAN % 512 * PAGE] = 1 + at / TABLE_SPAN % 100;
		for (size_t at = 0; at < size; at += TABLE_SPAN)
			require(p[at + at / TABLE_SPAN % 512 * PAGE] ==
				(char)(1 + at / TABLE_SPAN % 100));
		require(!traced() || stat_number("fallbacks") > fallbacks);
		/* Others find room again as tables are given back. */
		require(!munmap(p, size / 2));
		q = small_pages(32 * MB);
		fill(q, 32 * MB, 1);
		check_fill(q, 32 * MB, 1);
		for (size_t at = size / 2 / TABLE_SPAN * TABLE_SPAN; at < size; at += TABLE_SPAN)
			require(p[at + at / TABLE_SPAN % 512 * PAGE] ==
				(char)(1 + at / TABLE_SPAN % 100));
		munmap(p + size / 2, size - size / 2);
		munmap(q, 32 * MB);
	}
}

/*
 * The log must give a table's address also where tracing was off when the table above it came.
 */
static void off_and_on(void)
{
	static char text[1 << 20];
	char *p, wanted[64];

	if (recorded())
		skip("a recording runs");
	if (!traced())
		put(SYSFS "self", "1");
	put(SYSFS "self", "0");
	p = area(2 * GB, GB);
	require(!madvise(p, 2 * GB, MADV_NOHUGEPAGE));
	p[0] = 1; /* a table of tables, ordinary */
	put(SYSFS "self", "1");
	set_for_now(LINK_EVENT, "1");
	put(TRACING "trace", "0");
	p[5 * TABLE_SPAN] = 1;
	require(get(TRACING "trace", text, sizeof(text)));
	snprintf(wanted, sizeof(wanted), "va=%p level=1", (void *)(p + 5 * TABLE_SPAN));
	if (!strstr(text, wanted))
		wrong("the log lacks %s:\n%s", wanted, strstr(text, "ptat_table_link"));
	put(SYSFS "self", "0");
}

const struct group reclaim_groups[] = {
	{ "swap space", swapping },
	{ "swapoff and swapon", swapoff_and_on },
	{ "short memory, two lists", pressure_on_old_lists },
	{ "short memory, generations", pressure_on_generations },
	{ "generations on request", forced_aging },
	{ "idle page tracking", idle_tracking },
	{ "KSM", merging },
	{ "migration", migrating },
	{ "compaction", compaction },
	{ "NUMA balancing", balancing },
	{ "poisoned pages", poisoned_pages },
	{ "memory that goes offline", memory_offline },
	{ "region full, and refilled", region_full },
	{ "tracing off and on", off_and_on },
	{ 0 },
};
