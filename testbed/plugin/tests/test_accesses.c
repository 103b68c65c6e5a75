/* SPDX-License-Identifier: GPL-2.0 */
#include <signal.h>
#include <sys/resource.h>

#include "accesses.h"
#include "capture.h"
#include "cpu.h"
#include "stream.h"

#define BATCHES 300

static struct batch written[BATCHES];

/* Addresses of all lengths, in batches of all lengths, now and then of another process. */
static void make_batches(void)
{
	uint64_t state = 1;

	for (unsigned i = 0; i < BATCHES; i++) {
		written[i].accesses =
			i ? test_random(&state) % (BATCH_ACCESSES + 1) : BATCH_ACCESSES;
		for (unsigned j = 0; j < written[i].accesses; j++) {
			uint64_t access = test_random(&state) % (UINT64_C(1) << 47);
			unsigned kind = test_random(&state) % 3;

			if (kind == 2)
				access |= BATCH_FETCH;
			else
				access |= (kind ? BATCH_STORE : 0) | (test_random(&state) % 7)
									     << BATCH_SIZE_SHIFT;
			written[i].access[j] = access;
		}
	}
}

static uint64_t space_of(unsigned batch)
{
	return batch / 7 % 2 ? (UINT64_C(1) << 40) - 1 : 7;
}

static bool read_word(gzFile file, uint64_t *word)
{
	return gzread(file, word, sizeof(*word)) == sizeof(*word);
}

static void check_access(uint64_t word, uint64_t access, uint64_t *va)
{
	unsigned kind = access & BATCH_FETCH ? 2 : access & BATCH_STORE ? 1 : 0;
	unsigned size_shift = kind == 2 ? 0 : access >> BATCH_SIZE_SHIFT & 7;

	*va = (*va + word) & BATCH_VA;
	CHECK_EQUAL(word >> 62, kind);
	CHECK_EQUAL(word >> 59 & 7, size_shift);
	CHECK_EQUAL(word >> 47 & 0xfff, 0);
	CHECK_EQUAL(*va, access & BATCH_VA);
}

static void test_all_is_there(void)
{
	const char *path = path_of("accesses.bin.gz");
	uint64_t word, space = 0, va = 0, count = 0;
	struct accesses accesses;
	gzFile file;

	CHECK(!accesses_open(&accesses, path));
	for (unsigned i = 0; i < BATCHES; i++)
		accesses_put(&accesses, space_of(i), &written[i]);
	accesses_close(&accesses);
	CHECK_EQUAL(accesses.lost, 0);

	file = gzopen(path, "rb");
	CHECK(file && read_word(file, &word));
	CHECK(!memcmp(&word, "PTATACC\1", sizeof(word)));
	for (unsigned i = 0; i < BATCHES; i++) {
		for (unsigned j = 0; j < written[i].accesses; j++) {
			CHECK(read_word(file, &word));
			if (word >> 61 == 7) {
				space = word & ((UINT64_C(1) << 40) - 1);
				CHECK(read_word(file, &word));
			}
			CHECK_EQUAL(space, space_of(i));
			check_access(word, written[i].access[j], &va);
			count++;
		}
	}
	CHECK(read_word(file, &word));
	CHECK_EQUAL(word, UINT64_C(6) << 61 | count);
	CHECK(!read_word(file, &word));
	gzclose(file);
}

static void test_nothing_is_asked_for(void)
{
	struct accesses accesses;

	CHECK(!accesses_open(&accesses, NULL));
	CHECK(!accesses.out.file);
	accesses_close(&accesses);
}

/* What is lost is counted, and the file does not end as a whole one does. */
static void test_full_disk(void)
{
	const char *path = path_of("accesses_full.bin.gz");
	struct rlimit limit, unlimited;
	struct accesses accesses;
	uint64_t word = 0, all = 0;
	gzFile file;

	CHECK(!getrlimit(RLIMIT_FSIZE, &unlimited));
	signal(SIGXFSZ, SIG_IGN);
	limit = (struct rlimit){ .rlim_cur = 300000, .rlim_max = unlimited.rlim_max };
	CHECK(!setrlimit(RLIMIT_FSIZE, &limit));
	CHECK(!accesses_open(&accesses, path));
	expect_message();
	for (unsigned i = 0; i < BATCHES; i++) {
		accesses_put(&accesses, 7, &written[i]);
		all += written[i].accesses;
	}
	accesses_close(&accesses);
	check_message("accesses_full.bin.gz: File too large; records are being lost\n");
	CHECK(!setrlimit(RLIMIT_FSIZE, &unlimited));
	CHECK(accesses.lost);
	CHECK_EQUAL(accesses.count + accesses.lost, all);

	file = gzopen(path, "rb");
	while (read_word(file, &word))
		CHECK(word >> 61 != 6);
	gzclose(file);
}

static void test_no_such_directory(void)
{
	struct accesses accesses;

	expect_message();
	CHECK_EQUAL(accesses_open(&accesses, "/nowhere/accesses"), -1);
	check_message("ptat plugin: /nowhere/accesses: No such file or directory\n");
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	test_directory = argv[1];
	make_batches();
	test_all_is_there();
	test_nothing_is_asked_for();
	test_full_disk();
	test_no_such_directory();
	return 0;
}
