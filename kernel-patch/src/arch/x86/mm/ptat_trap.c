// SPDX-License-Identifier: GPL-2.0
/*
 * PTAT on x86-64, trap mode: page faults, single steps, and who must not see
 * those.
 */
#define pr_fmt(fmt) "ptat: " fmt

#include <linux/mm_types.h>
#include <linux/ptat.h>
#include <linux/ptat_trap.h>
#include <linux/sched.h>
#include <linux/uaccess.h>

#include <asm/cpufeature.h>
#include <asm/insn.h>
#include <asm/processor-flags.h>
#include <asm/ptrace.h>
#include <asm/trap_pf.h>

/* Kernels before v6.6 know no shadow stacks of user space. */
#ifndef X86_FEATURE_USER_SHSTK
#define X86_PF_SHSTK	0
#endif

/**
 * ptat_arch_can_trap - can the handler load what user space uses into the TLB?
 */
bool __init ptat_arch_can_trap(void)
{
	if (boot_cpu_has(X86_FEATURE_PTI)) {
		pr_err("user space has TLB entries of its own here, boot with pti=off\n");
		return false;
	}
	return true;
}

/* Would the hardware allow the access if the entry held @val? */
bool ptat_arch_permits(unsigned long val, const struct ptat_trap *trap)
{
	if (!(val & _PAGE_USER))
		return false;
	if (trap->shadow_stack)
		return !(val & _PAGE_RW) && (val & _PAGE_DIRTY);
	return (!trap->write || (val & _PAGE_RW)) && (!trap->fetch || !(val & _PAGE_NX));
}

/* Poison what was valid for one instruction, and take our trap flag away. */
static noinstr void end_step(struct pt_regs *regs)
{
	struct ptat_trap_state *state = &current->ptat_trap;

	ptat_trap_close();
	if (state->stepping) {
		regs->flags &= ~X86_EFLAGS_TF;
		state->stepping = false;
	}
}

static void begin_step(struct pt_regs *regs)
{
	/* Somebody else's trap flag serves as well. */
	if (regs->flags & X86_EFLAGS_TF)
		return;
	regs->flags |= X86_EFLAGS_TF;
	current->ptat_trap.stepping = true;
}

static bool is_traced(void)
{
	const struct mm_struct *mm = current->mm;

	return mm && READ_ONCE(mm->ptat_id);
}

static __always_inline bool has_open(const struct ptat_trap_state *state)
{
	return state->count || state->stepping;
}

static noinline long trap_page_fault(struct pt_regs *regs, unsigned long error_code,
				     unsigned long addr)
{
	bool kernel = !user_mode(regs);
	struct ptat_trap trap = {
		.ip = regs->ip,
		.addr = addr,
		.sp = regs->sp,
		.kernel = kernel,
		.write = error_code & X86_PF_WRITE,
		.fetch = error_code & X86_PF_INSTR,
		.shadow_stack = error_code & X86_PF_SHSTK,
		.present = error_code & X86_PF_PROT,
		.may_sleep = !faulthandler_disabled() && (regs->flags & X86_EFLAGS_IF),
	};

	/* An access that the kernel must not make is an oops, not a miss. */
	if (kernel && (trap.fetch || (cpu_feature_enabled(X86_FEATURE_SMAP) &&
				      !(regs->flags & X86_EFLAGS_AC))))
		return error_code;

	switch (ptat_trap_fault(&trap)) {
	case PTAT_TRAP_DONE:
		return -1;
	case PTAT_TRAP_STEPS:
		begin_step(regs);
		return -1;
	case PTAT_TRAP_WAITS:
		if (!kernel)
			end_step(regs);
		local_irq_enable();
		ptat_ring_wait();
		local_irq_disable();
		return -1;
	case PTAT_TRAP_DENIED:
		/* Else a fetch from a page that is not executable would be tried for ever. */
		error_code |= X86_PF_PROT;
		fallthrough;
	case PTAT_TRAP_NOT_OURS:
		break;
	}
	if (!kernel)
		end_step(regs);
	return error_code;
}

/* Returns the error code of a real fault, or -1. */
long __ptat_trap_page_fault(struct pt_regs *regs, unsigned long error_code, unsigned long addr)
{
	/* The faults of processes that are not traced leave here. */
	if (!is_traced() || addr >= TASK_SIZE_MAX || in_nmi())
		return error_code;
	return trap_page_fault(regs, error_code, addr);
}

/*
 * The instruction that was stepped may have stored our trap flag, or loaded one
 * of its own.  Returns whether the flag is still ours.
 */
static bool hide_flag(struct pt_regs *regs)
{
	unsigned long ip = current->ptat_trap.ip;
	unsigned int i;
	u8 *byte;

	for (i = 0; i < MAX_INSN_SIZE; i++) {
		byte = ptat_trap_peek(ip + i);
		if (!byte)
			return true;
		switch (*byte) {
		case 0x66:		/* operand size */
		case 0x40 ... 0x4f:	/* REX; in 32-bit code these are no prefixes */
			if (*byte != 0x66 && !user_64bit_mode(regs))
				return true;
			continue;
		case 0x9c:		/* pushf */
			byte = ptat_trap_peek(regs->sp + 1);
			if (byte)
				*byte &= ~(X86_EFLAGS_TF >> 8);
			return true;
		case 0x9d:		/* popf */
		case 0xcf:		/* iret */
			return false;
		default:
			return true;
		}
	}
	return true;
}

bool __ptat_trap_debug(struct pt_regs *regs)
{
	struct ptat_trap_state *state = &current->ptat_trap;
	bool ours = state->stepping;

	if (!has_open(state))
		return false;
	ptat_trap_close();
	state->stepping = false;
	/* If the instruction runs once more, that is another access. */
	state->last[0].addr = -1;
	if (ours && hide_flag(regs))
		regs->flags &= ~X86_EFLAGS_TF;
	return ours;
}

noinstr void __ptat_trap_syscall(struct pt_regs *regs)
{
	struct ptat_trap_state *state = &current->ptat_trap;

	if (has_open(state)) {
		/* The instruction has copied the flags there. */
		if (state->stepping)
			regs->r11 &= ~X86_EFLAGS_TF;
		end_step(regs);
		state->last[0].addr = -1;
	}
	/* The same copy in another system call is another access. */
	state->last[1].addr = -1;
}

void __ptat_trap_exit_work(struct pt_regs *regs)
{
	if (has_open(&current->ptat_trap))
		end_step(regs);
	current->ptat_trap.last[1].addr = -1;
}
