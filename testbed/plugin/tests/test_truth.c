/* SPDX-License-Identifier: GPL-2.0 */
#include <signal.h>
#include <sys/resource.h>

#include "stream.h"

#define START_NS  UINT64_C(1000000000000000)
#define WALKS_MAX 100000

static struct truth_walk written[WALKS_MAX], found[WALKS_MAX];

static struct truth_walk random_walk(uint64_t *state, uint64_t *time_ns)
{
	*time_ns += 1 + test_random(state) % (test_random(state) % 8 ? 1000 : 1 << 20);
	return (struct truth_walk){
		.time_ns = *time_ns,
		.va = test_random(state) % (UINT64_C(1) << 47) & ~UINT64_C(4095),
		.pgd_pfn = test_random(state) % 64 ? 7 : test_random(state) % (UINT64_C(1) << 40),
		.shift = 12 + 9 * (test_random(state) % 4),
		.cause = test_random(state) % 3,
		.flags = test_random(state) % 32,
		.cpu = test_random(state) % 64 ? 0 : test_random(state) % 256,
	};
}

static void check_equal(const struct truth_walk *a, const struct truth_walk *b)
{
	CHECK_EQUAL(a->time_ns, b->time_ns);
	CHECK_EQUAL(a->va, b->va);
	CHECK_EQUAL(a->pgd_pfn, b->pgd_pfn);
	CHECK_EQUAL(a->shift, b->shift);
	CHECK_EQUAL(a->cause, b->cause);
	CHECK_EQUAL(a->flags, b->flags);
	CHECK_EQUAL(a->cpu, b->cpu);
}

static void test_random_walks(void)
{
	uint64_t state = 1, time_ns = START_NS;
	const char *path = path_of("truth.bin");
	struct truth truth;

	CHECK(!truth_open(&truth, path));
	for (unsigned i = 0; i < WALKS_MAX; i++) {
		written[i] = random_walk(&state, &time_ns);
		truth_put(&truth, &written[i]);
	}
	truth_close(&truth);
	CHECK_EQUAL(truth.lost, 0);
	CHECK_EQUAL(read_truth(path, found, WALKS_MAX), WALKS_MAX);
	for (unsigned i = 0; i < WALKS_MAX; i++)
		check_equal(&found[i], &written[i]);
}

/* A disk that is full for a while: the walks that are there are right, and the others counted. */
static void test_full_disk(rlim_t limit_bytes)
{
	uint64_t state = 2, time_ns = START_NS;
	const char *path = path_of("truth_full.bin");
	struct rlimit limit, unlimited;
	struct truth truth;
	size_t walks, at = 0;

	CHECK(!getrlimit(RLIMIT_FSIZE, &unlimited));
	signal(SIGXFSZ, SIG_IGN);
	CHECK(!truth_open(&truth, path));
	limit = (struct rlimit){ .rlim_cur = limit_bytes, .rlim_max = unlimited.rlim_max };
	CHECK(!setrlimit(RLIMIT_FSIZE, &limit));
	expect_message();
	for (unsigned i = 0; i < WALKS_MAX; i++) {
		if (i == WALKS_MAX / 2) {
			check_message("truth_full.bin: File too large; records are being lost\n");
			CHECK(!setrlimit(RLIMIT_FSIZE, &unlimited));
		}
		written[i] = random_walk(&state, &time_ns);
		truth_put(&truth, &written[i]);
	}
	truth_close(&truth);
	walks = read_truth(path, found, WALKS_MAX);
	CHECK(walks >= WALKS_MAX / 2 && truth.lost > WALKS_MAX / 4);
	CHECK_EQUAL(walks + truth.lost, WALKS_MAX);
	for (size_t i = 0; i < walks; i++) {
		while (at < WALKS_MAX && written[at].time_ns < found[i].time_ns)
			at++;
		CHECK(at < WALKS_MAX);
		check_equal(&found[i], &written[at]);
	}
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	test_directory = argv[1];
	test_random_walks();
	test_full_disk(4096); /* not even the header */
	test_full_disk(100000);
	return 0;
}
