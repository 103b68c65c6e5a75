/* SPDX-License-Identifier: GPL-2.0 */
#include "capture.h"
#include "cpu.h"

void cpu_init(struct cpu *cpu, unsigned index, const struct cpu_model *model,
	      struct capture *capture)
{
	memset(cpu, 0, sizeof(*cpu));
	tlb_init(&cpu->tlb, model);
	psc_init(&cpu->psc, model);
	cpu->capture = capture;
	cpu->index = index;
}

void cpu_free(struct cpu *cpu)
{
	tlb_free(&cpu->tlb);
	psc_free(&cpu->psc);
}

static unsigned current_pcid(const struct cpu *cpu)
{
	return cpu->cr4 & CR4_PCIDE ? cpu->cr3 & CR3_PCID : 0;
}

static void flush_all(struct cpu *cpu)
{
	tlb_flush_all(&cpu->tlb);
	psc_flush_all(&cpu->psc);
}

void cpu_write_cr0(struct cpu *cpu, uint64_t value)
{
	bool paging = value & CR0_PG;

	if (paging != cpu->paging)
		flush_all(cpu);
	cpu->paging = paging;
}

void cpu_write_cr3(struct cpu *cpu, uint64_t value)
{
	cpu->cr3 = value & ~CR3_KEEP;
	tlb_set_pcid(&cpu->tlb, current_pcid(cpu));
	if (cpu->cr4 & CR4_PCIDE && value & CR3_KEEP)
		return;
	tlb_flush_pcid(&cpu->tlb, current_pcid(cpu));
	psc_flush_pcid(&cpu->psc, current_pcid(cpu));
}

void cpu_write_cr4(struct cpu *cpu, uint64_t value)
{
	uint64_t changed = cpu->cr4 ^ value;

	/* PCIDE may be set without a flush, but only while the PCID is 0. */
	if (changed & (CR4_PGE | CR4_PAE) || (changed & CR4_PCIDE && !(value & CR4_PCIDE)))
		flush_all(cpu);
	cpu->cr4 = value;
	tlb_set_pcid(&cpu->tlb, current_pcid(cpu));
}

void cpu_invlpg(struct cpu *cpu, uint64_t va)
{
	tlb_flush_page(&cpu->tlb, va, current_pcid(cpu), true);
	psc_flush_pcid(&cpu->psc, current_pcid(cpu));
}

void cpu_invpcid(struct cpu *cpu, uint64_t type, unsigned pcid, uint64_t va)
{
	switch (type) {
	case 0: /* one address of one PCID, not global */
		tlb_flush_page(&cpu->tlb, va, pcid, false);
		psc_flush_pcid(&cpu->psc, pcid);
		break;
	case 1: /* one PCID, not global */
		tlb_flush_pcid(&cpu->tlb, pcid);
		psc_flush_pcid(&cpu->psc, pcid);
		break;
	case 2: /* all, also global */
		flush_all(cpu);
		break;
	case 3: /* all but global */
		tlb_flush_non_global(&cpu->tlb);
		psc_flush_all(&cpu->psc);
		break;
	}
}

static uint64_t needed_right(uint8_t cause)
{
	switch (cause) {
	case PTAT_TRUTH_CAUSE_STORE:
		return KEY_STORE;
	case PTAT_TRUTH_CAUSE_FETCH:
		return KEY_EXEC;
	default:
		return 0;
	}
}

static void walk(struct cpu *cpu, uint64_t va, struct walk *result)
{
	walk_tables(cpu->capture->ram, &cpu->psc, cpu->cr3, cpu->tlb.context, va, result);
}

static bool overlaps_region(const struct options *options, const struct walk *walk)
{
	uint64_t first = walk_address(walk, 0);

	return first < options->region_base + options->region_size &&
	       options->region_base < first + BIT_U64(walk->shift);
}

static uint64_t key_flags(const struct cpu *cpu, const struct walk *walk)
{
	uint64_t flags = 0;

	if (walk->grants & PTE_WRITE && walk->entry & PTE_DIRTY)
		flags |= KEY_STORE;
	if (walk->grants & PTE_NX)
		flags |= KEY_EXEC;
	if (walk->entry & PTE_GLOBAL && cpu->cr4 & CR4_PGE)
		flags |= KEY_GLOBAL;
	if (overlaps_region(cpu->capture->options, walk))
		flags |= KEY_REGION;
	return flags;
}

/*
 * The access succeeded, so if the tables deny it now, another vCPU changed them since. Kernel
 * stores may ignore write protection (CR0.WP), and QEMU sets DIRTY on its own.
 */
static bool has_raced(const struct walk *walk, uint8_t cause)
{
	if (!walk->completed)
		return true;
	return (cause == PTAT_TRUTH_CAUSE_STORE && !(walk->grants & PTE_WRITE)) ||
	       (cause == PTAT_TRUTH_CAUSE_FETCH && !(walk->grants & PTE_NX));
}

static uint64_t now_ns(const struct cpu *cpu)
{
	const struct batch *batch = cpu->batch;

	if (!batch)
		return capture_clock_ns();
	return batch->begin_ns +
	       (batch->end_ns - batch->begin_ns) * cpu->position / batch->accesses;
}

static void put_kernel_miss(const struct cpu *cpu, uint64_t va, const struct walk_context *context,
			    const struct walk *walk)
{
	const struct kernel_miss miss = {
		.time_ns = now_ns(cpu),
		.va = va,
		.pgd_pfn = context->pgd_pfn,
		.address = cpu->address,
		.stack = cpu->stack,
		.cause = context->cause,
		.shift = walk->shift,
		.cpu = context->cpu,
	};

	kernel_misses_put(&cpu->capture->kernel_misses, &miss);
}

static void walk_and_record(struct cpu *cpu, uint64_t va, struct walk_context *context,
			    struct walk *result)
{
	struct capture *capture = cpu->capture;
	bool recording = cpu->batch ? capture->active : capture_begin(capture);

	walk(cpu, va, result);
	if (!recording)
		return;
	if (!(context->flags & PTAT_TRUTH_FLAG_FAULT) && has_raced(result, context->cause))
		context->flags |= PTAT_TRUTH_FLAG_RACE;
	capture_walk(capture, context, now_ns(cpu), va, result);
	if (capture->kernel_misses.out.file && context->flags & PTAT_TRUTH_FLAG_KERNEL_MODE &&
	    !(context->flags & PTAT_TRUTH_FLAG_FAULT))
		put_kernel_miss(cpu, va, context, result);
	if (!cpu->batch)
		capture_unlock(capture);
}

static struct walk_context walk_context(const struct cpu *cpu, uint8_t cause, bool kernel_mode)
{
	return (struct walk_context){
		.pgd_pfn = (cpu->cr3 & PTE_FRAME) >> 12,
		.cause = cause,
		.flags = kernel_mode ? PTAT_TRUTH_FLAG_KERNEL_MODE : 0,
		.cpu = cpu->index,
	};
}

uint64_t cpu_translate(struct cpu *cpu, uint64_t va, uint8_t cause, bool kernel_mode)
{
	enum tlb_side side = cause == PTAT_TRUTH_CAUSE_FETCH ? TLB_FETCH : TLB_DATA;
	struct walk_context context;
	struct walk result;
	uint64_t key, flags;

	if (!cpu->paging)
		return 0;
	key = tlb_lookup(&cpu->tlb, side, va, needed_right(cause));
	if (key)
		return key;
	context = walk_context(cpu, cause, kernel_mode);
	walk_and_record(cpu, va, &context, &result);
	if (!result.completed)
		return 0;
	flags = key_flags(cpu, &result);
	tlb_fill(&cpu->tlb, side, va, walk_page_size(&result), flags);
	return KEY_VALID | flags;
}

/* Returns the flags of the page's TLB key, as cpu_translate() does. */
static uint64_t model_data(struct cpu *cpu, uint64_t va, uint64_t access)
{
	bool store = access & BATCH_STORE;
	uint64_t key = tlb_hit_fast(&cpu->tlb, va, store ? KEY_STORE : 0);

	if (!key && access & BATCH_MODIFY)
		key = cpu_translate(cpu, va, PTAT_TRUTH_CAUSE_LOAD, false) & KEY_STORE;
	if (!key)
		key = cpu_translate(cpu, va, store ? PTAT_TRUTH_CAUSE_STORE : PTAT_TRUTH_CAUSE_LOAD,
				    false);
	return key;
}

static uint64_t last_byte(uint64_t access)
{
	return (access & BATCH_VA) + (UINT64_C(1) << (access >> BATCH_SIZE_SHIFT & BATCH_SIZE)) - 1;
}

/*
 * The page of the access before is the most recently used one: it needs no look-up. Only a store
 * may need more rights: @before has BATCH_STORE where they are known to be there.
 */
static bool is_repeated(uint64_t access, uint64_t before)
{
	return !((access ^ before) & (BATCH_PAGE | BATCH_FETCH)) &&
	       !(access & ~before & BATCH_STORE);
}

/* Returns what is_repeated() has to know about the part of it that is done last. */
static uint64_t model_access(struct cpu *cpu, uint64_t access)
{
	uint64_t va = access & BATCH_VA;
	uint64_t key;

	if (access & BATCH_FETCH) {
		cpu_translate(cpu, va, PTAT_TRUTH_CAUSE_FETCH, false);
		return access;
	}
	key = model_data(cpu, va, access);
	if (may_cross_page(va) && (va ^ last_byte(access)) & ~BATCH_OFFSET) {
		va = last_byte(access);
		key = model_data(cpu, va, access);
	}
	return va | (access & BATCH_STORE) | (key & KEY_STORE ? BATCH_STORE : 0);
}

void cpu_model_batch(struct cpu *cpu, const struct batch *batch)
{
	uint64_t before = BATCH_FETCH | BATCH_PAGE; /* no user page is there */

	capture_lock(cpu->capture);
	if (cpu->capture->accesses.out.file && cpu->capture->active)
		accesses_put(&cpu->capture->accesses, (cpu->cr3 & PTE_FRAME) >> 12, batch);
	cpu->batch = batch;
	for (unsigned i = 0; i < batch->accesses; i++) {
		uint64_t access = batch->access[i];

		if (is_repeated(access, before) && !may_cross_page(access))
			continue;
		cpu->position = i;
		before = model_access(cpu, access);
	}
	cpu->batch = NULL;
	capture_unlock(cpu->capture);
}

void cpu_region_access(struct cpu *cpu, uint64_t va, unsigned bytes, bool store, bool locked)
{
	struct walk where;

	/* Rare: cheaper than to keep an address in each TLB entry. */
	walk_tables(cpu->capture->ram, NULL, cpu->cr3, 0, va, &where);
	if (where.completed)
		capture_cpu_access(cpu->capture, walk_address(&where, va), bytes, store, locked);
}

/*
 * QEMU's walk read all levels and found no page at @va. If the model's finds one, it went on from
 * an entry that has been cleared since: a CPU that still has that cached does not fault (SDM vol.
 * 3A, section 4.10.3), and a fault drops it (section 4.10.4.1).
 */
static void forget_cleared(struct cpu *cpu, uint64_t va)
{
	struct walk result;

	walk(cpu, va, &result);
	if (result.completed)
		psc_flush_address(&cpu->psc, va, cpu->tlb.context);
}

void cpu_page_fault(struct cpu *cpu, uint64_t va, uint8_t cause, bool kernel_mode, bool present)
{
	struct walk_context context = walk_context(cpu, cause, kernel_mode);
	struct walk result;

	if (!cpu->paging || !is_user_address(va))
		return;
	tlb_flush_page(&cpu->tlb, va, current_pcid(cpu), true);
	if (!present)
		forget_cleared(cpu, va);
	context.flags |= PTAT_TRUTH_FLAG_FAULT;
	walk_and_record(cpu, va, &context, &result);
}
