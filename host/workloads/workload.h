/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the workloads share: sizes and counts on the command line, memory whose page size is
 * certain, and random numbers.
 *
 * Exit status: 0 done, 1 the answer is no (a verification failed), 2 usage or environment.
 */
#ifndef PTAT_WORKLOAD_H
#define PTAT_WORKLOAD_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#ifndef MAP_HUGE_2MB
#define MAP_HUGE_2MB (21 << 26)
#endif
#ifndef MAP_HUGE_1GB
#define MAP_HUGE_1GB (30 << 26)
#endif

#define BASE_PAGE_BYTES	    4096UL
#define HUGE_PAGE_BYTES	    (2UL << 20)
#define GIGANTIC_PAGE_BYTES (1UL << 30)

__attribute__((noreturn, format(printf, 1, 2))) static inline void fail(const char *format, ...)
{
	va_list arguments;

	fprintf(stderr, "%s: error: ", program_invocation_short_name);
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fputc('\n', stderr);
	exit(2);
}

__attribute__((noreturn)) static inline void help(const char *usage)
{
	fputs(usage, stdout);
	exit(0);
}

__attribute__((noreturn)) static inline void bad_usage(void)
{
	fprintf(stderr, "try '%s --help'\n", program_invocation_short_name);
	exit(2);
}

/* A positive number with an optional binary suffix: 64M is 64 × 2^20. */
static inline uint64_t parse_size(const char *option, const char *text)
{
	static const char suffixes[] = "KMGT";
	const char *suffix;
	unsigned int shift = 0;
	uint64_t value;
	char *end;

	errno = 0;
	value = strtoull(text, &end, 10);
	if (*end && (suffix = strchr(suffixes, *end & ~0x20))) {
		shift = 10 * (suffix - suffixes + 1);
		end++;
	}
	if (*text < '0' || *text > '9' || *end || errno || !value || value > UINT64_MAX >> shift)
		fail("%s: '%s' is not a size such as 4096, 64M or 1G", option, text);
	return value << shift;
}

/* As parse_size(), within limits. */
static inline uint64_t parse_count(const char *option, const char *text, uint64_t least,
				   uint64_t most)
{
	uint64_t value = parse_size(option, text);

	if (value < least || value > most)
		fail("%s: %s is not within %llu…%llu", option, text, (unsigned long long)least,
		     (unsigned long long)most);
	return value;
}

static inline uint64_t round_up(uint64_t value, uint64_t unit)
{
	return (value + unit - 1) / unit * unit;
}

/*
 * Untouched memory in hugetlb pages of huge_bytes (a transparent huge page may quietly become small
 * ones) or, if that is 0, in pages of 4 KiB (never huge).
 */
static inline void *map_pages(uint64_t bytes, uint64_t huge_bytes)
{
	bool gigantic = huge_bytes == GIGANTIC_PAGE_BYTES;
	int flags = MAP_PRIVATE | MAP_ANONYMOUS;
	void *memory;

	if (huge_bytes)
		flags |= MAP_HUGETLB | (gigantic ? MAP_HUGE_1GB : MAP_HUGE_2MB);
	bytes = round_up(bytes, huge_bytes ? huge_bytes : BASE_PAGE_BYTES);
	memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
	if (memory == MAP_FAILED && huge_bytes)
		fail("no %llu free %s pages (%s): reserve them with 'ptat record --hugepages "
		     "%s:N' or in /sys/kernel/mm/hugepages",
		     (unsigned long long)(bytes / huge_bytes), gigantic ? "1 GiB" : "2 MiB",
		     strerror(errno), gigantic ? "1G" : "2M");
	if (memory == MAP_FAILED)
		fail("cannot map %llu bytes: %s", (unsigned long long)bytes, strerror(errno));
	if (!huge_bytes && madvise(memory, bytes, MADV_NOHUGEPAGE) && errno != EINVAL)
		fail("cannot ask for 4 KiB pages: %s", strerror(errno));
	return memory;
}

/* SplitMix64: every run of a workload touches the same pages in the same order. */
static inline uint64_t next_random(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return z ^ z >> 31;
}

/* Uniform in [0, limit), but for a bias below limit / 2^64. */
static inline uint64_t random_below(uint64_t *state, uint64_t limit)
{
	return (unsigned __int128)next_random(state) * limit >> 64;
}

static inline double seconds_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

#endif /* PTAT_WORKLOAD_H */
