// SPDX-License-Identifier: GPL-2.0
/*
 * PTAT: start-up, and the state that all parts share.
 */
#define pr_fmt(fmt) "ptat: " fmt

#include <linux/init.h>

#define CREATE_TRACE_POINTS
#include <trace/events/ptat.h>

#include "internal.h"

struct ptat_map ptat_map __read_mostly;
EXPORT_SYMBOL(ptat_map);

DEFINE_STATIC_KEY_FALSE(ptat_key);
EXPORT_SYMBOL(ptat_key);

/* Not where reads and writes take the way through a device. */
bool ptat_region_is_ram __ro_after_init;

/* ptat=...,trap */
bool ptat_want_trap __ro_after_init;

/* May traced pages become old? */
bool ptat_aging = true;

/* Do PMD tables go to the region, too? */
bool ptat_trace_pmd_tables = true;

/* Does a program that gains privileges stay traced? */
bool ptat_trace_secureexec;

/* The hardware walks the twins, and nothing is stored to the region. */
bool ptat_is_detached __read_mostly;

/* There is one region: held while it is set up. */
DEFINE_MUTEX(ptat_start_lock);

/**
 * ptat_start - use the region and the twins that ptat_map tells of
 * @dev: the device that the region is part of; NULL if that has no driver
 *
 * Return: 0, or why not; then nothing has changed.
 *
 * Context: may sleep; the caller holds ptat_start_lock.
 */
int ptat_start(struct ptat_device *dev)
{
	int err;

	ptat_map.virt = (unsigned long)__va(ptat_map.twin);
	err = ptat_region_init(dev);
	if (err)
		return err;
	err = ptat_pool_init();
	if (err) {
		ptat_region_exit();
		return err;
	}
	pr_info("region %pa, twins %pa, %lu KiB each%s\n", &ptat_map.region, &ptat_map.twin,
		ptat_map.size >> 10, ptat_trapping() ? ", misses trap" : "");
	ptat_readback_init();
	ptat_detach_init();
	ptat_ring_init();
	ptat_debugfs_init();
	/* Last, as this is where user space asks for tracing. */
	ptat_sysfs_init();
	return 0;
}

/* The region of the boot parameter. */
static int __init ptat_init(void)
{
	int err = 0;

	mutex_lock(&ptat_start_lock);
	/* A device may have brought its region already. */
	if (ptat_map.size && !ptat_ready())
		err = ptat_trap_init() ?: ptat_start(NULL);
	mutex_unlock(&ptat_start_lock);
	if (!err)
		return 0;
	pr_err("can't start (%d), tracing is off\n", err);
	free_reserved_area((void *)ptat_map.virt, (void *)ptat_map.virt + ptat_map.size, -1,
			   "PTAT twins");
	return err;
}
late_initcall(ptat_init);
