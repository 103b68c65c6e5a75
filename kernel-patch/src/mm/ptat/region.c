// SPDX-License-Identifier: GPL-2.0
/*
 * PTAT: the region that the hardware walks.  Only this file touches it.
 */
#define pr_fmt(fmt) "ptat: " fmt

#include <linux/atomic.h>
#include <linux/io.h>
#include <linux/ioport.h>
#include <linux/sched.h>
#include <linux/security.h>

#include "internal.h"

void __iomem *ptat_region_io __read_mostly;	/* uncached on a bus */
bool ptat_marks_by_load;	/* else by stores */
static atomic64_t last_seq;

/* What the region is part of, if that has a driver. */
static struct ptat_device *device;

/**
 * ptat_region_write - store a word to the region, unless it is detached
 * @offset: where, in bytes
 * @val: what
 *
 * Context: preemption is off, or the region cannot be detached for another
 * reason.
 */
void ptat_region_write(unsigned long offset, u64 val)
{
	if (!ptat_detached())
		__raw_writeq(val, ptat_region_io + offset);
}

/**
 * ptat_region_read - read a word of the region
 * @offset: where, in bytes
 *
 * A device that records walks sees this read, too.
 */
u64 ptat_region_read(unsigned long offset)
{
	return __raw_readq(ptat_region_io + offset);
}

/**
 * ptat_region_responds - does the region keep what was written to it?
 *
 * A device that is gone reads as all ones, one that was reset as anything.
 */
bool ptat_region_responds(void)
{
	return ptat_region_read(PTAT_CANARY_OFFSET) == PTAT_CANARY;
}

/**
 * ptat_region_lost - is the region in use, but does not respond?
 *
 * Context: any.
 */
bool ptat_region_lost(void)
{
	return ptat_enabled() && !ptat_detached() && !ptat_region_responds();
}
EXPORT_SYMBOL_GPL(ptat_region_lost);

static void store_zeroes(void)
{
	unsigned long offset;

	for (offset = 0; offset < ptat_map.size; offset += PTAT_ENTRY_BYTES) {
		__raw_writeq(0, ptat_region_io + offset);
		if (!offset_in_page(offset))
			cond_resched();
	}
}

/**
 * ptat_region_clear - zero the region, but for the canary
 *
 * Return: 0, or what the device says that failed to do so.
 *
 * Context: may sleep; the hardware does not walk the region.
 */
int ptat_region_clear(void)
{
	int err;

	if (device) {
		err = device->clear(device);
		if (err)
			return err;
	} else {
		store_zeroes();
	}
	__raw_writeq(PTAT_CANARY, ptat_region_io + PTAT_CANARY_OFFSET);
	return 0;
}

/**
 * ptat_region_stop - let no walk wait for the device
 *
 * A CPU that waits for its walk cannot be stopped.
 *
 * Context: may sleep.
 */
void ptat_region_stop(void)
{
	if (device)
		device->stop(device);
}

/**
 * ptat_mark - number an event of the log
 *
 * Store the number to the region, or load a word there, where a device sees it
 * between the walks.  Call this, log the event, and only then do what the event
 * announces.
 *
 * A memory controller completes a store when it has queued it, and may write it
 * to the DIMM after reads of later walks.  A load has been on the bus when it
 * completes, and it completes before any later store of this CPU: uncached
 * loads are not reordered with stores.  Nothing is stored to the slots then, so
 * the load cannot be answered from the queue either.
 *
 * Return: the number.
 */
u64 ptat_mark(void)
{
	u64 seq = atomic64_inc_return(&last_seq);

	if (!READ_ONCE(ptat_marks_by_load))
		ptat_region_write(ptat_marker_offset(seq), seq);
	else if (!ptat_detached())
		ptat_region_read(ptat_marker_offset(seq));
	return seq;
}

/**
 * ptat_last_seq - the number of the last event
 */
u64 ptat_last_seq(void)
{
	return atomic64_read(&last_seq);
}

/* Does the word at @offset keep what is written to it? */
static bool word_keeps_value(unsigned long offset)
{
	static const u64 pattern = 0x0123456789abcdef;

	__raw_writeq(pattern, ptat_region_io + offset);
	return ptat_region_read(offset) == pattern;
}

/**
 * ptat_region_claim - take the addresses of the region, which is mapped
 * @dev: the device that it is part of; NULL if that has no driver
 *
 * Return: 0, or why it cannot be used.
 *
 * Context: may sleep; the hardware does not walk the region.
 */
int ptat_region_claim(struct ptat_device *dev)
{
	if (!ptat_region_is_ram && security_locked_down(LOCKDOWN_PCI_ACCESS)) {
		pr_err("the kernel is locked down, the region must be RAM\n");
		return -EPERM;
	}
	if (!request_mem_region_exclusive(ptat_map.region, ptat_map.size, "ptat")) {
		pr_err("region is in use, see /proc/iomem\n");
		return -EBUSY;
	}
	/* Firmware, or the kernel before kexec, may have left dirty lines. */
	ptat_arch_flush_caches();
	if (!word_keeps_value(0) || !word_keeps_value(ptat_map.size - PTAT_ENTRY_BYTES)) {
		pr_err("no memory answers in the region\n");
		release_mem_region(ptat_map.region, ptat_map.size);
		return -EIO;
	}
	device = dev;
	return 0;
}

/**
 * ptat_region_init - map, claim and clear the region
 * @dev: the device that it is part of; NULL if that has no driver
 */
int ptat_region_init(struct ptat_device *dev)
{
	int err;

	ptat_region_io = ptat_arch_map_region(ptat_map.region, ptat_map.size);
	if (!ptat_region_io) {
		pr_err("can't map the region\n");
		return -ENOMEM;
	}
	err = ptat_region_claim(dev);
	if (err)
		goto err_unmap;
	err = ptat_region_clear();
	if (err) {
		pr_err("can't clear the region\n");
		goto err_release;
	}
	return 0;

err_release:
	release_mem_region(ptat_map.region, ptat_map.size);
err_unmap:
	iounmap(ptat_region_io);
	return err;
}

void ptat_region_exit(void)
{
	iounmap(ptat_region_io);
	release_mem_region(ptat_map.region, ptat_map.size);
}
