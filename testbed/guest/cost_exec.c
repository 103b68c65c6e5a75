// SPDX-License-Identifier: BSD-2-Clause
/*
 * What cost.c executes: tells on descriptor 3 what the instruction counter was when it began,
 * and ends.  No C library, and so none of its start: from execve() to here is the kernel's.
 */
#include <sys/syscall.h>

__attribute__((naked)) void _start(void)
{
	asm("rdtsc\n"
	    "shl $32, %%rdx\n"
	    "or %%rdx, %%rax\n"
	    "push %%rax\n"
	    "mov %0, %%eax\n"
	    "mov $3, %%edi\n"
	    "mov %%rsp, %%rsi\n"
	    "mov $8, %%edx\n"
	    "syscall\n"
	    "mov %1, %%eax\n"
	    "xor %%edi, %%edi\n"
	    "syscall\n"
	    :
	    : "i"(SYS_write), "i"(SYS_exit));
}
