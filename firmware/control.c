// SPDX-License-Identifier: BSD-2-Clause
#include "control.h"

#include <string.h>

#include "frame.h"

#define ADDRESS_UNITS_BITS 36 /* bus addresses in units of 8 bytes */
#define WINDOW_BITS	   (ADDRESS_UNITS_BITS + 3 - PTAT_PROTO_WINDOW_UNIT_SHIFT)
#define REMAP_BITS	   (ADDRESS_UNITS_BITS + 3 - PTAT_PROTO_REMAP_UNIT_SHIFT)
#define SAMPLE_MAX	   UINT16_MAX
#define WINDOW_USES                                                                                \
	(PTAT_PROTO_WINDOW_READ | PTAT_PROTO_WINDOW_WRITE | PTAT_PROTO_WINDOW_SAMPLED |            \
	 PTAT_PROTO_WINDOW_START | PTAT_PROTO_WINDOW_STOP)
#define TRIGGERS                                                                                   \
	(PTAT_PROTO_TRIGGER_START_WINDOW | PTAT_PROTO_TRIGGER_START_PIN |                          \
	 PTAT_PROTO_TRIGGER_STOP_WINDOW | PTAT_PROTO_TRIGGER_STOP_PIN)

/* A request being answered: handlers read `payload` and fill `answer`. */
struct exchange {
	const uint8_t *payload;
	size_t size;
	uint32_t host;
	size_t answer_size;
	union {
		uint32_t word;
		struct ptat_proto_identity identity;
		struct ptat_proto_health health;
		struct ptat_proto_stopped stopped;
		struct ptat_proto_eyes eyes;
	} answer;
};

typedef uint8_t handler(struct control *control, struct exchange *exchange);

static uint8_t answer_word(struct exchange *exchange, uint32_t word)
{
	exchange->answer.word = word;
	exchange->answer_size = sizeof(word);
	return PTAT_PROTO_STATUS_OK;
}

static uint8_t identify(struct control *control, struct exchange *exchange)
{
	exchange->answer.identity = control->identity;
	exchange->answer.identity.state = control->state;
	exchange->answer_size = sizeof(exchange->answer.identity);
	return PTAT_PROTO_STATUS_OK;
}

static uint8_t start(struct control *control, struct exchange *exchange)
{
	if (control->state == PTAT_PROTO_STATE_STOPPING)
		return PTAT_PROTO_STATUS_WRONG_STATE;
	/* The owner who asks again has not got our answer. */
	if (control->state != PTAT_PROTO_STATE_RECORDING) {
		control->owner = exchange->host;
		control->hw->start(control->hw->context);
		control->state = PTAT_PROTO_STATE_RECORDING;
		control->heard_ms = control->hw->now_ms(control->hw->context);
	}
	return answer_word(exchange, control->state);
}

static uint8_t stop(struct control *control, struct exchange *exchange)
{
	const struct hardware *hw = control->hw;

	if (control->state == PTAT_PROTO_STATE_RECORDING) {
		hw->stop(hw->context);
		control->stopped.state = control->state;
		control->state = PTAT_PROTO_STATE_STOPPING;
	} else if (control->state == PTAT_PROTO_STATE_EXPIRED) {
		/* Whoever fetches the rest: after a hang nobody knows whose it was. */
		control->owner = exchange->host;
		control->heard_ms = hw->now_ms(hw->context);
		control->stopped.state = control->state;
		control->state = PTAT_PROTO_STATE_STOPPING;
	}
	if (control->state == PTAT_PROTO_STATE_STOPPING) {
		if (!hw->drained(hw->context))
			return PTAT_PROTO_STATUS_NOT_YET;
		control->stopped.blocks = hw->blocks(hw->context);
		control->state = PTAT_PROTO_STATE_IDLE;
	}
	/* In the state idle: an answer that did not arrive is given again. */
	exchange->answer.stopped = control->stopped;
	exchange->answer_size = sizeof(control->stopped);
	return PTAT_PROTO_STATUS_OK;
}

static uint8_t flush(struct control *control, struct exchange *exchange)
{
	if (control->state != PTAT_PROTO_STATE_RECORDING)
		return PTAT_PROTO_STATUS_WRONG_STATE;
	control->hw->flush(control->hw->context);
	return answer_word(exchange, control->state);
}

static uint8_t set_trigger(struct control *control, struct exchange *exchange)
{
	uint32_t set;

	memcpy(&set, exchange->payload, sizeof(set));
	if (set & ~TRIGGERS)
		return PTAT_PROTO_STATUS_BAD_ARGUMENT;
	control->hw->set_trigger(control->hw->context, set);
	return PTAT_PROTO_STATUS_OK;
}

static uint8_t set_windows(struct control *control, struct exchange *exchange)
{
	const struct hardware *hw = control->hw;
	struct ptat_proto_windows all = { 0 };

	if (exchange->size < PTAT_PROTO_WINDOWS_HEADER_BYTES || exchange->size > sizeof(all))
		return PTAT_PROTO_STATUS_BAD_LENGTH;
	memcpy(&all, exchange->payload, exchange->size);
	if (all.count > PTAT_PROTO_WINDOWS_MAX)
		return PTAT_PROTO_STATUS_BAD_ARGUMENT;
	if (exchange->size !=
	    PTAT_PROTO_WINDOWS_HEADER_BYTES + all.count * PTAT_PROTO_WINDOW_ENTRY_BYTES)
		return PTAT_PROTO_STATUS_BAD_LENGTH;
	if (!all.sample_one_in || all.sample_one_in > SAMPLE_MAX)
		return PTAT_PROTO_STATUS_BAD_ARGUMENT;
	for (unsigned int i = 0; i < all.count; i++) {
		const struct ptat_proto_window *window = &all.windows[i];

		if (window->first > window->last || window->last >> WINDOW_BITS ||
		    window->use & ~WINDOW_USES)
			return PTAT_PROTO_STATUS_BAD_ARGUMENT;
	}
	hw->set_sample(hw->context, all.sample_one_in);
	for (unsigned int i = 0; i < PTAT_PROTO_WINDOWS_MAX; i++)
		hw->set_window(hw->context, i, all.windows[i]);
	return PTAT_PROTO_STATUS_OK;
}

static void load_table(const struct hardware *hw, const struct ptat_proto_matrix *matrix,
		       unsigned int first_bit, unsigned int bits)
{
	unsigned int values = 1u << hw->table_slice_bits;
	unsigned int base = first_bit / hw->table_slice_bits * values;
	/* One table holds what is always added. */
	uint64_t sum = first_bit ? 0 : matrix->constant;

	/* In the order of a Gray code, in which one bit changes from value to value. */
	for (unsigned int step = 0;;) {
		unsigned int bit = 0;

		hw->set_table(hw->context, base + (step ^ step >> 1), sum);
		if (++step == values)
			return;
		while (!(step >> bit & 1))
			bit++;
		if (bit < bits)
			sum ^= matrix->columns[first_bit + bit];
	}
}

void control_load_matrix(const struct hardware *hw, const struct ptat_proto_matrix *matrix)
{
	unsigned int slice = hw->table_slice_bits;

	hw->set_mapped(hw->context, false);
	for (unsigned int bit = 0; bit < PTAT_PROTO_MATRIX_COLUMNS; bit += slice) {
		unsigned int left = PTAT_PROTO_MATRIX_COLUMNS - bit;

		load_table(hw, matrix, bit, left < slice ? left : slice);
	}
	hw->set_remap(hw->context, matrix->remap_first, matrix->remap_offset);
	hw->set_mapped(hw->context, true);
}

static uint8_t set_matrix(struct control *control, struct exchange *exchange)
{
	struct ptat_proto_matrix matrix;
	uint64_t all;

	memcpy(&matrix, exchange->payload, sizeof(matrix));
	all = matrix.constant;
	for (unsigned int i = 0; i < PTAT_PROTO_MATRIX_COLUMNS; i++)
		all |= matrix.columns[i];
	if (all >> ADDRESS_UNITS_BITS || matrix.remap_first >> REMAP_BITS ||
	    matrix.remap_offset >> REMAP_BITS)
		return PTAT_PROTO_STATUS_BAD_ARGUMENT;
	control_load_matrix(control->hw, &matrix);
	return PTAT_PROTO_STATUS_OK;
}

static uint8_t set_mirror(struct control *control, struct exchange *exchange)
{
	uint32_t ranks;

	memcpy(&ranks, exchange->payload, sizeof(ranks));
	if (ranks >> PTAT_PROTO_RANKS_MAX)
		return PTAT_PROTO_STATUS_BAD_ARGUMENT;
	control->hw->set_mirror(control->hw->context, ranks);
	return PTAT_PROTO_STATUS_OK;
}

static uint8_t health(struct control *control, struct exchange *exchange)
{
	exchange->answer.health.temperature_mc = PTAT_PROTO_NO_TEMPERATURE;
	control->hw->health(control->hw->context, &exchange->answer.health);
	exchange->answer.health.state = control->state;
	exchange->answer_size = sizeof(exchange->answer.health);
	return PTAT_PROTO_STATUS_OK;
}

static uint8_t read_eyes(struct control *control, struct exchange *exchange)
{
	struct ptat_proto_eyes *answer = &exchange->answer.eyes;
	uint32_t first;

	memcpy(&first, exchange->payload, sizeof(first));
	if (first > control->eyes.pins)
		return PTAT_PROTO_STATUS_BAD_ARGUMENT;
	answer->pins = control->eyes.pins;
	answer->first = first;
	answer->count = control->eyes.pins - first;
	if (answer->count > PTAT_PROTO_EYES_PER_FRAME)
		answer->count = PTAT_PROTO_EYES_PER_FRAME;
	memcpy(answer->eyes, &control->eyes.pin[first], answer->count * sizeof(*answer->eyes));
	exchange->answer_size =
		PTAT_PROTO_EYES_HEADER_BYTES + answer->count * sizeof(*answer->eyes);
	return PTAT_PROTO_STATUS_OK;
}

static uint8_t run_calibration(struct control *control, struct exchange *exchange)
{
	if (calibrate(control->hw, &control->eyes) != CALIBRATED)
		return PTAT_PROTO_STATUS_FAILED;
	return answer_word(exchange, eyes_closed(&control->eyes));
}

static uint8_t heartbeat(struct control *control, struct exchange *exchange)
{
	return answer_word(exchange, control->state);
}

#define ANY_SIZE SIZE_MAX

/* Who may, and when. */
enum {
	FOR_ALL = 1,	/* also for hosts that the recording does not belong to */
	WHILE_IDLE = 2, /* not while it records */
};

static const struct {
	handler *handle;
	size_t size;
	unsigned int rules;
} commands[] = {
	[PTAT_PROTO_COMMAND_IDENTIFY] = { identify, 0, FOR_ALL },
	[PTAT_PROTO_COMMAND_START] = { start, 0, 0 },
	[PTAT_PROTO_COMMAND_STOP] = { stop, 0, 0 },
	[PTAT_PROTO_COMMAND_FLUSH] = { flush, 0, 0 },
	[PTAT_PROTO_COMMAND_TRIGGER] = { set_trigger, PTAT_PROTO_TRIGGER_REQUEST_BYTES,
					 WHILE_IDLE },
	[PTAT_PROTO_COMMAND_SET_WINDOWS] = { set_windows, ANY_SIZE, WHILE_IDLE },
	[PTAT_PROTO_COMMAND_SET_MATRIX] = { set_matrix, PTAT_PROTO_MATRIX_BYTES, WHILE_IDLE },
	[PTAT_PROTO_COMMAND_HEALTH] = { health, 0, FOR_ALL },
	[PTAT_PROTO_COMMAND_READ_EYES] = { read_eyes, PTAT_PROTO_EYES_REQUEST_BYTES, FOR_ALL },
	[PTAT_PROTO_COMMAND_CALIBRATE] = { run_calibration, 0, WHILE_IDLE },
	[PTAT_PROTO_COMMAND_HEARTBEAT] = { heartbeat, 0, 0 },
	[PTAT_PROTO_COMMAND_SET_MIRROR] = { set_mirror, PTAT_PROTO_MIRROR_REQUEST_BYTES,
					    WHILE_IDLE },
};

static bool is_busy(const struct control *control)
{
	return control->state == PTAT_PROTO_STATE_RECORDING ||
	       control->state == PTAT_PROTO_STATE_STOPPING;
}

static uint8_t dispatch(struct control *control, const struct ptat_proto_header *header,
			struct exchange *exchange)
{
	uint8_t command = header->command;

	if (header->version != PTAT_PROTO_VERSION)
		return PTAT_PROTO_STATUS_WRONG_VERSION;
	if (command >= sizeof(commands) / sizeof(*commands) || !commands[command].handle)
		return PTAT_PROTO_STATUS_UNKNOWN_COMMAND;
	if (commands[command].size != ANY_SIZE && commands[command].size != exchange->size)
		return PTAT_PROTO_STATUS_BAD_LENGTH;
	if (is_busy(control)) {
		if (exchange->host == control->owner)
			control->heard_ms = control->hw->now_ms(control->hw->context);
		else if (!(commands[command].rules & FOR_ALL))
			return PTAT_PROTO_STATUS_BUSY;
		if (commands[command].rules & WHILE_IDLE)
			return PTAT_PROTO_STATUS_WRONG_STATE;
	}
	return commands[command].handle(control, exchange);
}

size_t control_handle(struct control *control, const void *request, size_t size, void *response)
{
	struct ptat_proto_header header;
	struct exchange exchange;

	if (!frame_check(request, size)) {
		if (control->malformed < UINT32_MAX)
			control->malformed++;
		return 0;
	}
	memset(&exchange, 0, sizeof(exchange));
	memcpy(&header, request, sizeof(header));
	if (header.command & PTAT_PROTO_RESPONSE)
		return 0; /* of another board, on a shared medium */
	exchange.payload = (const uint8_t *)request + sizeof(header);
	exchange.size = header.length;
	exchange.host = header.host;
	header.status = dispatch(control, &header, &exchange);
	header.command |= PTAT_PROTO_RESPONSE;
	header.length = header.status ? 0 : exchange.answer_size;
	return frame_write(response, header, &exchange.answer);
}

void control_poll(struct control *control)
{
	const struct hardware *hw = control->hw;

	if (!is_busy(control) ||
	    hw->now_ms(hw->context) - control->heard_ms < PTAT_PROTO_HEARTBEAT_TIMEOUT_MS)
		return;
	if (control->state == PTAT_PROTO_STATE_RECORDING)
		hw->stop(hw->context);
	control->state = PTAT_PROTO_STATE_EXPIRED;
}

void control_init(struct control *control, const struct hardware *hw,
		  const struct ptat_proto_identity *identity)
{
	memset(control, 0, sizeof(*control));
	control->hw = hw;
	control->identity = *identity;
}
