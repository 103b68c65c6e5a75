// SPDX-License-Identifier: GPL-2.0
/*
 * PCIe boards with the gateware of ptat: they answer page walks themselves.
 *
 * The memory behind BAR 0 becomes the region of PTAT.  Whatever takes it away
 * (removal, an error, a reset) gives the region up first: see mm/ptat/detach.c.
 */
#include <linux/dma-mapping.h>
#include <linux/interrupt.h>
#include <linux/iopoll.h>
#include <linux/module.h>
#include <linux/slab.h>

#include "ptat_pci.h"

#define CLEAR_POLL_US		1000
#define CLEAR_TIMEOUT_US	(120 * USEC_PER_SEC)

/**
 * ptat_pci_release - free what nobody holds any more
 * @ref: that of the board
 */
void ptat_pci_release(struct kref *ref)
{
	struct ptat_pci *board = container_of(ref, struct ptat_pci, ref);

	pci_dev_put(board->pdev);
	kfree(board);
}

/* The region is zeroed by the board: the CPU would take seconds. */
static int clear_region(struct ptat_device *region)
{
	struct ptat_pci *board = container_of(region, struct ptat_pci, region);
	u32 status;
	int err;

	ptat_pci_write(board, PTAT_CLEAR_FIRST, 0);
	ptat_pci_write(board, PTAT_CLEAR_LAST, (region->size >> PTAT_UNIT_SHIFT) - 1);
	ptat_pci_write(board, PTAT_CLEAR_CONTROL, 1);
	err = readl_poll_timeout(board->window + PTAT_CLEAR_STATUS, status,
				 !status || PCI_POSSIBLE_ERROR(status), CLEAR_POLL_US,
				 CLEAR_TIMEOUT_US);
	return err ?: status ? -EIO : 0;
}

/* What firmware made of the BAR. */
static int check_bar(struct pci_dev *pdev)
{
	unsigned long flags = pci_resource_flags(pdev, 0);
	resource_size_t size = pci_resource_len(pdev, 0);

	if (!(flags & IORESOURCE_MEM) || !size)
		return dev_err_probe(&pdev->dev, -ENODEV,
				     "BAR 0 is no memory: load the gateware of this ptat\n");
	if ((flags & IORESOURCE_UNSET) || !pci_resource_start(pdev, 0))
		return dev_err_probe(&pdev->dev, -ENODEV,
				     "BAR 0 has no address: switch on 'Above 4G Decoding' in the firmware's settings, or boot with pci=realloc\n");
	if (!(flags & IORESOURCE_MEM_64) || !(flags & IORESOURCE_PREFETCH))
		return dev_err_probe(&pdev->dev, -ENODEV,
				     "BAR 0 is not 64-bit and prefetchable: load the gateware of this ptat\n");
	if (size < PTAT_PCI_WINDOW_BYTES + PTAT_DEVICE_MIN_SIZE)
		return dev_err_probe(&pdev->dev, -ENODEV,
				     "BAR 0 is too small, %pa bytes: load the gateware of this ptat\n",
				     &size);
	return 0;
}

/* Is it a board that we know, and does it answer at all? */
static int check_identity(struct ptat_pci *board)
{
	struct device *dev = &board->pdev->dev;
	u32 version = ptat_pci_read(board, PTAT_WIRE_VERSION);
	u32 granularity = ptat_pci_read(board, PTAT_GRANULARITY);
	u32 size = ptat_pci_read(board, PTAT_REGION_BYTES);

	if (PCI_POSSIBLE_ERROR(version))
		return dev_err_probe(dev, -ENODEV,
				     "BAR 0 does not answer: reset the board, or boot again\n");
	if (version != PTAT_PCI_WIRE_VERSION || granularity != PTAT_PCI_GRANULARITY)
		return dev_err_probe(dev, -ENODEV,
				     "captures %u bytes in wire format %u, this driver knows %u bytes in format %u: load the gateware of this ptat\n",
				     granularity, version, PTAT_PCI_GRANULARITY,
				     PTAT_PCI_WIRE_VERSION);
	if (!size || !IS_ALIGNED(size, BIT(PTAT_UNIT_SHIFT)) ||
	    size > pci_resource_len(board->pdev, 0) - PTAT_PCI_WINDOW_BYTES)
		return dev_err_probe(dev, -ENODEV,
				     "says that its region has %u bytes: load the gateware of this ptat\n",
				     size);
	board->region.size = size;
	return 0;
}

/* Let page tables be in the board. */
static int attach(struct ptat_pci *board)
{
	int err = check_identity(board);

	if (err)
		return err;
	ptat_pci_halt(board);
	return ptat_register_device(&board->region);
}

/* End a recording; the recorder finds out when it asks for blocks. */
static void abort_recording(struct ptat_pci *board, bool gone)
{
	mutex_lock(&board->lock);
	ptat_pci_halt(board);
	board->state = PTAT_PCI_ABORTED;
	if (gone) {
		board->gone = true;
		ptat_ring_unmap(board);
	}
	mutex_unlock(&board->lock);
	wake_up(&board->queue);
}

/* The region is given up: the recording ends, and no access waits for the recorder. */
static void stop_region(struct ptat_device *region)
{
	abort_recording(container_of(region, struct ptat_pci, region), false);
}

static irqreturn_t ring_irq(int irq, void *data)
{
	struct ptat_pci *board = data;

	ptat_pci_write(board, PTAT_IRQ_CLEAR, PTAT_IRQ_RING);
	wake_up(&board->queue);
	return IRQ_HANDLED;
}

/* Without interrupts the recorder looks for itself, now and then. */
static void enable_irq_of(struct ptat_pci *board)
{
	struct pci_dev *pdev = board->pdev;

	if (pci_alloc_irq_vectors(pdev, 1, 1, PCI_IRQ_MSI) != 1)
		goto warn;
	if (!request_irq(pci_irq_vector(pdev, 0), ring_irq, 0, KBUILD_MODNAME, board))
		return;
	pci_free_irq_vectors(pdev);
warn:
	dev_warn(&pdev->dev, "no interrupt: blocks come later than they could\n");
}

static void disable_irq_of(struct ptat_pci *board)
{
	if (!pci_dev_msi_enabled(board->pdev))
		return;
	free_irq(pci_irq_vector(board->pdev, 0), board);
	pci_free_irq_vectors(board->pdev);
}

static struct ptat_pci *alloc_board(struct pci_dev *pdev)
{
	struct ptat_pci *board = kzalloc(sizeof(*board), GFP_KERNEL);

	if (!board)
		return NULL;
	kref_init(&board->ref);
	mutex_init(&board->lock);
	init_waitqueue_head(&board->queue);
	board->pdev = pci_dev_get(pdev);
	board->bus = pci_bus_address(pdev, 0);
	board->region.base = pci_resource_start(pdev, 0);
	board->region.clear = clear_region;
	board->region.stop = stop_region;
	board->misc.minor = MISC_DYNAMIC_MINOR;
	board->misc.name = "ptat-pci";
	board->misc.fops = &ptat_pci_fops;
	board->misc.parent = &pdev->dev;
	board->misc.mode = 0600;
	return board;
}

static int map_window(struct ptat_pci *board)
{
	struct device *dev = &board->pdev->dev;
	resource_size_t start = pci_resource_end(board->pdev, 0) + 1 - PTAT_PCI_WINDOW_BYTES;

	if (!devm_request_mem_region(dev, start, PTAT_PCI_WINDOW_BYTES, KBUILD_MODNAME))
		return dev_err_probe(dev, -EBUSY, "BAR 0 is in use, see /proc/iomem\n");
	board->window = devm_ioremap(dev, start, PTAT_PCI_WINDOW_BYTES);
	return board->window ? 0 : -ENOMEM;
}

static int ptat_pci_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct ptat_pci *board;
	int err = check_bar(pdev);

	if (err)
		return err;
	err = pci_enable_device_mem(pdev);
	if (err)
		return err;
	err = -ENOMEM;
	board = alloc_board(pdev);
	if (!board)
		goto err_disable;
	pci_set_drvdata(pdev, board);
	err = map_window(board);
	if (err)
		goto err_put;
	err = dma_set_mask_and_coherent(&pdev->dev, DMA_BIT_MASK(64));
	if (err)
		goto err_put;
	err = attach(board);
	if (err)
		goto err_put;
	pci_set_master(pdev);
	enable_irq_of(board);
	err = misc_register(&board->misc);
	if (err)
		goto err_detach;
	dev_info(&pdev->dev, "page tables of traced processes are in the board, %lu KiB\n",
		 board->region.size >> 10);
	return 0;

err_detach:
	disable_irq_of(board);
	pci_clear_master(pdev);
	ptat_detach("cannot be recorded");
err_put:
	kref_put(&board->ref, ptat_pci_release);
err_disable:
	pci_disable_device(pdev);
	return err;
}

static void ptat_pci_remove(struct pci_dev *pdev)
{
	struct ptat_pci *board = pci_get_drvdata(pdev);

	ptat_detach("is being removed");
	abort_recording(board, true);
	disable_irq_of(board);
	misc_deregister(&board->misc);
	pci_clear_master(pdev);
	pci_disable_device(pdev);
	kref_put(&board->ref, ptat_pci_release);
}

/* Memory belongs to the next kernel. */
static void ptat_pci_shutdown(struct pci_dev *pdev)
{
	abort_recording(pci_get_drvdata(pdev), true);
	pci_clear_master(pdev);
}

static pci_ers_result_t error_detected(struct pci_dev *pdev, pci_channel_state_t state)
{
	ptat_detach("has an error on its bus");
	/* A board that is cut off hears nothing. */
	abort_recording(pci_get_drvdata(pdev), state != pci_channel_io_normal);
	if (state == pci_channel_io_normal)
		return PCI_ERS_RESULT_CAN_RECOVER;
	return PCI_ERS_RESULT_DISCONNECT;
}

static void reset_prepare(struct pci_dev *pdev)
{
	ptat_detach("is being reset");
	/* It may have been given up before. */
	abort_recording(pci_get_drvdata(pdev), false);
}

static void reset_done(struct pci_dev *pdev)
{
	if (!attach(pci_get_drvdata(pdev)))
		dev_info(&pdev->dev, "can be used again\n");
}

static const struct pci_error_handlers error_handlers = {
	.error_detected = error_detected,
	.reset_prepare = reset_prepare,
	.reset_done = reset_done,
};

/* PTAT itself does without the region while the machine sleeps. */
static int ptat_pci_suspend(struct device *dev)
{
	abort_recording(dev_get_drvdata(dev), false);
	return 0;
}

static int ptat_pci_resume(struct device *dev)
{
	ptat_pci_halt(dev_get_drvdata(dev));
	return 0;
}

static DEFINE_SIMPLE_DEV_PM_OPS(pm_ops, ptat_pci_suspend, ptat_pci_resume);

static const struct pci_device_id ids[] = {
	{ PCI_DEVICE(PCI_VENDOR_ID_XILINX, 0x5054) },
	{ }
};
MODULE_DEVICE_TABLE(pci, ids);

static struct pci_driver ptat_pci_driver = {
	.name = KBUILD_MODNAME,
	.id_table = ids,
	.probe = ptat_pci_probe,
	.remove = ptat_pci_remove,
	.shutdown = ptat_pci_shutdown,
	.err_handler = &error_handlers,
	.driver.pm = pm_sleep_ptr(&pm_ops),
};
module_pci_driver(ptat_pci_driver);

MODULE_DESCRIPTION("PCIe boards for page-table access tracing");
MODULE_LICENSE("GPL");
