/* SPDX-License-Identifier: GPL-2.0 */
/* Writer of the truth file: every walk for a user address, as the model made it. */
#ifndef PTAT_TRUTH_WRITER_H
#define PTAT_TRUTH_WRITER_H

#include "outfile.h"
#include "ptat_truth.h"

struct truth {
	struct outfile out;
	uint64_t unsaved;
	uint64_t lost; /* records that could not be written */
};

/* 0, or -1 after a message on stderr. @path must outlive it. */
int truth_open(struct truth *truth, const char *path);
void truth_walk(struct truth *truth, const struct ptat_truth *record);
void truth_flush(struct truth *truth);
void truth_close(struct truth *truth);

#endif
