/* SPDX-License-Identifier: GPL-2.0 */
/*
 * User code's accesses on their way from the vCPU to the model of its MMU. Between two drains
 * nothing changes the page tables or flushes the TLBs, so when an access is modelled makes no
 * difference, only the order does.
 *
 * The vCPU fills one batch after the other. A thread models them; but where the vCPU would have to
 * wait for it to start, as on a busy host, it models them itself.
 *
 * What the vCPU does here for each access is what the plugin costs: of the same gups, an empty
 * callback takes as long as one that stores a word, and each test more shows.
 */
#ifndef PTAT_QUEUE_H
#define PTAT_QUEUE_H

#include <pthread.h>

#include "cpu.h"

#define QUEUE_BATCHES 16
#define QUEUE_WAKE    (QUEUE_BATCHES / 4) /* waking a thread takes as long as some batches */

struct queue {
	/* The vCPU's alone. */
	uint64_t *next, *end; /* in the open batch; equal: it is full, or there is none */
	bool pending;	      /* something may not be modelled yet */

	/* Read without the lock, too. */
	uint32_t published __attribute__((aligned(64))); /* batches; written by the vCPU */
	uint32_t modelled __attribute__((aligned(64)));	 /* batches */

	/* Under the lock. Who sets modelling may use the CPU without the lock. */
	pthread_mutex_t lock;
	pthread_cond_t more;	 /* for the thread: there is work */
	pthread_cond_t progress; /* for the vCPU: no more than tolerated is left */
	uint32_t tolerated;
	bool modelling;
	bool stop;

	struct cpu *cpu;
	bool threaded;
	pthread_t thread;

	struct batch batch[QUEUE_BATCHES];
};

/* Not @threaded: the vCPU models each batch itself. */
void queue_init(struct queue *queue, struct cpu *cpu, bool threaded);
void queue_free(struct queue *queue);

void queue_drain_pending(struct queue *queue);

/* All is modelled after: from here on @queue->cpu is the caller's. */
static inline void queue_drain(struct queue *queue)
{
	if (queue->pending)
		queue_drain_pending(queue);
}

/* Begins another batch with it. */
void queue_put_first(struct queue *queue, uint64_t access);

/* An access by user code at a user address, inside one page: the address and BATCH_*. */
static inline void queue_put(struct queue *queue, uint64_t access)
{
	uint64_t *next = queue->next;

	if (__builtin_expect(next == queue->end, false)) {
		queue_put_first(queue, access);
		return;
	}
	*next = access;
	queue->next = next + 1;
}

#endif
