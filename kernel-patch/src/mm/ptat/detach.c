// SPDX-License-Identifier: GPL-2.0
/*
 * PTAT: do without the region.  It may be a device, which can go away, and it
 * is not kept while the machine sleeps.  The twins have all that the hardware
 * needs, so it can walk those.
 */
#define pr_fmt(fmt) "ptat: " fmt

#include <linux/cpumask.h>
#include <linux/ioport.h>
#include <linux/mutex.h>
#include <linux/notifier.h>
#include <linux/pci.h>
#include <linux/stop_machine.h>
#include <linux/suspend.h>

#include "internal.h"

/* Protects all changes of ptat_is_detached, and what follows. */
static DEFINE_MUTEX(detach_lock);
static unsigned int reasons;	/* to do without the region */
static unsigned long detaches;

#define PTAT_GONE		BIT(0)	/* until its device is registered again, or the next boot */
#define PTAT_ASLEEP		BIT(1)
#define PTAT_NO_RECORDER	BIT(2)	/* nobody reads the records of traps */

/**
 * ptat_detaches - how often the region has been detached
 */
unsigned long ptat_detaches(void)
{
	return READ_ONCE(detaches);
}

/* What all CPUs do together. */
struct switching {
	bool detached;		/* what ptat_is_detached becomes */
	bool done;
};

static void repoint_all(bool detached)
{
	unsigned long offset;

	for (offset = PTAT_MARKER_BYTES; offset < ptat_map.size; offset += PAGE_SIZE) {
		const struct ptat_table *table = ptat_table(ptat_map.twin + offset);

		if (detached)
			ptat_walk_twin(table, ptat_map.twin + offset);
		else if (table->mm >= READ_ONCE(ptat_first_id) && !table->hidden)
			ptat_walk_region(table, ptat_map.twin + offset);
	}
}

/* Also free tables: their twins may have something left. */
static void sync_all(void)
{
	unsigned long offset;

	for (offset = PTAT_MARKER_BYTES; offset < ptat_map.size; offset += PAGE_SIZE)
		ptat_sync_table(ptat_table(ptat_map.twin + offset),
				(unsigned long *)(ptat_map.virt + offset));
}

/*
 * On all CPUs at once.  Before and after, region and twins agree, or the region
 * is not walked.
 */
static int switch_tables(void *data)
{
	struct switching *to = data;

	if (smp_processor_id() == cpumask_first(cpu_online_mask)) {
		/* Stores reach the region from here on, or until here. */
		WRITE_ONCE(ptat_is_detached, to->detached);
		/* In this order: entries of PMD tables in the region point to PTE tables. */
		repoint_all(to->detached);
		if (!to->detached)
			sync_all();
		smp_store_release(&to->done, true);	/* pairs with the load below */
	} else {
		while (!smp_load_acquire(&to->done))	/* pairs with the store above */
			cpu_relax();
	}
	ptat_arch_flush_tlb_local();
	return 0;
}

static void set_detached(bool detached)
{
	struct switching to = { .detached = detached };

	stop_machine(switch_tables, &to, cpu_online_mask);
}

/* Returns whether that has detached the region. */
static bool add_reason(unsigned int reason)
{
	bool first = !reasons;

	lockdep_assert_held(&detach_lock);
	reasons |= reason;
	if (first) {
		ptat_region_stop();
		set_detached(true);
		ptat_ring_wake();
		if (reason != PTAT_NO_RECORDER)
			WRITE_ONCE(detaches, detaches + 1);
	}
	return first;
}

/* Use the region again if no other reason is left. */
static int remove_reason(unsigned int reason)
{
	lockdep_assert_held(&detach_lock);
	if (!(reasons & reason))
		return 0;
	if (reasons == reason) {
		ptat_arch_flush_caches();
		if (ptat_region_clear() || !ptat_region_responds())
			return -EIO;
		set_detached(false);
	}
	reasons &= ~reason;
	return reasons ? -ENODEV : 0;
}

/**
 * ptat_detach - give the region up
 * @why: for the log, after "the region"
 *
 * The kernel goes on to translate pointers to the region, as it may have loaded
 * one before: no page table can come to lie there, for it is no memory.
 *
 * Context: may sleep.
 */
void ptat_detach(const char *why)
{
	mutex_lock(&detach_lock);
	if (!(reasons & PTAT_GONE)) {
		add_reason(PTAT_GONE);
		release_mem_region(ptat_map.region, ptat_map.size);
		pr_err("the region %s: its page tables are in memory again, tracing is off\n",
		       why);
	}
	mutex_unlock(&detach_lock);
}
EXPORT_SYMBOL_GPL(ptat_detach);

/**
 * ptat_attach - use the region again after it was given up
 * @dev: the device that it is part of
 *
 * What was traced before goes on untraced.
 *
 * Return: 0; -EBUSY if the region is in use, or why it cannot be used.
 *
 * Context: may sleep.
 */
int ptat_attach(struct ptat_device *dev)
{
	int err = -EBUSY;

	mutex_lock(&detach_lock);
	if (!(reasons & PTAT_GONE))
		goto out;
	err = ptat_region_claim(dev);
	if (err)
		goto out;
	ptat_forget_all();
	err = remove_reason(PTAT_GONE);
	/* It is used after sleep, then. */
	if (err == -ENODEV)
		err = 0;
	if (err)
		release_mem_region(ptat_map.region, ptat_map.size);
out:
	mutex_unlock(&detach_lock);
	return err;
}

/**
 * ptat_trap_attach - a recorder has come: use the region
 *
 * Return: 0; -ENODEV if the region is detached for another reason.
 *
 * Context: may sleep.
 */
int ptat_trap_attach(void)
{
	int err;

	mutex_lock(&detach_lock);
	ptat_forget_all();
	err = remove_reason(PTAT_NO_RECORDER);
	if (err)
		reasons |= PTAT_NO_RECORDER;
	mutex_unlock(&detach_lock);
	return err;
}

/**
 * ptat_trap_detach - the recorder has gone: let what it traced go on untraced
 *
 * Context: may sleep.
 */
void ptat_trap_detach(void)
{
	struct ptat_stat stat;

	mutex_lock(&detach_lock);
	add_reason(PTAT_NO_RECORDER);
	ptat_forget_all();
	mutex_unlock(&detach_lock);
	ptat_pool_stat(&stat);
	if (stat.used)
		pr_info("the recorder is gone: processes with %lu tables go on untraced\n",
			stat.used);
}

/* Neither firmware nor an image on disk keeps the region. */
static int notify_pm(struct notifier_block *nb, unsigned long action, void *unused)
{
	mutex_lock(&detach_lock);
	switch (action) {
	case PM_SUSPEND_PREPARE:
	case PM_HIBERNATION_PREPARE:
	case PM_RESTORE_PREPARE:
		if (add_reason(PTAT_ASLEEP))
			pr_info("the region is not used while the machine sleeps\n");
		break;
	case PM_POST_SUSPEND:
	case PM_POST_HIBERNATION:
	case PM_POST_RESTORE:
		if (remove_reason(PTAT_ASLEEP) == -EIO)
			pr_err("the region does not answer after sleep, tracing is off\n");
		break;
	}
	mutex_unlock(&detach_lock);
	return NOTIFY_OK;
}

static struct notifier_block pm_notifier = {
	.notifier_call = notify_pm,
};

#ifdef CONFIG_PCI
static int notify_pci(struct notifier_block *nb, unsigned long action, void *data)
{
	const struct pci_dev *dev = to_pci_dev(data);
	int i;

	if (action != BUS_NOTIFY_DEL_DEVICE)
		return NOTIFY_DONE;
	for (i = 0; i < PCI_STD_NUM_BARS; i++)
		if ((pci_resource_flags(dev, i) & IORESOURCE_MEM) &&
		    ptat_map.region >= pci_resource_start(dev, i) &&
		    ptat_map.region <= pci_resource_end(dev, i))
			ptat_detach("is being removed");
	return NOTIFY_OK;
}

static struct notifier_block pci_notifier = {
	.notifier_call = notify_pci,
};
#endif

/**
 * ptat_detach_init - know when the machine sleeps, and when a device goes
 */
void ptat_detach_init(void)
{
	/* No table is in the region yet. */
	if (ptat_trapping()) {
		reasons = PTAT_NO_RECORDER;
		ptat_is_detached = true;
	}
#ifdef CONFIG_PCI
	bus_register_notifier(&pci_bus_type, &pci_notifier);
#endif
	register_pm_notifier(&pm_notifier);
}
