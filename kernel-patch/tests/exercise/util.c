// SPDX-License-Identifier: BSD-2-Clause
/* Helpers of exercise. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "exercise.h"

static void say(const char *word, const char *format, va_list args)
{
	int error = errno;

	printf("%s: ", word);
	vprintf(format, args);
	if (error)
		printf(" (%s)", strerror(error));
	printf("\n");
	fflush(stdout);
}

void wrong(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	say("wrong", format, args);
	exit(EXIT_WRONG);
}

void skip(const char *format, ...)
{
	va_list args;

	errno = 0;
	va_start(args, format);
	say("skip", format, args);
	exit(EXIT_SKIP);
}

bool try_put(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	bool done = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
	int error = errno;

	if (fd >= 0)
		close(fd);
	errno = error;
	return done;
}

void put(const char *path, const char *text)
{
	if (!try_put(path, text))
		wrong("write %s to %s", text, path);
}

bool get(const char *path, char *text, size_t size)
{
	size_t length = 0;
	ssize_t n;
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return false;
	while (length < size - 1 && (n = read(fd, text + length, size - 1 - length)) > 0)
		length += n;
	close(fd);
	text[length] = 0;
	return true;
}

long number_in(const char *text, const char *name)
{
	size_t length = strlen(name);

	for (const char *line = text; line; line = strchr(line, '\n')) {
		line += *line == '\n';
		if (!strncmp(line, name, length) && strchr(" :", line[length]))
			return strtol(line + length + 1, NULL, 0);
	}
	return -1;
}

long number(const char *path, const char *name)
{
	char text[1 << 14];

	return get(path, text, sizeof(text)) ? number_in(text, name) : -1;
}

long stat_number(const char *name)
{
	char path[128], text[64];

	snprintf(path, sizeof(path), SYSFS "stat/%s", name);
	require(get(path, text, sizeof(text)));
	return strtol(text, NULL, 0);
}

bool recorded(void)
{
	char text[4] = "";

	return get(LINK_EVENT, text, sizeof(text)) && text[0] == '1';
}

void compare_region(void)
{
	char text[1024];

	if (recorded())
		return;
	require(get(CHECK, text, sizeof(text)));
	errno = 0;
	if (number_in(text, "mismatches"))
		wrong("region and twins differ:\n%s", text);
}

bool pagemap_bit(const void *page, int bit)
{
	uint64_t entry = 0;
	int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);

	require(fd >= 0);
	require(pread(fd, &entry, sizeof(entry), (uintptr_t)page / PAGE * sizeof(entry)) ==
		sizeof(entry));
	close(fd);
	return entry >> bit & 1;
}

char *area(size_t size, size_t align)
{
	size_t room = size + align;
	char *p = mmap(NULL, room, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	char *start = (char *)(((uintptr_t)p + align - 1) & -align);

	require(p != MAP_FAILED);
	if (start > p)
		munmap(p, start - p);
	if (start + size < p + room)
		munmap(start + size, p + room - (start + size));
	return start;
}

char *small_pages(size_t size)
{
	char *p = area(size, TABLE_SPAN);

	require(!madvise(p, size, MADV_NOHUGEPAGE));
	return p;
}

char *huge_pages(size_t size)
{
	char *p = area(size, TABLE_SPAN);

	require(!madvise(p, size, MADV_HUGEPAGE));
	return p;
}

static uint64_t mark(size_t offset, int seed)
{
	return offset / PAGE * 0x9e3779b97f4a7c15 + seed;
}

void fill(char *p, size_t size, int seed)
{
	for (size_t i = 0; i < size; i += PAGE)
		*(volatile uint64_t *)(p + i) = mark(i, seed);
}

void check_fill(const char *p, size_t size, int seed)
{
	size_t bad = 0, at = 0;
	uint64_t holds = 0;

	for (size_t i = 0; i < size; i += PAGE) {
		uint64_t value = *(const volatile uint64_t *)(p + i);

		if (value != mark(i, seed) && !bad++) {
			at = i;
			holds = value;
		}
	}
	errno = 0;
	if (bad)
		wrong("%zu of %zu pages do not hold what was written to them: %#lx, not %#lx, at "
		      "%#zx",
		      bad, size / PAGE, holds, mark(at, seed), at);
}

void check_page(const char *p, size_t offset, int seed)
{
	require(*(const volatile uint64_t *)(p + offset) == mark(offset, seed));
}

pid_t start(void (*run)(void *), void *argument)
{
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (!pid) {
		run(argument);
		fflush(stdout);
		_exit(0);
	}
	require(pid > 0);
	return pid;
}

void finish(pid_t pid)
{
	int status;

	require(waitpid(pid, &status, 0) == pid);
	errno = 0;
	if (status)
		wrong("a child ended with status %#x", status);
}

void execute(const char *option, const char *argument)
{
	/* The kernel kills who cannot be told its CPU for want of the memory that a test denies. */
	setenv("GLIBC_TUNABLES", "glibc.pthread.rseq=0", 1);
	execl("/proc/self/exe", "exercise", option, argument, NULL);
}

unsigned int below(unsigned int limit)
{
	static uint64_t state = 88172645463325252;

	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state % limit;
}

static char *mounted;
static pid_t mounted_by;

static void unmount(void)
{
	if (getpid() != mounted_by)
		return;
	umount2(mounted, MNT_DETACH);
	rmdir(mounted);
}

const char *mount_new(const char *type, const char *source, const char *options)
{
	mounted = strdup("/tmp/mount.XXXXXX");
	require(mkdtemp(mounted));
	if (mount(source, mounted, type, 0, options))
		skip("cannot mount %s with %s", type, options ? options : "no options");
	mounted_by = getpid();
	atexit(unmount);
	return mounted;
}

static char cgroup[64];
static pid_t cgroup_owner;

static void leave_cgroup(void)
{
	if (getpid() != cgroup_owner)
		return;
	try_put(CGROUPS "cgroup.procs", "0");
	for (int tries = 0; rmdir(cgroup) && tries < 100; tries++)
		usleep(10000);
}

static void enter_cgroup(const char *limit, size_t bytes)
{
	char path[128], text[32];

	if (!try_put(CGROUPS "cgroup.subtree_control", "+memory"))
		skip("no memory cgroups");
	snprintf(cgroup, sizeof(cgroup), CGROUPS "exercise.%d", getpid());
	require(!mkdir(cgroup, 0755));
	cgroup_owner = getpid();
	atexit(leave_cgroup);
	snprintf(path, sizeof(path), "%s/%s", cgroup, limit);
	snprintf(text, sizeof(text), "%zu", bytes);
	put(path, text);
	snprintf(path, sizeof(path), "%s/cgroup.procs", cgroup);
	put(path, "0");
}

void limit_memory(size_t bytes)
{
	enter_cgroup("memory.max", bytes);
}

void evict_above(size_t bytes)
{
	enter_cgroup("memory.high", bytes);
}

static struct setting {
	struct setting *next;
	const char *path;
	pid_t owner;
	char text[256];
} *settings;

static void restore_settings(void)
{
	for (struct setting *setting = settings; setting; setting = setting->next)
		if (setting->owner == getpid())
			try_put(setting->path, setting->text);
}

/* What such a file shows of its choices: "always [madvise] never". */
static void keep_chosen(char *text)
{
	char *open = strchr(text, '['), *close = open ? strchr(open, ']') : NULL;

	text[strcspn(text, "\n")] = 0;
	if (close) {
		memmove(text, open + 1, close - open - 1);
		text[close - open - 1] = 0;
	}
}

void set_for_now(const char *path, const char *text)
{
	struct setting *setting = calloc(1, sizeof(*setting));

	require(setting);
	if (!get(path, setting->text, sizeof(setting->text)))
		skip("no %s", path);
	keep_chosen(setting->text);
	setting->path = path;
	setting->owner = getpid();
	setting->next = settings;
	if (!settings)
		atexit(restore_settings);
	settings = setting;
	put(path, text);
}
