/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Page-table access tracing (PTAT): devices that the hardware walks page tables
 * in.  See mm/ptat/device.c.
 */
#ifndef _LINUX_PTAT_DEVICE_H
#define _LINUX_PTAT_DEVICE_H

#include <linux/sizes.h>
#include <linux/types.h>

/* A region has markers, and room for tables. */
#define PTAT_MIN_SIZE	SZ_256K

/* Of a device: boards without DRAM have no more. */
#define PTAT_DEVICE_MIN_SIZE	SZ_128K

/**
 * struct ptat_device - a device with memory that page tables can be in
 * @base: physical address of the memory
 * @size: bytes of it, at least PTAT_DEVICE_MIN_SIZE
 * @clear: fill the memory with zeroes, and return 0 when it is; may sleep
 * @stop: let no access wait any more, as all CPUs are about to be stopped; may
 *        sleep
 */
struct ptat_device {
	phys_addr_t base;
	unsigned long size;
	int (*clear)(struct ptat_device *dev);
	void (*stop)(struct ptat_device *dev);
};

int ptat_register_device(struct ptat_device *dev);

#endif /* _LINUX_PTAT_DEVICE_H */
