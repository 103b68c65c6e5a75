// SPDX-License-Identifier: GPL-2.0
/*
 * /dev/ptat-pci: what a recorder does with the board, one recorder at a time.
 */
#include <linux/fs.h>
#include <linux/module.h>
#include <linux/poll.h>
#include <linux/uaccess.h>

#include "ptat_pci.h"

static int recorder_open(struct inode *inode, struct file *file)
{
	struct ptat_pci *board = container_of(file->private_data, struct ptat_pci, misc);
	int err = 0;

	mutex_lock(&board->lock);
	if (board->gone) {
		err = -ENODEV;
	} else if (board->open) {
		err = -EBUSY;
	} else {
		board->open = true;
		board->state = PTAT_PCI_IDLE;
		kref_get(&board->ref);
		file->private_data = board;
	}
	mutex_unlock(&board->lock);
	return err;
}

static int recorder_release(struct inode *inode, struct file *file)
{
	struct ptat_pci *board = file->private_data;

	mutex_lock(&board->lock);
	if (!board->gone)
		ptat_pci_halt(board);
	ptat_ring_unmap(board);
	ptat_ring_free(board);
	board->open = false;
	mutex_unlock(&board->lock);
	kref_put(&board->ref, ptat_pci_release);
	return 0;
}

/* Registers of text have its first byte in the highest. */
static void read_bytes(struct ptat_pci *board, unsigned int reg, u8 *to, size_t count)
{
	size_t i;

	for (i = 0; i < count; i += sizeof(__be32)) {
		__be32 word = cpu_to_be32(ptat_pci_read(board, reg + i));

		memcpy(to + i, &word, sizeof(word));
	}
}

static void identify(struct ptat_pci *board, struct ptat_pci_identity *identity)
{
	*identity = (struct ptat_pci_identity) {
		.wire_version = ptat_pci_read(board, PTAT_WIRE_VERSION),
		.tick_hz = ptat_pci_read64(board, PTAT_TICK_HZ),
		.granularity = ptat_pci_read(board, PTAT_GRANULARITY),
		.channels = ptat_pci_read(board, PTAT_CHANNELS),
	};
	read_bytes(board, PTAT_GIT_HASH, identity->git_hash, sizeof(identity->git_hash));
	read_bytes(board, PTAT_BOARD, identity->board, sizeof(identity->board));
}

/* All arguments are copied outside of the lock, which mmap() takes inside of its own. */
union argument {
	struct ptat_pci_identity identity;
	struct ptat_pci_start start;
	struct ptat_pci_take take;
	struct ptat_pci_counters counters;
	u32 blocks;
};

static int execute(struct ptat_pci *board, unsigned int command, union argument *argument)
{
	int err;

	lockdep_assert_held(&board->lock);
	if (board->gone)
		return -ENODEV;
	switch (command) {
	case PTAT_PCI_IDENTIFY:
		identify(board, &argument->identity);
		return 0;
	case PTAT_PCI_RING:
		err = ptat_ring_alloc(board, argument->blocks);
		argument->blocks = board->ring.blocks;
		return err;
	case PTAT_PCI_START:
		return ptat_pci_start(board, argument->start.patience_ns);
	case PTAT_PCI_TAKE:
		return ptat_pci_take(board, &argument->take);
	case PTAT_PCI_STOP:
		return ptat_pci_stop(board);
	case PTAT_PCI_COUNTERS:
		return ptat_pci_counters(board, &argument->counters);
	default:
		return -ENOTTY;
	}
}

static long recorder_ioctl(struct file *file, unsigned int command, unsigned long pointer)
{
	struct ptat_pci *board = file->private_data;
	union argument argument = { };
	size_t size = _IOC_SIZE(command);
	int err;

	if (size > sizeof(argument))
		return -ENOTTY;
	if ((_IOC_DIR(command) & _IOC_WRITE) &&
	    copy_from_user(&argument, (void __user *)pointer, size))
		return -EFAULT;
	mutex_lock(&board->lock);
	err = execute(board, command, &argument);
	mutex_unlock(&board->lock);
	if (!err && (_IOC_DIR(command) & _IOC_READ) &&
	    copy_to_user((void __user *)pointer, &argument, size))
		return -EFAULT;
	return err;
}

static __poll_t recorder_poll(struct file *file, poll_table *wait)
{
	struct ptat_pci *board = file->private_data;
	__poll_t events = 0;

	poll_wait(file, &board->queue, wait);
	mutex_lock(&board->lock);
	if (board->gone)
		events = EPOLLHUP | EPOLLERR;
	else if (ptat_pci_has_blocks(board))
		events = EPOLLIN | EPOLLRDNORM;
	mutex_unlock(&board->lock);
	return events;
}

static int recorder_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct ptat_pci *board = file->private_data;
	int err;

	mutex_lock(&board->lock);
	err = ptat_ring_mmap(board, vma);
	mutex_unlock(&board->lock);
	return err;
}

const struct file_operations ptat_pci_fops = {
	.owner = THIS_MODULE,
	.open = recorder_open,
	.release = recorder_release,
	.unlocked_ioctl = recorder_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.poll = recorder_poll,
	.mmap = recorder_mmap,
	.llseek = noop_llseek,
};
