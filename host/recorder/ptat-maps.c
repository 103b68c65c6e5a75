// SPDX-License-Identifier: BSD-2-Clause
/*
 * usage: ptat-maps PID [SOCKET] — records to stdout what the descendants of PID map, until stdin
 * ends. Says "ready" on stderr once it does.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "maps.h"

int main(int argc, char **argv)
{
	struct maps_request request = { .end = 0, .out = 1 };
	struct maps *maps;

	if (argc < 2 || argc > 3) {
		fputs("usage: ptat-maps PID [SOCKET]\n", stderr);
		return 2;
	}
	request.root = atoi(argv[1]);
	request.socket = argv[2];
	maps = maps_begin(&request);
	if (!maps) {
		fprintf(stderr, "%s\n", strerror(errno));
		return 2;
	}
	fputs("ready\n", stderr);
	return !maps_run(maps);
}
