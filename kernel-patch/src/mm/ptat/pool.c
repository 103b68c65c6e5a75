// SPDX-License-Identifier: GPL-2.0
/*
 * PTAT: the pool of twins, and so of pages of the region.
 *
 * The pool owns one reference to each twin for ever; a twin with no other
 * reference is free.  So none of the many ways to free a table needs a hook:
 * each ends in put_page(), after the TLB flush or grace period that it has to
 * wait for.
 *
 * The queue holds the twins whose destructor has run, oldest first.  The twin
 * at its head is nearly always free by then; if not, it goes to the end of the
 * queue.  Trying only a few of them bounds the cost of an allocation.
 */
#include <linux/page_ref.h>
#include <linux/rcupdate.h>
#include <linux/spinlock.h>
#include <linux/vmalloc.h>

#include "internal.h"

/* How many twins, destroyed but still referenced, to pass over. */
#define PTAT_POOL_TRIES	8

struct ptat_table *ptat_tables;

static struct {
	spinlock_t lock;		/* protects all that follows */
	u32 pages;			/* of the region */
	u32 reserve;			/* kept for PMD tables */
	u32 head, tail, count;		/* of the queue */
	unsigned long allocs;
	unsigned long frees;
	unsigned long fallbacks;
} pool = {
	.lock = __SPIN_LOCK_UNLOCKED(pool.lock),
};

static struct page *pool_page(u32 index)
{
	return pfn_to_page(PHYS_PFN(ptat_map.twin) + index);
}

static u32 pool_index(phys_addr_t twin)
{
	return PHYS_PFN(twin - ptat_map.twin);
}

static void queue_push(u32 index)
{
	lockdep_assert_held(&pool.lock);
	if (pool.count++)
		ptat_tables[pool.tail].next = index;
	else
		pool.head = index;
	pool.tail = index;
}

static u32 queue_pop(void)
{
	u32 index = pool.head;

	lockdep_assert_held(&pool.lock);
	pool.head = ptat_tables[index].next;
	pool.count--;
	return index;
}

static struct page *queue_get(enum ptat_level level)
{
	unsigned int tries, keep = 0;
	struct page *page = NULL;
	unsigned long flags;

	spin_lock_irqsave(&pool.lock, flags);
	if (level == PTAT_LEVEL_PTE && READ_ONCE(ptat_trace_pmd_tables))
		keep = pool.reserve;
	for (tries = 0; tries < PTAT_POOL_TRIES && pool.count > keep; tries++) {
		u32 index = queue_pop();

		if (page_ref_freeze(pool_page(index), 1)) {
			page = pool_page(index);
			pool.allocs++;
			break;
		}
		queue_push(index);
	}
	if (!page)
		pool.fallbacks++;
	spin_unlock_irqrestore(&pool.lock, flags);
	return page;
}

/**
 * ptat_pool_get - take a twin
 * @level: what the table will hold
 *
 * Return: a page of zeroes with a reference for the caller; NULL if the region
 * is full.
 *
 * Context: any.
 */
struct page *ptat_pool_get(enum ptat_level level)
{
	struct page *page = queue_get(level);

	if (!page)
		return NULL;
	/*
	 * The owner has cleared the table before freeing it, but for the marks
	 * of poisoned pages that userfaultfd leaves in the tables that a
	 * collapse of a file frees.
	 */
	if (memchr_inv(page_address(page), 0, PAGE_SIZE))
		ptat_clear_table(ptat_table(page_to_phys(page)), page_address(page));
	page_ref_unfreeze(page, 2);
	return page;
}

/**
 * ptat_pool_put - queue a twin whose destructor has run
 * @page: the twin; the reference of its owner may go later
 *
 * Context: any.
 */
void ptat_pool_put(struct page *page)
{
	unsigned long flags;

	spin_lock_irqsave(&pool.lock, flags);
	pool.frees++;
	queue_push(pool_index(page_to_phys(page)));
	spin_unlock_irqrestore(&pool.lock, flags);
}

/**
 * ptat_pool_stat - count pages
 * @stat: the counts
 *
 * Context: may sleep.
 */
void ptat_pool_stat(struct ptat_stat *stat)
{
	unsigned long flags;
	u32 i;

	/* Tables that only RCU still holds are on their way back. */
	rcu_barrier();

	stat->pages = pool.pages - PTAT_MARKER_PAGES;
	stat->used = 0;
	for (i = PTAT_MARKER_PAGES; i < pool.pages; i++)
		stat->used += page_ref_count(pool_page(i)) != 1;

	spin_lock_irqsave(&pool.lock, flags);
	stat->allocs = pool.allocs;
	stat->frees = pool.frees;
	stat->fallbacks = pool.fallbacks;
	spin_unlock_irqrestore(&pool.lock, flags);
}

int ptat_pool_init(void)
{
	unsigned long flags;
	u32 i;

	ptat_tables = vcalloc(PHYS_PFN(ptat_map.size), sizeof(*ptat_tables));
	if (!ptat_tables)
		return -ENOMEM;
	for (i = 0; i < PHYS_PFN(ptat_map.size); i++) {
		clear_page(page_address(pool_page(i)));
		cond_resched();
	}

	spin_lock_irqsave(&pool.lock, flags);
	pool.pages = PHYS_PFN(ptat_map.size);
	/*
	 * One PMD table can serve 512 PTE tables, but a small process has
	 * about as many of the one as of the other.
	 */
	pool.reserve = pool.pages / 16;
	for (i = PTAT_MARKER_PAGES; i < pool.pages; i++)
		queue_push(i);
	spin_unlock_irqrestore(&pool.lock, flags);
	return 0;
}
