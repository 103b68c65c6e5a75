// SPDX-License-Identifier: GPL-2.0
/*
 * A recording: from the accesses that the board sees to blocks in the ring.
 *
 * All functions need the board's lock, and a device that is there.
 */
#include <linux/bitfield.h>
#include <linux/iopoll.h>
#include <linux/log2.h>
#include <linux/math64.h>

#include "ptat_pci.h"

#define POLL_US		100
#define TIMEOUT_US	(10 * USEC_PER_SEC)

/* An interrupt is worth this part of the ring. */
#define WAKE_BLOCKS(board)	max_t(u32, (board)->ring.blocks / 16, 1)

/**
 * ptat_pci_halt - end whatever is recorded, and let accesses pass
 * @board: the board
 *
 * Accesses that wait for room in the ring are answered, and the board writes to
 * memory no more.
 */
void ptat_pci_halt(struct ptat_pci *board)
{
	/* Registers overtake accesses to the region that wait. */
	ptat_pci_write(board, PTAT_CONTROL, 0);
	ptat_pci_write(board, PTAT_GATE_CONTROL, 0);
	ptat_pci_write(board, PTAT_WRITER_ENABLE, 0);
	ptat_pci_write(board, PTAT_IRQ_ENABLE, 0);
	/* The read pushes these writes, and what the board has written before. */
	ptat_pci_read(board, PTAT_STATUS);
}

/* Is nothing of a recording left in front of the gate? */
static bool is_quiet(struct ptat_pci *board)
{
	return !ptat_pci_read(board, PTAT_STATUS) &&
	       ptat_pci_read(board, PTAT_GATE_BLOCKS) == ptat_pci_read(board, PTAT_BLOCKS);
}

static void set_up_ring(struct ptat_pci *board)
{
	const struct ptat_ring *ring = &board->ring;
	u32 chunk_bytes = PAGE_SIZE << ring->order;
	unsigned int i;

	ptat_pci_write(board, PTAT_TABLE_RESET, 1);
	ptat_pci_write(board, PTAT_TABLE_LOOP, 0);
	for (i = 0; i < ring->chunks; i++) {
		ptat_pci_write(board, PTAT_TABLE_VALUE, chunk_bytes | PTAT_TABLE_NO_LAST);
		ptat_pci_write(board, PTAT_TABLE_VALUE + 4, lower_32_bits(ring->dma[i]));
		ptat_pci_write(board, PTAT_TABLE_ADD, upper_32_bits(ring->dma[i]));
	}
	ptat_pci_write(board, PTAT_TABLE_LOOP, 1);
	ptat_pci_write(board, PTAT_RING_TAIL, 0);
	ptat_pci_write(board, PTAT_RING_BLOCKS, ring->blocks);
	board->tail = 0;
	ptat_pci_write(board, PTAT_WRITER_ENABLE, 1);
}

static u32 clocks(u64 clock_hz, u64 ns, u32 max)
{
	return min_t(u64, mul_u64_u64_div_u64(ns, clock_hz, NSEC_PER_SEC), max);
}

/* What to record, and how long to wait for what. */
static void choose(struct ptat_pci *board, u64 patience_ns)
{
	u64 clock_hz = ptat_pci_read64(board, PTAT_TICK_HZ) / PTAT_PCI_TICKS_PER_CLOCK;
	u64 last = board->bus + board->region.size - 1;
	u32 patience = clocks(clock_hz, patience_ns, PTAT_PATIENCE_MAX);

	ptat_pci_write(board, PTAT_FILTER_FIRST, board->bus >> PTAT_UNIT_SHIFT & PTAT_FILTER_UNITS);
	ptat_pci_write(board, PTAT_FILTER_LAST, last >> PTAT_UNIT_SHIFT & PTAT_FILTER_UNITS);
	ptat_pci_write(board, PTAT_FILTER_CONTROL, PTAT_FILTER_ALL);
	/* 0 is for ever. */
	ptat_pci_write(board, PTAT_PATIENCE, patience_ns ? max(patience, 1U) : 0);
	/* A block that is not full waits for a tenth of a second. */
	ptat_pci_write(board, PTAT_FLUSH_TIMEOUT,
		       min_t(u32, ilog2(max_t(u64, clock_hz / 10, 2)), PTAT_FLUSH_TIMEOUT_MAX));
}

/**
 * ptat_pci_start - begin a recording
 * @board: the board
 * @patience_ns: how long an access may wait for room; 0: for ever
 *
 * Return: 0; -EBUSY if there is a recording, -EINVAL without a ring, -EIO if the
 * board does not follow a command.
 */
int ptat_pci_start(struct ptat_pci *board, u64 patience_ns)
{
	bool quiet;
	u32 status;

	if (!board->ring.blocks)
		return -EINVAL;
	if (board->state != PTAT_PCI_IDLE && board->state < PTAT_PCI_DONE)
		return -EBUSY;
	ptat_pci_halt(board);
	if (read_poll_timeout(is_quiet, quiet, quiet, POLL_US, TIMEOUT_US, false, board))
		return -EIO;
	set_up_ring(board);
	ptat_pci_write(board, PTAT_GATE_CONTROL, PTAT_GATE_RUN);
	if (readl_poll_timeout(board->window + PTAT_GATE_STATUS, status,
			       status & PTAT_GATE_RUNNING, POLL_US, TIMEOUT_US)) {
		ptat_pci_halt(board);
		return -EIO;
	}
	choose(board, patience_ns);
	ptat_pci_write(board, PTAT_IRQ_CLEAR, PTAT_IRQ_RING);
	ptat_pci_write(board, PTAT_IRQ_ENABLE, PTAT_IRQ_RING);
	ptat_pci_write(board, PTAT_CONTROL, PTAT_CONTROL_RUN);
	board->state = PTAT_PCI_RECORDING;
	return 0;
}

/* How many blocks the recorder can have.  A board that is gone reads as all ones. */
static int count_blocks(struct ptat_pci *board, u32 *count)
{
	if (board->state == PTAT_PCI_ABORTED)
		return -ECANCELED;
	if (board->state == PTAT_PCI_IDLE)
		return -EINVAL;
	*count = ptat_pci_read(board, PTAT_RING_HEAD) - board->tail;
	return *count > board->ring.blocks ? -EIO : 0;
}

/**
 * ptat_pci_take - give places back, and look for new blocks
 * @board: the board
 * @take: what the recorder is done with; filled with what there is
 *
 * Return: 0; -EINVAL if that cannot be, -ECANCELED if the recording was ended,
 * -EIO if the board does not answer.
 */
int ptat_pci_take(struct ptat_pci *board, struct ptat_pci_take *take)
{
	u32 done = take->tail - board->tail;
	u32 count;
	int err = count_blocks(board, &count);

	if (err)
		return err;
	if (done > count)
		return -EINVAL;
	take->head = board->tail + count;
	if (done) {
		ptat_ring_for_device(board, board->tail, take->tail);
		board->tail = take->tail;
		ptat_pci_write(board, PTAT_RING_TAIL, board->tail);
	}
	ptat_ring_for_cpu(board, board->tail, take->head);
	return 0;
}

/**
 * ptat_pci_has_blocks - are there blocks enough to wake the recorder?
 * @board: the board
 *
 * If not, there will be an interrupt when there are.
 */
bool ptat_pci_has_blocks(struct ptat_pci *board)
{
	u32 count;

	/* The next take of blocks returns the reason. */
	if (count_blocks(board, &count) || count >= WAKE_BLOCKS(board))
		return true;
	ptat_pci_write(board, PTAT_RING_WAKE, board->tail + WAKE_BLOCKS(board));
	return false;
}

/**
 * ptat_pci_stop - end a recording
 * @board: the board
 *
 * Return: 0 when all blocks are in the ring; -EAGAIN before, as the recorder may
 * have to make room.
 */
int ptat_pci_stop(struct ptat_pci *board)
{
	u32 count;
	int err = count_blocks(board, &count);

	if (err)
		return err;
	switch (board->state) {
	case PTAT_PCI_RECORDING:
		/* What reads the region must not wait for room. */
		if (count > board->ring.blocks / 2)
			return -EAGAIN;
		/* Stores that are on their way belong to the recording. */
		ptat_region_lost();
		ptat_pci_write(board, PTAT_CONTROL, 0);
		board->state = PTAT_PCI_STOPPING;
		fallthrough;
	case PTAT_PCI_STOPPING:
		if (!is_quiet(board))
			return -EAGAIN;
		ptat_pci_write(board, PTAT_GATE_CONTROL, PTAT_GATE_RUN | PTAT_GATE_END);
		board->state = PTAT_PCI_ENDING;
		fallthrough;
	case PTAT_PCI_ENDING:
		if (!(ptat_pci_read(board, PTAT_GATE_STATUS) & PTAT_GATE_DONE))
			return -EAGAIN;
		board->state = PTAT_PCI_DONE;
		fallthrough;
	default:
		return 0;
	}
}

/**
 * ptat_pci_counters - read what the board has counted since the start
 * @board: the board
 * @counters: the counts
 *
 * Return: 0, or -EIO.
 */
int ptat_pci_counters(struct ptat_pci *board, struct ptat_pci_counters *counters)
{
	u32 run = ptat_pci_read(board, PTAT_CONTROL) & PTAT_CONTROL_RUN;
	unsigned int kind;
	u32 count;

	ptat_pci_write(board, PTAT_CONTROL, run | PTAT_CONTROL_LATCH);
	for (kind = 0; kind < PTAT_PCI_COUNTS; kind++) {
		ptat_pci_write(board, PTAT_COUNT_SELECT, kind);
		if (readl_poll_timeout(board->window + PTAT_COUNT, count,
				       FIELD_GET(PTAT_COUNT_KIND, count) == kind, 0, TIMEOUT_US))
			return -EIO;
		counters->counts[kind] = count & PTAT_COUNT_VALUE;
	}
	counters->accesses = ptat_pci_read64(board, PTAT_ACCESSES);
	counters->matched = ptat_pci_read64(board, PTAT_MATCHED);
	counters->emitted = ptat_pci_read64(board, PTAT_EMITTED);
	counters->lost = ptat_pci_read64(board, PTAT_LOST);
	counters->blocks = ptat_pci_read(board, PTAT_RING_HEAD);
	return 0;
}
