/* SPDX-License-Identifier: GPL-2.0 */
/* Recognises the few x86-64 instructions that the model has to know about. */
#ifndef PTAT_INSN_H
#define PTAT_INSN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum insn_kind {
	INSN_OTHER,

	/* Calls and returns: */
	INSN_CALL,   /* near */
	INSN_RETURN, /* near */
	INSN_IRET,

	/* What changes the model's state: */
	INSN_MOV_TO_CR, /* cr, reg */
	INSN_INVLPG,	/* operand */
	INSN_INVPCID,	/* operand, reg */
	INSN_MAGIC,	/* magic: NOPL with a displacement of 0x505400XX */
};

#define INSN_MAX_BYTES 15

#define REG_NONE       0xff

struct insn {
	enum insn_kind kind;
	bool locked;   /* also the implied lock of XCHG with memory */
	bool modifies; /* loads from memory what it then stores there: ALU operations, INC, … */
	uint8_t cr;
	uint8_t reg;   /* 0 RAX … 15 R15, the CPU's own numbers */
	uint8_t magic; /* XX */

	/* Effective address: segment base + base + index << scale + displacement. */
	uint8_t base, index, scale; /* REG_NONE: not there */
	char segment;		    /* 'f', 'g' or 0 */
	int64_t displacement;
};

/* @va is where the instruction lies: RIP-relative operands become absolute. */
void insn_decode(const uint8_t *bytes, size_t length, uint64_t va, struct insn *insn);

#endif
