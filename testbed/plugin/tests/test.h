/* SPDX-License-Identifier: GPL-2.0 */
#ifndef PTAT_TEST_H
#define PTAT_TEST_H

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(condition)                                                                           \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition);  \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

#define CHECK_EQUAL(left, right)                                                                   \
	do {                                                                                       \
		uint64_t left_ = (left), right_ = (right);                                         \
		if (left_ != right_) {                                                             \
			fprintf(stderr, "%s:%d: %s is %#" PRIx64 ", %s is %#" PRIx64 "\n",         \
				__FILE__, __LINE__, #left, left_, #right, right_);                 \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

/* xorshift64: the same sequence in every run. */
static inline uint64_t test_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

/* Keeps what goes to stderr until check_message(), which wants it to end with @end. */
static int test_stderr = -1;
static FILE *test_message;

static inline void expect_message(void)
{
	test_message = tmpfile();
	CHECK(test_message);
	test_stderr = dup(STDERR_FILENO);
	dup2(fileno(test_message), STDERR_FILENO);
}

static inline void check_message(const char *end)
{
	char text[4096];
	size_t length;

	dup2(test_stderr, STDERR_FILENO);
	close(test_stderr);
	rewind(test_message);
	length = fread(text, 1, sizeof(text) - 1, test_message);
	text[length] = 0;
	fclose(test_message);
	if (length < strlen(end) || strcmp(text + length - strlen(end), end)) {
		fprintf(stderr, "message is \"%s\", should end with \"%s\"\n", text, end);
		exit(1);
	}
}

#endif
