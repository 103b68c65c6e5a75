// SPDX-License-Identifier: GPL-2.0
/*
 * PTAT: stores to a region that is a device are posted.  Read a word of the
 * region before TLBs are flushed: the read pushes the stores before it.
 */
#define pr_fmt(fmt) "ptat: " fmt

#include <linux/panic.h>
#include <linux/workqueue.h>

#include "internal.h"

DEFINE_STATIC_KEY_FALSE(ptat_readback_key);

static void detach_work_fn(struct work_struct *work)
{
	ptat_detach("does not answer");
}

static DECLARE_WORK(detach_work, detach_work_fn);

/*
 * The read pushes the stores of this CPU, and those of CPUs that have held the
 * same page-table lock before.
 *
 * Context: any; the caller may hold spinlocks.
 */
void __ptat_flush_stores(void)
{
	if (ptat_region_lost())
		schedule_work(&detach_work);
}

/**
 * ptat_set_readback - choose whether to read the region back before TLB flushes
 * @on: whether
 *
 * Without it, a CPU may walk an entry of a device as it was before the flush,
 * and so use a page after it was freed.
 */
void ptat_set_readback(bool on)
{
	if (on) {
		static_branch_enable(&ptat_readback_key);
		return;
	}
	if (!ptat_region_is_ram && static_key_enabled(&ptat_readback_key)) {
		pr_warn("readback is off for a region that is a device: processes may use freed pages\n");
		add_taint(TAINT_USER, LOCKDEP_STILL_OK);
	}
	static_branch_disable(&ptat_readback_key);
}

/**
 * ptat_readback_init - read back, if the region is a device
 */
void ptat_readback_init(void)
{
	if (!ptat_region_is_ram && !ptat_trapping())
		static_branch_enable(&ptat_readback_key);
}
