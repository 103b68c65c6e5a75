/* SPDX-License-Identifier: GPL-2.0 */
#define _GNU_SOURCE /* pthread_setname_np */
#include <signal.h>

#include "queue.h"

/* About what a batch takes: a thread that sleeps is woken late, and a call to the kernel. */
#define SPINS 2000

static void progress_init(struct progress *progress)
{
	pthread_mutex_init(&progress->lock, NULL);
	pthread_cond_init(&progress->raised, NULL);
	progress->value = 0;
}

static void progress_free(struct progress *progress)
{
	pthread_mutex_destroy(&progress->lock);
	pthread_cond_destroy(&progress->raised);
}

static uint32_t progress_value(const struct progress *progress)
{
	return __atomic_load_n(&progress->value, __ATOMIC_ACQUIRE);
}

static void progress_raise(struct progress *progress)
{
	pthread_mutex_lock(&progress->lock);
	__atomic_store_n(&progress->value, progress->value + 1, __ATOMIC_RELEASE);
	pthread_cond_signal(&progress->raised);
	pthread_mutex_unlock(&progress->lock);
}

static void relax(void)
{
#ifdef __x86_64__
	__builtin_ia32_pause();
#endif
}

/* Until the value is no longer @old. */
static void progress_wait(struct progress *progress, uint32_t old)
{
	for (int i = 0; i < SPINS; i++) {
		if (progress_value(progress) != old)
			return;
		relax();
	}
	pthread_mutex_lock(&progress->lock);
	while (progress->value == old)
		pthread_cond_wait(&progress->raised, &progress->lock);
	pthread_mutex_unlock(&progress->lock);
}

/* Waits until at most @left of the published batches are not modelled. */
static void wait_for_model(struct queue *queue, uint32_t left)
{
	uint32_t modelled;

	for (;;) {
		modelled = progress_value(&queue->modelled);
		if (queue->published.value - modelled <= left)
			return;
		progress_wait(&queue->modelled, modelled);
	}
}

static void *model(void *argument)
{
	struct queue *queue = argument;

	for (uint32_t i = 0;; i++) {
		progress_wait(&queue->published, i);
		if (__atomic_load_n(&queue->stop, __ATOMIC_RELAXED))
			return NULL;
		cpu_model_batch(queue->cpu, &queue->batch[i % QUEUE_BATCHES]);
		progress_raise(&queue->modelled);
	}
}

void queue_init(struct queue *queue, struct cpu *cpu, bool threaded)
{
	sigset_t all, before;

	memset(queue, 0, sizeof(*queue));
	queue->cpu = cpu;
	progress_init(&queue->published);
	progress_init(&queue->modelled);
	if (!threaded)
		return;
	/* QEMU's signals are for QEMU's threads. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	queue->threaded = !pthread_create(&queue->thread, NULL, model, queue);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (queue->threaded)
		pthread_setname_np(queue->thread, "ptat-model");
}

void queue_free(struct queue *queue)
{
	if (queue->threaded) {
		queue_drain(queue);
		__atomic_store_n(&queue->stop, true, __ATOMIC_RELAXED);
		progress_raise(&queue->published);
		pthread_join(queue->thread, NULL);
	}
	progress_free(&queue->published);
	progress_free(&queue->modelled);
}

static struct batch *open_batch(struct queue *queue)
{
	return &queue->batch[queue->published.value % QUEUE_BATCHES];
}

static void close_batch(struct queue *queue)
{
	struct batch *batch = open_batch(queue);

	batch->accesses = queue->next - batch->access;
	batch->end_ns = capture_clock_ns();
	queue->next = NULL;
	queue->end = NULL;
	queue->last = NULL;
}

void queue_more(struct queue *queue)
{
	struct batch *batch;

	if (queue->next) {
		close_batch(queue);
		if (queue->threaded) {
			progress_raise(&queue->published);
			wait_for_model(queue, QUEUE_BATCHES - 1);
		} else {
			cpu_model_batch(queue->cpu, open_batch(queue));
		}
	}
	batch = open_batch(queue);
	batch->begin_ns = capture_clock_ns();
	queue->next = batch->access;
	queue->end = batch->access + BATCH_ACCESSES;
	queue->pending = true;
}

void queue_drain_pending(struct queue *queue)
{
	close_batch(queue);
	wait_for_model(queue, 0);
	cpu_model_batch(queue->cpu, open_batch(queue));
	queue->pending = false;
}
