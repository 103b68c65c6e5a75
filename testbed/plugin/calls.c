/* SPDX-License-Identifier: GPL-2.0 */
#include <stdlib.h>
#include <string.h>

#include "calls.h"

void calls_init(struct calls *calls)
{
	memset(calls, 0, sizeof(*calls));
	pthread_mutex_init(&calls->lock, NULL);
}

struct call_stack *calls_find(struct calls *calls, struct call_stack *before, uint64_t slot)
{
	uint64_t number = slot >> CALL_STACK_SHIFT;
	struct call_stack **list = &calls->list[number % CALL_STACKS_LISTS];
	struct call_stack *stack;

	if (before && before->number == number)
		return before;
	pthread_mutex_lock(&calls->lock);
	stack = *list;
	while (stack && stack->number != number)
		stack = stack->next;
	if (!stack) {
		stack = calloc(1, sizeof(*stack));
		if (!stack)
			abort();
		stack->number = number;
		stack->next = *list;
		*list = stack;
	}
	pthread_mutex_unlock(&calls->lock);
	return stack;
}

void call_pop(struct call_stack *stack, uint64_t slot)
{
	while (stack->depth && stack->call[stack->depth - 1].slot <= slot)
		stack->depth--;
}

void call_push(struct call_stack *stack, uint64_t slot, uint64_t address)
{
	call_pop(stack, slot);
	if (stack->depth == stack->room) {
		stack->room = stack->room ? 2 * stack->room : 16;
		stack->call = realloc(stack->call, stack->room * sizeof(*stack->call));
		if (!stack->call)
			abort();
	}
	stack->call[stack->depth++] = (struct call){ .slot = slot, .address = address };
}
