/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A PCIe board with the gateware of ptat.  BAR 0 has the region, and in its
 * last 64 KiB registers of 32 bits.  Reading them has no effect.
 */
#ifndef _PTAT_PCI_H
#define _PTAT_PCI_H

#include <linux/io.h>
#include <linux/kref.h>
#include <linux/miscdevice.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/ptat.h>
#include <linux/ptat_device.h>
#include <linux/wait.h>
#include <uapi/linux/ptat_pci.h>

#define PTAT_PCI_WINDOW_BYTES	0x10000
#define PTAT_PCI_WIRE_VERSION	1
#define PTAT_PCI_GRANULARITY	8

/* A clock of the board is this many ticks of the time stamps. */
#define PTAT_PCI_TICKS_PER_CLOCK	4

/* Registers, by offset in the window; those of more than 32 bits: high word first. */
#define PTAT_GIT_HASH		0x000	/* 160 bits */
#define PTAT_BOARD		0x014	/* 128 bits */
#define PTAT_TICK_HZ		0x024	/* 64 bits */
#define PTAT_WIRE_VERSION	0x02c
#define PTAT_CHANNELS		0x030
#define PTAT_GRANULARITY	0x034
#define PTAT_REGION_BYTES	0x800
#define PTAT_PATIENCE		0x804	/* in clocks */
#define  PTAT_PATIENCE_MAX	 GENMASK(23, 0)
#define PTAT_COUNT_SELECT	0x808
#define PTAT_COUNT		0x80c
#define  PTAT_COUNT_VALUE	 GENMASK(27, 0)
#define  PTAT_COUNT_KIND	 GENMASK(31, 28)
#define PTAT_CONTROL		0x820
#define  PTAT_CONTROL_RUN	 BIT(0)
#define  PTAT_CONTROL_LATCH	 BIT(2)	/* the next two counters */
#define PTAT_STATUS		0x824	/* 0: nothing is on its way to the link */
#define PTAT_ACCESSES		0x830	/* 40 bits */
#define PTAT_MATCHED		0x838	/* 40 bits */
#define PTAT_FILTER_FIRST	0x840	/* bus address in 64 KiB */
#define PTAT_FILTER_LAST	0x844
#define  PTAT_FILTER_UNITS	 GENMASK(22, 0)
#define PTAT_FILTER_CONTROL	0x848
#define  PTAT_FILTER_ALL	 (BIT(0) | BIT(1))	/* reads, writes */
#define PTAT_FLUSH_TIMEOUT	0x87c	/* blocks are sent after 2^N clocks */
#define  PTAT_FLUSH_TIMEOUT_MAX	 23
#define PTAT_BLOCKS		0x880
#define PTAT_EMITTED		0x884	/* 40 bits */
#define PTAT_LOST		0x88c	/* 40 bits */
#define PTAT_CLEAR_FIRST	0x894	/* in 64 KiB of the region */
#define PTAT_CLEAR_LAST		0x898
#define PTAT_CLEAR_CONTROL	0x89c
#define PTAT_CLEAR_STATUS	0x8a0
#define PTAT_GATE_CONTROL	0x8a4
#define  PTAT_GATE_RUN		 BIT(0)
#define  PTAT_GATE_END		 BIT(1)
#define PTAT_GATE_STATUS	0x8a8
#define  PTAT_GATE_RUNNING	 BIT(0)
#define  PTAT_GATE_DONE		 BIT(1)
#define PTAT_GATE_BLOCKS	0x8ac
#define PTAT_RING_BLOCKS	0x8b0
#define PTAT_RING_HEAD		0x8b4
#define PTAT_RING_TAIL		0x8b8
#define PTAT_RING_WAKE		0x8bc	/* interrupt when head has reached this */
#define PTAT_WRITER_ENABLE	0x8c0
#define PTAT_TABLE_VALUE	0x8c4	/* 64 bits */
#define  PTAT_TABLE_NO_LAST	 BIT(25)	/* of the high word: only a full chunk ends */
#define PTAT_TABLE_ADD		0x8cc	/* high half of the address; adds the chunk */
#define PTAT_TABLE_LOOP		0x8d0
#define PTAT_TABLE_RESET	0x8dc
#define PTAT_IRQ_ENABLE		0x8f0
#define PTAT_IRQ_CLEAR		0x8f4
#define  PTAT_IRQ_RING		 BIT(0)

#define PTAT_UNIT_SHIFT		16	/* of filters and clearing */

#define PTAT_PCI_CHUNKS		256	/* that the board has room for */

/* Memory that the board writes blocks to, one after the other, and begins again. */
struct ptat_ring {
	unsigned int chunks;
	unsigned int order;		/* of pages of a chunk */
	u32 blocks;			/* of all chunks; 0 without a ring */
	struct page *page[PTAT_PCI_CHUNKS];
	dma_addr_t dma[PTAT_PCI_CHUNKS];
};

enum ptat_pci_state {
	PTAT_PCI_IDLE,
	PTAT_PCI_RECORDING,
	PTAT_PCI_STOPPING,		/* no more accesses are recorded */
	PTAT_PCI_ENDING,		/* no more blocks come from the recorder's side */
	PTAT_PCI_DONE,			/* all blocks are in the ring */
	PTAT_PCI_ABORTED,
};

/**
 * struct ptat_pci - a board
 * @ref:    held by the driver and by the open file
 * @pdev:   the device
 * @region: its memory
 * @window: its registers
 * @bus:    bus address of BAR 0
 * @misc:   /dev/ptat-pci
 * @queue:  where the recorder waits for blocks
 * @lock:   protects what follows
 * @gone:   the device must not be accessed any more
 * @open:   there is a recorder
 * @state:  of the recording
 * @tail:   blocks that the recorder is done with
 * @ring:   where blocks go to
 */
struct ptat_pci {
	struct kref ref;
	struct pci_dev *pdev;
	struct ptat_device region;
	void __iomem *window;
	pci_bus_addr_t bus;
	struct miscdevice misc;
	wait_queue_head_t queue;
	struct mutex lock;		/* protects what follows */
	bool gone;
	bool open;
	enum ptat_pci_state state;
	u32 tail;
	struct ptat_ring ring;
};

static inline u32 ptat_pci_read(const struct ptat_pci *board, unsigned int reg)
{
	return readl(board->window + reg);
}

static inline u64 ptat_pci_read64(const struct ptat_pci *board, unsigned int reg)
{
	return (u64)ptat_pci_read(board, reg) << 32 | ptat_pci_read(board, reg + 4);
}

static inline void ptat_pci_write(const struct ptat_pci *board, unsigned int reg, u32 val)
{
	writel(val, board->window + reg);
}

/* device.c */
void ptat_pci_release(struct kref *ref);

/* ring.c */
int ptat_ring_alloc(struct ptat_pci *board, u32 blocks);
void ptat_ring_unmap(struct ptat_pci *board);
void ptat_ring_free(struct ptat_pci *board);
void ptat_ring_for_cpu(struct ptat_pci *board, u32 from, u32 to);
void ptat_ring_for_device(struct ptat_pci *board, u32 from, u32 to);
int ptat_ring_mmap(struct ptat_pci *board, struct vm_area_struct *vma);

/* recording.c */
void ptat_pci_halt(struct ptat_pci *board);
int ptat_pci_start(struct ptat_pci *board, u64 patience_ns);
int ptat_pci_take(struct ptat_pci *board, struct ptat_pci_take *take);
int ptat_pci_stop(struct ptat_pci *board);
int ptat_pci_counters(struct ptat_pci *board, struct ptat_pci_counters *counters);
bool ptat_pci_has_blocks(struct ptat_pci *board);

/* recorder.c */
extern const struct file_operations ptat_pci_fops;

#endif /* _PTAT_PCI_H */
