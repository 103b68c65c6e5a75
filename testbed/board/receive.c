// SPDX-License-Identifier: BSD-2-Clause
/*
 * The plainest receiver of a board's stream, to measure ptat against: no order is
 * restored, nothing is repeated, nothing survives an error. It starts a recording,
 * writes what comes until the given size has arrived, and stops it.
 *
 *	receive udp PORT BYTES FILE
 *	receive usb DEVICE BYTES FILE	DEVICE as in /dev/bus/usb
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/usbdevice_fs.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "frame.h"

#define HOST		   1
#define ACK_EVERY	   64
#define WINDOW		   4096
#define SOCKET_BYTES	   (16 << 20)
#define USB_TRANSFER_BYTES (256 << 10)
#define USB_TIMEOUT_MS	   5000

struct data_header {
	uint32_t magic, seq;
	uint8_t channel, flags;
	uint16_t zero;
	uint32_t host;
};

static void __attribute__((format(printf, 1, 2), noreturn)) die(const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	fputs("receive: ", stderr);
	vfprintf(stderr, format, ap);
	fputc('\n', stderr);
	va_end(ap);
	exit(2);
}

static size_t request(uint8_t *frame, uint8_t command)
{
	static uint16_t id;

	return frame_write(frame,
			   (struct ptat_proto_header){ .magic = PTAT_PROTO_MAGIC,
						       .version = PTAT_PROTO_VERSION,
						       .command = command,
						       .id = ++id,
						       .host = HOST },
			   NULL);
}

static void put(int file, const void *data, size_t size)
{
	for (const uint8_t *p = data; size;) {
		ssize_t n = write(file, p, size);

		if (n < 0)
			die("writing: %s", strerror(errno));
		p += n;
		size -= n;
	}
}

static void acknowledge(int fd, uint32_t next)
{
	uint32_t ack[] = { PTAT_PROTO_ACK_MAGIC, HOST, next, WINDOW, 0, 0 };

	ack[5] = frame_crc(0, ack, PTAT_PROTO_ACK_HEADER_BYTES);
	send(fd, ack, sizeof(ack), 0);
}

static void receive_udp(const char *port, size_t bytes, int file)
{
	struct sockaddr_in board = { .sin_family = AF_INET,
				     .sin_port = htons(atoi(port)),
				     .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	uint8_t frame[PTAT_PROTO_FRAME_BYTES_MAX];
	struct {
		struct data_header header;
		uint8_t chunk[PTAT_PROTO_CHUNK_BYTES];
	} datagram;
	static uint8_t held[ACK_EVERY * PTAT_PROTO_CHUNK_BYTES];
	int buffer = SOCKET_BYTES;
	uint32_t next = 0;
	size_t filled = 0;
	int fd = socket(AF_INET, SOCK_DGRAM, 0);

	setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &buffer, sizeof(buffer));
	if (fd < 0 || connect(fd, (struct sockaddr *)&board, sizeof(board)))
		die("port %s: %s", port, strerror(errno));
	send(fd, frame, request(frame, PTAT_PROTO_COMMAND_START), 0);
	while ((size_t)next * PTAT_PROTO_CHUNK_BYTES < bytes) {
		ssize_t n = recv(fd, &datagram, sizeof(datagram), 0);

		if (n < 0)
			die("receiving: %s", strerror(errno));
		if (n != sizeof(datagram) || datagram.header.seq != next)
			continue;
		memcpy(held + filled, datagram.chunk, sizeof(datagram.chunk));
		filled += sizeof(datagram.chunk);
		if (++next % ACK_EVERY == 0 || (size_t)next * PTAT_PROTO_CHUNK_BYTES >= bytes) {
			acknowledge(fd, next);
			put(file, held, filled);
			filled = 0;
		}
	}
	send(fd, frame, request(frame, PTAT_PROTO_COMMAND_STOP), 0);
}

static int bulk(int fd, unsigned int endpoint, void *data, unsigned int size)
{
	struct usbdevfs_bulktransfer transfer = {
		.ep = endpoint, .len = size, .timeout = USB_TIMEOUT_MS, .data = data
	};
	int n = ioctl(fd, USBDEVFS_BULK, &transfer);

	if (n < 0)
		die("endpoint %#x: %s", endpoint, strerror(errno));
	return n;
}

static void receive_usb(const char *device, size_t bytes, int file)
{
	static uint8_t data[USB_TRANSFER_BYTES];
	uint8_t frame[PTAT_PROTO_FRAME_BYTES_MAX];
	unsigned int interface = 0;
	int fd = open(device, O_RDWR);

	if (fd < 0 || ioctl(fd, USBDEVFS_CLAIMINTERFACE, &interface))
		die("%s: %s", device, strerror(errno));
	bulk(fd, PTAT_PROTO_USB_ENDPOINT_REQUEST, frame, request(frame, PTAT_PROTO_COMMAND_START));
	bulk(fd, PTAT_PROTO_USB_ENDPOINT_RESPONSE, frame, sizeof(frame));
	for (size_t done = 0; done < bytes;) {
		size_t left = bytes - done < sizeof(data) ? bytes - done : sizeof(data);
		int n = bulk(fd, PTAT_PROTO_USB_ENDPOINT_STREAM, data, left);

		put(file, data, n);
		done += n;
	}
	bulk(fd, PTAT_PROTO_USB_ENDPOINT_REQUEST, frame, request(frame, PTAT_PROTO_COMMAND_STOP));
	bulk(fd, PTAT_PROTO_USB_ENDPOINT_RESPONSE, frame, sizeof(frame));
}

int main(int argc, char **argv)
{
	size_t bytes;
	int file;

	if (argc != 5 || (strcmp(argv[1], "usb") && strcmp(argv[1], "udp")))
		die("usage: receive usb DEVICE|udp PORT BYTES FILE");
	bytes = strtoull(argv[3], NULL, 10);
	file = open(argv[4], O_WRONLY | O_CREAT | O_TRUNC, 0666);
	if (file < 0)
		die("%s: %s", argv[4], strerror(errno));
	if (!strcmp(argv[1], "udp"))
		receive_udp(argv[2], bytes, file);
	else
		receive_usb(argv[2], bytes, file);
	return 0;
}
