/* SPDX-License-Identifier: GPL-2.0 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "accesses.h"
#include "cpu.h"
#include "ptat_access_log.h"

#define BUFFER_BYTES (1u << 18)
#define NO_SPACE     UINT64_MAX

/* Once a piece of a gzip stream is missing, nothing after it can be read. */
static void put_words(struct accesses *accesses, const uint64_t *words, unsigned count)
{
	int bytes = count * sizeof(*words);

	if (accesses->failed || gzwrite(accesses->file, words, bytes) == bytes)
		return;
	fprintf(stderr, "ptat plugin: %s: %s; accesses are being lost\n", accesses->path,
		errno ? strerror(errno) : "cannot write");
	accesses->failed = true;
}

int accesses_open(struct accesses *accesses, const char *path)
{
	uint64_t header = PTAT_ACCESS_LOG_HEADER;

	memset(accesses, 0, sizeof(*accesses));
	if (!path)
		return 0;
	accesses->path = path;
	accesses->space = NO_SPACE;
	accesses->file = gzopen(path, "wbe1");
	if (!accesses->file) {
		fprintf(stderr, "ptat plugin: %s: %s\n", path, strerror(errno));
		return -1;
	}
	gzbuffer(accesses->file, BUFFER_BYTES);
	put_words(accesses, &header, 1);
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
	put_words(accesses, words, used);
	if (accesses->failed)
		accesses->lost += batch->accesses;
	else
		accesses->count += batch->accesses;
}

void accesses_close(struct accesses *accesses)
{
	uint64_t end = PTAT_ACCESS_LOG_END(accesses->count);

	if (!accesses->file)
		return;
	put_words(accesses, &end, 1);
	if (gzclose(accesses->file) != Z_OK && !accesses->failed)
		fprintf(stderr, "ptat plugin: %s: cannot be written to its end\n", accesses->path);
	accesses->file = NULL;
}
