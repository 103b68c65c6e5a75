/* SPDX-License-Identifier: GPL-2.0 */
#include "truth.h"

#define WALK_WORDS_MAX 3 /* TIME, SPACE and the walk */

static void put_word(struct truth *truth, uint64_t word)
{
	outfile_put(&truth->out, &word, sizeof(word));
}

int truth_open(struct truth *truth, const char *path)
{
	truth->unsaved = 0;
	truth->lost = 0;
	truth->based = false;
	if (outfile_open(&truth->out, path))
		return -1;
	put_word(truth, PTAT_TRUTH_HEADER);
	return 0;
}

void truth_flush(struct truth *truth)
{
	if (!outfile_flush(&truth->out)) {
		truth->lost += truth->unsaved;
		truth->based = false;
		if (!truth->out.file_bytes)
			put_word(truth, PTAT_TRUTH_HEADER);
	}
	truth->unsaved = 0;
}

void truth_put(struct truth *truth, const struct truth_walk *walk)
{
	uint64_t space = PTAT_TRUTH_SPACE(walk->cpu, walk->pgd_pfn);
	uint64_t delta;

	if (!outfile_has_room(&truth->out, WALK_WORDS_MAX * sizeof(uint64_t)))
		truth_flush(truth);

	delta = walk->time_ns - truth->time_ns;
	if (!truth->based || delta >> PTAT_TRUTH_WALK_DELTA_BITS) {
		put_word(truth, PTAT_TRUTH_TIME(walk->time_ns));
		delta = 0;
	}
	if (!truth->based || space != truth->space)
		put_word(truth, space);
	put_word(truth, PTAT_TRUTH_WALK(walk->cause, walk->flags, walk->shift, delta, walk->va));
	truth->time_ns = walk->time_ns;
	truth->space = space;
	truth->based = true;
	truth->unsaved++;
}

void truth_close(struct truth *truth)
{
	truth_flush(truth);
	outfile_close(&truth->out);
}
