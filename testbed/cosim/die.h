/* SPDX-License-Identifier: BSD-2-Clause */
/* How the co-simulation ends when it cannot go on: one line that says why. */
#ifndef PTAT_COSIM_DIE_H
#define PTAT_COSIM_DIE_H

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace cosim
{

template <typename... Values> [[noreturn]] void die(const char *format, Values... values)
{
	fputs("ptat-cosim: ", stderr);
	fprintf(stderr, format, values...);
	fputs("\n", stderr);
	exit(1);
}

/* The same for a system call that failed. */
[[noreturn]] inline void die_of_errno(const char *what)
{
	die("%s: %s", what, strerror(errno));
}

} /* namespace cosim */

#endif
