// SPDX-License-Identifier: BSD-2-Clause
/*
 * PID 1 of the kernel's boot tests: shows what PTAT made of its boot parameter and, if the
 * kernel's command line has a program and its arguments behind "--", runs that on a machine with
 * some swap space. Where TLB misses trap, somebody takes the records meanwhile.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/swap.h>
#include <sys/wait.h>
#include <unistd.h>

#include "traps.h"

#define TRAPS_TEST  "/ptat_trap_test" /* takes them itself */
#define SWAP_DEVICE "/dev/zram0"
#define SWAP_BYTES  "64M"
#define SWAP_PAGES  (64 << 8)
#define SWAP_MAGIC  "SWAPSPACE2"

static void complain(const char *what)
{
	printf("init: %s: %s\n", what, strerror(errno));
}

static void mount_at(const char *type, const char *path)
{
	mkdir(path, 0755);
	if (mount(type, path, type, 0, NULL))
		complain(path);
}

static void show(const char *path)
{
	char text[4096];
	ssize_t length;
	int fd = open(path, O_RDONLY);

	if (fd < 0) {
		complain(path);
		return;
	}
	printf("== %s\n", path);
	fflush(stdout);
	while ((length = read(fd, text, sizeof(text))) > 0)
		(void)!write(STDOUT_FILENO, text, length);
	close(fd);
}

/* Each file of a directory as a line "name content". */
static void show_directory(const char *path)
{
	struct dirent *entry;
	DIR *directory = opendir(path);

	if (!directory) {
		complain(path);
		return;
	}
	printf("== %s\n", path);
	while ((entry = readdir(directory))) {
		char text[64];
		ssize_t length;
		int fd;

		if (entry->d_name[0] == '.')
			continue;
		fd = openat(dirfd(directory), entry->d_name, O_RDONLY);
		length = read(fd, text, sizeof(text));
		if (length > 0)
			printf("%s %.*s", entry->d_name, (int)length, text);
		close(fd);
	}
	closedir(directory);
}

static void put(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY);

	if (fd < 0 || write(fd, text, strlen(text)) < 0)
		complain(path);
	close(fd);
}

/* As mkswap and swapon do. */
static void add_swap(void)
{
	char page[4096] = { 0 };
	unsigned int header[] = { 1, SWAP_PAGES - 1, 0 };
	int fd;

	put("/sys/block/zram0/disksize", SWAP_BYTES);
	memcpy(page + 1024, header, sizeof(header));
	memcpy(page + sizeof(page) - strlen(SWAP_MAGIC), SWAP_MAGIC, strlen(SWAP_MAGIC));
	fd = open(SWAP_DEVICE, O_WRONLY);
	if (fd < 0 || write(fd, page, sizeof(page)) != sizeof(page))
		complain(SWAP_DEVICE);
	close(fd);
	if (swapon(SWAP_DEVICE, 0))
		complain("swapon");
}

static void traps_broken(const char *file)
{
	complain(file);
}

static void run(char **argv)
{
	int status = 0;
	pid_t child = fork();

	if (child == 0) {
		execv(argv[0], argv);
		_exit(127);
	}
	/* Orphans become our children. */
	while (wait(&status) != child)
		;
	printf("%s: exit status %d\n", argv[0], WEXITSTATUS(status));
}

int main(int argc, char **argv)
{
	(void)argc;
	argv++; /* that is /init */
	mount_at("proc", "/proc");
	/* Only warnings and worse: the rest could come in the middle of our lines. */
	put("/proc/sys/kernel/printk", "5");
	mount_at("sysfs", "/sys");
	mount_at("devtmpfs", "/dev");
	mount_at("tmpfs", "/tmp");
	mount_at("debugfs", "/sys/kernel/debug");
	mount_at("cgroup2", "/sys/fs/cgroup");

	/* Before it comes what the kernel itself did not understand. */
	while (*argv && **argv != '/')
		argv++;
	if (*argv) {
		add_swap();
		if (!access("/dev/ptat", F_OK) && strcmp(*argv, TRAPS_TEST) &&
		    !traps_begin(-1, traps_broken))
			complain("traps");
		run(argv);
	}
	show("/proc/iomem");
	if (access("/sys/kernel/mm/ptat", F_OK) == 0) {
		show("/sys/kernel/mm/ptat/readback");
		show_directory("/sys/kernel/mm/ptat/region");
		show_directory("/sys/kernel/mm/ptat/stat");
		show("/sys/kernel/debug/ptat/check");
	}
	puts("init: done");
	fflush(stdout);
	reboot(RB_POWER_OFF);
}
