/* SPDX-License-Identifier: GPL-2.0 */
/*
 * User code's accesses on their way from the vCPU to the model of its MMU. Between two drains
 * nothing changes the page tables or flushes the TLBs, so when an access is modelled makes no
 * difference, only the order does.
 *
 * The vCPU fills one batch after the other. A thread models them; but where the vCPU would have to
 * wait for it, as on a busy host, it models them itself. All functions are the vCPU's.
 */
#ifndef PTAT_QUEUE_H
#define PTAT_QUEUE_H

#include <pthread.h>

#include "cpu.h"

#define QUEUE_BATCHES 16
#define QUEUE_WAKE    (QUEUE_BATCHES / 2) /* waking a thread takes as long as some batches */

struct queue {
	uint64_t *next, *end; /* in the open batch; equal: it is full, or there is none */
	uint64_t *last;	      /* access that went before, or NULL if it cannot be added to */
	bool pending;	      /* something may not be modelled yet */
	uint32_t published;   /* batches; written by the vCPU, read by both */

	bool threaded;
	pthread_t thread;
	pthread_cond_t more;

	/* Who holds the lock may model: */
	pthread_mutex_t lock;
	struct cpu *cpu;
	uint32_t modelled; /* batches; read also without the lock */
	bool stop;

	struct batch batch[QUEUE_BATCHES];
};

/* Not @threaded: the vCPU models each batch itself. */
void queue_init(struct queue *queue, struct cpu *cpu, bool threaded);
void queue_free(struct queue *queue);

/* Makes room for one access. */
void queue_more(struct queue *queue);

void queue_drain_pending(struct queue *queue);

/* All is modelled after: from here on @queue->cpu is the caller's. */
static inline void queue_drain(struct queue *queue)
{
	if (queue->pending)
		queue_drain_pending(queue);
}

/* A load or store (@kind) by user code at a user address, inside one page. */
static inline void queue_access(struct queue *queue, uint64_t va, uint64_t kind)
{
	/*
	 * The page of the access before needs no look-up: it is the most recently used. A store
	 * may need more rights than the load before it.
	 */
	if (queue->last && !((*queue->last ^ va) & BATCH_PAGE)) {
		*queue->last |= kind & BATCH_STORE;
		return;
	}
	if (queue->next == queue->end)
		queue_more(queue);
	queue->last = queue->next++;
	*queue->last = va | kind;
}

static inline void queue_fetch(struct queue *queue, uint64_t va)
{
	if (queue->next == queue->end)
		queue_more(queue);
	queue->last = NULL;
	*queue->next++ = va | BATCH_FETCH;
}

#endif
