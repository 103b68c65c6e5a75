/* SPDX-License-Identifier: GPL-2.0 */
/* The memory management unit of one vCPU: control registers, TLBs, paging-structure caches. */
#ifndef PTAT_CPU_H
#define PTAT_CPU_H

#include "capture.h"

#define CR0_PG	  BIT_U64(31)
#define CR3_PCID  BITS_U64(11, 0)
#define CR3_KEEP  BIT_U64(63) /* with PCIDs: load without a flush */
#define CR4_PAE	  BIT_U64(5)
#define CR4_PGE	  BIT_U64(7)
#define CR4_PCIDE BIT_U64(17)

#define CPU_QUEUE 64

struct cpu {
	struct tlb tlb;	   /* first: the fast path reads its head */
	unsigned deferred; /* entries of queue in use */
	struct psc psc;
	struct capture *capture;
	uint64_t cr3, cr4;
	bool paging;
	uint8_t index;

	/* Accesses by user code that are still to be modelled, in order. */
	bool draining, recording;
	uint64_t queue[CPU_QUEUE]; /* va, and bit 63: a store */
};

void cpu_init(struct cpu *cpu, unsigned index, const struct cpu_model *model,
	      struct capture *capture);
void cpu_free(struct cpu *cpu);

/* Models all that was deferred; the functions below do so on their own. */
void cpu_drain(struct cpu *cpu);

/* Before the instruction takes effect. What they flush: Intel SDM vol. 3A, section 4.10.4. */
void cpu_write_cr0(struct cpu *cpu, uint64_t value);
void cpu_write_cr3(struct cpu *cpu, uint64_t value);
void cpu_write_cr4(struct cpu *cpu, uint64_t value);
void cpu_invlpg(struct cpu *cpu, uint64_t va);
void cpu_invpcid(struct cpu *cpu, uint64_t type, unsigned pcid, uint64_t va);

/*
 * A load or store by user code at a user address, inside one page: modelled later, at the latest
 * before anything else of this vCPU. The result is the same as long as no other vCPU can change
 * the tables in between; but the host's CPU can go on with the guest's next accesses while this
 * one waits for memory, and a lock and a clock serve many walks.
 */
static inline void cpu_defer(struct cpu *cpu, uint64_t va, bool store)
{
	if (!cpu->deferred && tlb_lookup(&cpu->tlb, TLB_DATA, va, store ? KEY_STORE : 0))
		return; /* only walks are worth it */
	cpu->queue[cpu->deferred++] = va | (uint64_t)store << 63;
	if (cpu->deferred == CPU_QUEUE)
		cpu_drain(cpu);
}

/*
 * An access that has just succeeded, or an instruction fetch; it must not cross a page. Returns
 * the flags of the page's TLB key, 0 if paging is off or if the tables have already changed.
 * @cause: PTAT_TRUTH_CAUSE_*.
 */
uint64_t cpu_translate(struct cpu *cpu, uint64_t va, uint8_t cause, bool kernel_mode);

/* A load or store inside one page for which cpu_translate() said KEY_REGION. */
void cpu_region_access(struct cpu *cpu, uint64_t va, unsigned bytes, bool store, bool locked);

/* An access that ended in a page fault. */
void cpu_page_fault(struct cpu *cpu, uint64_t va, uint8_t cause, bool kernel_mode);

#endif
