// SPDX-License-Identifier: BSD-2-Clause
#define _GNU_SOURCE
#include "board.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define TICK_HZ	 1000000000
#define POLL_US	 10000
#define CAPACITY (64 << 20)

void die(const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	fputs("pretend-board: ", stderr);
	vfprintf(stderr, format, ap);
	fputc('\n', stderr);
	va_end(ap);
	exit(2);
}

/* ---- The hardware that the firmware's logic sees; called with the lock held ---- */

static void start(void *context)
{
	struct pretend *board = context;

	board->recording++;
	board->host = board->control.owner;
	board->all_sent = false;
	pthread_cond_broadcast(&board->changed);
}

static void nothing(void *context)
{
	(void)context;
}

static bool drained(void *context)
{
	return ((struct pretend *)context)->all_sent;
}

static uint64_t blocks(void *context)
{
	struct pretend *board = context;

	return board->blocks + (board->faults.lie == NEVER ? 0 : board->faults.lie);
}

static void set_number(void *context, uint32_t value)
{
	(void)context;
	(void)value;
}

static void set_window(void *context, unsigned int index, struct ptat_proto_window window)
{
	(void)context;
	(void)index;
	(void)window;
}

static void set_mapped(void *context, bool mapped)
{
	(void)context;
	(void)mapped;
}

static void set_table(void *context, unsigned int index, uint64_t value)
{
	(void)context;
	(void)index;
	(void)value;
}

static void set_pair(void *context, uint32_t first, uint32_t second)
{
	(void)context;
	(void)first;
	(void)second;
}

static void health(void *context, struct ptat_proto_health *health)
{
	health->capacity_bytes = CAPACITY;
	health->blocks = blocks(context);
	health->temperature_mc = 41500;
}

static uint32_t now_ms(void *context)
{
	struct timespec now;

	(void)context;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

size_t pretend_handle(struct pretend *board, const void *request, size_t size, void *response)
{
	size_t answered;

	pthread_mutex_lock(&board->lock);
	answered = control_handle(&board->control, request, size, response);
	/* The logic knows its owner only after start(). */
	board->host = board->control.owner;
	pthread_mutex_unlock(&board->lock);
	return answered;
}

static void *watch(void *context)
{
	struct pretend *board = context;

	for (;;) {
		usleep(POLL_US);
		pthread_mutex_lock(&board->lock);
		control_poll(&board->control);
		pthread_mutex_unlock(&board->lock);
	}
	return NULL;
}

/* ---- The command line ---- */

static void parse_fault(struct faults *faults, const char *text)
{
	const struct {
		const char *name;
		size_t *value;
	} with_number[] = {
		{ "stall", &faults->stall },	 { "unplug", &faults->unplug },
		{ "garbage", &faults->garbage }, { "damage", &faults->damage },
		{ "drop", &faults->drop },	 { "twice", &faults->twice },
		{ "lie", &faults->lie },	 { "slow", &faults->slow_us },
		{ "wire", &faults->wire },	 { "channels", &faults->channels },
		{ "lose", &faults->lose },	 { "repeat", &faults->repeat },
		{ "swap", &faults->swap },	 { "tail", &faults->tail },
	};
	size_t name = strcspn(text, ":");

	faults->any_per_block = true;
	if (!strcmp(text, "short")) {
		faults->is_short = true;
		return;
	}
	for (size_t i = 0; i < sizeof(with_number) / sizeof(*with_number); i++) {
		char *end;

		if (strncmp(with_number[i].name, text, name) || with_number[i].name[name])
			continue;
		if (!text[name])
			break;
		*with_number[i].value = strtoull(text + name + 1, &end, 10);
		if (!*end)
			return;
	}
	die("there is no fault '%s'", text);
}

static const uint8_t *map(const char *path, size_t *size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct stat stat;
	void *data;

	if (fd < 0 || fstat(fd, &stat))
		die("%s: %s", path, strerror(errno));
	*size = stat.st_size;
	data = mmap(NULL, *size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (data == MAP_FAILED)
		die("%s: %s", path, strerror(errno));
	close(fd);
	return data;
}

int main(int argc, char **argv)
{
	static struct pretend board = {
		.faults = {
			.stall = NEVER, .unplug = NEVER, .garbage = NEVER, .damage = NEVER,
			.drop = NEVER, .twice = NEVER, .lie = NEVER, .wire = 1, .channels = 1,
		},
		.lock = PTHREAD_MUTEX_INITIALIZER,
		.changed = PTHREAD_COND_INITIALIZER,
		.all_sent = true,
	};
	struct ptat_proto_identity identity = {
		.git_hash = { 0x12, 0x34 },
		.granularity_bytes = 64,
		.tick_hz = TICK_HZ,
		.board = "pretend",
	};
	pthread_t watcher;
	size_t size;

	if (argc < 4 || (strcmp(argv[1], "usb") && strcmp(argv[1], "udp")))
		die("usage: pretend-board usb SERIAL|udp PORT FILE [FAULT[:N]]...");
	for (int i = 4; i < argc; i++)
		parse_fault(&board.faults, argv[i]);
	board.data = map(argv[3], &size);
	board.blocks = size / BLOCK_BYTES;
	board.hw = (struct hardware){
		.context = &board,
		.start = start,
		.stop = nothing,
		.flush = nothing,
		.drained = drained,
		.blocks = blocks,
		.set_trigger = set_number,
		.set_sample = set_number,
		.set_window = set_window,
		.table_slice_bits = 9,
		.set_mirror = set_number,
		.set_mapped = set_mapped,
		.set_table = set_table,
		.set_remap = set_pair,
		.health = health,
		.now_ms = now_ms,
	};
	identity.wire_version = board.faults.wire;
	identity.channels = board.faults.channels;
	snprintf(identity.serial, sizeof(identity.serial), "%.15s", argv[2]);
	control_init(&board.control, &board.hw, &identity);
	if (pthread_create(&watcher, NULL, watch, &board))
		die("cannot start a thread");
	if (!strcmp(argv[1], "usb"))
		run_usb(&board, argv[2]);
	else
		run_udp(&board, argv[2]);
	return 0;
}
