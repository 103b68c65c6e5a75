// SPDX-License-Identifier: BSD-2-Clause
/* See traps.h. */
#define _GNU_SOURCE
#include "traps.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/ptat.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define DEVICE	   "/dev/ptat"
#define RING_BYTES "/sys/class/misc/ptat/ring_bytes"
#define POLL_MS	   50

struct ring {
	struct ptat_trap_ring *page;
	struct ptat_trap_ring last; /* what it was when it was unmapped */
	int file;
	char name[24];
};

struct traps {
	int device, count;
	bool is_mapped;
	size_t ring_bytes;
	bool ending, failed;
	void (*broken)(const char *file);
	pthread_t thread;
	struct ring rings[];
};

static size_t read_size(const char *path)
{
	unsigned long value = 0;
	FILE *file = fopen(path, "re");

	if (!file)
		return 0;
	if (fscanf(file, "%lu", &value) != 1)
		value = 0;
	fclose(file);
	return value;
}

static bool write_all(int fd, const char *data, size_t size)
{
	while (size) {
		ssize_t n = write(fd, data, size);

		if (n < 0)
			return false;
		data += n;
		size -= n;
	}
	return true;
}

static bool drain(struct ring *ring)
{
	struct ptat_trap_ring *page = ring->page;
	const char *data = (char *)page + page->data_offset;
	uint64_t head = __atomic_load_n(&page->head, __ATOMIC_ACQUIRE);

	for (uint64_t tail = page->tail; tail != head;) {
		uint64_t first = tail & (page->records - 1);
		uint64_t count = head - tail;

		if (count > page->records - first)
			count = page->records - first;
		if (ring->file >= 0 && !write_all(ring->file, data + first * page->record_bytes,
						  count * page->record_bytes))
			return false;
		tail += count;
		__atomic_store_n(&page->tail, tail, __ATOMIC_RELEASE);
	}
	return true;
}

static void *run(void *argument)
{
	struct traps *traps = argument;
	struct pollfd poller = { .fd = traps->device, .events = POLLIN };
	bool last;

	do {
		last = __atomic_load_n(&traps->ending, __ATOMIC_ACQUIRE);
		for (int i = 0; i < traps->count; i++) {
			if (drain(&traps->rings[i]))
				continue;
			traps->failed = true;
			traps->broken(traps->rings[i].name);
			traps_end(traps);
			return NULL;
		}
		poll(&poller, 1, POLL_MS);
	} while (!last);
	return NULL;
}

struct traps *traps_begin(int directory, void (*broken)(const char *file))
{
	long cpus = sysconf(_SC_NPROCESSORS_CONF);
	struct traps *traps = calloc(1, sizeof(*traps) + cpus * sizeof(traps->rings[0]));

	if (!traps)
		return NULL;
	traps->broken = broken;
	traps->ring_bytes = read_size(RING_BYTES);
	traps->device = open(DEVICE, O_RDWR | O_CLOEXEC);
	if (traps->device < 0)
		return NULL;
	traps->is_mapped = true;
	for (; traps->count < cpus; traps->count++) {
		struct ring *ring = &traps->rings[traps->count];

		ring->page = mmap(NULL, traps->ring_bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
				  traps->device, traps->count * traps->ring_bytes);
		if (ring->page == MAP_FAILED)
			return NULL;
		snprintf(ring->name, sizeof(ring->name), "trap%d.raw", traps->count);
		ring->file = -1;
		if (directory < 0)
			continue;
		ring->file = openat(directory, ring->name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC,
				    0666);
		if (ring->file < 0)
			return NULL;
	}
	errno = pthread_create(&traps->thread, NULL, run, traps);
	return errno ? NULL : traps;
}

void traps_drain(struct traps *traps, FILE *out)
{
	__atomic_store_n(&traps->ending, true, __ATOMIC_RELEASE);
	pthread_join(traps->thread, NULL);
	for (int i = 0; i < traps->count; i++) {
		struct ring *ring = &traps->rings[i];
		const struct ptat_trap_ring *page = traps->is_mapped ? ring->page : &ring->last;

		if (close(ring->file) && !traps->failed)
			traps->broken(ring->name);
		/* All that was written: where that failed, some is left in the ring. */
		fprintf(out, "ring %u %llu %llu %llu\n", page->cpu, page->tail, page->lost,
			page->waits);
	}
}

void traps_end(struct traps *traps)
{
	for (int i = 0; i < traps->count && traps->is_mapped; i++) {
		traps->rings[i].last = *traps->rings[i].page;
		munmap(traps->rings[i].page, traps->ring_bytes);
	}
	traps->is_mapped = false;
	if (traps->device >= 0)
		close(traps->device);
	traps->device = -1;
}
