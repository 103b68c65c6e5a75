/* SPDX-License-Identifier: BSD-2-Clause */
/* The records of trapped TLB misses, from the rings of /dev/ptat to a file for each CPU. */
#ifndef TRAPS_H
#define TRAPS_H

#include <stdbool.h>
#include <stdio.h>

struct traps;

/*
 * Opens the device: from here on, the kernel uses its region. The files are made in `directory`; if
 * that is -1, the records are forgotten. NULL with errno if that fails, or if a thread of this
 * process cannot be started.
 *
 * broken: called once, by that thread, if records can't be written; traced processes continue
 * untraced
 */
struct traps *traps_begin(int directory, void (*broken)(const char *file));

/*
 * To be called when nothing is traced any more: writes what is left, and lines "ring CPU RECORDS
 * LOST WAITS" to `out`.
 */
void traps_drain(struct traps *traps, FILE *out);

/* Closes the device: the kernel does not use its region any more. */
void traps_end(struct traps *traps);

#endif
