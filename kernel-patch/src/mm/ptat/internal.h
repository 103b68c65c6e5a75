/* SPDX-License-Identifier: GPL-2.0 */
#ifndef _MM_PTAT_INTERNAL_H
#define _MM_PTAT_INTERNAL_H

#include <linux/io.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/ptat.h>
#include <linux/ptat_device.h>
#include <linux/ptat_trap.h>
#include <uapi/linux/ptat.h>

#include "compat.h"

/* The first pages of the region hold markers, not tables. */
#define PTAT_MARKER_SLOTS	1024UL
#define PTAT_MARKER_STRIDE	64UL
#define PTAT_MARKER_BYTES	(PTAT_MARKER_SLOTS * PTAT_MARKER_STRIDE)
#define PTAT_MARKER_PAGES	(PTAT_MARKER_BYTES >> PAGE_SHIFT)

#define PTAT_ENTRY_BYTES	sizeof(pte_t)

/*
 * The canary is a word between two markers that never changes: a read of it
 * tells whether the region responds.  Being no part of a table, it cannot be
 * mistaken for a walk.
 */
#define PTAT_CANARY		0x6d2f70746174a55aULL
#define PTAT_CANARY_OFFSET	PTAT_ENTRY_BYTES

/* mm_struct.ptat_mode */
enum ptat_mode {
	PTAT_MODE_OFF,		/* new tables do not go to the region */
	PTAT_MODE_PROCESS,	/* this process, across execve() */
	PTAT_MODE_CHILDREN,	/* and all its descendants */
};

/**
 * struct ptat_table - what a page of the region is used for
 * @mm:     identity of the owner, 0 if the page is free
 * @va:     of a PMD table: the first address that it serves
 * @slot:   physical address of the entry that points to the table, 0 if it has
 *          not been linked yet
 * @next:   index of the next page in the queue of the pool
 * @level:  enum ptat_level
 * @hidden: the owner has gained privileges: not to be walked in the region again
 * @filled: of a PTE table: which entries of the region are not zero
 *
 * The lock of the table protects @filled, that of the pool @next.  The other
 * fields change while the table cannot be reached, or with the lock of the
 * table above held.
 */
struct ptat_table {
	u64 mm;
	u64 va;
	phys_addr_t slot;
	u32 next;
	u8 level;
	bool hidden;
	DECLARE_BITMAP(filled, PTRS_PER_PTE);
};

struct ptat_stat {
	unsigned long pages;
	unsigned long used;
	unsigned long allocs;
	unsigned long frees;
	unsigned long fallbacks;
};

/* core.c */
extern bool ptat_trace_pmd_tables;
extern bool ptat_trace_secureexec;
extern bool ptat_is_detached;
extern struct mutex ptat_start_lock;
int ptat_start(struct ptat_device *dev);

/* region.c */
extern void __iomem *ptat_region_io;
int ptat_region_init(struct ptat_device *dev);
int ptat_region_claim(struct ptat_device *dev);
void ptat_region_exit(void);
void ptat_region_write(unsigned long offset, u64 val);
u64 ptat_region_read(unsigned long offset);
bool ptat_region_responds(void);
int ptat_region_clear(void);
void ptat_region_stop(void);
extern bool ptat_marks_by_load;
u64 ptat_mark(void);
u64 ptat_last_seq(void);

/* pool.c */
extern struct ptat_table *ptat_tables;	/* by page of the region */
int ptat_pool_init(void);
struct page *ptat_pool_get(enum ptat_level level);
void ptat_pool_put(struct page *page);
void ptat_pool_stat(struct ptat_stat *stat);

/* tables.c */
u64 ptat_table_va(const struct ptat_table *table);
void ptat_set_pmd_table_base(struct page *page, unsigned long addr);
void ptat_walk_twin(const struct ptat_table *table, phys_addr_t twin);
void ptat_walk_region(const struct ptat_table *table, phys_addr_t twin);

/* sync.c */
void ptat_sync_table(struct ptat_table *table, const unsigned long *twin);
void ptat_clear_table(struct ptat_table *table, unsigned long *twin);

/* control.c */
extern u64 ptat_first_id;
int ptat_set_mode(enum ptat_mode mode);
void ptat_forget_all(void);
unsigned long ptat_secureexecs(void);

/* readback.c */
void ptat_readback_init(void);
void ptat_set_readback(bool on);

/* detach.c */
void ptat_detach_init(void);
int ptat_attach(struct ptat_device *dev);
unsigned long ptat_detaches(void);
int ptat_trap_attach(void);
void ptat_trap_detach(void);

/* sysfs.c */
void ptat_sysfs_init(void);

/* debugfs.c */
#ifdef CONFIG_DEBUG_FS
void ptat_debugfs_init(void);
#else
static inline void ptat_debugfs_init(void)
{
}
#endif

/* How a miss is let through. */
enum ptat_trap_method {
	PTAT_TRAP_AUTO,			/* to be found out */
	PTAT_TRAP_TOUCH,		/* by an access of the handler */
	PTAT_TRAP_SINGLE_STEP,		/* by one instruction of the thread */
	PTAT_TRAP_METHODS
};

/* trap.c */
#ifdef CONFIG_PTAT_TRAP
int ptat_trap_init(void);
void ptat_ring_init(void);
void ptat_ring_wake(void);
#else
static inline int ptat_trap_init(void)
{
	return 0;
}

static inline void ptat_ring_init(void)
{
}

static inline void ptat_ring_wake(void)
{
}
#endif
extern enum ptat_trap_method ptat_trap_data_method, ptat_trap_code_method;
extern const char * const ptat_trap_method_names[];
void ptat_trap_start(void);

/* ring.c */
bool ptat_ring_has_room(void);
void ptat_ring_put(const struct ptat_trap_record *record);

/* Changes while all CPUs are stopped: stable where preemption is off. */
static __always_inline bool ptat_detached(void)
{
	return READ_ONCE(ptat_is_detached);
}

/* There is a region that can be used. */
static inline bool ptat_ready(void)
{
	return ptat_tables;
}

static inline phys_addr_t __ptat_region_pa(const struct ptat_map *map, phys_addr_t pa)
{
	return pa - map->twin < map->size ? pa - map->twin + map->region : pa;
}

/* The address that the hardware has for the table or entry at @pa. */
static inline phys_addr_t ptat_hw_pa(phys_addr_t pa)
{
	return ptat_detached() ? pa : __ptat_region_pa(&ptat_map, pa);
}

/* What the page at physical address @twin is used for; NULL if it is no twin. */
static inline struct ptat_table *ptat_table(phys_addr_t twin)
{
	phys_addr_t offset = twin - ptat_map.twin;

	return offset < ptat_map.size ? &ptat_tables[PHYS_PFN(offset)] : NULL;
}

static inline unsigned long ptat_marker_offset(u64 seq)
{
	return seq % PTAT_MARKER_SLOTS * PTAT_MARKER_STRIDE;
}

/* Is @mm walked in the region, if that is in use? */
static inline bool ptat_mm_is_seen(const struct mm_struct *mm)
{
	return !mm->ptat_hidden && mm->ptat_id >= READ_ONCE(ptat_first_id);
}

/* What the region has of a table of that level for an entry that @val is. */
static __always_inline unsigned long ptat_shown_val(unsigned long val, enum ptat_level level)
{
	return ptat_trapping() && ptat_val_is_leaf(val, level) ? ptat_val_poison(val) : val;
}

/*
 * Store @new to an entry of the region if it holds @old, which it returns then.
 * Only where misses trap: on a bus, this would read the region.
 */
static __always_inline u64 ptat_region_exchange(u32 entry, u64 old, u64 new)
{
	return arch_cmpxchg((u64 __force *)ptat_region_io + entry, old, new);
}

/* The first address that the entry at @entry_pa serves, in a table for @base. */
static inline u64 ptat_entry_va(u64 base, phys_addr_t entry_pa, enum ptat_level level)
{
	u64 size = level == PTAT_LEVEL_PMD ? PMD_SIZE : PAGE_SIZE;

	return base + offset_in_page(entry_pa) / PTAT_ENTRY_BYTES * size;
}

#endif /* _MM_PTAT_INTERNAL_H */
