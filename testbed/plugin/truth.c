/* SPDX-License-Identifier: GPL-2.0 */
#include "truth.h"

int truth_open(struct truth *truth, const char *path)
{
	truth->unsaved = 0;
	truth->lost = 0;
	return outfile_open(&truth->out, path);
}

static void account(struct truth *truth, enum outfile_state state)
{
	if (state == OUTFILE_BUFFERED)
		return;
	if (state == OUTFILE_DROPPED)
		truth->lost += truth->unsaved;
	truth->unsaved = 0;
}

void truth_walk(struct truth *truth, const struct ptat_truth *record)
{
	truth->unsaved++;
	account(truth, outfile_write(&truth->out, record, sizeof(*record)));
}

void truth_flush(struct truth *truth)
{
	account(truth, outfile_flush(&truth->out));
}

void truth_close(struct truth *truth)
{
	truth_flush(truth);
	outfile_close(&truth->out);
}
