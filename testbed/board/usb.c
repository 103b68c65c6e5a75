// SPDX-License-Identifier: BSD-2-Clause
/* The board on a USB that is a loop in the kernel: raw-gadget on dummy_hcd. */
#define _GNU_SOURCE
#include "board.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/usb/ch9.h>
#include <linux/usb/raw_gadget.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "frame.h"

#define PACKET_BYTES   512
#define RUN_BLOCKS     16 /* sent at once where nothing goes wrong */
#define SHORT_BYTES    1000
#define CUT_BYTES      3000
#define GARBAGE_BYTES  700
#define STRING_BYTES   64
#define TRANSFER_BYTES (RUN_BLOCKS * BLOCK_BYTES)

enum { MANUFACTURER = 1, PRODUCT, SERIAL };
enum { REQUEST, RESPONSE, STREAM, ENDPOINTS };

static const uint8_t addresses[ENDPOINTS] = {
	PTAT_PROTO_USB_ENDPOINT_REQUEST,
	PTAT_PROTO_USB_ENDPOINT_RESPONSE,
	PTAT_PROTO_USB_ENDPOINT_STREAM,
};

struct gadget {
	struct pretend *board;
	const char *serial;
	int fd;
	int endpoints[ENDPOINTS]; /* the kernel's numbers for them */
	bool configured;
};

struct io {
	struct usb_raw_ep_io head;
	uint8_t data[TRANSFER_BYTES];
};

static const struct usb_device_descriptor device_descriptor = {
	.bLength = USB_DT_DEVICE_SIZE,
	.bDescriptorType = USB_DT_DEVICE,
	.bcdUSB = 0x0200,
	.bDeviceClass = USB_CLASS_VENDOR_SPEC,
	.bMaxPacketSize0 = 64,
	.idVendor = PTAT_PROTO_USB_VENDOR,
	.idProduct = PTAT_PROTO_USB_PRODUCT,
	.iManufacturer = MANUFACTURER,
	.iProduct = PRODUCT,
	.iSerialNumber = SERIAL,
	.bNumConfigurations = 1,
};

static struct usb_endpoint_descriptor endpoint_descriptor(int endpoint)
{
	return (struct usb_endpoint_descriptor){
		.bLength = USB_DT_ENDPOINT_SIZE,
		.bDescriptorType = USB_DT_ENDPOINT,
		.bEndpointAddress = addresses[endpoint],
		.bmAttributes = USB_ENDPOINT_XFER_BULK,
		.wMaxPacketSize = PACKET_BYTES,
	};
}

static size_t configuration_descriptor(uint8_t *out)
{
	const struct usb_interface_descriptor interface = {
		.bLength = USB_DT_INTERFACE_SIZE,
		.bDescriptorType = USB_DT_INTERFACE,
		.bNumEndpoints = ENDPOINTS,
		.bInterfaceClass = USB_CLASS_VENDOR_SPEC,
	};
	struct usb_config_descriptor configuration = {
		.bLength = USB_DT_CONFIG_SIZE,
		.bDescriptorType = USB_DT_CONFIG,
		.bNumInterfaces = 1,
		.bConfigurationValue = 1,
		.bmAttributes = USB_CONFIG_ATT_ONE,
		.bMaxPower = 50,
	};
	size_t size = USB_DT_CONFIG_SIZE;

	memcpy(out + size, &interface, USB_DT_INTERFACE_SIZE);
	size += USB_DT_INTERFACE_SIZE;
	for (int i = 0; i < ENDPOINTS; i++) {
		struct usb_endpoint_descriptor endpoint = endpoint_descriptor(i);

		memcpy(out + size, &endpoint, USB_DT_ENDPOINT_SIZE);
		size += USB_DT_ENDPOINT_SIZE;
	}
	configuration.wTotalLength = size;
	memcpy(out, &configuration, USB_DT_CONFIG_SIZE);
	return size;
}

static size_t string_descriptor(const struct gadget *gadget, uint8_t index, uint8_t *out)
{
	static const char *const fixed[] = { NULL, "ptat", PTAT_PROTO_USB_PRODUCT_NAME };
	const char *text = index == SERIAL ? gadget->serial : fixed[index];
	size_t size = 2;

	if (!index) {
		out[size++] = 0x09; /* English */
		out[size++] = 0x04;
	}
	while (index && *text && size + 2 <= STRING_BYTES) {
		out[size++] = *text++;
		out[size++] = 0;
	}
	out[0] = size;
	out[1] = USB_DT_STRING;
	return size;
}

/* ---- The stream ---- */

/* False when the host has gone away. */
static bool put(struct gadget *gadget, const void *data, size_t size)
{
	static struct io io;

	while (size) {
		size_t n = size < sizeof(io.data) ? size : sizeof(io.data);

		io.head.ep = gadget->endpoints[STREAM];
		io.head.flags = 0;
		io.head.length = n;
		memcpy(io.data, data, n);
		if (ioctl(gadget->fd, USB_RAW_IOCTL_EP_WRITE, &io) < 0)
			return false;
		data = (const uint8_t *)data + n;
		size -= n;
	}
	return true;
}

static bool put_block(struct gadget *gadget, size_t number)
{
	const struct faults *faults = &gadget->board->faults;
	uint8_t block[BLOCK_BYTES], garbage[GARBAGE_BYTES];
	bool sent = true;

	memcpy(block, gadget->board->data + number * BLOCK_BYTES, BLOCK_BYTES);
	if (number == faults->stall)
		ioctl(gadget->fd, USB_RAW_IOCTL_EP_SET_HALT, gadget->endpoints[STREAM]);
	if (number == faults->garbage) {
		memset(garbage, 'T', sizeof(garbage));
		sent &= put(gadget, garbage, sizeof(garbage));
	}
	if (number == faults->unplug) {
		put(gadget, block, CUT_BYTES);
		exit(0);
	}
	if (number == faults->drop)
		return true;
	if (number == faults->damage)
		block[100] ^= 4;
	if (faults->is_short) {
		for (size_t at = 0; at < BLOCK_BYTES && sent; at += SHORT_BYTES)
			sent &= put(gadget, block + at,
				    BLOCK_BYTES - at < SHORT_BYTES ? BLOCK_BYTES - at
								   : SHORT_BYTES);
	} else {
		sent &= put(gadget, block, BLOCK_BYTES);
	}
	if (number == faults->twice)
		sent &= put(gadget, block, BLOCK_BYTES);
	if (faults->slow_us)
		usleep(faults->slow_us);
	return sent;
}

static void put_all(struct gadget *gadget)
{
	struct pretend *board = gadget->board;

	for (size_t i = 0; i < board->blocks;) {
		size_t run = board->faults.any_per_block ? 1 : board->blocks - i;
		bool sent;

		if (run > RUN_BLOCKS)
			run = RUN_BLOCKS;
		sent = run == 1 ? put_block(gadget, i)
				: put(gadget, board->data + i * BLOCK_BYTES, run * BLOCK_BYTES);
		if (!sent)
			return;
		i += run;
	}
}

static void *run_stream(void *context)
{
	struct gadget *gadget = context;
	struct pretend *board = gadget->board;
	unsigned int served = 0;

	for (;;) {
		pthread_mutex_lock(&board->lock);
		while (board->recording == served)
			pthread_cond_wait(&board->changed, &board->lock);
		served = board->recording;
		pthread_mutex_unlock(&board->lock);
		put_all(gadget);
		pthread_mutex_lock(&board->lock);
		board->all_sent = board->recording == served;
		pthread_mutex_unlock(&board->lock);
	}
	return NULL;
}

/* ---- Commands ---- */

static void *run_commands(void *context)
{
	struct gadget *gadget = context;
	static struct frame_reader reader;
	static struct io in, out;
	uint8_t frame[PTAT_PROTO_FRAME_BYTES_MAX];

	for (;;) {
		int got;

		in.head.ep = gadget->endpoints[REQUEST];
		in.head.length = PACKET_BYTES;
		got = ioctl(gadget->fd, USB_RAW_IOCTL_EP_READ, &in);
		if (got < 0)
			die("reading commands: %s", strerror(errno));
		for (int i = 0; i < got; i++) {
			size_t size = frame_read(&reader, in.data[i], frame);

			if (!size)
				continue;
			out.head.ep = gadget->endpoints[RESPONSE];
			out.head.length = pretend_handle(gadget->board, frame, size, out.data);
			if (out.head.length)
				ioctl(gadget->fd, USB_RAW_IOCTL_EP_WRITE, &out);
		}
	}
	return NULL;
}

static void configure(struct gadget *gadget)
{
	void *(*const threads[])(void *) = { run_commands, run_stream };

	if (gadget->configured)
		return;
	for (int i = 0; i < ENDPOINTS; i++) {
		struct usb_endpoint_descriptor endpoint = endpoint_descriptor(i);

		gadget->endpoints[i] = ioctl(gadget->fd, USB_RAW_IOCTL_EP_ENABLE, &endpoint);
		if (gadget->endpoints[i] < 0)
			die("endpoint %#x: %s", addresses[i], strerror(errno));
	}
	ioctl(gadget->fd, USB_RAW_IOCTL_CONFIGURE);
	gadget->configured = true;
	for (size_t i = 0; i < sizeof(threads) / sizeof(*threads); i++) {
		pthread_t thread;

		if (pthread_create(&thread, NULL, threads[i], gadget))
			die("cannot start a thread");
	}
}

static void answer(struct gadget *gadget, const struct usb_ctrlrequest *request)
{
	struct {
		struct usb_raw_ep_io head;
		uint8_t data[256];
	} io = { 0 };
	size_t size = 0;
	bool known = true;

	if (request->bRequest == USB_REQ_GET_DESCRIPTOR) {
		uint8_t index = request->wValue & 0xff;

		switch (request->wValue >> 8) {
		case USB_DT_DEVICE:
			size = USB_DT_DEVICE_SIZE;
			memcpy(io.data, &device_descriptor, size);
			break;
		case USB_DT_CONFIG:
			size = configuration_descriptor(io.data);
			break;
		case USB_DT_STRING:
			known = index <= SERIAL;
			if (known)
				size = string_descriptor(gadget, index, io.data);
			break;
		default:
			known = false;
		}
	} else if (request->bRequest == USB_REQ_SET_CONFIGURATION) {
		configure(gadget);
	} else {
		known = request->bRequest == USB_REQ_SET_INTERFACE;
	}
	if (!known) {
		ioctl(gadget->fd, USB_RAW_IOCTL_EP0_STALL);
		return;
	}
	io.head.length = size < request->wLength ? size : request->wLength;
	ioctl(gadget->fd,
	      request->bRequestType & USB_DIR_IN ? USB_RAW_IOCTL_EP0_WRITE : USB_RAW_IOCTL_EP0_READ,
	      &io);
}

void run_usb(struct pretend *board, const char *serial)
{
	static struct gadget gadget;
	struct usb_raw_init init = { .speed = USB_SPEED_HIGH };

	gadget.board = board;
	gadget.serial = serial;
	gadget.fd = open("/dev/raw-gadget", O_RDWR | O_CLOEXEC);
	strcpy((char *)init.driver_name, "dummy_udc");
	strcpy((char *)init.device_name, "dummy_udc.0");
	if (gadget.fd < 0 || ioctl(gadget.fd, USB_RAW_IOCTL_INIT, &init) ||
	    ioctl(gadget.fd, USB_RAW_IOCTL_RUN))
		die("/dev/raw-gadget: %s", strerror(errno));
	for (;;) {
		struct {
			struct usb_raw_event head;
			struct usb_ctrlrequest request;
		} event = { .head.length = sizeof(event.request) };

		if (ioctl(gadget.fd, USB_RAW_IOCTL_EVENT_FETCH, &event) < 0)
			die("fetching an event: %s", strerror(errno));
		if (event.head.type == USB_RAW_EVENT_CONTROL)
			answer(&gadget, &event.request);
	}
}
