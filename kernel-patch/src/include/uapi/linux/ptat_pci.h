/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * Page-table access tracing (PTAT) with a PCIe board: what /dev/ptat-pci offers
 * a recorder.  See Documentation/admin-guide/mm/ptat.rst.
 *
 * The board writes blocks of PTAT_PCI_BLOCK_BYTES into a ring of memory, which
 * the recorder maps.  Block number N since PTAT_PCI_START is at place N modulo
 * the number of blocks of the ring.
 */
#ifndef _UAPI_LINUX_PTAT_PCI_H
#define _UAPI_LINUX_PTAT_PCI_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define PTAT_PCI_BLOCK_BYTES	8192
#define PTAT_PCI_COUNTS		14

/**
 * struct ptat_pci_identity - which board it is
 * @git_hash:     of the gateware
 * @board:        its name, padded with zeroes
 * @tick_hz:      ticks of the records' time stamps in a second
 * @wire_version: version of the blocks' format
 * @granularity:  how much of an address a record has, in bytes
 * @channels:     of memory
 * @reserved:     0
 */
struct ptat_pci_identity {
	__u8 git_hash[20];
	__u8 board[16];
	__u32 wire_version;
	__u64 tick_hz;
	__u32 granularity;
	__u32 channels;
	__u64 reserved;
};

/**
 * struct ptat_pci_start - how to record
 * @patience_ns: how long an access waits for room at the most; then it is
 *               answered without, and a record may be lost.  0: for ever
 */
struct ptat_pci_start {
	__u64 patience_ns;
};

/**
 * struct ptat_pci_take - the recorder's progress
 * @tail: blocks since the start that the recorder is done with
 * @head: blocks since the start that are in the ring, or were
 *
 * Both are modulo 2^32.
 */
struct ptat_pci_take {
	__u32 tail;
	__u32 head;
};

/**
 * struct ptat_pci_counters - what the board has counted since the start
 * @accesses: accesses to the region
 * @matched:  those that were to be recorded
 * @emitted:  records that were put into blocks
 * @lost:     records that were lost
 * @blocks:   blocks that are in the ring, or were
 * @counts:   by number, what the gateware's documentation says
 */
struct ptat_pci_counters {
	__u64 accesses;
	__u64 matched;
	__u64 emitted;
	__u64 lost;
	__u64 blocks;
	__u32 counts[PTAT_PCI_COUNTS];
};

#define PTAT_PCI_MAGIC		0xbe

#define PTAT_PCI_IDENTIFY	_IOR(PTAT_PCI_MAGIC, 0, struct ptat_pci_identity)
/* Allocate the ring, once; the argument is its number of blocks, and becomes what it is. */
#define PTAT_PCI_RING		_IOWR(PTAT_PCI_MAGIC, 1, __u32)
#define PTAT_PCI_START		_IOW(PTAT_PCI_MAGIC, 2, struct ptat_pci_start)
/* Give places of the ring back, and look for new blocks. */
#define PTAT_PCI_TAKE		_IOWR(PTAT_PCI_MAGIC, 3, struct ptat_pci_take)
/* Fails with EAGAIN until the last block is in the ring: take blocks, and call it again. */
#define PTAT_PCI_STOP		_IO(PTAT_PCI_MAGIC, 4)
#define PTAT_PCI_COUNTERS	_IOR(PTAT_PCI_MAGIC, 5, struct ptat_pci_counters)

#endif /* _UAPI_LINUX_PTAT_PCI_H */
