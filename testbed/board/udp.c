// SPDX-License-Identifier: BSD-2-Clause
/* The stream over UDP, as docs/protocol.md has it, and a network that loses some. */
#define _GNU_SOURCE
#include "board.h"
#include "frame.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define CHUNK		 PTAT_PROTO_CHUNK_BYTES
#define PER_BLOCK	 (BLOCK_BYTES / CHUNK)
#define BURST		 64 /* datagrams between two looks at what came in */
#define REPEAT_AFTER_MS	 20
#define MISSING_AFTER_MS 2 /* a gap is not filled again sooner */
#define SEND_BUFFER	 (4 << 20)

struct data_header {
	uint32_t magic, seq;
	uint8_t channel, flags;
	uint16_t zero;
	uint32_t host;
};

struct ack {
	uint32_t magic, host, next, window, count;
	uint32_t ranges[PTAT_PROTO_ACK_RANGES_MAX][2];
};

struct stream {
	struct pretend *board;
	int fd;
	struct sockaddr_in peer;
	uint32_t host;
	size_t chunks, sent, acked, window;
	uint32_t progress_ms; /* when something new was last acknowledged */
	uint32_t filled_ms;
	size_t tail; /* how often the last datagram is yet to be lost */
	bool idle;
};

static uint32_t now_ms(const struct pretend *board)
{
	return board->hw.now_ms(board->hw.context);
}

static bool chance(size_t in_1000)
{
	return in_1000 && (size_t)random() % 1000 < in_1000;
}

static void put(struct stream *stream, size_t chunk)
{
	const struct faults *faults = &stream->board->faults;
	size_t block = chunk / PER_BLOCK;
	bool last = chunk + 1 >= stream->chunks;
	struct data_header header = {
		.magic = PTAT_PROTO_DATA_MAGIC,
		.seq = chunk,
		.flags = last ? PTAT_PROTO_DATA_LAST : 0,
		.host = stream->host,
	};
	uint8_t datagram[sizeof(header) + CHUNK];
	size_t size = sizeof(header);

	if (block == faults->unplug && chunk % PER_BLOCK == PER_BLOCK / 2)
		exit(0);
	memcpy(datagram, &header, sizeof(header));
	if (stream->chunks) {
		memcpy(datagram + size, stream->board->data + chunk * CHUNK, CHUNK);
		if (block == faults->damage && chunk % PER_BLOCK == 3)
			datagram[size + 100] ^= 4;
		size += CHUNK;
	}
	if (last && stream->tail) {
		stream->tail--;
		return;
	}
	if (chance(faults->lose))
		return;
	for (int times = chance(faults->repeat) ? 2 : 1; times; times--)
		sendto(stream->fd, datagram, size, 0, (struct sockaddr *)&stream->peer,
		       sizeof(stream->peer));
	if (faults->slow_us && last)
		usleep(faults->slow_us);
}

static void take_ack(struct stream *stream, const struct ack *ack, size_t size)
{
	size_t count = ack->count;
	size_t next = stream->acked + (uint32_t)(ack->next - (uint32_t)stream->acked);
	uint32_t now = now_ms(stream->board);

	if (size < offsetof(struct ack, ranges) || ack->host != stream->host ||
	    count > PTAT_PROTO_ACK_RANGES_MAX ||
	    size != offsetof(struct ack, ranges) + count * sizeof(*ack->ranges) ||
	    next > stream->sent)
		return;
	if (next != stream->acked)
		stream->progress_ms = now;
	stream->acked = next;
	stream->window = ack->window;
	if (!count || now - stream->filled_ms < MISSING_AFTER_MS)
		return;
	stream->filled_ms = now;
	for (size_t i = 0; i < count; i++) {
		size_t first = stream->acked + (uint32_t)(ack->ranges[i][0] - ack->next);

		for (uint32_t j = 0; j < ack->ranges[i][1] && first + j < stream->sent; j++)
			put(stream, first + j);
	}
}

static void take_all(struct stream *stream, int timeout_ms)
{
	struct pollfd fd = { .fd = stream->fd, .events = POLLIN };
	uint8_t in[2048], out[PTAT_PROTO_FRAME_BYTES_MAX];
	struct sockaddr_in from;
	socklen_t length = sizeof(from);
	ssize_t size;

	poll(&fd, 1, timeout_ms);
	while ((size = recvfrom(stream->fd, in, sizeof(in), MSG_DONTWAIT, (struct sockaddr *)&from,
				&length)) >= 0) {
		uint32_t magic = 0;
		size_t answered;
		unsigned int recording = stream->board->recording;

		memcpy(&magic, in, (size_t)size < sizeof(magic) ? (size_t)size : sizeof(magic));
		if (chance(stream->board->faults.lose))
			continue;
		if (magic == PTAT_PROTO_ACK_MAGIC) {
			struct ack ack = { 0 };
			uint32_t crc;

			size -= sizeof(crc);
			memcpy(&crc, in + size, sizeof(crc));
			if (frame_crc(0, in, size) != crc)
				continue;
			memcpy(&ack, in, (size_t)size < sizeof(ack) ? (size_t)size : sizeof(ack));
			take_ack(stream, &ack, size);
			continue;
		}
		answered = pretend_handle(stream->board, in, size, out);
		if (stream->board->recording != recording) {
			stream->peer = from;
			stream->host = stream->board->host;
			stream->sent = stream->acked = 0;
			stream->window = BURST; /* until the first acknowledgement */
			stream->progress_ms = now_ms(stream->board);
			stream->tail = stream->board->faults.tail;
			stream->idle = false;
		}
		if (answered)
			sendto(stream->fd, out, answered, 0, (struct sockaddr *)&from, length);
	}
}

static void send_some(struct stream *stream)
{
	const struct faults *faults = &stream->board->faults;
	size_t total = stream->chunks ? stream->chunks : 1; /* an empty stream still ends */

	for (int i = 0;
	     i < BURST && stream->sent < total && stream->sent - stream->acked < stream->window;
	     i++) {
		size_t chunk = stream->sent;

		if (stream->sent + 1 < total && chance(faults->swap)) {
			put(stream, chunk + 1);
			stream->sent++;
		}
		put(stream, chunk);
		stream->sent++;
		if (faults->slow_us && stream->sent % PER_BLOCK == 0)
			usleep(faults->slow_us);
	}
	if (stream->sent > stream->acked &&
	    now_ms(stream->board) - stream->progress_ms > REPEAT_AFTER_MS) {
		stream->progress_ms = now_ms(stream->board);
		for (size_t chunk = stream->acked;
		     chunk < stream->sent && chunk < stream->acked + BURST; chunk++)
			put(stream, chunk);
	}
	pthread_mutex_lock(&stream->board->lock);
	stream->board->all_sent = stream->sent == total;
	pthread_mutex_unlock(&stream->board->lock);
	stream->idle = stream->acked >= stream->chunks && stream->sent == total;
}

void run_udp(struct pretend *board, const char *port)
{
	struct stream stream = { .board = board, .idle = true };
	struct sockaddr_in here = {
		.sin_family = AF_INET,
		.sin_port = htons(atoi(port)),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK),
	};
	socklen_t length = sizeof(here);
	int buffer = SEND_BUFFER;

	stream.chunks = board->blocks * PER_BLOCK;
	stream.fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	setsockopt(stream.fd, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof(buffer));
	if (stream.fd < 0 || bind(stream.fd, (struct sockaddr *)&here, sizeof(here)) ||
	    getsockname(stream.fd, (struct sockaddr *)&here, &length))
		die("port %s: %s", port, strerror(errno));
	printf("%d\n", ntohs(here.sin_port));
	fflush(stdout);
	for (;;) {
		bool can_send = !stream.idle && stream.sent - stream.acked < stream.window &&
				stream.sent < stream.chunks;

		take_all(&stream, can_send ? 0 : stream.idle ? 100 : 1);
		if (!stream.idle)
			send_some(&stream);
	}
}
