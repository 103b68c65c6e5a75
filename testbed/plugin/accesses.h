/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Writer of every access that user code makes, compressed: for studies that need more than what
 * misses. Of instructions only the fetches that the model sees, where the running page changes.
 */
#ifndef PTAT_ACCESSES_H
#define PTAT_ACCESSES_H

#include <stdint.h>

#include "gzout.h"

struct batch;

struct accesses {
	struct gzout out;
	uint64_t count, lost;
	uint64_t va;	/* of the last one */
	uint64_t space; /* page frame of the top table, as the file knows it */
};

/* 0, or -1 after a message on stderr. @path must outlive it; NULL: nothing is written. */
int accesses_open(struct accesses *accesses, const char *path);
void accesses_put(struct accesses *accesses, uint64_t pgd_pfn, const struct batch *batch);

/* Adds what says that the file is whole, if it is. */
void accesses_close(struct accesses *accesses);

#endif
