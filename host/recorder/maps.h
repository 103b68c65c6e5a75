/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef PTAT_MAPS_H
#define PTAT_MAPS_H

struct maps_request {
	int root;	    /* the process whose descendants are recorded */
	int end;	    /* readable once the recording ends */
	int out;	    /* the lines go there */
	const char *socket; /* of libptat-heap.so's messages; NULL: there are none */
};

struct maps;

/* NULL if the kernel refuses, with errno. What is mapped from now on is recorded. */
struct maps *maps_begin(const struct maps_request *request);

/* Records until request->end is readable, and frees all; false if a line could not be written. */
_Bool maps_run(struct maps *maps);

#endif /* PTAT_MAPS_H */
