/* SPDX-License-Identifier: GPL-2.0 */
/* Writer of the truth file: every walk for a user address, as the model made it. */
#ifndef PTAT_TRUTH_WRITER_H
#define PTAT_TRUTH_WRITER_H

#include <stdbool.h>

#include "outfile.h"
#include "ptat_truth.h"

struct truth_walk {
	uint64_t time_ns;
	uint64_t va;
	uint64_t pgd_pfn;
	uint8_t shift; /* log2 of the page size, or the level where the walk ended */
	uint8_t cause; /* PTAT_TRUTH_CAUSE_* */
	uint8_t flags; /* PTAT_TRUTH_FLAG_* */
	uint8_t cpu;
};

struct truth {
	struct outfile out;
	uint64_t unsaved;
	uint64_t lost; /* walks that could not be written */

	/* What the next walk's word is counted from, unless the file does not say so yet. */
	bool based;
	uint64_t time_ns;
	uint64_t space;
};

/* 0, or -1 after a message on stderr. @path must outlive it. */
int truth_open(struct truth *truth, const char *path);
void truth_put(struct truth *truth, const struct truth_walk *walk);
void truth_flush(struct truth *truth);
void truth_close(struct truth *truth);

#endif
