// SPDX-License-Identifier: GPL-2.0
/*
 * PTAT: start-up, and the state that all parts share.
 */
#define pr_fmt(fmt) "ptat: " fmt

#include <linux/init.h>

#define CREATE_TRACE_POINTS
#include <trace/events/ptat.h>

#include "internal.h"

struct ptat_map ptat_map __ro_after_init;
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

static int __init ptat_init(void)
{
	int err;

	if (!ptat_map.size)
		return 0;

	ptat_map.virt = (unsigned long)__va(ptat_map.twin);
	err = ptat_trap_init();
	if (err)
		goto err_free_twins;
	err = ptat_region_init();
	if (err)
		goto err_free_twins;
	err = ptat_pool_init();
	if (err)
		goto err_exit_region;
	pr_info("region %pa, twins %pa, %lu KiB each%s\n", &ptat_map.region, &ptat_map.twin,
		ptat_map.size >> 10, ptat_trapping() ? ", misses trap" : "");
	return 0;

err_exit_region:
	ptat_region_exit();
err_free_twins:
	pr_err("can't start (%d), tracing is off\n", err);
	free_reserved_area((void *)ptat_map.virt, (void *)ptat_map.virt + ptat_map.size, -1,
			   "PTAT twins");
	return err;
}
late_initcall(ptat_init);
