/* SPDX-License-Identifier: GPL-2.0 */
#include <string.h>

#include "insn.h"

#define REX_R 4
#define REX_X 2
#define REX_B 1

struct cursor {
	const uint8_t *at, *end;
};

static int next_byte(struct cursor *cursor)
{
	return cursor->at < cursor->end ? *cursor->at++ : -1;
}

static int64_t next_signed(struct cursor *cursor, size_t bytes)
{
	int32_t wide = 0;
	int8_t narrow = 0;

	if ((size_t)(cursor->end - cursor->at) < bytes)
		return 0;
	memcpy(bytes == 1 ? (void *)&narrow : (void *)&wide, cursor->at, bytes);
	cursor->at += bytes;
	return bytes == 1 ? narrow : wide;
}

static void decode_memory(struct cursor *cursor, uint8_t modrm, uint8_t rex, uint64_t next_va,
			  struct insn *insn)
{
	uint8_t mod = modrm >> 6, rm = modrm & 7;

	insn->base = rm | (rex & REX_B ? 8 : 0);
	insn->index = REG_NONE;
	if (rm == 4) {
		int sib = next_byte(cursor);

		insn->base = (sib & 7) | (rex & REX_B ? 8 : 0);
		insn->index = (sib >> 3 & 7) | (rex & REX_X ? 8 : 0);
		insn->scale = sib >> 6 & 3;
		if (insn->index == 4)
			insn->index = REG_NONE;
		if ((sib & 7) == 5 && mod == 0) {
			insn->base = REG_NONE;
			insn->displacement = next_signed(cursor, 4);
		}
	} else if (rm == 5 && mod == 0) {
		insn->base = REG_NONE;
		insn->displacement = (int64_t)next_va + next_signed(cursor, 4);
	}
	if (mod == 1)
		insn->displacement = next_signed(cursor, 1);
	else if (mod == 2)
		insn->displacement = next_signed(cursor, 4);
}

/* ADD, OR, ADC, SBB, AND, SUB, XOR, NOT, NEG, INC, DEC (SDM vol. 2, appendix A) of memory. */
static bool modifies_memory(int op, int modrm)
{
	int reg = modrm >> 3 & 7;

	if (modrm < 0 || modrm >= 0xc0)
		return false;
	switch (op) {
	case 0x00 ... 0x3f:
		return (op & 7) < 2 && op >> 3 != 7;
	case 0x80:
	case 0x81:
	case 0x83:
		return reg != 7;
	case 0xf6:
	case 0xf7:
		return reg == 2 || reg == 3;
	case 0xfe:
	case 0xff:
		return reg < 2;
	default:
		return false;
	}
}

void insn_decode(const uint8_t *bytes, size_t length, uint64_t va, struct insn *insn)
{
	struct cursor cursor = { bytes, bytes + length };
	bool operand_size = false;
	uint8_t rex = 0;
	int op, modrm;

	memset(insn, 0, sizeof(*insn));
	for (;;) {
		op = next_byte(&cursor);
		if (op == 0xf0)
			insn->locked = true;
		else if (op == 0x66)
			operand_size = true;
		else if (op == 0x64 || op == 0x65)
			insn->segment = op == 0x64 ? 'f' : 'g';
		else if (op != 0x2e && op != 0x36 && op != 0x3e && op != 0x26 && op != 0x67 &&
			 op != 0xf2 && op != 0xf3)
			break;
	}
	if ((op & ~0xf) == 0x40) {
		rex = op;
		op = next_byte(&cursor);
	}
	insn->modifies = modifies_memory(op, cursor.at < cursor.end ? *cursor.at : -1);
	if (op == 0x86 || op == 0x87) {
		modrm = next_byte(&cursor);
		insn->locked |= modrm >= 0 && modrm < 0xc0;
		return;
	}
	if (op == 0xe8) {
		insn->kind = INSN_CALL;
	} else if (op == 0xff) {
		modrm = next_byte(&cursor);
		if (modrm >= 0 && (modrm >> 3 & 7) == 2)
			insn->kind = INSN_CALL;
	} else if (op == 0xc2 || op == 0xc3) {
		insn->kind = INSN_RETURN;
	} else if (op == 0xcf) {
		insn->kind = INSN_IRET;
	}
	if (op != 0x0f)
		return;

	op = next_byte(&cursor);
	if (op == 0x38) {
		if (next_byte(&cursor) != 0x82 || !operand_size)
			return;
		insn->kind = INSN_INVPCID;
	} else if (op == 0x22) {
		insn->kind = INSN_MOV_TO_CR;
	} else if (op == 0x01) {
		insn->kind = INSN_INVLPG;
	} else if (op == 0x1f) {
		insn->kind = INSN_MAGIC;
	} else {
		return;
	}

	modrm = next_byte(&cursor);
	insn->reg = (modrm >> 3 & 7) | (rex & REX_R ? 8 : 0);
	if (insn->kind == INSN_MOV_TO_CR) {
		insn->cr = insn->reg;
		insn->reg = (modrm & 7) | (rex & REX_B ? 8 : 0);
		return;
	}
	if (modrm < 0 || modrm >= 0xc0 || (insn->kind == INSN_INVLPG && (modrm >> 3 & 7) != 7)) {
		insn->kind = INSN_OTHER;
		return;
	}
	decode_memory(&cursor, modrm, rex, va + length, insn);
	if (insn->kind != INSN_MAGIC)
		return;
	if (length == 7 && modrm == 0x80 && (insn->displacement & ~0xff) == 0x50540000)
		insn->magic = insn->displacement & 0xff;
	else
		insn->kind = INSN_OTHER;
}
