// SPDX-License-Identifier: GPL-2.0
/*
 * PTAT, trap mode: /dev/ptat.  A recorder maps a ring of records for each CPU.
 * What it reads late, traced threads wait for; nothing is overwritten.
 *
 * The region is in use while the file is open.
 */
#define pr_fmt(fmt) "ptat: " fmt

#include <linux/cpumask.h>
#include <linux/fs.h>
#include <linux/irq_work.h>
#include <linux/log2.h>
#include <linux/miscdevice.h>
#include <linux/mutex.h>
#include <linux/percpu.h>
#include <linux/poll.h>
#include <linux/vmalloc.h>
#include <linux/wait.h>

#include "internal.h"

#define PTAT_RING_RECORDS	65536	/* by default */
#define PTAT_RING_MIN		1024
#define PTAT_RING_MAX		16777216

/* A thread that could sleep waits above this; the rest is for those that cannot. */
#define PTAT_RING_HIGH(records)	((records) / 4 * 3)
/* How many records are worth waking the recorder for. */
#define PTAT_RING_WAKE(records)	((records) / 16)

/*
 * The recorder can write to the first page of its mapping, so all but the tail
 * is kept here, too.
 */
struct ring {
	struct ptat_trap_ring *page;	/* what is mapped */
	struct ptat_trap_record *data;
	u64 head;
	u64 lost;
	u64 waits;
	struct irq_work wake;
};

static DEFINE_PER_CPU(struct ring, rings);
static u32 ring_records = PTAT_RING_RECORDS;	/* of each ring while the file is open */
static bool is_open;
static DEFINE_MUTEX(open_lock);			/* protects both */

static DECLARE_WAIT_QUEUE_HEAD(recorder_queue);	/* for records */
static DECLARE_WAIT_QUEUE_HEAD(thread_queue);	/* for room */

static unsigned long ring_bytes(void)
{
	return PAGE_SIZE + PAGE_ALIGN(ring_records * sizeof(struct ptat_trap_record));
}

static u64 ring_used(const struct ring *ring)
{
	/* Pairs with the recorder's release: it has read what may be overwritten. */
	u64 tail = smp_load_acquire(&ring->page->tail);

	/* poll() asks for rings of other CPUs. */
	return READ_ONCE(ring->head) - tail;
}

static void wake_recorder(struct irq_work *work)
{
	wake_up(&recorder_queue);
}

/**
 * ptat_ring_has_room - may a thread of this CPU that could wait go on?
 *
 * Context: interrupts are off.
 */
bool ptat_ring_has_room(void)
{
	const struct ring *ring = this_cpu_ptr(&rings);

	return ptat_detached() || ring_used(ring) < PTAT_RING_HIGH(ring_records);
}

static bool may_go_on(void)
{
	bool room;

	local_irq_disable();
	room = ptat_ring_has_room();
	local_irq_enable();
	return room;
}

/**
 * ptat_ring_wait - wait until the recorder has made room, or a fatal signal
 *
 * Context: may sleep.
 */
void ptat_ring_wait(void)
{
	struct ring *ring;

	local_irq_disable();
	ring = this_cpu_ptr(&rings);
	if (!ptat_ring_has_room()) {
		ring->page->waits = ++ring->waits;
		irq_work_queue(&ring->wake);
	}
	local_irq_enable();
	wait_event_killable(thread_queue, may_go_on());
}

/**
 * ptat_ring_wake - let threads that wait for room look again
 */
void ptat_ring_wake(void)
{
	wake_up_all(&thread_queue);
}

/**
 * ptat_ring_put - write a record
 * @record: the record
 *
 * Context: interrupts are off; the region is not detached; not in an NMI.
 */
void ptat_ring_put(const struct ptat_trap_record *record)
{
	struct ring *ring = this_cpu_ptr(&rings);
	u64 head = ring->head;

	if (ring_used(ring) >= ring_records) {
		ring->page->lost = ++ring->lost;
		return;
	}
	ring->data[head++ & (ring_records - 1)] = *record;
	WRITE_ONCE(ring->head, head);
	/* Pairs with the recorder's acquire: the record is there. */
	smp_store_release(&ring->page->head, head);
	if (!(head & (PTAT_RING_WAKE(ring_records) - 1)))
		irq_work_queue(&ring->wake);
}

static void free_rings(void)
{
	int cpu;

	for_each_possible_cpu(cpu) {
		struct ring *ring = per_cpu_ptr(&rings, cpu);

		irq_work_sync(&ring->wake);
		vfree(ring->page);
		ring->page = NULL;
	}
}

static int alloc_rings(void)
{
	int cpu;

	for_each_possible_cpu(cpu) {
		struct ring *ring = per_cpu_ptr(&rings, cpu);

		ring->page = vmalloc_user(ring_bytes());
		if (!ring->page) {
			free_rings();
			return -ENOMEM;
		}
		ring->data = (void *)ring->page + PAGE_SIZE;
		ring->head = 0;
		ring->lost = 0;
		ring->waits = 0;
		*ring->page = (struct ptat_trap_ring) {
			.records = ring_records,
			.record_bytes = sizeof(struct ptat_trap_record),
			.data_offset = PAGE_SIZE,
			.cpu = cpu,
		};
	}
	return 0;
}

static int ring_open(struct inode *inode, struct file *file)
{
	int err = -EBUSY;

	mutex_lock(&open_lock);
	if (is_open)
		goto out;
	err = alloc_rings();
	if (err)
		goto out;
	ptat_trap_start();
	err = ptat_trap_attach();
	if (err) {
		free_rings();
		goto out;
	}
	is_open = true;
out:
	mutex_unlock(&open_lock);
	return err;
}

static int ring_release(struct inode *inode, struct file *file)
{
	mutex_lock(&open_lock);
	ptat_trap_detach();
	free_rings();
	is_open = false;
	mutex_unlock(&open_lock);
	return 0;
}

static __poll_t ring_poll(struct file *file, poll_table *wait)
{
	int cpu;

	/* The recorder has moved tails. */
	wake_up_all(&thread_queue);
	poll_wait(file, &recorder_queue, wait);
	for_each_possible_cpu(cpu)
		if (ring_used(per_cpu_ptr(&rings, cpu)) >= PTAT_RING_WAKE(ring_records))
			return EPOLLIN | EPOLLRDNORM;
	return 0;
}

/* The ring of CPU n begins at n times ring_bytes. */
static int ring_mmap(struct file *file, struct vm_area_struct *vma)
{
	unsigned long pages = ring_bytes() >> PAGE_SHIFT;
	unsigned long cpu = vma->vm_pgoff / pages;

	if (vma->vm_pgoff % pages || cpu >= nr_cpu_ids || !cpu_possible(cpu) ||
	    vma_pages(vma) != pages)
		return -EINVAL;
	return remap_vmalloc_range(vma, per_cpu_ptr(&rings, cpu)->page, 0);
}

static const struct file_operations ring_fops = {
	.owner = THIS_MODULE,
	.open = ring_open,
	.release = ring_release,
	.poll = ring_poll,
	.mmap = ring_mmap,
	.llseek = noop_llseek,
};

static ssize_t records_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%u\n", ring_records);
}

static ssize_t records_store(struct device *dev, struct device_attribute *attr, const char *buf,
			     size_t count)
{
	u32 records;
	int err = kstrtou32(buf, 0, &records);

	if (err)
		return err;
	if (!is_power_of_2(records) || records < PTAT_RING_MIN || records > PTAT_RING_MAX)
		return -EINVAL;
	mutex_lock(&open_lock);
	if (is_open)
		err = -EBUSY;
	else
		ring_records = records;
	mutex_unlock(&open_lock);
	return err ?: count;
}

static ssize_t ring_bytes_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%lu\n", ring_bytes());
}

static DEVICE_ATTR_RW(records);
static DEVICE_ATTR_RO(ring_bytes);

static ssize_t methods_show(const enum ptat_trap_method *method, char *buf)
{
	return sysfs_emit(buf, "%s\n", ptat_trap_method_names[READ_ONCE(*method)]);
}

static ssize_t methods_store(enum ptat_trap_method *method, const char *buf, size_t count)
{
	int i = __sysfs_match_string(ptat_trap_method_names, PTAT_TRAP_METHODS, buf);

	if (i < 0)
		return i;
	WRITE_ONCE(*method, i);
	return count;
}

#define METHOD(name)								\
static ssize_t name##_method_show(struct device *dev, struct device_attribute *attr,	\
				  char *buf)					\
{										\
	return methods_show(&ptat_trap_##name##_method, buf);			\
}										\
										\
static ssize_t name##_method_store(struct device *dev, struct device_attribute *attr,	\
				   const char *buf, size_t count)		\
{										\
	return methods_store(&ptat_trap_##name##_method, buf, count);		\
}										\
static DEVICE_ATTR_RW(name##_method)

METHOD(data);
METHOD(code);

static struct attribute *ring_attrs[] = {
	&dev_attr_records.attr,
	&dev_attr_ring_bytes.attr,
	&dev_attr_data_method.attr,
	&dev_attr_code_method.attr,
	NULL
};
ATTRIBUTE_GROUPS(ring);

static struct miscdevice ring_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "ptat",
	.fops = &ring_fops,
	.groups = ring_groups,
	.mode = 0600,
};

/**
 * ptat_ring_init - show /dev/ptat, if misses trap
 */
void ptat_ring_init(void)
{
	int cpu;

	if (!ptat_trapping())
		return;
	for_each_possible_cpu(cpu)
		init_irq_work(&per_cpu_ptr(&rings, cpu)->wake, wake_recorder);
	if (misc_register(&ring_device))
		pr_err("can't make /dev/ptat\n");
}
