/* SPDX-License-Identifier: GPL-2.0 */
/*
 * QEMU TCG plugin for the benchmark: the least that any plugin can do which is to see user code's
 * accesses. What it costs, ptat.so cannot cost less.
 *
 *   floor.so            is called for each access of user code, and does nothing
 *   floor.so,keep=on    stores the address, in as much memory as ptat.so's queue takes
 */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "qemu-plugin.h"

#include "queue.h"

QEMU_PLUGIN_EXPORT int qemu_plugin_version = QEMU_PLUGIN_VERSION;

#define KEPT (QUEUE_BATCHES * BATCH_ACCESSES)

static struct {
	uint64_t next;
	uint64_t va[KEPT];
} kept;
static bool keep;

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

static void on_translate(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
	(void)id;
	for (size_t i = 0; i < qemu_plugin_tb_n_insns(tb); i++) {
		struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);

		if (is_user_address(qemu_plugin_insn_vaddr(insn)))
			qemu_plugin_register_vcpu_mem_cb(insn, keep ? on_access_keep : on_access,
							 QEMU_PLUGIN_CB_NO_REGS, QEMU_PLUGIN_MEM_RW,
							 NULL);
	}
}

QEMU_PLUGIN_EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc,
					   char **argv)
{
	(void)info;
	for (int i = 0; i < argc; i++) {
		if (strcmp(argv[i], "keep=on")) {
			fprintf(stderr, "floor plugin: %s: the only option is keep=on\n", argv[i]);
			return -1;
		}
		keep = true;
	}
	qemu_plugin_register_vcpu_tb_trans_cb(id, on_translate);
	return 0;
}
