// SPDX-License-Identifier: BSD-2-Clause
/*
 * libptat-heap.so, to be loaded by LD_PRELOAD: tells the recorder of mappings where the program's
 * larger pieces of memory come from, with the calls that led there.
 *
 *	PTAT_HEAP=BYTES:SOCKET	report allocations of at least BYTES to the recorder at SOCKET
 *
 * Without the variable, or when nobody listens, it does nothing but pass calls on.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>
#include <x86intrin.h>

#include "heap.h"

#define EARLY_BYTES 8192 /* dlsym() itself may want memory */

/* Calls of ours on the stack: report() and the function that the program called. */
#define OWN_FRAMES 2

static struct {
	void *(*malloc)(size_t);
	void *(*calloc)(size_t, size_t);
	void *(*realloc)(void *, size_t);
	void *(*memalign)(size_t, size_t);
	int (*posix_memalign)(void **, size_t, size_t);
	void (*free)(void *);
	void *(*mmap)(void *, size_t, int, int, int, off_t);
	void *(*mremap)(void *, size_t, size_t, int, void *);
	int (*munmap)(void *, size_t);
} real;

static char early[EARLY_BYTES] __attribute__((aligned(16)));
static size_t early_used;
static size_t threshold = SIZE_MAX;
static int out = -1;
static struct sockaddr_un recorder = { .sun_family = AF_UNIX };
static __thread bool inside __attribute__((tls_model("initial-exec")));

static void find(void)
{
	static bool finding;

	if (finding)
		return;
	finding = true;
	real.calloc = dlsym(RTLD_NEXT, "calloc");
	real.malloc = dlsym(RTLD_NEXT, "malloc");
	real.realloc = dlsym(RTLD_NEXT, "realloc");
	real.memalign = dlsym(RTLD_NEXT, "memalign");
	real.posix_memalign = dlsym(RTLD_NEXT, "posix_memalign");
	real.mmap = dlsym(RTLD_NEXT, "mmap");
	real.mremap = dlsym(RTLD_NEXT, "mremap");
	real.munmap = dlsym(RTLD_NEXT, "munmap");
	real.free = dlsym(RTLD_NEXT, "free");
	finding = false;
}

static void *early_memory(size_t bytes)
{
	void *memory = early + early_used;

	bytes = (bytes + 15) & ~15ul;
	if (bytes > sizeof(early) - early_used)
		return NULL;
	early_used += bytes;
	return memory;
}

static bool is_early(const void *memory)
{
	return (const char *)memory >= early && (const char *)memory < early + sizeof(early);
}

__attribute__((constructor)) static void begin(void)
{
	const char *setting = getenv("PTAT_HEAP"), *path;
	void *frame[2];
	char *end;
	unsigned long long bytes;

	if (!real.free)
		find();
	if (!setting)
		return;
	bytes = strtoull(setting, &end, 10);
	path = end + 1;
	if (*end != ':' || !bytes || strlen(path) >= sizeof(recorder.sun_path))
		return;
	strcpy(recorder.sun_path, path);
	inside = true;
	backtrace(frame, 2); /* loads the unwinder, which allocates */
	inside = false;
	out = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	/* Out of the way of programs that expect low numbers. */
	if (out >= 0) {
		int high = fcntl(out, F_DUPFD_CLOEXEC, 900);

		if (high >= 0) {
			close(out);
			out = high;
		}
		threshold = bytes;
	}
}

/* A program may close all files, or another may take the number: then the messages go nowhere. */
__attribute__((noinline)) static void report(enum ptat_heap_kind kind, const void *address,
					     size_t bytes)
{
	struct ptat_heap_message message = {
		.magic = PTAT_HEAP_MAGIC,
		.kind = kind,
		.pid = getpid(),
		.tsc = __rdtsc(),
		.address = (uintptr_t)address,
		.bytes = bytes,
	};
	void *frames[PTAT_HEAP_FRAMES + OWN_FRAMES];
	int error = errno, count = 0;

	if (inside)
		return;
	inside = true;
	if (kind == PTAT_HEAP_ALLOC || kind == PTAT_HEAP_MAP)
		count = backtrace(frames, PTAT_HEAP_FRAMES + OWN_FRAMES) - OWN_FRAMES;
	for (int i = 0; i < count; i++)
		message.frame[i] = (uintptr_t)frames[i + OWN_FRAMES];
	message.frames = count > 0 ? count : 0;
	sendto(out, &message,
	       offsetof(struct ptat_heap_message, frame) +
		       message.frames * sizeof(message.frame[0]),
	       MSG_NOSIGNAL, (struct sockaddr *)&recorder, sizeof(recorder));
	inside = false;
	errno = error;
}

/* As large as the program asked for: what malloc rounds up to is nobody's object. */
#define ALLOCATED(memory, bytes)                                                                   \
	do {                                                                                       \
		if ((memory) && (bytes) >= threshold)                                              \
			report(PTAT_HEAP_ALLOC, (memory), (bytes));                                \
	} while (0)

/* A block's size is not kept: any large one may have been reported. */
#define FREED(memory)                                                                              \
	do {                                                                                       \
		if ((memory) && threshold != SIZE_MAX && malloc_usable_size(memory) >= threshold)  \
			report(PTAT_HEAP_FREE, (memory), 0);                                       \
	} while (0)

void *malloc(size_t bytes)
{
	void *memory;

	if (!real.malloc)
		find();
	if (!real.malloc)
		return early_memory(bytes);
	memory = real.malloc(bytes);
	ALLOCATED(memory, bytes);
	return memory;
}

void *calloc(size_t count, size_t each)
{
	void *memory;

	if (!real.calloc)
		find();
	if (!real.calloc)
		return early_memory(count * each); /* static memory is zero */
	memory = real.calloc(count, each);
	ALLOCATED(memory, count * each);
	return memory;
}

void *realloc(void *old, size_t bytes)
{
	void *memory;

	if (!real.realloc)
		find();
	if (!real.realloc || is_early(old)) {
		size_t most = old ? (size_t)(early + sizeof(early) - (char *)old) : 0;

		memory = malloc(bytes);
		if (memory && old)
			memcpy(memory, old, bytes < most ? bytes : most);
		return memory;
	}
	FREED(old);
	memory = real.realloc(old, bytes);
	ALLOCATED(memory, bytes);
	return memory;
}

void *memalign(size_t alignment, size_t bytes)
{
	void *memory;

	if (!real.memalign)
		find();
	memory = real.memalign(alignment, bytes);
	ALLOCATED(memory, bytes);
	return memory;
}

void *aligned_alloc(size_t alignment, size_t bytes) __attribute__((alias("memalign")));

int posix_memalign(void **memory, size_t alignment, size_t bytes)
{
	int error;

	if (!real.posix_memalign)
		find();
	error = real.posix_memalign(memory, alignment, bytes);
	if (!error)
		ALLOCATED(*memory, bytes);
	return error;
}

void free(void *memory)
{
	if (!memory || is_early(memory))
		return;
	if (!real.free)
		find();
	FREED(memory);
	real.free(memory);
}

void *mmap(void *where, size_t bytes, int prot, int flags, int fd, off_t offset)
{
	void *memory;

	if (!real.mmap)
		find();
	memory = real.mmap(where, bytes, prot, flags, fd, offset);
	if (memory != MAP_FAILED && bytes >= threshold)
		report(PTAT_HEAP_MAP, memory, bytes);
	return memory;
}

void *mmap64(void *where, size_t bytes, int prot, int flags, int fd, off_t offset)
	__attribute__((alias("mmap")));

void *mremap(void *old, size_t old_bytes, size_t bytes, int flags, ...)
{
	void *memory, *where = NULL;
	va_list arguments;

	va_start(arguments, flags);
	if (flags & MREMAP_FIXED)
		where = va_arg(arguments, void *);
	va_end(arguments);
	if (!real.mremap)
		find();
	memory = real.mremap(old, old_bytes, bytes, flags, where);
	if (memory != MAP_FAILED && threshold != SIZE_MAX) {
		if (old_bytes >= threshold)
			report(PTAT_HEAP_UNMAP, old, old_bytes);
		if (bytes >= threshold)
			report(PTAT_HEAP_MAP, memory, bytes);
	}
	return memory;
}

int munmap(void *memory, size_t bytes)
{
	int error;

	if (!real.munmap)
		find();
	error = real.munmap(memory, bytes);
	if (!error && bytes >= threshold)
		report(PTAT_HEAP_UNMAP, memory, bytes);
	return error;
}
