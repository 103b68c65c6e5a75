// SPDX-License-Identifier: GPL-2.0
/*
 * The ring of blocks: memory that the board writes to, and that the recorder
 * maps.  Its pages outlive the device, as the recorder may have them mapped.
 */
#include <linux/dma-mapping.h>
#include <linux/gfp.h>
#include <linux/log2.h>
#include <linux/math.h>
#include <linux/mm.h>
#include <linux/sizes.h>

#include "ptat_pci.h"

/* The page allocator has no more in one piece, and the board knows 24 bits. */
#define CHUNK_MAX	SZ_4M

static size_t chunk_bytes(const struct ptat_ring *ring)
{
	return PAGE_SIZE << ring->order;
}

static int add_chunk(struct ptat_pci *board)
{
	struct ptat_ring *ring = &board->ring;
	struct device *dev = &board->pdev->dev;
	struct page *page = alloc_pages_node(dev_to_node(dev),
					     GFP_KERNEL | __GFP_ZERO | __GFP_NOWARN, ring->order);
	dma_addr_t dma;

	if (!page)
		return -ENOMEM;
	/* Pages are mapped, and freed, one by one. */
	split_page(page, ring->order);
	dma = dma_map_page(dev, page, 0, chunk_bytes(ring), DMA_FROM_DEVICE);
	if (dma_mapping_error(dev, dma)) {
		unsigned int i;

		for (i = 0; i < 1U << ring->order; i++)
			__free_page(page + i);
		return -ENOMEM;
	}
	ring->page[ring->chunks] = page;
	ring->dma[ring->chunks] = dma;
	ring->chunks++;
	return 0;
}

/**
 * ptat_ring_alloc - allocate memory for blocks
 * @board: the board
 * @blocks: how many, at least
 *
 * Context: may sleep; the caller holds the board's lock.
 */
int ptat_ring_alloc(struct ptat_pci *board, u32 blocks)
{
	struct ptat_ring *ring = &board->ring;
	u64 bytes = (u64)blocks * PTAT_PCI_BLOCK_BYTES;
	u64 chunk;

	if (ring->blocks)
		return -EBUSY;
	if (!blocks)
		return -EINVAL;
	chunk = roundup_pow_of_two(DIV_ROUND_UP_ULL(bytes, PTAT_PCI_CHUNKS));
	chunk = max_t(u64, chunk, PTAT_PCI_BLOCK_BYTES);
	if (chunk > CHUNK_MAX)
		return -EINVAL;
	ring->order = get_order(chunk);
	while (ring->chunks * chunk < bytes) {
		int err = add_chunk(board);

		if (err) {
			ptat_ring_unmap(board);
			ptat_ring_free(board);
			return err;
		}
	}
	ring->blocks = ring->chunks * chunk / PTAT_PCI_BLOCK_BYTES;
	return 0;
}

/**
 * ptat_ring_unmap - take the memory from the board
 * @board: the board, which does not write any more
 *
 * Context: the caller holds the board's lock.
 */
void ptat_ring_unmap(struct ptat_pci *board)
{
	struct ptat_ring *ring = &board->ring;
	unsigned int i;

	for (i = 0; i < ring->chunks; i++) {
		if (!ring->dma[i])
			continue;
		dma_unmap_page(&board->pdev->dev, ring->dma[i], chunk_bytes(ring),
			       DMA_FROM_DEVICE);
		ring->dma[i] = 0;
	}
}

/**
 * ptat_ring_free - free the memory, which has been taken from the board
 * @board: the board
 *
 * What the recorder has mapped goes when it is unmapped.
 *
 * Context: the caller holds the board's lock.
 */
void ptat_ring_free(struct ptat_pci *board)
{
	struct ptat_ring *ring = &board->ring;
	unsigned int i, j;

	for (i = 0; i < ring->chunks; i++)
		for (j = 0; j < 1U << ring->order; j++)
			__free_page(ring->page[i] + j);
	ring->chunks = 0;
	ring->blocks = 0;
}

/* Let the CPU, or the device, have the blocks from number @from to before @to. */
static void sync_blocks(struct ptat_pci *board, u32 from, u32 to, bool cpu)
{
	const struct ptat_ring *ring = &board->ring;
	struct device *dev = &board->pdev->dev;
	u32 block;

	for (block = from; block != to; block++) {
		u64 place = (u64)(block % ring->blocks) * PTAT_PCI_BLOCK_BYTES;
		dma_addr_t dma = ring->dma[place >> (PAGE_SHIFT + ring->order)];

		dma += place & (chunk_bytes(ring) - 1);
		if (cpu)
			dma_sync_single_for_cpu(dev, dma, PTAT_PCI_BLOCK_BYTES, DMA_FROM_DEVICE);
		else
			dma_sync_single_for_device(dev, dma, PTAT_PCI_BLOCK_BYTES,
						   DMA_FROM_DEVICE);
	}
}

/**
 * ptat_ring_for_cpu - let the recorder see blocks
 * @board: the board
 * @from: number of the first block
 * @to: number of the block after the last one
 */
void ptat_ring_for_cpu(struct ptat_pci *board, u32 from, u32 to)
{
	sync_blocks(board, from, to, true);
}

/**
 * ptat_ring_for_device - give places of blocks back to the board
 * @board: the board
 * @from: number of the first block
 * @to: number of the block after the last one
 */
void ptat_ring_for_device(struct ptat_pci *board, u32 from, u32 to)
{
	sync_blocks(board, from, to, false);
}

/**
 * ptat_ring_mmap - map the whole ring
 * @board: the board
 * @vma: where to
 *
 * Context: the caller holds the board's lock.
 */
int ptat_ring_mmap(struct ptat_pci *board, struct vm_area_struct *vma)
{
	const struct ptat_ring *ring = &board->ring;
	unsigned long pages = (unsigned long)ring->chunks << ring->order;
	unsigned long mask = (1UL << ring->order) - 1;
	unsigned long i;

	if (!pages || vma->vm_pgoff || vma_pages(vma) != pages)
		return -EINVAL;
	if (vma->vm_flags & VM_WRITE)
		return -EPERM;
	for (i = 0; i < pages; i++) {
		struct page *page = ring->page[i >> ring->order] + (i & mask);
		int err = vm_insert_page(vma, vma->vm_start + i * PAGE_SIZE, page);

		if (err)
			return err;
	}
	return 0;
}
