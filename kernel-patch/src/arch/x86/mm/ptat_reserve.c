// SPDX-License-Identifier: GPL-2.0
/*
 * PTAT on x86-64: the boot parameter ptat=SIZE[@ADDR][,trap], and memory for
 * the region and the twins.
 */
#define pr_fmt(fmt) "ptat: " fmt

#include <linux/cc_platform.h>
#include <linux/crash_dump.h>
#include <linux/init.h>
#include <linux/kernel.h>
#include <linux/memblock.h>
#include <linux/ptat.h>
#include <linux/ptat_device.h>
#include <linux/sizes.h>

#include <asm/e820/api.h>
#include <asm/processor.h>

#define PTAT_MIN_ADDR	SZ_16M	/* in RAM: old devices need what is below */

static unsigned long size __initdata, addr __initdata;
static bool have_addr __initdata;

static int __init ptat_param(char *arg)
{
	char *p = arg;

	have_addr = false;
	ptat_want_trap = false;
	if (!p || !*p)
		goto garbage;
	size = memparse(p, &p);
	if (*p == '@') {
		have_addr = true;
		arg = p + 1;
		addr = memparse(arg, &p);
		if (p == arg)
			goto garbage;
	}
	if (IS_ENABLED(CONFIG_PTAT_TRAP) && !strcmp(p, ",trap"))
		ptat_want_trap = true;
	else if (*p)
		goto garbage;
	if (!size)
		goto garbage;
	return 0;

garbage:
	pr_err("want ptat=SIZE[@ADDR][,trap], tracing is off\n");
	size = 0;
	return 0;
}
early_param("ptat", ptat_param);

static u64 __init ram_size(void)
{
	u64 total = 0;
	int i;

	for (i = 0; i < e820_table->nr_entries; i++)
		if (e820_table->entries[i].type == E820_TYPE_RAM)
			total += e820_table->entries[i].size;
	return total;
}

/* From the top of RAM down, the first room that nobody has reserved. */
static unsigned long __init find_ram(void)
{
	int i;

	for (i = e820_table->nr_entries - 1; i >= 0; i--) {
		const struct e820_entry *e = &e820_table->entries[i];
		u64 start;

		if (e->type != E820_TYPE_RAM || e->size < size)
			continue;
		for (start = round_down(e->addr + e->size - size, SZ_2M);
		     start >= e->addr && start >= PTAT_MIN_ADDR; start -= SZ_2M)
			if (!memblock_is_region_reserved(start, size))
				return start;
	}
	return 0;
}

static const char * __init bad_region(bool *ram)
{
	u64 end = addr + size;

	if (!IS_ALIGNED(size, PAGE_SIZE))
		return "is not a multiple of 4K long";
	if (!IS_ALIGNED(addr, SZ_2M))
		return "does not begin at a multiple of 2M";
	if (size < PTAT_MIN_SIZE)
		return "is smaller than 256K";
	if (end < addr || (end - 1) >> boot_cpu_data.x86_phys_bits)
		return "is beyond the physical address space";
	*ram = e820__mapped_all(addr, end, E820_TYPE_RAM);
	if (!*ram && e820__mapped_any(addr, end, E820_TYPE_RAM))
		return "is RAM only in part";
	if (e820__mapped_any(addr, end, E820_TYPE_ACPI) ||
	    e820__mapped_any(addr, end, E820_TYPE_NVS) ||
	    e820__mapped_any(addr, end, E820_TYPE_PMEM) ||
	    e820__mapped_any(addr, end, E820_TYPE_PRAM) ||
	    e820__mapped_any(addr, end, E820_TYPE_UNUSABLE))
		return "is not the kernel's to use";
	if (*ram && addr < PTAT_MIN_ADDR)
		return "is in the first 16M of RAM";
	if (*ram && memblock_is_region_reserved(addr, size))
		return "overlaps memory in use (the kernel, its initrd, ...)";
	/* Twins take the same again. */
	if (size * (1 + *ram) > ram_size() / 4 * 3)
		return "is too large for this machine's RAM";
	return NULL;
}

/**
 * ptat_reserve_region - take the region out of the machine's RAM
 *
 * Context: boot, when firmware's reservations are known and the direct map is
 * not built yet: the region gets neither struct pages nor a cached alias.
 */
void __init ptat_reserve_region(void)
{
	const char *bad;
	bool ram;

	if (!size)
		return;
	if (is_kdump_kernel()) {
		pr_info("this is a crash kernel, tracing is off\n");
		return;
	}
	/* Tables are walked encrypted then; a region can't be. */
	if (cc_platform_has(CC_ATTR_MEM_ENCRYPT)) {
		pr_err("memory is encrypted, tracing is off\n");
		return;
	}
	if (!have_addr) {
		addr = find_ram();
		if (!addr) {
			pr_err("found no room for %#lx bytes, tracing is off\n", size);
			return;
		}
	}
	bad = bad_region(&ram);
	if (bad) {
		pr_err("[mem %#lx +%#lx] %s, tracing is off\n", addr, size, bad);
		return;
	}
	if (ram) {
		e820__range_update(addr, size, E820_TYPE_RAM, E820_TYPE_RESERVED);
		e820__update_table(e820_table);
		memblock_remove(addr, size);
	}
	ptat_map.region = addr;
	ptat_map.size = size;
	ptat_region_is_ram = ram;
}

/**
 * ptat_reserve_twins - allocate the twins
 *
 * They are ordinary reserved memory with struct pages: page-table locks and
 * reference counts are in those.
 */
void __init ptat_reserve_twins(void)
{
	if (!ptat_map.size)
		return;
	ptat_map.twin = memblock_phys_alloc_range(ptat_map.size, SZ_2M, SZ_1M, 0);
	if (ptat_map.twin)
		return;
	pr_err("no memory for the twins, tracing is off\n");
	ptat_map.size = 0;
}
