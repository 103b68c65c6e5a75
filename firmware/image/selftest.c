// SPDX-License-Identifier: BSD-2-Clause
#include "selftest.h"

#include <generated/csr.h>
#include <stdio.h>

#include "board.h"
#include "control.h"

#define ACCESSES    3000 /* three blocks */
#define PATIENCE_MS 100

/* The generator's sequence: ptat_gateware/selftest.py. */
#define LFSR_SEED   1
#define LFSR_TAPS   0x80200003
#define BURST_BITS  7
#define ROW_BITS    16
#define BANK_BITS   3
#define BURST_SHIFT 3

/* Bits of a coordinate. */
#define ROW_SHIFT  12
#define BANK_SHIFT 29

static uint32_t field(uint32_t state, unsigned int shift, unsigned int bits)
{
	return state >> shift & ((1u << bits) - 1);
}

static void expect(uint32_t *writes, uint32_t *sum)
{
	uint32_t state = LFSR_SEED;

	*writes = *sum = 0;
	for (unsigned int i = 0; i < ACCESSES; i++) {
		*sum += field(state, 0, BURST_BITS) << BURST_SHIFT |
			field(state, BURST_BITS, ROW_BITS) << ROW_SHIFT |
			field(state, BURST_BITS + ROW_BITS, BANK_BITS) << BANK_SHIFT;
		*writes += field(state, BURST_BITS + ROW_BITS + BANK_BITS, 1);
		state = state >> 1 ^ (state & 1 ? LFSR_TAPS : 0);
	}
}

static void record_all(const struct hardware *hw)
{
	static const struct ptat_proto_window none;
	struct ptat_proto_window all = {
		.last = UINT32_MAX,
		.use = PTAT_PROTO_WINDOW_READ | PTAT_PROTO_WINDOW_WRITE,
	};
	/* Each bit of the coordinate is one of the address. */
	struct ptat_proto_matrix identity = { .constant = 0 };

	for (unsigned int i = 0; i < PTAT_PROTO_MATRIX_COLUMNS; i++)
		identity.columns[i] = UINT64_C(1) << i;
	control_load_matrix(hw, &identity);
	hw->set_trigger(hw->context, 0);
	hw->set_sample(hw->context, 1);
	for (unsigned int i = 0; i < PTAT_PROTO_WINDOWS_MAX; i++)
		hw->set_window(hw->context, i, i ? none : all);
}

/* False: it does not happen, because the bus has no clock. */
static bool generate(const struct hardware *hw)
{
	uint32_t start_ms = hw->now_ms(hw->context);

	generator_control_write(1 << CSR_GENERATOR_CONTROL_ENABLE_OFFSET |
				1 << CSR_GENERATOR_CONTROL_RUN_OFFSET);
	while (!generator_status_read())
		if (hw->now_ms(hw->context) - start_ms > PATIENCE_MS)
			return false;
	return true;
}

enum selftest selftest_loopback(const struct hardware *hw)
{
	uint32_t accesses, writes, sum, expected_writes, expected_sum;
	bool generated;

	record_all(hw);
	board_settle(PATIENCE_MS);
	meter_control_write(1 << CSR_METER_CONTROL_RESTART_OFFSET);
	generator_count_write(ACCESSES);
	generator_control_write(1 << CSR_GENERATOR_CONTROL_ENABLE_OFFSET);
	snooper_control_write(1 << CSR_SNOOPER_CONTROL_RUN_OFFSET);
	generated = generate(hw);
	snooper_control_write(0);
	if (generated)
		board_settle(PATIENCE_MS);
	generator_control_write(0);
	accesses = meter_accesses_read();
	writes = meter_writes_read();
	sum = meter_sum_read();
	hw->set_mapped(hw->context, false);
	if (!generated)
		return SELFTEST_NO_CLOCK;
	expect(&expected_writes, &expected_sum);
	if (accesses == ACCESSES && writes == expected_writes && sum == expected_sum)
		return SELFTEST_PASSED;
	printf("loop-back: %lu of %u accesses, %lu of %lu writes, sum %08lx, not %08lx\n", accesses,
	       ACCESSES, writes, expected_writes, sum, expected_sum);
	return SELFTEST_FAILED;
}
