// SPDX-License-Identifier: BSD-2-Clause
/*
 * Any bytes on the link. The board's own assertions, the sanitizers and the
 * checks here are what can fail. The input is a list of pieces: a byte that says
 * what to do, a length byte, and so many bytes.
 */
#include <stdlib.h>
#include <string.h>

#include "../control.h"
#include "../frame.h"
#include "board.h"

enum { RAW, FRAMED, WAIT, KINDS };

static void must(bool holds)
{
	if (!holds)
		abort();
}

static void answer_is_sound(const uint8_t *response, size_t size)
{
	struct ptat_proto_header header;

	if (!size)
		return;
	must(size <= PTAT_PROTO_FRAME_BYTES_MAX && frame_check(response, size) == size);
	memcpy(&header, response, sizeof(header));
	must(header.command & PTAT_PROTO_RESPONSE);
	must(!header.status || !header.length);
}

static size_t with_frame_around(const uint8_t *data, size_t size, uint8_t *frame)
{
	struct ptat_proto_header header = { 0 };
	uint8_t payload[256] = { 0 };

	if (size) {
		header.command = data[0] % 16;
		header.host = data[0] >> 7;
		memcpy(payload, data + 1, size - 1);
		header.length = (size - 1 + 3) / 4 * 4;
	}
	return frame_write(frame, header, payload);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct board board;
	static struct control control;
	struct ptat_proto_identity identity = { 0 };
	struct frame_reader reader = { 0 };
	uint8_t frame[PTAT_PROTO_FRAME_BYTES_MAX], response[PTAT_PROTO_FRAME_BYTES_MAX];

	board_init(&board);
	control_init(&control, &board.hw, &identity);
	while (size >= 2) {
		size_t kind = data[0] % KINDS, n = data[1] < size - 2 ? data[1] : size - 2;
		size_t whole;

		data += 2;
		size -= 2;
		switch (kind) {
		case RAW:
			for (size_t i = 0; i < n; i++) {
				whole = frame_read(&reader, data[i], frame);
				if (whole)
					answer_is_sound(response, control_handle(&control, frame,
										 whole, response));
			}
			answer_is_sound(response, control_handle(&control, data, n, response));
			break;
		case FRAMED:
			whole = with_frame_around(data, n, frame);
			answer_is_sound(response, control_handle(&control, frame, whole, response));
			break;
		case WAIT:
			board.now_ms += n * 100;
			board.undrained = n & 3;
			control_poll(&control);
			break;
		}
		must(board.recording == (control.state == PTAT_PROTO_STATE_RECORDING));
		must(!board.mapped_while_written);
		data += n;
		size -= n;
	}
	return 0;
}
