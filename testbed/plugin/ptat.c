/* SPDX-License-Identifier: GPL-2.0 */
/*
 * QEMU TCG plugin: the hardware that the testbed's machine lacks. It feeds every instruction
 * fetch and memory access of the guest to a model of TLBs and page walker (cpu.c) and records
 * what a capture device on the memory bus would see (capture.c).
 *
 * Not seen: what QEMU does on the CPU's behalf without a plugin callback, which are accesses of
 * exception delivery and of XSAVE and its kind. The model then has fewer misses than a real CPU,
 * but bus and truth agree.
 */
#include <fcntl.h>
#include <errno.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <glib.h>

#include "qemu-plugin.h"

#include "insn.h"
#include "capture.h"
#include "queue.h"

QEMU_PLUGIN_EXPORT int qemu_plugin_version = QEMU_PLUGIN_VERSION;

#define CPUS_MAX       256 /* the truth has 8 bits for it */
#define FETCH_PAGES    256

#define MAGIC_START    1
#define MAGIC_STOP     2
#define MAGIC_SNAPSHOT 3 /* RAX: label */

/* A memory callback's argument: bits, and the address of the instruction, which is canonical. */
#define MEM_KERNEL	  1u
#define MEM_LOCKED	  2u
#define MEM_ADDRESS_SHIFT 2

/* Linux on x86-64: struct pt_regs has RIP there, then CS, RFLAGS and RSP. */
#define REGS_IP_BYTES 128
#define KERNEL_CS     0x10

/* A page fault's error code: SDM vol. 3A, section 4.7. */
#define PF_PRESENT BIT_U64(0)
#define PF_WRITE   BIT_U64(1)
#define PF_USER	   BIT_U64(2)
#define PF_FETCH   BIT_U64(4)

enum { REG_RSP = 4, REG_RIP = 16, REG_CR2, REG_FS_BASE, REG_GS_BASE, REGS };

static const char *const reg_names[REGS] = {
	"rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8",	   "r9",
	"r10", "r11", "r12", "r13", "r14", "r15", "rip", "cr2", "fs_base", "gs_base",
};

struct vcpu {
	struct queue queue;
	struct cpu cpu __attribute__((aligned(64))); /* not the vCPU's while the queue is in use */
	struct qemu_plugin_register *reg[REGS];
	GByteArray *bytes;
	struct call_stack *stack; /* where the kernel last called or returned */

	/*
	 * QEMU shares translated code between virtual addresses of the same physical page, so the
	 * address at translation is not the one at execution; only RIP knows. Reading it is slow:
	 * this remembers the virtual page of each physical page until the next flush.
	 */
	struct {
		uint64_t code_page;
		uint64_t va;
	} fetch[FETCH_PAGES];
} __attribute__((aligned(64)));

static struct options options;
static struct guest_ram ram;
static struct capture capture;
static struct calls calls;
static struct vcpu *vcpus;
static bool may_queue;
static bool may_join; /* an instruction's load and store of the same operand */

/* Code page of the last fetch, or 0: as long as it does not change, no callback is needed. */
static qemu_plugin_u64 last_code_page;

/* Executed so far, by mode; counted for snapshots only. */
static qemu_plugin_u64 instructions[MODES];

/* The model, now that all accesses so far are in it. */
static struct cpu *cpu_of(struct vcpu *vcpu)
{
	queue_drain(&vcpu->queue);
	return &vcpu->cpu;
}

static uint64_t read_register(struct vcpu *vcpu, unsigned reg)
{
	uint64_t value = 0;

	g_byte_array_set_size(vcpu->bytes, 0);
	qemu_plugin_read_register(vcpu->reg[reg], vcpu->bytes);
	memcpy(&value, vcpu->bytes->data, MIN(vcpu->bytes->len, sizeof(value)));
	return value;
}

static void forget_fetches(unsigned cpu_index)
{
	memset(vcpus[cpu_index].fetch, 0, sizeof(vcpus[cpu_index].fetch));
	qemu_plugin_u64_set(last_code_page, cpu_index, 0);
}

/* Virtual page of the running code, which lies in @code_page of the host. */
static uint64_t fetch_va(struct vcpu *vcpu, uint64_t code_page)
{
	unsigned slot = code_page % FETCH_PAGES;

	if (vcpu->fetch[slot].code_page != code_page) {
		vcpu->fetch[slot].code_page = code_page;
		vcpu->fetch[slot].va = read_register(vcpu, REG_RIP) & -(uint64_t)PAGE_BYTES;
	}
	return vcpu->fetch[slot].va;
}

/* The model, for an access by the instruction at @address. */
static struct cpu *cpu_at(struct vcpu *vcpu, uint64_t address)
{
	struct cpu *cpu = cpu_of(vcpu);

	cpu->stack = vcpu->stack;
	cpu->address = address;
	return cpu;
}

static void fetch(struct vcpu *vcpu, uint64_t va)
{
	bool kernel = !is_user_address(va);

	if (may_queue && !kernel)
		queue_put(&vcpu->queue, va | BATCH_FETCH);
	else
		cpu_translate(cpu_at(vcpu, va), va, PTAT_TRUTH_CAUSE_FETCH, kernel);
}

static void on_fetch(unsigned cpu_index, void *argument)
{
	struct vcpu *vcpu = &vcpus[cpu_index];
	uint64_t code_page = (uintptr_t)argument;

	qemu_plugin_u64_set(last_code_page, cpu_index, code_page);
	fetch(vcpu, fetch_va(vcpu, code_page));
}

/* The kernel's code has one virtual address: that at translation, @argument, to the byte. */
static void on_kernel_fetch(unsigned cpu_index, void *argument)
{
	uint64_t va = (uintptr_t)argument;

	qemu_plugin_u64_set(last_code_page, cpu_index, va / PAGE_BYTES);
	fetch(&vcpus[cpu_index], va);
}

/* For code that crosses into the next page, or lies in no RAM. */
static void on_fetch_bytes(unsigned cpu_index, void *argument)
{
	struct vcpu *vcpu = &vcpus[cpu_index];
	uint64_t va = read_register(vcpu, REG_RIP);
	uint64_t last = va + (uintptr_t)argument - 1;

	fetch(vcpu, va);
	if (va / PAGE_BYTES != last / PAGE_BYTES)
		fetch(vcpu, last);
	qemu_plugin_u64_set(last_code_page, cpu_index, 0);
}

static uint64_t address_in(uintptr_t flags)
{
	return (int64_t)flags >> MEM_ADDRESS_SHIFT;
}

static void data_access(struct cpu *cpu, qemu_plugin_meminfo_t info, uint64_t va, bool store,
			uintptr_t flags)
{
	uint8_t cause = store ? PTAT_TRUTH_CAUSE_STORE : PTAT_TRUTH_CAUSE_LOAD;
	bool kernel = flags & MEM_KERNEL, locked = flags & MEM_LOCKED;
	uint64_t key = cpu_translate(cpu, va, cause, kernel);
	uint64_t end, page_end;

	if (!(key & KEY_REGION) && !may_cross_page(va))
		return;
	end = va + (UINT64_C(1) << qemu_plugin_mem_size_shift(info));
	for (;;) {
		page_end = (va / PAGE_BYTES + 1) * PAGE_BYTES;
		if (key & KEY_REGION)
			cpu_region_access(cpu, va, MIN(end, page_end) - va, store, locked);
		if (end <= page_end)
			return;
		va = page_end;
		key = cpu_translate(cpu, va, cause, kernel);
	}
}

/* Batches take the size out of @info without QEMU's help (BATCH_SIZE_SHIFT): is it there? */
static void check_meminfo(qemu_plugin_meminfo_t info)
{
	uint64_t access = (uint64_t)(uint8_t)info << BATCH_INFO_SHIFT;

	if ((access >> BATCH_SIZE_SHIFT & BATCH_SIZE) == qemu_plugin_mem_size_shift(info))
		return;
	fprintf(stderr, "ptat plugin: this QEMU describes accesses in a way that is not known\n");
	exit(1);
}

/* Not inline: the callbacks below then need no stack frame where they hit. */
static __attribute__((noinline)) void access_slow(struct vcpu *vcpu, qemu_plugin_meminfo_t info,
						  uint64_t va, bool store, uintptr_t flags)
{
	check_meminfo(info);
	data_access(cpu_at(vcpu, address_in(flags)), info, va, store, flags);
}

static inline void on_access(unsigned cpu_index, qemu_plugin_meminfo_t info, uint64_t va,
			     bool store, uintptr_t flags)
{
	struct vcpu *vcpu = &vcpus[cpu_index];

	if (G_LIKELY(!vcpu->queue.pending && !may_cross_page(va) &&
		     tlb_hit_fast(&vcpu->cpu.tlb, va, store ? KEY_STORE : 0)))
		return;
	access_slow(vcpu, info, va, store, flags);
}

static void on_load(unsigned cpu_index, qemu_plugin_meminfo_t info, uint64_t va, void *argument)
{
	on_access(cpu_index, info, va, false, (uintptr_t)argument);
}

static void on_store(unsigned cpu_index, qemu_plugin_meminfo_t info, uint64_t va, void *argument)
{
	on_access(cpu_index, info, va, true, (uintptr_t)argument);
}

/*
 * The entry code mostly calls with a struct pt_regs on the stack, which tells what was interrupted.
 * If it was kernel code on this stack, all of it fits; what only looks like an address does not.
 */
static void push_interrupted(struct vcpu *vcpu, uint64_t regs)
{
	struct {
		uint64_t ip, cs, flags, sp;
	} saved;

	if (!qemu_plugin_read_memory_vaddr(regs + REGS_IP_BYTES, vcpu->bytes, sizeof(saved)))
		return;
	memcpy(&saved, vcpu->bytes->data, sizeof(saved));
	if (saved.cs == KERNEL_CS && !is_user_address(saved.ip) && saved.sp > regs &&
	    saved.sp - regs < UINT64_C(1) << CALL_STACK_SHIFT)
		call_push(vcpu->stack, regs + REGS_IP_BYTES, saved.ip);
}

static void on_call(unsigned cpu_index, qemu_plugin_meminfo_t info, uint64_t va, void *argument)
{
	struct vcpu *vcpu = &vcpus[cpu_index];
	uint64_t address = address_in((uintptr_t)argument);

	on_store(cpu_index, info, va, argument);
	vcpu->stack = calls_find(&calls, vcpu->stack, va);
	if (address - options.entry_begin < options.entry_end - options.entry_begin)
		push_interrupted(vcpu, va + sizeof(uint64_t));
	call_push(vcpu->stack, va, address);
}

static void on_return(unsigned cpu_index, qemu_plugin_meminfo_t info, uint64_t va, void *argument)
{
	struct vcpu *vcpu = &vcpus[cpu_index];

	on_load(cpu_index, info, va, argument);
	vcpu->stack = calls_find(&calls, vcpu->stack, va);
	call_pop(vcpu->stack, va);
}

/* It loads from descriptor tables, too: only RSP tells where it returns from. */
static void on_iret(unsigned cpu_index, void *argument)
{
	struct vcpu *vcpu = &vcpus[cpu_index];
	uint64_t slot = read_register(vcpu, REG_RSP);

	(void)argument;
	vcpu->stack = calls_find(&calls, vcpu->stack, slot);
	call_pop(vcpu->stack, slot);
}

/*
 * By user code, if accesses may be queued. The model needs the size only at a page's end: rather
 * than to look there at each access, its bits of @info go along.
 */
static inline void on_user_access(struct vcpu *vcpu, qemu_plugin_meminfo_t info, uint64_t va,
				  uint64_t what)
{
	if (G_LIKELY((int64_t)va >= 0))
		queue_put(&vcpu->queue, va | what | (uint64_t)(uint8_t)info << BATCH_INFO_SHIFT);
	else
		access_slow(vcpu, info, va, what & BATCH_STORE, 0); /* of a descriptor table */
}

static void on_user_load(unsigned cpu_index, qemu_plugin_meminfo_t info, uint64_t va, void *vcpu)
{
	(void)cpu_index;
	on_user_access(vcpu, info, va, BATCH_LOAD);
}

static void on_user_store(unsigned cpu_index, qemu_plugin_meminfo_t info, uint64_t va, void *vcpu)
{
	(void)cpu_index;
	on_user_access(vcpu, info, va, BATCH_STORE);
}

/* One call for both accesses, at the second. If that faults, the load is load_before_fault()'s. */
static void on_user_modify(unsigned cpu_index, qemu_plugin_meminfo_t info, uint64_t va, void *vcpu)
{
	(void)cpu_index;
	on_user_access(vcpu, info, va, BATCH_MODIFY | BATCH_STORE);
}

/* @ip: of the user's instruction that might not store to @va, which it might load. */
static void load_before_fault(struct vcpu *vcpu, uint64_t ip, uint64_t va)
{
	struct insn insn;

	if (!qemu_plugin_read_memory_vaddr(ip, vcpu->bytes, INSN_MAX_BYTES) &&
	    !qemu_plugin_read_memory_vaddr(ip, vcpu->bytes, PAGE_BYTES - ip % PAGE_BYTES))
		return;
	insn_decode(vcpu->bytes->data, vcpu->bytes->len, ip, &insn);
	if (insn.modifies)
		cpu_translate(cpu_of(vcpu), va, PTAT_TRUTH_CAUSE_LOAD, false);
}

/* First instruction of the guest's page fault handler: CR2 and the error code are still fresh. */
static void on_page_fault(unsigned cpu_index, void *argument)
{
	struct vcpu *vcpu = &vcpus[cpu_index];
	uint64_t va = read_register(vcpu, REG_CR2);
	uint64_t rsp = read_register(vcpu, REG_RSP);
	uint8_t cause = PTAT_TRUTH_CAUSE_LOAD;
	struct {
		uint64_t error, ip;
	} saved = {};

	(void)argument;
	if (qemu_plugin_read_memory_vaddr(rsp, vcpu->bytes, sizeof(saved)))
		memcpy(&saved, vcpu->bytes->data, sizeof(saved));
	if (saved.error & PF_WRITE)
		cause = PTAT_TRUTH_CAUSE_STORE;
	else if (saved.error & PF_FETCH)
		cause = PTAT_TRUTH_CAUSE_FETCH;
	if (may_join &&
	    (saved.error & (PF_PRESENT | PF_WRITE | PF_USER)) == (PF_PRESENT | PF_WRITE | PF_USER))
		load_before_fault(vcpu, saved.ip, va);
	cpu_page_fault(cpu_of(vcpu), va, cause, !(saved.error & PF_USER), saved.error & PF_PRESENT);
}

static uint64_t effective_address(struct vcpu *vcpu, const struct insn *insn)
{
	uint64_t va = insn->displacement;

	if (insn->segment)
		va += read_register(vcpu, insn->segment == 'f' ? REG_FS_BASE : REG_GS_BASE);
	if (insn->base != REG_NONE)
		va += read_register(vcpu, insn->base);
	if (insn->index != REG_NONE)
		va += read_register(vcpu, insn->index) << insn->scale;
	return va;
}

static void invpcid(struct vcpu *vcpu, const struct insn *insn)
{
	uint64_t type = read_register(vcpu, insn->reg);
	uint64_t descriptor[2];

	if (!qemu_plugin_read_memory_vaddr(effective_address(vcpu, insn), vcpu->bytes,
					   sizeof(descriptor)))
		return; /* the instruction will fault */
	memcpy(descriptor, vcpu->bytes->data, sizeof(descriptor));
	cpu_invpcid(cpu_of(vcpu), type, descriptor[0] & CR3_PCID, descriptor[1]);
}

static void take_snapshot(struct vcpu *vcpu)
{
	uint64_t counts[MODES];

	for (int mode = 0; mode < MODES; mode++)
		counts[mode] = qemu_plugin_u64_sum(instructions[mode]);
	capture_snapshot(&capture, read_register(vcpu, 0), counts);
}

static void on_control(unsigned cpu_index, void *argument)
{
	struct vcpu *vcpu = &vcpus[cpu_index];
	const struct insn *insn = argument;
	struct cpu *cpu = cpu_of(vcpu);

	switch (insn->kind) {
	case INSN_MOV_TO_CR:
		if (insn->cr == 0)
			cpu_write_cr0(cpu, read_register(vcpu, insn->reg));
		else if (insn->cr == 3)
			cpu_write_cr3(cpu, read_register(vcpu, insn->reg));
		else if (insn->cr == 4)
			cpu_write_cr4(cpu, read_register(vcpu, insn->reg));
		break;
	case INSN_INVLPG:
		cpu_invlpg(cpu, effective_address(vcpu, insn));
		break;
	case INSN_INVPCID:
		invpcid(vcpu, insn);
		break;
	case INSN_MAGIC:
		if (insn->magic == MAGIC_START)
			capture_start(&capture);
		else if (insn->magic == MAGIC_STOP)
			capture_stop(&capture);
		else if (insn->magic == MAGIC_SNAPSHOT && options.snapshots)
			take_snapshot(vcpu);
		return;
	case INSN_CALL:
	case INSN_RETURN:
	case INSN_IRET:
	case INSN_OTHER:
		return;
	}
	forget_fetches(cpu_index);
}

static void register_accesses(struct qemu_plugin_insn *insn, qemu_plugin_vcpu_mem_cb_t on_load,
			      qemu_plugin_vcpu_mem_cb_t on_store, void *argument)
{
	qemu_plugin_register_vcpu_mem_cb(insn, on_load, QEMU_PLUGIN_CB_NO_REGS, QEMU_PLUGIN_MEM_R,
					 argument);
	qemu_plugin_register_vcpu_mem_cb(insn, on_store, QEMU_PLUGIN_CB_NO_REGS, QEMU_PLUGIN_MEM_W,
					 argument);
}

static void translate_insn(struct qemu_plugin_insn *insn)
{
	uint64_t va = qemu_plugin_insn_vaddr(insn);
	bool kernel = !is_user_address(va);
	bool followed = kernel && options.kernel_misses;
	uintptr_t flags = va << MEM_ADDRESS_SHIFT | (kernel ? MEM_KERNEL : 0);
	struct insn decoded;
	uint8_t bytes[INSN_MAX_BYTES];
	size_t length = qemu_plugin_insn_data(insn, bytes, sizeof(bytes));

	insn_decode(bytes, length, va, &decoded);
	if (decoded.locked)
		flags |= MEM_LOCKED;
	if (decoded.kind == INSN_IRET && followed)
		qemu_plugin_register_vcpu_insn_exec_cb(insn, on_iret, QEMU_PLUGIN_CB_R_REGS, NULL);
	if (decoded.kind >= INSN_MOV_TO_CR) {
		/* Never freed: translated code has no destructor, and these are few. */
		qemu_plugin_register_vcpu_insn_exec_cb(insn, on_control, QEMU_PLUGIN_CB_R_REGS,
						       g_memdup2(&decoded, sizeof(decoded)));
	}
	if (va == options.pf_entry)
		qemu_plugin_register_vcpu_insn_exec_cb(insn, on_page_fault, QEMU_PLUGIN_CB_R_REGS,
						       NULL);
	/* Queued accesses are of the only vCPU: no look-up by its index. */
	if (may_join && !kernel && decoded.modifies)
		qemu_plugin_register_vcpu_mem_cb(insn, on_user_modify, QEMU_PLUGIN_CB_NO_REGS,
						 QEMU_PLUGIN_MEM_W, &vcpus[0]);
	else if (may_queue && !kernel)
		register_accesses(insn, on_user_load, on_user_store, &vcpus[0]);
	else
		register_accesses(
			insn, followed && decoded.kind == INSN_RETURN ? on_return : on_load,
			followed && decoded.kind == INSN_CALL ? on_call : on_store, (void *)flags);
}

/*
 * QEMU ends a block of x86 code at the page's end; only a block of one instruction may go on to
 * the next page. So one fetch at its entry is all a block needs.
 */
static void on_translate(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
	size_t insns = qemu_plugin_tb_n_insns(tb);
	struct qemu_plugin_insn *last = qemu_plugin_tb_get_insn(tb, insns - 1);
	uint64_t va = qemu_plugin_tb_vaddr(tb);
	uint64_t end = qemu_plugin_insn_vaddr(last) + qemu_plugin_insn_size(last);
	uint64_t code_page =
		(uintptr_t)qemu_plugin_insn_haddr(qemu_plugin_tb_get_insn(tb, 0)) / PAGE_BYTES;
	bool followed = options.kernel_misses && !is_user_address(va);

	(void)id;
	if (!code_page || va / PAGE_BYTES != (end - 1) / PAGE_BYTES)
		qemu_plugin_register_vcpu_tb_exec_cb(tb, on_fetch_bytes, QEMU_PLUGIN_CB_R_REGS,
						     (void *)(uintptr_t)(end - va));
	else if (followed)
		qemu_plugin_register_vcpu_tb_exec_cond_cb(
			tb, on_kernel_fetch, QEMU_PLUGIN_CB_NO_REGS, QEMU_PLUGIN_COND_NE,
			last_code_page, va / PAGE_BYTES, (void *)(uintptr_t)va);
	else
		qemu_plugin_register_vcpu_tb_exec_cond_cb(tb, on_fetch, QEMU_PLUGIN_CB_R_REGS,
							  QEMU_PLUGIN_COND_NE, last_code_page,
							  code_page, (void *)(uintptr_t)code_page);
	if (options.snapshots)
		qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(
			tb, QEMU_PLUGIN_INLINE_ADD_U64,
			instructions[is_user_address(va) ? MODE_USER : MODE_KERNEL], insns);
	for (size_t i = 0; i < insns; i++)
		translate_insn(qemu_plugin_tb_get_insn(tb, i));
}

static void on_vcpu_init(qemu_plugin_id_t id, unsigned cpu_index)
{
	struct vcpu *vcpu = &vcpus[cpu_index];
	g_autoptr(GArray) descriptors = qemu_plugin_get_registers();

	(void)id;
	cpu_init(&vcpu->cpu, cpu_index, &options.model, &capture);
	queue_init(&vcpu->queue, &vcpu->cpu, may_queue && g_get_num_processors() > 1);
	vcpu->bytes = g_byte_array_new();
	for (unsigned i = 0; i < descriptors->len; i++) {
		qemu_plugin_reg_descriptor *descriptor =
			&g_array_index(descriptors, qemu_plugin_reg_descriptor, i);

		for (int reg = 0; reg < REGS; reg++)
			if (!strcmp(descriptor->name, reg_names[reg]))
				vcpu->reg[reg] = descriptor->handle;
	}
	for (int reg = 0; reg < REGS; reg++) {
		if (!vcpu->reg[reg]) {
			fprintf(stderr, "ptat plugin: this QEMU does not show register %s\n",
				reg_names[reg]);
			exit(1);
		}
	}
}

static void on_qemu_exit(qemu_plugin_id_t id, void *argument)
{
	(void)id;
	(void)argument;
	capture_close(&capture);
}

static int map_ram(void)
{
	struct stat status;
	int fd = open(options.ram, O_RDONLY | O_CLOEXEC);
	void *base;

	if (fd < 0 || fstat(fd, &status)) {
		fprintf(stderr, "ptat plugin: ram=%s: %s\n", options.ram, strerror(errno));
		return -1;
	}
	if ((uint64_t)status.st_size < options.ram_size) {
		fprintf(stderr, "ptat plugin: ram=%s: smaller than ram_size\n", options.ram);
		return -1;
	}
	base = mmap(NULL, options.ram_size, PROT_READ, MAP_SHARED, fd, 0);
	close(fd);
	if (base == MAP_FAILED) {
		fprintf(stderr, "ptat plugin: ram=%s: %s\n", options.ram, strerror(errno));
		return -1;
	}
	ram.base = base;
	ram.size_bytes = options.ram_size;
	ram.lowmem_bytes = options.lowmem;
	return 0;
}

QEMU_PLUGIN_EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc,
					   char **argv)
{
	if (strcmp(info->target_name, "x86_64") || !info->system_emulation) {
		fprintf(stderr, "ptat plugin: needs qemu-system-x86_64\n");
		return -1;
	}
	if (info->system.max_vcpus > CPUS_MAX) {
		fprintf(stderr, "ptat plugin: at most %d vCPUs\n", CPUS_MAX);
		return -1;
	}
	if (options_parse(&options, argc, argv))
		return -1;
	if (options.accesses && info->system.max_vcpus > 1) {
		fprintf(stderr, "ptat plugin: accesses= is possible with one vCPU only\n");
		return -1;
	}
	if (map_ram() || capture_open(&capture, &options, &ram))
		return -1;

	vcpus = aligned_alloc(64, sizeof(*vcpus) * info->system.max_vcpus);
	if (!vcpus)
		abort();
	memset(vcpus, 0, sizeof(*vcpus) * info->system.max_vcpus);
	/* No other vCPU can change tables, and our kernel's code is fetched before it runs. */
	may_queue = info->system.max_vcpus == 1;
	may_join = may_queue && !options.accesses;
	calls_init(&calls);
	for (int mode = 0; mode < MODES; mode++)
		instructions[mode] =
			qemu_plugin_scoreboard_u64(qemu_plugin_scoreboard_new(sizeof(uint64_t)));
	last_code_page = qemu_plugin_scoreboard_u64(qemu_plugin_scoreboard_new(sizeof(uint64_t)));

	qemu_plugin_register_vcpu_init_cb(id, on_vcpu_init);
	qemu_plugin_register_vcpu_tb_trans_cb(id, on_translate);
	qemu_plugin_register_atexit_cb(id, on_qemu_exit, NULL);
	return 0;
}
