// SPDX-License-Identifier: BSD-2-Clause
/*
 * Records what is mapped where in a process and all that descend from it: the kernel's own events
 * (those of `perf record --data`), which come with each mapping's time, and /proc/PID/maps every
 * tenth of a second, which shows what has no event (mremap, munmap, a stack's growth, names of
 * anonymous memory). docs/formats.md describes the lines that come out.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <linux/perf_event.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "clock.h"
#include "heap.h"
#include "maps.h"

#define RING_BYTES   (256u << 10)
#define SNAPSHOT_NS  100000000ull
#define SETTLE_NS    1000000ull /* longest delay of an event on its way to its ring */
#define SNAPSHOT_GAP 20		/* snapshots take at most 1/20 of the time */
#define PROCESSES    4096	/* most processes that are read from /proc */
#define MAPS_BYTES   (4u << 20)

struct process {
	int pid;
	uint64_t seen; /* hash of its maps */
};

struct maps {
	struct maps_request request;
	FILE *out;
	int cpus, socket;
	int *fds;
	struct perf_event_mmap_page **rings;
	struct process *processes;
	int count, room;
	uint64_t snapshot_ns;
	char *text;
	bool broken;
};

static bool append_process(struct maps *maps, int pid)
{
	if (maps->count == maps->room) {
		int room = maps->room ? 2 * maps->room : 64;
		struct process *more = realloc(maps->processes, room * sizeof(*more));

		if (!more)
			return false;
		maps->processes = more;
		maps->room = room;
	}
	maps->processes[maps->count++] = (struct process){ .pid = pid };
	return true;
}

static struct process *find_process(struct maps *maps, int pid)
{
	for (int i = maps->count - 1; i >= 0; i--)
		if (maps->processes[i].pid == pid)
			return &maps->processes[i];
	return NULL;
}

/* ---- Lines ---- */

/* A JSON string in which each byte that is no plain ASCII is the character of its number. */
static void put_string(FILE *out, const char *text, size_t size)
{
	putc('"', out);
	for (const unsigned char *c = (const unsigned char *)text; size && *c; c++, size--) {
		if (*c < 0x20 || *c >= 0x7f)
			fprintf(out, "\\u%04x", *c);
		else if (*c == '"' || *c == '\\')
			fprintf(out, "\\%c", *c);
		else
			putc(*c, out);
	}
	putc('"', out);
}

static void put_clock(struct maps *maps)
{
	struct moment now = both_clocks();

	fprintf(maps->out, "{\"kind\":\"clock\",\"tsc\":%llu,\"ns\":%llu}\n",
		(unsigned long long)now.tsc, (unsigned long long)now.ns);
}

/* ---- The kernel's events ---- */

struct mmap2 {
	struct perf_event_header header;
	uint32_t pid, tid;
	uint64_t addr, len, pgoff;
	uint32_t maj, min;
	uint64_t ino, ino_generation;
	uint32_t prot, flags;
	char file[];
};

struct comm {
	struct perf_event_header header;
	uint32_t pid, tid;
	char comm[];
};

struct task {
	struct perf_event_header header;
	uint32_t pid, ppid, tid, ptid;
};

struct lost {
	struct perf_event_header header;
	uint64_t id, lost;
};

static void put_mmap(FILE *out, uint64_t ns, const struct mmap2 *event)
{
	fprintf(out,
		"{\"kind\":\"map\",\"ns\":%llu,\"pid\":%u,\"start\":%llu,\"bytes\":%llu,"
		"\"offset\":%llu,\"prot\":%u,\"flags\":%u,\"name\":",
		(unsigned long long)ns, event->pid, (unsigned long long)event->addr,
		(unsigned long long)event->len, (unsigned long long)event->pgoff, event->prot,
		event->flags);
	put_string(out, event->file, event->header.size - sizeof(*event));
	fputs("}\n", out);
}

static void take(struct maps *maps, const struct perf_event_header *header)
{
	const struct mmap2 *map = (const void *)header;
	const struct comm *comm = (const void *)header;
	const struct task *task = (const void *)header;
	const struct lost *lost = (const void *)header;
	struct process *process;
	unsigned long long ns;
	FILE *out = maps->out;

	/* Each event ends with process and time. */
	memcpy(&ns, (const char *)header + header->size - sizeof(ns), sizeof(ns));
	switch (header->type) {
	case PERF_RECORD_LOST:
		fprintf(out, "{\"kind\":\"lost\",\"ns\":%llu,\"events\":%llu}\n", ns,
			(unsigned long long)lost->lost);
		break;
	case PERF_RECORD_FORK:
		if (task->pid == task->ppid ||
		    ((int)task->ppid != maps->request.root && !find_process(maps, task->ppid)))
			break;
		if (!append_process(maps, task->pid))
			maps->broken = true;
		fprintf(out, "{\"kind\":\"fork\",\"ns\":%llu,\"pid\":%u,\"parent\":%u}\n", ns,
			task->pid, task->ppid);
		break;
	case PERF_RECORD_EXIT:
		process = task->pid == task->tid ? find_process(maps, task->pid) : NULL;
		if (!process)
			break;
		*process = maps->processes[--maps->count];
		fprintf(out, "{\"kind\":\"exit\",\"ns\":%llu,\"pid\":%u}\n", ns, task->pid);
		break;
	case PERF_RECORD_COMM:
		if (!find_process(maps, comm->pid))
			break;
		if (header->misc & PERF_RECORD_MISC_COMM_EXEC)
			fprintf(out, "{\"kind\":\"exec\",\"ns\":%llu,\"pid\":%u,", ns, comm->pid);
		else
			fprintf(out, "{\"kind\":\"comm\",\"ns\":%llu,\"pid\":%u,\"tid\":%u,", ns,
				comm->pid, comm->tid);
		fputs("\"comm\":", out);
		put_string(out, comm->comm, header->size - sizeof(*comm));
		fputs("}\n", out);
		break;
	case PERF_RECORD_MMAP2:
		if (find_process(maps, map->pid))
			put_mmap(out, ns, map);
	}
}

static const void *ring_at(const struct perf_event_mmap_page *page, uint64_t offset)
{
	return (const char *)page + page->data_offset + offset % page->data_size;
}

/* Of the ring's next event. Events are aligned to 8 bytes, so no word runs over the ring's end. */
static uint64_t next_ns(const struct perf_event_mmap_page *page)
{
	const struct perf_event_header *header = ring_at(page, page->data_tail);

	return *(const uint64_t *)ring_at(page, page->data_tail + header->size - sizeof(uint64_t));
}

static void take_next(struct maps *maps, struct perf_event_mmap_page *page)
{
	static char event[UINT16_MAX + 1] __attribute__((aligned(8)));
	const struct perf_event_header *header = ring_at(page, page->data_tail);
	size_t first = page->data_size - page->data_tail % page->data_size;
	size_t size = header->size;

	/* One that runs over the ring's end is put together. */
	if (size > first) {
		memcpy(event, header, first);
		memcpy(event + first, ring_at(page, 0), size - first);
		header = (const void *)event;
	}
	take(maps, header);
	__atomic_store_n(&page->data_tail, page->data_tail + size, __ATOMIC_RELEASE);
}

/*
 * Takes the events of all CPUs before @until_ns in the order of time: what a process does on one
 * CPU would mean nothing before its fork on another.
 */
static void drain_rings(struct maps *maps, uint64_t until_ns)
{
	for (;;) {
		struct perf_event_mmap_page *next = NULL;
		uint64_t least_ns = until_ns;

		for (int i = 0; i < maps->cpus; i++) {
			struct perf_event_mmap_page *page = maps->rings[i];

			if (page->data_tail ==
				    __atomic_load_n(&page->data_head, __ATOMIC_ACQUIRE) ||
			    next_ns(page) >= least_ns)
				continue;
			next = page;
			least_ns = next_ns(page);
		}
		if (!next)
			return;
		take_next(maps, next);
	}
}

static bool open_ring(struct maps *maps, int cpu)
{
	struct perf_event_attr attr = {
		.type = PERF_TYPE_SOFTWARE,
		.size = sizeof(attr),
		.config = PERF_COUNT_SW_DUMMY,
		.sample_type = PERF_SAMPLE_TID | PERF_SAMPLE_TIME,
		.mmap = 1,
		.mmap2 = 1,
		.mmap_data = 1,
		.comm = 1,
		.comm_exec = 1,
		.task = 1,
		.sample_id_all = 1,
		.use_clockid = 1,
		.clockid = CLOCK_MONOTONIC_RAW,
		.watermark = 1,
		.wakeup_watermark = RING_BYTES / 4,
	};
	int fd = syscall(SYS_perf_event_open, &attr, -1, cpu, -1, PERF_FLAG_FD_CLOEXEC);
	void *ring;

	if (fd < 0)
		return errno == ENODEV; /* this CPU is offline */
	ring = mmap(NULL, sysconf(_SC_PAGESIZE) + RING_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED,
		    fd, 0);
	if (ring == MAP_FAILED) {
		close(fd);
		return false;
	}
	maps->fds[maps->cpus] = fd;
	maps->rings[maps->cpus++] = ring;
	return true;
}

/* ---- Snapshots of /proc/PID/maps ---- */

static size_t read_maps(struct maps *maps, int pid)
{
	char path[32];
	size_t size = 0;
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/maps", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	while (size < MAPS_BYTES && (n = read(fd, maps->text + size, MAPS_BYTES - size)) > 0)
		size += n;
	close(fd);
	/* One that is too long is left out: half of it would look like an unmapping. */
	return size < MAPS_BYTES ? size : 0;
}

static void put_snapshot(struct maps *maps, uint64_t ns, int pid, size_t size)
{
	const char *line = maps->text, *end = line + size;

	fprintf(maps->out, "{\"kind\":\"maps\",\"ns\":%llu,\"pid\":%d,\"lines\":[",
		(unsigned long long)ns, pid);
	while (line < end) {
		const char *eol = memchr(line, '\n', end - line);

		if (!eol)
			eol = end;
		if (line != maps->text)
			putc(',', maps->out);
		put_string(maps->out, line, eol - line);
		line = eol + 1;
	}
	fputs("]}\n", maps->out);
}

static uint64_t hash(const char *text, size_t size)
{
	uint64_t h = 0xcbf29ce484222325; /* FNV-1a */

	while (size--)
		h = (h ^ (unsigned char)*text++) * 0x100000001b3;
	return h;
}

static void snapshot(struct maps *maps)
{
	uint64_t begin = now_ns();
	int count = maps->count < PROCESSES ? maps->count : PROCESSES;

	if (begin < maps->snapshot_ns)
		return;
	for (int i = 0; i < count; i++) {
		struct process *process = &maps->processes[i];
		uint64_t ns = now_ns(), seen;
		size_t size = read_maps(maps, process->pid);

		seen = hash(maps->text, size);
		if (size && seen != process->seen) {
			process->seen = seen;
			put_snapshot(maps, ns, process->pid, size);
		}
	}
	maps->snapshot_ns = now_ns() + SNAPSHOT_NS + SNAPSHOT_GAP * (now_ns() - begin);
}

/* ---- libptat-heap.so's messages ---- */

static bool open_socket(struct maps *maps)
{
	struct sockaddr_un name = { .sun_family = AF_UNIX };

	if (strlen(maps->request.socket) >= sizeof(name.sun_path)) {
		errno = ENAMETOOLONG;
		return false;
	}
	strcpy(name.sun_path, maps->request.socket);
	maps->socket = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	return maps->socket >= 0 && !bind(maps->socket, (struct sockaddr *)&name, sizeof(name));
}

static void drain_socket(struct maps *maps)
{
	static const char *const kinds[] = { "alloc", "free", "heap-map", "heap-unmap" };
	const size_t least = offsetof(struct ptat_heap_message, frame);
	struct ptat_heap_message message;
	FILE *out = maps->out;
	ssize_t size;

	if (maps->socket < 0)
		return;
	while ((size = recv(maps->socket, &message, sizeof(message), MSG_DONTWAIT)) > 0) {
		if ((size_t)size < least || message.magic != PTAT_HEAP_MAGIC ||
		    message.kind > PTAT_HEAP_UNMAP ||
		    message.frames > (size - least) / sizeof(message.frame[0]))
			continue;
		fprintf(out,
			"{\"kind\":\"%s\",\"tsc\":%llu,\"pid\":%u,\"start\":%llu,\"bytes\":%llu",
			kinds[message.kind], (unsigned long long)message.tsc, message.pid,
			(unsigned long long)message.address, (unsigned long long)message.bytes);
		for (int i = 0; i < message.frames; i++)
			fprintf(out, "%s%llu", i ? "," : ",\"frames\":[",
				(unsigned long long)message.frame[i]);
		fputs(message.frames ? "]}\n" : "}\n", out);
	}
}

/* ---- */

static void release(struct maps *maps)
{
	int error = errno;

	for (int i = 0; i < maps->cpus; i++) {
		munmap(maps->rings[i], sysconf(_SC_PAGESIZE) + RING_BYTES);
		close(maps->fds[i]);
	}
	if (maps->socket >= 0) {
		close(maps->socket);
		unlink(maps->request.socket);
	}
	if (maps->out)
		fclose(maps->out);
	free(maps->fds);
	free(maps->rings);
	free(maps->processes);
	free(maps->text);
	free(maps);
	errno = error;
}

struct maps *maps_begin(const struct maps_request *request)
{
	int cpus = sysconf(_SC_NPROCESSORS_CONF);
	struct maps *maps = calloc(1, sizeof(*maps));
	bool ready;

	if (!maps)
		return NULL;
	maps->request = *request;
	maps->socket = -1;
	maps->fds = calloc(cpus, sizeof(*maps->fds));
	maps->rings = calloc(cpus, sizeof(*maps->rings));
	maps->text = malloc(MAPS_BYTES);
	ready = maps->fds && maps->rings && maps->text;
	for (int cpu = 0; ready && cpu < cpus; cpu++)
		ready = open_ring(maps, cpu);
	ready = ready && (!request->socket || open_socket(maps));
	maps->out = ready ? fdopen(request->out, "w") : NULL;
	if (!maps->out) {
		release(maps);
		return NULL;
	}
	put_clock(maps);
	return maps;
}

bool maps_run(struct maps *maps)
{
	struct pollfd *fds = calloc(maps->cpus + 2, sizeof(*fds));
	bool end = !fds, done;

	for (int i = 0; !end && i < maps->cpus; i++)
		fds[i + 2] = (struct pollfd){ .fd = maps->fds[i], .events = POLLIN };
	if (fds) {
		fds[0] = (struct pollfd){ .fd = maps->request.end, .events = POLLIN };
		fds[1] = (struct pollfd){ .fd = maps->socket, .events = POLLIN };
	}
	while (!end) {
		poll(fds, maps->cpus + 2, SNAPSHOT_NS / 1000000);
		end = fds[0].revents;
		drain_rings(maps, end ? UINT64_MAX : now_ns() - SETTLE_NS);
		drain_socket(maps);
		snapshot(maps);
		fflush(maps->out);
	}
	put_clock(maps);
	done = fds && !maps->broken && !fflush(maps->out) && !ferror(maps->out);
	free(fds);
	release(maps);
	return done;
}
