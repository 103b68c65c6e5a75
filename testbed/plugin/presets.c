/* SPDX-License-Identifier: GPL-2.0 */
/*
 * TLBs of real CPUs, for one hardware thread. Replacement is true LRU in all of them: what real
 * CPUs do is not published. Where a first-level array has no entries for a page size, the model
 * keeps the page as one entry in the array named here, where CPUs break it into smaller pieces.
 *
 * Skylake's sizes agree with the manual's table as others quote it; those of Ivy Bridge, Zen 4 and
 * the paging-structure caches have not been held against their source word by word. Intel does
 * not publish the latter; S. van Schaik et al., "RevAnC: A Framework for Reverse Engineering
 * Hardware Page Table Caches", EuroSec 2017, is where to look. Ours are rounded to what a
 * set-associative array can have. Every size can be changed on the command line (--tlb).
 */
#include "tlb.h"

#define SIDE_BOTH (SIDE_DATA | SIDE_FETCH)

const struct cpu_model cpu_models[] = {
	{
		/*
		 * Intel 248966 (Optimization Reference Manual), "Intel Microarchitecture Code
		 * Name Sandy Bridge", table of TLB parameters; Ivy Bridge is the same. Its STLB
		 * holds 4 KiB pages only, and none of 1 GiB go beyond the first level.
		 */
		.name = "ivybridge-ep",
		.tlb =
			{
				{"l1d", SIDE_DATA, 1, SIZE_4K, 64, 4},
				{"l1d_2m", SIDE_DATA, 1, SIZE_2M, 32, 4},
				{"l1d_1g", SIDE_DATA, 1, SIZE_1G, 4, 4},
				{"l1i", SIDE_FETCH, 1, SIZE_4K, 128, 4},
				{"l1i_2m", SIDE_FETCH, 1, SIZE_2M | SIZE_1G, 8, 8},
				{"stlb", SIDE_BOTH, 2, SIZE_4K, 512, 4},
			},
		.psc = {{32, 4}, {4, 4}, {0, 0}},
	},
	{
		/* Intel 248966, "Skylake Client Microarchitecture", table of TLB parameters. */
		.name = "skylake",
		.tlb =
			{
				{"l1d", SIDE_DATA, 1, SIZE_4K, 64, 4},
				{"l1d_2m", SIDE_DATA, 1, SIZE_2M, 32, 4},
				{"l1d_1g", SIDE_DATA, 1, SIZE_1G, 4, 4},
				{"l1i", SIDE_FETCH, 1, SIZE_4K, 128, 8},
				{"l1i_2m", SIDE_FETCH, 1, SIZE_2M | SIZE_1G, 8, 8},
				{"stlb", SIDE_BOTH, 2, SIZE_4K | SIZE_2M, 1536, 12},
				{"stlb_1g", SIDE_BOTH, 2, SIZE_1G, 16, 4},
			},
		.psc = {{32, 4}, {4, 4}, {0, 0}},
	},
	{
		/*
		 * AMD 57647 (Software Optimization Guide for the Zen 4 Microarchitecture),
		 * "Translation Lookaside Buffers". PDEs share the L2 DTLB there; the model gives
		 * them an array of their own instead. PDPTEs and PML4Es share one page directory
		 * cache of 64 entries; the model halves it.
		 */
		.name = "zen4",
		.tlb =
			{
				{"l1d", SIDE_DATA, 1, SIZE_4K | SIZE_2M | SIZE_1G, 72, 72},
				{"l1i", SIDE_FETCH, 1, SIZE_4K | SIZE_2M | SIZE_1G, 64, 64},
				{"l2d", SIDE_DATA, 2, SIZE_4K | SIZE_2M, 3072, 24},
				{"l2i", SIDE_FETCH, 2, SIZE_4K | SIZE_2M, 512, 8},
			},
		.psc = {{64, 8}, {32, 32}, {32, 32}},
	},
};

const unsigned cpu_models_count = sizeof(cpu_models) / sizeof(cpu_models[0]);
