/* SPDX-License-Identifier: GPL-2.0 */
/*
 * PTAT, trap mode: what each thread has, and what an architecture needs of
 * mm/ptat.  linux/sched.h includes this file.
 */
#ifndef _LINUX_PTAT_TRAP_H
#define _LINUX_PTAT_TRAP_H

#include <linux/types.h>

/* How many entries one instruction can need at once, and more. */
#define PTAT_TRAP_OPEN_MAX	20

/**
 * struct ptat_trap_state - entries that a thread may use, and what it did last
 * @open:     entries of the region that are valid for the instruction at @ip
 * @count:    how many
 * @oldest:   which of them makes room for another
 * @stepping: we have set the trap flag of the thread
 * @touching: a page fault now is that of the handler's own access
 * @ip:       the instruction
 * @last:     the last trap of user mode, and of the kernel, to tell a retry
 */
struct ptat_trap_state {
	struct {
		u64 val;
		u32 entry;
	} open[PTAT_TRAP_OPEN_MAX];
	u8 count;
	u8 oldest;
	bool stepping;
	bool touching;
	unsigned long ip;
	struct ptat_trap_access {
		unsigned long ip;
		unsigned long addr;
		unsigned long sp;
		unsigned int retries;
	} last[2];
};

/**
 * struct ptat_trap - an access that has caused a page fault
 * @ip:        address of the instruction
 * @addr:      address that was accessed
 * @sp:        stack pointer
 * @kernel:    by the kernel
 * @write:     it was a write
 * @fetch:     it was that of an instruction
 * @shadow_stack: it was one of the shadow stack
 * @present:   the hardware has found the entry present
 * @may_sleep: the thread could sleep here
 */
struct ptat_trap {
	unsigned long ip;
	unsigned long addr;
	unsigned long sp;
	bool kernel;
	bool write;
	bool fetch;
	bool shadow_stack;
	bool present;
	bool may_sleep;
};

enum ptat_trap_result {
	PTAT_TRAP_NOT_OURS,	/* a page fault like any other */
	PTAT_TRAP_DENIED,	/* ... though the page is there */
	PTAT_TRAP_WAITS,	/* for room for a record; the access can be tried again then */
	PTAT_TRAP_DONE,		/* the access can be tried again */
	PTAT_TRAP_STEPS,	/* ... and be stopped after the instruction */
};

enum ptat_trap_result ptat_trap_fault(const struct ptat_trap *trap);
void ptat_trap_close(void);
u8 *ptat_trap_peek(unsigned long addr);
void ptat_ring_wait(void);

#endif /* _LINUX_PTAT_TRAP_H */
