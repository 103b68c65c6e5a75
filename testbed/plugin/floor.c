/* SPDX-License-Identifier: GPL-2.0 */
/*
 * QEMU TCG plugin for the benchmark: the least that any plugin can do which is to see user code's
 * accesses. What it costs, ptat.so cannot cost less.
 *
 *   floor.so            is called for each access of user code, and does nothing
 *   floor.so,keep=on    stores the address, in as much memory as ptat.so's queue takes
 *   floor.so,look=on    and a thread looks its page up in a TLB of the size of skylake's STLB;
 *                       for each miss it reads a word and writes one: less is no model of an MMU
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "qemu-plugin.h"

#include "capture.h"
#include "queue.h"

QEMU_PLUGIN_EXPORT int qemu_plugin_version = QEMU_PLUGIN_VERSION;

#define KEPT	(QUEUE_BATCHES * BATCH_ACCESSES)

#define SETS	128
#define WAYS	12
#define ENTRIES 16384 /* of page tables: those of 64 MiB */

static struct {
	uint64_t next;
	_Atomic uint64_t published __attribute__((aligned(64)));
	_Atomic uint64_t looked_up __attribute__((aligned(64)));
	uint64_t va[KEPT] __attribute__((aligned(64)));
} kept;

static struct {
	uint32_t page[SETS][WAYS];
	uint8_t oldest[SETS];
	uint64_t entry[ENTRIES];
	uint64_t misses;
	uint64_t miss[KEPT];
} model;

static void on_access(unsigned cpu_index, qemu_plugin_meminfo_t info, uint64_t va, void *argument)
{
	(void)cpu_index;
	(void)info;
	(void)va;
	(void)argument;
}

/* Of several vCPUs each may overwrite what another has stored: nobody reads it. */
static void on_access_keep(unsigned cpu_index, qemu_plugin_meminfo_t info, uint64_t va,
			   void *argument)
{
	(void)cpu_index;
	(void)info;
	(void)argument;
	kept.va[kept.next++ % KEPT] = va;
}

/* Waits for the model where that is a queue behind. */
static void on_access_look(unsigned cpu_index, qemu_plugin_meminfo_t info, uint64_t va,
			   void *argument)
{
	on_access_keep(cpu_index, info, va, argument);
	if (kept.next % BATCH_ACCESSES)
		return;
	atomic_store_explicit(&kept.published, kept.next, memory_order_release);
	while (kept.next - kept.looked_up > KEPT - BATCH_ACCESSES)
		__builtin_ia32_pause();
}

static void look_up(uint32_t page)
{
	uint32_t *ways = model.page[page % SETS];
	uint8_t *oldest = &model.oldest[page % SETS];
	bool hit = false;

	for (int way = 0; way < WAYS; way++)
		hit |= ways[way] == page;
	if (hit)
		return;
	ways[*oldest] = page;
	*oldest = *oldest + 1 == WAYS ? 0 : *oldest + 1;
	model.miss[model.misses++ % KEPT] = page + model.entry[page % ENTRIES];
}

static void *look_up_all(void *argument)
{
	for (uint64_t i = 0;;) {
		uint64_t end = atomic_load_explicit(&kept.published, memory_order_acquire);

		if (i == end)
			__builtin_ia32_pause();
		for (; i != end; i++)
			look_up(kept.va[i % KEPT] >> 12);
		atomic_store_explicit(&kept.looked_up, end, memory_order_release);
	}
	return argument;
}

static qemu_plugin_vcpu_mem_cb_t called = on_access;

static void on_translate(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
	(void)id;
	for (size_t i = 0; i < qemu_plugin_tb_n_insns(tb); i++) {
		struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);

		if (is_user_address(qemu_plugin_insn_vaddr(insn)))
			qemu_plugin_register_vcpu_mem_cb(insn, called, QEMU_PLUGIN_CB_NO_REGS,
							 QEMU_PLUGIN_MEM_RW, NULL);
	}
}

QEMU_PLUGIN_EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc,
					   char **argv)
{
	(void)info;
	for (int i = 0; i < argc; i++) {
		pthread_t thread;

		if (!strcmp(argv[i], "keep=on")) {
			called = on_access_keep;
		} else if (!strcmp(argv[i], "look=on")) {
			called = on_access_look;
			if (pthread_create(&thread, NULL, look_up_all, NULL)) {
				fprintf(stderr, "floor plugin: cannot start a thread\n");
				return -1;
			}
		} else {
			fprintf(stderr, "floor plugin: %s: only keep=on or look=on\n", argv[i]);
			return -1;
		}
	}
	qemu_plugin_register_vcpu_tb_trans_cb(id, on_translate);
	return 0;
}
