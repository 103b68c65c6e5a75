/* SPDX-License-Identifier: GPL-2.0 */
#define _GNU_SOURCE /* pthread_setname_np */
#include <signal.h>

#include "queue.h"

static uint32_t backlog(const struct queue *queue)
{
	return __atomic_load_n(&queue->published, __ATOMIC_ACQUIRE) -
	       __atomic_load_n(&queue->modelled, __ATOMIC_ACQUIRE);
}

static void model_next(struct queue *queue)
{
	cpu_model_batch(queue->cpu, &queue->batch[queue->modelled % QUEUE_BATCHES]);
	__atomic_store_n(&queue->modelled, queue->modelled + 1, __ATOMIC_RELEASE);
}

static void *model_thread(void *argument)
{
	struct queue *queue = argument;

	pthread_mutex_lock(&queue->lock);
	while (!queue->stop) {
		/* A signal may be lost: another follows, and the vCPU does not depend on it. */
		if (backlog(queue) < QUEUE_WAKE)
			pthread_cond_wait(&queue->more, &queue->lock);
		while (backlog(queue)) {
			model_next(queue);
			pthread_mutex_unlock(&queue->lock); /* the vCPU may want to drain */
			pthread_mutex_lock(&queue->lock);
		}
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
	queue->last = NULL;
	__atomic_store_n(&queue->published, queue->published + 1, __ATOMIC_RELEASE);
}

/* Returns with at most @left batches that are not modelled. */
static void catch_up(struct queue *queue, uint32_t left)
{
	pthread_mutex_lock(&queue->lock);
	while (backlog(queue) > left)
		model_next(queue);
	pthread_mutex_unlock(&queue->lock);
}

void queue_more(struct queue *queue)
{
	struct batch *batch;

	if (queue->next)
		publish(queue);
	if (queue->threaded && backlog(queue) >= QUEUE_WAKE)
		pthread_cond_signal(&queue->more);
	if (backlog(queue) == QUEUE_BATCHES)
		catch_up(queue, QUEUE_BATCHES - 1);
	batch = open_batch(queue);
	batch->begin_ns = capture_clock_ns();
	queue->next = batch->access;
	queue->end = batch->access + BATCH_ACCESSES;
	queue->pending = true;
}

void queue_drain_pending(struct queue *queue)
{
	publish(queue);
	catch_up(queue, 0);
	queue->pending = false;
}
