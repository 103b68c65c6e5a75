/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * Page-table access tracing (PTAT), trap mode: what /dev/ptat shows a recorder.
 * See Documentation/admin-guide/mm/ptat.rst.
 */
#ifndef _UAPI_LINUX_PTAT_H
#define _UAPI_LINUX_PTAT_H

#include <linux/types.h>

/* struct ptat_trap_record.flags */
#define PTAT_TRAP_WRITE		(1 << 0)	/* a write, else a read */
#define PTAT_TRAP_FETCH		(1 << 1)	/* of an instruction */
#define PTAT_TRAP_KERNEL	(1 << 2)	/* by the kernel */
#define PTAT_TRAP_HUGE		(1 << 3)	/* the page's entry is one of a PMD table */
#define PTAT_TRAP_RETRY		(1 << 4)	/* the access that was last let through, again */
#define PTAT_TRAP_FAULT		(1 << 5)	/* the page fault is the kernel's to handle */
#define PTAT_TRAP_STEP		(1 << 6)	/* the entry is valid for one instruction */
#define PTAT_TRAP_LEFT		(1 << 7)	/* ... until the thread leaves the kernel */
#define PTAT_TRAP_SHARED	(1 << 8)	/* another CPU had made the entry valid meanwhile */

/**
 * struct ptat_trap_record - a walk that found an entry poisoned
 * @tsc:   time-stamp counter when it was handled
 * @addr:  address that was accessed
 * @ip:    address of the instruction
 * @mm:    identity of the address space, as in the log
 * @tgid:  process
 * @tid:   thread
 * @entry: which entry of the region, counted from its start
 * @cpu:   where
 * @flags: PTAT_TRAP_*
 */
struct ptat_trap_record {
	__u64 tsc;
	__u64 addr;
	__u64 ip;
	__u64 mm;
	__u32 tgid;
	__u32 tid;
	__u32 entry;
	__u16 cpu;
	__u16 flags;
};

/**
 * struct ptat_trap_ring - the first page of the ring of a CPU
 * @head:         how many records were ever written; the kernel's
 * @tail:         how many of these were read; the recorder's
 * @lost:         records that found no room; the kernel's
 * @waits:        how often a thread waited for room; the kernel's
 * @records:      how many records fit, a power of two
 * @record_bytes: size of a record
 * @data_offset:  where in the mapping the first record is
 * @cpu:          whose ring this is
 *
 * Record number n is at index n % @records.  Load @head with acquire, and store
 * @tail with release semantics; then poll() the file, which lets threads that
 * wait for room go on.
 */
struct ptat_trap_ring {
	__u64 head;
	__u64 tail;
	__u64 lost;
	__u64 waits;
	__u32 records;
	__u32 record_bytes;
	__u32 data_offset;
	__u32 cpu;
};

#endif /* _UAPI_LINUX_PTAT_H */
