// SPDX-License-Identifier: GPL-2.0
/*
 * PTAT: a region that a device brings at run time.
 */
#define pr_fmt(fmt) "ptat: " fmt

#include <linux/cc_platform.h>
#include <linux/crash_dump.h>
#include <linux/export.h>
#include <linux/gfp.h>
#include <linux/mutex.h>

#include "internal.h"

/* The twins are contiguous, as the region is. */
static int start(struct ptat_device *dev)
{
	struct page *twins = alloc_contig_pages(PHYS_PFN(dev->size), GFP_KERNEL | __GFP_NOWARN,
						numa_mem_id(), NULL);
	int err;

	if (!twins) {
		pr_err("no %lu KiB of contiguous memory for the twins\n", dev->size >> 10);
		return -ENOMEM;
	}
	ptat_map.region = dev->base;
	ptat_map.twin = page_to_phys(twins);
	ptat_map.size = dev->size;
	err = ptat_start(dev);
	if (err) {
		ptat_map = (struct ptat_map) { };
		free_contig_range(page_to_pfn(twins), PHYS_PFN(dev->size));
	}
	return err;
}

static int register_device(struct ptat_device *dev)
{
	if (!ptat_map.size)
		return start(dev);
	if (ptat_ready() && ptat_map.region == dev->base && ptat_map.size == dev->size)
		return ptat_attach(dev);
	if (ptat_ready())
		pr_err("there is a region at %pa, and only one until the next boot\n",
		       &ptat_map.region);
	else
		pr_err("boot without ptat= to use a device\n");
	return -EBUSY;
}

/**
 * ptat_register_device - let the hardware walk page tables in a device
 * @dev: the device, which stays what and where it is until ptat_detach()
 *
 * A device that was given up can be registered again if it is in the same place.
 *
 * Return: 0, or why it cannot be used, which the log says, too.
 *
 * Context: may sleep.
 */
int ptat_register_device(struct ptat_device *dev)
{
	int err;

	if (is_kdump_kernel()) {
		pr_info("this is a crash kernel, tracing is off\n");
		return -EPERM;
	}
	/* Tables are walked encrypted then; a device can't be. */
	if (cc_platform_has(CC_ATTR_MEM_ENCRYPT)) {
		pr_err("memory is encrypted, tracing is off\n");
		return -EPERM;
	}
	if (dev->size < PTAT_DEVICE_MIN_SIZE || !PAGE_ALIGNED(dev->base | dev->size)) {
		pr_err("a device has a region of %#lx bytes at %pa: want pages, at least 128K\n",
		       dev->size, &dev->base);
		return -EINVAL;
	}
	mutex_lock(&ptat_start_lock);
	err = register_device(dev);
	mutex_unlock(&ptat_start_lock);
	return err;
}
EXPORT_SYMBOL_GPL(ptat_register_device);
