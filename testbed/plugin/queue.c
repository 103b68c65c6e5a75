/* SPDX-License-Identifier: GPL-2.0 */
#define _GNU_SOURCE /* pthread_setname_np */
#include <signal.h>

#include "capture.h"
#include "queue.h"

static uint32_t backlog(const struct queue *queue)
{
	return __atomic_load_n(&queue->published, __ATOMIC_ACQUIRE) -
	       __atomic_load_n(&queue->modelled, __ATOMIC_ACQUIRE);
}

/* With the lock, which is released meanwhile. */
static void model_next(struct queue *queue)
{
	queue->modelling = true;
	pthread_mutex_unlock(&queue->lock);
	cpu_model_batch(queue->cpu, &queue->batch[queue->modelled % QUEUE_BATCHES]);
	pthread_mutex_lock(&queue->lock);
	queue->modelling = false;
	__atomic_store_n(&queue->modelled, queue->modelled + 1, __ATOMIC_RELEASE);
	if (backlog(queue) <= queue->tolerated)
		pthread_cond_signal(&queue->progress);
}

static void *model_thread(void *argument)
{
	struct queue *queue = argument;

	pthread_mutex_lock(&queue->lock);
	while (!queue->stop) {
		/* A signal may be lost: another follows, and the vCPU does not depend on it. */
		if (queue->modelling || backlog(queue) < QUEUE_WAKE)
			pthread_cond_wait(&queue->more, &queue->lock);
		while (!queue->modelling && backlog(queue))
			model_next(queue);
	}
	pthread_mutex_unlock(&queue->lock);
	return NULL;
}

void queue_init(struct queue *queue, struct cpu *cpu, bool threaded)
{
	sigset_t all, before;

	memset(queue, 0, sizeof(*queue));
	queue->cpu = cpu;
	pthread_mutex_init(&queue->lock, NULL);
	pthread_cond_init(&queue->more, NULL);
	pthread_cond_init(&queue->progress, NULL);
	if (!threaded)
		return;
	/* QEMU's signals are for QEMU's threads. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	queue->threaded = !pthread_create(&queue->thread, NULL, model_thread, queue);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (queue->threaded)
		pthread_setname_np(queue->thread, "ptat-model");
}

void queue_free(struct queue *queue)
{
	if (queue->threaded) {
		pthread_mutex_lock(&queue->lock);
		queue->stop = true;
		pthread_cond_signal(&queue->more);
		pthread_mutex_unlock(&queue->lock);
		pthread_join(queue->thread, NULL);
	}
	pthread_cond_destroy(&queue->progress);
	pthread_cond_destroy(&queue->more);
	pthread_mutex_destroy(&queue->lock);
}

static struct batch *open_batch(struct queue *queue)
{
	return &queue->batch[queue->published % QUEUE_BATCHES];
}

static void publish(struct queue *queue)
{
	struct batch *batch = open_batch(queue);

	batch->accesses = queue->next - batch->access;
	batch->end_ns = capture_clock_ns();
	queue->next = NULL;
	queue->end = NULL;
	__atomic_store_n(&queue->published, queue->published + 1, __ATOMIC_RELEASE);
}

/* Returns with at most @tolerated batches that are not modelled. */
static void catch_up(struct queue *queue, uint32_t tolerated)
{
	pthread_mutex_lock(&queue->lock);
	queue->tolerated = tolerated;
	while (backlog(queue) > tolerated) {
		if (queue->modelling)
			pthread_cond_wait(&queue->progress, &queue->lock);
		else
			model_next(queue);
	}
	pthread_mutex_unlock(&queue->lock);
}

void queue_put_first(struct queue *queue, uint64_t access)
{
	struct batch *batch;

	if (queue->next)
		publish(queue);
	if (queue->threaded && backlog(queue) >= QUEUE_WAKE)
		pthread_cond_signal(&queue->more);
	/* Not for each batch: to sleep and to be woken takes longer than to model one. */
	if (backlog(queue) == QUEUE_BATCHES)
		catch_up(queue, QUEUE_BATCHES / 2);
	batch = open_batch(queue);
	batch->begin_ns = capture_clock_ns();
	batch->access[0] = access;
	queue->next = batch->access + 1;
	queue->end = batch->access + BATCH_ACCESSES;
	queue->pending = true;
}

void queue_drain_pending(struct queue *queue)
{
	publish(queue);
	catch_up(queue, 0);
	queue->pending = false;
}
