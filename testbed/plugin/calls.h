/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Call chains of kernel code, from its calls and returns alone: a call stores its return address in
 * a slot of the stack, the return loads it from there. A kernel stack grows downwards inside an
 * aligned piece of memory, so a call at a slot shows that all calls at that slot and below are
 * over, however they ended: by returns, by a longer way up, or with the task that had the stack
 * before. Switches to another stack show by the address, too.
 *
 * Interrupts and exceptions are no calls. Who knows what they interrupted adds it as one.
 */
#ifndef PTAT_CALLS_H
#define PTAT_CALLS_H

#include <pthread.h>
#include <stdint.h>

#define CALL_STACK_SHIFT  14 /* the kernel's THREAD_SIZE */
#define CALL_STACKS_LISTS 256

struct call {
	uint64_t slot;	  /* where its return address is */
	uint64_t address; /* of the call */
	uint32_t place;	  /* for the log; 0: it does not know the call yet */
};

struct call_stack {
	struct call_stack *next;
	uint64_t number; /* address >> CALL_STACK_SHIFT */
	unsigned depth, room;
	struct call *call; /* the outermost first; their slots fall */
};

/* The stacks of all tasks; the lock is for finding one. A stack is one vCPU's at a time. */
struct calls {
	pthread_mutex_t lock;
	struct call_stack *list[CALL_STACKS_LISTS];
};

void calls_init(struct calls *calls);

/* The stack that @slot is on: @before, which may be NULL, or another. */
struct call_stack *calls_find(struct calls *calls, struct call_stack *before, uint64_t slot);

/* A call whose return address was stored to @slot, or a return that loaded it from there. */
void call_push(struct call_stack *stack, uint64_t slot, uint64_t address);
void call_pop(struct call_stack *stack, uint64_t slot);

#endif
