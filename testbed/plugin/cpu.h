/* SPDX-License-Identifier: GPL-2.0 */
/* The memory management unit of one vCPU: control registers, TLBs, paging-structure caches. */
#ifndef PTAT_CPU_H
#define PTAT_CPU_H

#include "walk.h"

struct call_stack;
struct capture;

#define PAGE_BYTES	 4096
#define ACCESS_MAX_BYTES 64

#define CR0_PG		 BIT_U64(31)
#define CR3_PCID	 BITS_U64(11, 0)
#define CR3_KEEP	 BIT_U64(63) /* with PCIDs: load without a flush */
#define CR4_PAE		 BIT_U64(5)
#define CR4_PGE		 BIT_U64(7)
#define CR4_PCIDE	 BIT_U64(17)

/*
 * An access of a batch: a user address, what is done there, and in the data accesses' spare bits
 * the low byte of QEMU's meminfo, of which log2 of the size is used.
 */
#define BATCH_OFFSET	 BITS_U64(11, 0) /* in its page */
#define BATCH_VA	 BITS_U64(46, 0)
#define BATCH_PAGE	 (BATCH_VA & ~BATCH_OFFSET)
#define BATCH_LOAD	 UINT64_C(0)
#define BATCH_STORE	 BIT_U64(47)
#define BATCH_INFO_SHIFT 48
#define BATCH_SIZE_SHIFT (BATCH_INFO_SHIFT + 4)
#define BATCH_SIZE	 7
#define BATCH_MODIFY	 BIT_U64(62) /* with BATCH_STORE: a load from there just before */
#define BATCH_FETCH	 BIT_U64(63)

#define BATCH_ACCESSES	 2048

/* Accesses by user code in program order, between two points in time. */
struct batch {
	uint64_t begin_ns, end_ns;
	unsigned accesses;
	uint64_t access[BATCH_ACCESSES];
};

struct cpu {
	struct tlb tlb; /* first: the fast path reads its head */
	struct psc psc;
	struct capture *capture;
	uint64_t cr3, cr4;
	bool paging;
	uint8_t index;

	/* Of the last access by kernel code that was no hit; kept if its misses are written. */
	struct call_stack *stack; /* NULL: none is known */
	uint64_t address;	  /* of the instruction */

	/* While a batch is modelled, under the capture's lock: it, and where in it. */
	const struct batch *batch;
	unsigned position;
};

static inline bool may_cross_page(uint64_t va)
{
	return va % PAGE_BYTES > PAGE_BYTES - ACCESS_MAX_BYTES;
}

void cpu_init(struct cpu *cpu, unsigned index, const struct cpu_model *model,
	      struct capture *capture);
void cpu_free(struct cpu *cpu);

/* Before the instruction takes effect. What they flush: Intel SDM vol. 3A, section 4.10.4. */
void cpu_write_cr0(struct cpu *cpu, uint64_t value);
void cpu_write_cr3(struct cpu *cpu, uint64_t value);
void cpu_write_cr4(struct cpu *cpu, uint64_t value);
void cpu_invlpg(struct cpu *cpu, uint64_t va);
void cpu_invpcid(struct cpu *cpu, uint64_t type, unsigned pcid, uint64_t va);

/*
 * An access that has just succeeded, or an instruction fetch; it must not cross a page. Returns
 * the flags of the page's TLB key, 0 if paging is off or if the tables have already changed.
 * @cause: PTAT_TRUTH_CAUSE_*.
 */
uint64_t cpu_translate(struct cpu *cpu, uint64_t va, uint8_t cause, bool kernel_mode);

/*
 * The same for each access of a batch. Walks get times between its begin and its end, in
 * proportion to where in the batch they are.
 */
void cpu_model_batch(struct cpu *cpu, const struct batch *batch);

/* A load or store inside one page for which cpu_translate() said KEY_REGION. */
void cpu_region_access(struct cpu *cpu, uint64_t va, unsigned bytes, bool store, bool locked);

/* An access that ended in a page fault; @present: the walk found a page, and lacked rights. */
void cpu_page_fault(struct cpu *cpu, uint64_t va, uint8_t cause, bool kernel_mode, bool present);

#endif
