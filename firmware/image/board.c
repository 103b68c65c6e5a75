// SPDX-License-Identifier: BSD-2-Clause
#include "board.h"

#include <generated/csr.h>
#include <generated/soc.h>
#include <string.h>

#define CYCLES_PER_US (CONFIG_CLOCK_FREQUENCY / 1000000)
#define CYCLES_PER_MS (CYCLES_PER_US * 1000)
#define WORD_BYTES    8
#define SETTLE_MS     100
#define UNKNOWN_COUNT PTAT_PROTO_ILLEGAL_KINDS /* after the kinds: to banks of unknown state */
#define LATCH_CYCLES  1000 /* from a request to hold counters to their being held */
#define BIT(field)    (1u << CSR_##field##_OFFSET)
#define WINDOW_STRIDE                                                                              \
	(CSR_SNOOPER_FILTER_WINDOW1_FIRST_ADDR - CSR_SNOOPER_FILTER_WINDOW0_FIRST_ADDR)
#define WINDOW(i, reg) (CSR_SNOOPER_FILTER_WINDOW0_##reg##_ADDR + (i) * WINDOW_STRIDE)

/* ---- Time ---- */

static uint64_t now_cycles(void)
{
	timer0_uptime_latch_write(1);
	return timer0_uptime_cycles_read();
}

static uint32_t now_ms(void *context)
{
	return now_cycles() / CYCLES_PER_MS;
}

static void wait_cycles(uint64_t cycles)
{
	for (uint64_t start = now_cycles(); now_cycles() - start < cycles;)
		board_watchdog_feed();
}

/* ---- Watchdog ---- */

void board_watchdog_start(void)
{
	watchdog_cycles_write(WATCHDOG_MS * CYCLES_PER_MS);
	/* Not disabled in between: enabled again, it still knows that it has bitten, and bites. */
	watchdog_control_write(BIT(WATCHDOG_CONTROL_FEED) | BIT(WATCHDOG_CONTROL_ENABLE));
}

void board_watchdog_feed(void)
{
	watchdog_control_write(watchdog_control_read() | BIT(WATCHDOG_CONTROL_FEED));
}

bool board_watchdog_has_bitten(void)
{
	return watchdog_control_read() & BIT(WATCHDOG_CONTROL_ENABLE) && !watchdog_remaining_read();
}

/* ---- The stream ---- */

bool board_has_stream(void)
{
	return link_gate_status_read() & BIT(LINK_GATE_STATUS_RUNNING);
}

/* Nothing is in front of the link any more. The order of the reads matters: see the registers. */
static bool is_settled(void)
{
	if (snooper_status_read() & BIT(SNOOPER_STATUS_RECORDING))
		return false;
	if (snooper_status_read() & BIT(SNOOPER_STATUS_OPEN))
		return false;
	return snooper_packer_blocks_read() == link_gate_blocks_read();
}

bool board_settle(unsigned int patience_ms)
{
	uint32_t start_ms = now_ms(NULL);

	while (!is_settled()) {
		board_watchdog_feed();
		if (now_ms(NULL) - start_ms > patience_ms)
			return false;
	}
	return true;
}

static void start(void *context)
{
	uint32_t start_ms = now_ms(context);

	/* What an earlier recording left is of no use to anybody: the gate drops it. */
	link_gate_control_write(0);
	board_settle(SETTLE_MS);
	meter_control_write(BIT(METER_CONTROL_RESTART));
	link_gate_control_write(BIT(LINK_GATE_CONTROL_RUN));
	while (!board_has_stream() && now_ms(context) - start_ms < 2 * SETTLE_MS)
		board_watchdog_feed();
	snooper_control_write(BIT(SNOOPER_CONTROL_RUN));
}

static void stop(void *context)
{
	snooper_control_write(0);
}

static void flush(void *context)
{
	snooper_control_write(BIT(SNOOPER_CONTROL_RUN) | BIT(SNOOPER_CONTROL_FLUSH));
}

static bool drained(void *context)
{
	if (!is_settled())
		return false;
	link_gate_control_write(BIT(LINK_GATE_CONTROL_RUN) | BIT(LINK_GATE_CONTROL_END));
	return link_gate_status_read() & BIT(LINK_GATE_STATUS_DONE);
}

static uint64_t blocks(void *context)
{
	return link_gate_blocks_read();
}

/* ---- What is recorded ---- */

static void set_trigger(void *context, uint32_t set)
{
	snooper_trigger_trigger_write(set);
}

static void set_sample(void *context, uint32_t one_in)
{
	snooper_trigger_sample_write(one_in);
}

static void set_window(void *context, unsigned int index, struct ptat_proto_window window)
{
	csr_write_simple(window.first, WINDOW(index, FIRST));
	csr_write_simple(window.last, WINDOW(index, LAST));
	csr_write_simple(window.use, WINDOW(index, CONTROL));
}

static void set_mirror(void *context, uint32_t ranks)
{
	uint32_t mask = (1u << CSR_SNOOPER_DECODER_PROTOCOL_MIRROR_SIZE) - 1;

	/* The field is the register's lowest. */
	snooper_decoder_protocol_write((snooper_decoder_protocol_read() & ~mask) | (ranks & mask));
}

static void set_mapped(void *context, bool mapped)
{
	snooper_address_control_write(mapped ? BIT(SNOOPER_ADDRESS_CONTROL_PROGRAMMED) : 0);
	board_watchdog_feed();
}

static void set_table(void *context, unsigned int index, uint64_t value)
{
	snooper_address_table_index_write(index);
	snooper_address_table_data_write(value);
}

static void set_remap(void *context, uint32_t first_mib, uint32_t offset_mib)
{
	snooper_address_remap_first_write(first_mib);
	snooper_address_remap_offset_write(offset_mib);
}

/* ---- The bus ---- */

void board_forget_bus(void)
{
	/* The decoder forgets when the pins are taken from it, and when they are given back. */
	generator_control_write(BIT(GENERATOR_CONTROL_ENABLE));
	wait_cycles(LATCH_CYCLES);
	generator_control_write(0);
	wait_cycles(LATCH_CYCLES);
}

static uint32_t decoder_count(unsigned int which)
{
	uint32_t count;

	snooper_decoder_count_select_write(which);
	do
		count = snooper_decoder_count_read();
	while (count >> CSR_SNOOPER_DECODER_COUNT_KIND_OFFSET != which);
	return count & ((1u << CSR_SNOOPER_DECODER_COUNT_COUNT_SIZE) - 1);
}

static void latch_counters(void)
{
	snooper_control_write(snooper_control_read() | BIT(SNOOPER_CONTROL_LATCH));
	wait_cycles(LATCH_CYCLES);
}

static struct bus_sample sample_bus(void *context)
{
	struct bus_sample sample = { 0 };

	link_gate_control_write(0);
	board_forget_bus();
	snooper_control_write(BIT(SNOOPER_CONTROL_RUN));
	wait_cycles(CAPTURE_SAMPLE_US * CYCLES_PER_US);
	snooper_control_write(0);
	board_settle(SETTLE_MS);
	latch_counters();
	for (unsigned int kind = 0; kind < PTAT_PROTO_ILLEGAL_KINDS; kind++)
		sample.illegal += decoder_count(kind);
	sample.commands = snooper_accesses_read() + decoder_count(UNKNOWN_COUNT) + sample.illegal;
	return sample;
}

static void set_delay(void *context, unsigned int pin, unsigned int tap)
{
	capture_pin_write(pin);
	capture_delay_write(BIT(CAPTURE_DELAY_LOAD));
	while (tap--)
		capture_delay_write(BIT(CAPTURE_DELAY_UP));
}

/* ---- Health ---- */

static void health(void *context, struct ptat_proto_health *health)
{
	uint32_t waiting = snooper_packer_blocks_read() - link_gate_blocks_read();

	health->fill_bytes = waiting * BLOCK_BYTES;
	health->capacity_bytes = snooper_buffer_depth_read() * WORD_BYTES + BUFFER_DRAM_BYTES;
	latch_counters();
	health->matched = snooper_matched_read();
	health->lost = snooper_packer_lost_read();
	health->blocks = link_gate_blocks_read();
	for (unsigned int kind = 0; kind < PTAT_PROTO_ILLEGAL_KINDS; kind++)
		health->illegal[kind] = decoder_count(kind);
#ifdef CSR_XADC_BASE
	/* UG480, equation 2-6, in 1/1000 degree. */
	health->temperature_mc =
		(int32_t)((int64_t)xadc_temperature_read() * 503975 / 4096) - 273150;
#endif
}

/* ---- Identity ---- */

static void get_bytes(void *out, size_t size, unsigned long address)
{
	uint8_t *bytes = out;

	for (size_t i = 0; i < size; i++)
		bytes[i] = csr_read_simple(address + i / 4 * 4) >> (24 - i % 4 * 8);
}

void board_identify(struct ptat_proto_identity *identity)
{
	memset(identity, 0, sizeof(*identity));
	get_bytes(identity->git_hash, sizeof(identity->git_hash), CSR_IDENTITY_GIT_HASH_ADDR);
	get_bytes(identity->board, sizeof(identity->board), CSR_IDENTITY_BOARD_ADDR);
	identity->wire_version = identity_wire_version_read();
	identity->channels = identity_channels_read();
	identity->granularity_bytes = identity_granularity_read();
	identity->tick_hz = identity_tick_hz_read();
	strcpy(identity->serial, "0");
}

const struct hardware board_hardware = {
	.start = start,
	.stop = stop,
	.flush = flush,
	.drained = drained,
	.blocks = blocks,
	.set_trigger = set_trigger,
	.set_sample = set_sample,
	.set_window = set_window,
	.table_slice_bits = ADDRESS_SLICE_BITS,
	.set_mirror = set_mirror,
	.set_mapped = set_mapped,
	.set_table = set_table,
	.set_remap = set_remap,
	.pins = CAPTURE_PINS,
	.taps = CAPTURE_TAPS,
	.set_delay = set_delay,
	.sample_bus = sample_bus,
	.health = health,
	.now_ms = now_ms,
};
