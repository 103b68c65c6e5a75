// SPDX-License-Identifier: BSD-2-Clause
#include "frame.h"

#include <string.h>

#define OVERHEAD (PTAT_PROTO_HEADER_BYTES + PTAT_PROTO_CRC_BYTES)

uint32_t frame_crc(uint32_t crc, const void *data, size_t size)
{
	/* Four bits at a time: the table stays small, and frames are short. */
	static const uint32_t table[16] = {
		0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac, 0x76dc4190, 0x6b6b51f4,
		0x4db26158, 0x5005713c, 0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c,
		0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c,
	};
	const uint8_t *bytes = data;

	crc = ~crc;
	while (size--) {
		crc ^= *bytes++;
		crc = crc >> 4 ^ table[crc & 15];
		crc = crc >> 4 ^ table[crc & 15];
	}
	return ~crc;
}

/* The size that a frame claims to have, or 0 if what is there can't begin one. */
static size_t claimed(const uint8_t *data, size_t size)
{
	static const uint32_t magic = PTAT_PROTO_MAGIC;
	struct ptat_proto_header header;

	if (memcmp(data, &magic, size < sizeof(magic) ? size : sizeof(magic)))
		return 0;
	if (size < sizeof(header))
		return OVERHEAD;
	memcpy(&header, data, sizeof(header));
	if (header.length > PTAT_PROTO_PAYLOAD_BYTES_MAX ||
	    header.length % PTAT_PROTO_FRAME_ALIGN_BYTES)
		return 0;
	return OVERHEAD + header.length;
}

size_t frame_check(const void *data, size_t size)
{
	size_t whole = size < OVERHEAD ? 0 : claimed(data, size);
	uint32_t crc;

	if (!whole || whole > size)
		return 0;
	memcpy(&crc, (const uint8_t *)data + whole - sizeof(crc), sizeof(crc));
	return frame_crc(0, data, whole - sizeof(crc)) == crc ? whole : 0;
}

size_t frame_write(void *frame, struct ptat_proto_header header, const void *payload)
{
	size_t size = sizeof(header) + header.length;
	uint32_t crc;

	header.magic = PTAT_PROTO_MAGIC;
	header.version = PTAT_PROTO_VERSION;
	header.zero = 0;
	memcpy(frame, &header, sizeof(header));
	if (header.length)
		memcpy((uint8_t *)frame + sizeof(header), payload, header.length);
	crc = frame_crc(0, frame, size);
	memcpy((uint8_t *)frame + size, &crc, sizeof(crc));
	return size + sizeof(crc);
}

static void drop(struct frame_reader *reader, size_t size)
{
	reader->size -= size;
	memmove(reader->data, reader->data + size, reader->size);
}

size_t frame_read(struct frame_reader *reader, uint8_t byte, void *frame)
{
	reader->data[reader->size++] = byte;
	while (reader->size) {
		size_t whole = claimed(reader->data, reader->size);

		if (whole > reader->size)
			return 0;
		if (whole && frame_check(reader->data, whole)) {
			memcpy(frame, reader->data, whole);
			drop(reader, whole);
			return whole;
		}
		drop(reader, 1);
		if (reader->skipped < UINT32_MAX)
			reader->skipped++;
	}
	return 0;
}
