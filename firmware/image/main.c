// SPDX-License-Identifier: BSD-2-Clause
/* The firmware: self test, then commands for ever. */
#include <generated/csr.h>
#include <irq.h>
#include <libbase/uart.h>
#include <liblitedram/sdram.h>
#include <stdio.h>

#include "board.h"
#include "control.h"
#include "frame.h"
#include "selftest.h"

static struct control control;
static uint32_t response[PTAT_PROTO_FRAME_BYTES_MAX / sizeof(uint32_t)];

#define BIT(field) (1u << CSR_##field##_OFFSET)

/* Frames come in words; one that is a datagram ends with its last. */
static void poll_link(void)
{
	static struct frame_reader reader;
	static uint32_t frame[PTAT_PROTO_FRAME_BYTES_MAX / sizeof(uint32_t)];

	for (;;) {
		uint32_t status = link_mailbox_status_read();
		size_t size = 0;
		uint32_t word;

		if (!(status & BIT(LINK_MAILBOX_STATUS_VALID)) ||
		    status & BIT(LINK_MAILBOX_STATUS_BUSY))
			return;
		word = link_mailbox_request_read();
		for (size_t i = 0; i < sizeof(word); i++) {
			size_t whole = frame_read(&reader, word >> 8 * i, frame);

			size = whole ? whole : size;
		}
		if (size)
			size = control_handle(&control, frame, size, response);
		for (size_t i = 0; i < size / sizeof(*response); i++)
			link_mailbox_response_write(response[i]);
		if (size || status & BIT(LINK_MAILBOX_STATUS_LAST))
			link_mailbox_control_write(BIT(LINK_MAILBOX_CONTROL_DONE));
		if (status & BIT(LINK_MAILBOX_STATUS_LAST))
			reader.size = 0;
	}
}

static void poll_uart(void)
{
	static struct frame_reader reader;
	static uint8_t frame[PTAT_PROTO_FRAME_BYTES_MAX];

	while (uart_read_nonblock()) {
		size_t size = frame_read(&reader, uart_read(), frame);

		if (size)
			size = control_handle(&control, frame, size, response);
		for (size_t i = 0; i < size; i++)
			uart_write(((const char *)response)[i]);
	}
}

static void test_memory(void)
{
	/* It trains the memory's interface, and writes and reads a part of it. */
	printf("memory: %s\n", sdram_init() ? "passed" : "FAILED");
}

static void test_capture(void)
{
	static const char *const texts[] = {
		[SELFTEST_PASSED] = "passed",
		[SELFTEST_NO_CLOCK] = "not tested, the bus has no clock",
		[SELFTEST_FAILED] = "FAILED",
	};

	printf("capture: %s\n", texts[selftest_loopback(&board_hardware)]);
}

int main(void)
{
	struct ptat_proto_identity identity;

	irq_setmask(0);
	irq_setie(1);
	uart_init();
	board_identify(&identity);
	printf("\nptat on %s\n", identity.board);
	control_init(&control, &board_hardware, &identity);
	if (board_watchdog_has_bitten()) {
		printf("the firmware hung, and was restarted\n");
		/* The recording has ended; what there is of it may still be fetched. */
		board_hardware.stop(board_hardware.context);
		if (board_has_stream())
			control.state = PTAT_PROTO_STATE_EXPIRED;
	} else {
		test_memory();
		test_capture();
	}
	board_watchdog_start();
	printf("ready\n");
	for (;;) {
		board_watchdog_feed();
		poll_link();
		poll_uart();
		control_poll(&control);
	}
}
