/* SPDX-License-Identifier: GPL-2.0 */
#include <string.h>

#include "accesses.h"
#include "capture.h"
#include "cpu.h"
#include "ptat_access_log.h"

#define NO_SPACE UINT64_MAX

int accesses_open(struct accesses *accesses, const char *path)
{
	uint64_t header = PTAT_ACCESS_LOG_HEADER;

	memset(accesses, 0, sizeof(*accesses));
	accesses->space = NO_SPACE;
	if (gzout_open(&accesses->out, path))
		return -1;
	if (path)
		gzout_put(&accesses->out, &header, sizeof(header));
	return 0;
}

static uint64_t word_of(uint64_t access, uint64_t delta)
{
	if (access & BATCH_FETCH)
		return PTAT_ACCESS_LOG_ACCESS(PTAT_ACCESS_LOG_FETCH, 0, delta);
	return PTAT_ACCESS_LOG_ACCESS(access & BATCH_STORE ? PTAT_ACCESS_LOG_STORE
							   : PTAT_ACCESS_LOG_LOAD,
				      access >> BATCH_SIZE_SHIFT & BATCH_SIZE, delta);
}

void accesses_put(struct accesses *accesses, uint64_t pgd_pfn, const struct batch *batch)
{
	uint64_t words[1 + BATCH_ACCESSES];
	unsigned used = 0;

	if (pgd_pfn != accesses->space)
		words[used++] = PTAT_ACCESS_LOG_SPACE(pgd_pfn);
	accesses->space = pgd_pfn;
	for (unsigned i = 0; i < batch->accesses; i++) {
		uint64_t va = batch->access[i] & BATCH_VA;

		words[used++] = word_of(batch->access[i], va - accesses->va);
		accesses->va = va;
	}
	if (gzout_put(&accesses->out, words, used * sizeof(*words)))
		accesses->count += batch->accesses;
	else
		accesses->lost += batch->accesses;
}

void accesses_close(struct accesses *accesses)
{
	uint64_t end = PTAT_ACCESS_LOG_END(accesses->count);

	if (!accesses->out.file)
		return;
	gzout_put(&accesses->out, &end, sizeof(end));
	gzout_close(&accesses->out);
}
