// SPDX-License-Identifier: GPL-2.0
/*
 * PTAT: files in debugfs/ptat that read the region.  A device that records
 * walks sees these reads, too.
 */
#include <linux/debugfs.h>
#include <linux/delay.h>
#include <linux/sched.h>
#include <linux/seq_file.h>

#include "internal.h"

/*
 * How often an entry is compared that is on its way from the twin to the
 * region, and all such entries together: the CPU that changes it may be in the
 * middle of a loop over the table, or a virtual one that is not running.
 */
#define PTAT_CHECK_ENTRY_TRIES	10000
#define PTAT_CHECK_TRIES	100000

static bool entry_matches(unsigned long offset, u64 *hw, unsigned int *tries)
{
	const unsigned long *twin = (unsigned long *)(ptat_map.virt + offset);
	const struct ptat_table *table = &ptat_tables[PHYS_PFN(offset)];
	unsigned int i;

	for (i = 0; i < PTAT_CHECK_ENTRY_TRIES; i++) {
		*hw = ptat_region_read(offset);
		if (*hw == ptat_shown_val(ptat_hw_val(READ_ONCE(*twin)), table->level))
			return true;
		if (!*tries)
			break;
		--*tries;
		usleep_range(50, 100);
	}
	return false;
}

static bool region_is_there(void)
{
	if (!ptat_detached() && !ptat_region_responds())
		ptat_detach("does not answer");
	return !ptat_detached();
}

/* Compare the whole region with the twins. */
static int check_show(struct seq_file *m, void *unused)
{
	unsigned long offset, entries = 0, present = 0, mismatches = 0;
	unsigned int tries = PTAT_CHECK_TRIES;
	u64 hw;

	if (!region_is_there())
		return -ENODEV;
	for (offset = PTAT_MARKER_BYTES; offset < ptat_map.size; offset += PTAT_ENTRY_BYTES) {
		if (!offset_in_page(offset)) {
			if (signal_pending(current))
				return -EINTR;
			cond_resched();
		}
		entries++;
		if (!entry_matches(offset, &hw, &tries) && !mismatches++) {
			if (!region_is_there())
				return -ENODEV;
			seq_printf(m, "first_offset %#lx\nfirst_region %#llx\nfirst_twin %#lx\n",
				   offset, hw,
				   READ_ONCE(*(unsigned long *)(ptat_map.virt + offset)));
		}
		present += ptat_val_present(READ_ONCE(*(unsigned long *)(ptat_map.virt + offset)));
	}
	seq_printf(m, "entries %lu\npresent %lu\nmismatches %lu\n", entries, present, mismatches);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(check);

/* Load the word at an offset, so that a device on the bus can be calibrated. */
static int load_set(void *unused, u64 offset)
{
	if (offset >= ptat_map.size || !IS_ALIGNED(offset, PTAT_ENTRY_BYTES))
		return -EINVAL;
	if (!region_is_there())
		return -ENODEV;
	ptat_region_read(offset);
	return 0;
}
DEFINE_DEBUGFS_ATTRIBUTE(load_fops, NULL, load_set, "%llu\n");

/**
 * ptat_debugfs_init - show the files
 */
void ptat_debugfs_init(void)
{
	struct dentry *dir = debugfs_create_dir("ptat", NULL);

	debugfs_create_file("check", 0400, dir, NULL, &check_fops);
	debugfs_create_file_unsafe("load", 0200, dir, NULL, &load_fops);
}
