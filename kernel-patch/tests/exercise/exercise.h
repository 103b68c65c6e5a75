/* SPDX-License-Identifier: BSD-2-Clause */
/* What the groups of exercise have in common. */
#ifndef EXERCISE_H
#define EXERCISE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/types.h>

#define PAGE		  4096UL
#define MB		  (1UL << 20)
#define GB		  (1UL << 30)
#define TABLE_SPAN	  (2 * MB) /* served by a PTE table, or by a huge page */

#define SYSFS		  "/sys/kernel/mm/ptat/"
#define DEBUGFS		  "/sys/kernel/debug/"
#define TRACING		  DEBUGFS "tracing/"
#define CGROUPS		  "/sys/fs/cgroup/"

#define CHECK		  DEBUGFS "ptat/check"
#define LINK_EVENT	  TRACING "events/ptat/ptat_table_link/enable"

#define ARRAY_SIZE(array) (sizeof(array) / sizeof((array)[0]))

/* Newer than the C library's headers on Debian 12. */
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef MADV_SOFT_OFFLINE
#define MADV_SOFT_OFFLINE 101
#endif

/*
 * A kind of things that a process does. It runs in a process of its own that has just been
 * executed, once untraced and once traced; what it prints must be the same.
 */
struct group {
	const char *name;
	void (*run)(void);
};

extern const struct group process_groups[], mapping_groups[], huge_groups[], reclaim_groups[];

/* Shows how many pages reclaim takes from a traced process, and from one that is not. */
void measure_reclaim(void);

enum { EXIT_WRONG = 1, EXIT_SKIP = 4 };

__attribute__((noreturn, format(printf, 1, 2))) void wrong(const char *format, ...);
__attribute__((noreturn, format(printf, 1, 2))) void skip(const char *format, ...);

#define require(condition)                                                                         \
	do {                                                                                       \
		if (!(condition))                                                                  \
			wrong("%s:%d: %s", __FILE__, __LINE__, #condition);                        \
	} while (0)

/* Files of the kernel. */
bool try_put(const char *path, const char *text);
void put(const char *path, const char *text);
bool get(const char *path, char *text, size_t size);
/* The number behind `name` in a file of lines "name number"; -1 if it is not there. */
long number(const char *path, const char *name);
long number_in(const char *text, const char *name);
/* The number in a file of PTAT's stat/. */
long stat_number(const char *name);
/* Are page tables of this process recorded, so that nobody but the walkers may read them? */
bool recorded(void);
/* The region must agree with the twins just now. */
void compare_region(void);
/* A bit of what /proc/self/pagemap says of a page. */
bool pagemap_bit(const void *page, int bit);

/* Memory, at a multiple of its alignment. */
char *area(size_t size, size_t align);
char *small_pages(size_t size);
char *huge_pages(size_t size);
/* Each page gets a mark of its own; `seed` tells one filling from another. */
void fill(char *p, size_t size, int seed);
void check_fill(const char *p, size_t size, int seed);
void check_page(const char *p, size_t offset, int seed);

/* Processes. */
pid_t start(void (*run)(void *), void *argument);
void finish(pid_t pid);
void execute(const char *option, const char *argument);
/* What a process that was executed with such an option does; false if it is none. */
bool executed(const char *option, const char *argument);

/* A random number below `limit`, the same in each run of a process. */
unsigned int below(unsigned int limit);

/* A file system with `options`, mounted at a new directory whose name is returned. */
const char *mount_new(const char *type, const char *source, const char *options);
/* A memory cgroup which the caller enters: its processes are killed above the limit. */
void limit_memory(size_t bytes);
/* The same, but their pages are evicted above the limit. */
void evict_above(size_t bytes);
/* Changes a setting until the end of the process. */
void set_for_now(const char *path, const char *text);

#endif
