/* SPDX-License-Identifier: GPL-2.0 */
#include <string.h>

#include "insn.h"
#include "test.h"

#define DECODE(insn, va, ...)                                                                      \
	do {                                                                                       \
		const uint8_t bytes_[] = { __VA_ARGS__ };                                          \
		insn_decode(bytes_, sizeof(bytes_), va, insn);                                     \
	} while (0)

static void test_control_registers(void)
{
	struct insn insn;

	DECODE(&insn, 0, 0x0f, 0x22, 0xd8); /* mov %rax,%cr3 */
	CHECK_EQUAL(insn.kind, INSN_MOV_TO_CR);
	CHECK_EQUAL(insn.cr, 3);
	CHECK_EQUAL(insn.reg, 0);
	DECODE(&insn, 0, 0x41, 0x0f, 0x22, 0xe4); /* mov %r12,%cr4 */
	CHECK_EQUAL(insn.cr, 4);
	CHECK_EQUAL(insn.reg, 12);
	DECODE(&insn, 0, 0x44, 0x0f, 0x22, 0xc7); /* mov %rdi,%cr8 */
	CHECK_EQUAL(insn.cr, 8);
	DECODE(&insn, 0, 0x0f, 0x20, 0xd8); /* mov %cr3,%rax */
	CHECK_EQUAL(insn.kind, INSN_OTHER);
}

static void test_invlpg(void)
{
	struct insn insn;

	DECODE(&insn, 0, 0x0f, 0x01, 0x3f); /* invlpg (%rdi) */
	CHECK_EQUAL(insn.kind, INSN_INVLPG);
	CHECK_EQUAL(insn.base, 7);
	CHECK_EQUAL(insn.index, REG_NONE);
	CHECK_EQUAL(insn.displacement, 0);
	DECODE(&insn, 0, 0x43, 0x0f, 0x01, 0x7c, 0xac, 0xf8); /* invlpg -8(%r12,%r13,4) */
	CHECK_EQUAL(insn.base, 12);
	CHECK_EQUAL(insn.index, 13);
	CHECK_EQUAL(insn.scale, 2);
	CHECK_EQUAL(insn.displacement, -8);
	DECODE(&insn, 0, 0x65, 0x0f, 0x01, 0x3c, 0x25, 0x00, 0x10, 0x00, 0x80);
	CHECK_EQUAL(insn.segment, 'g'); /* invlpg %gs:0xffffffff80001000 */
	CHECK_EQUAL(insn.base, REG_NONE);
	CHECK_EQUAL(insn.index, REG_NONE);
	CHECK_EQUAL(insn.displacement, 0xffffffff80001000);
	DECODE(&insn, 0x1000, 0x0f, 0x01, 0x3d, 0xf0, 0xff, 0xff, 0xff);
	CHECK_EQUAL(insn.base, REG_NONE); /* invlpg -16(%rip) */
	CHECK_EQUAL(insn.displacement, 0x1000 + 7 - 16);
	DECODE(&insn, 0, 0x0f, 0x01, 0xbd, 0x00, 0x01, 0x00, 0x00); /* invlpg 0x100(%rbp) */
	CHECK_EQUAL(insn.base, 5);
	CHECK_EQUAL(insn.displacement, 0x100);
	DECODE(&insn, 0, 0x0f, 0x01, 0xf8); /* swapgs */
	CHECK_EQUAL(insn.kind, INSN_OTHER);
	DECODE(&insn, 0, 0x0f, 0x01, 0x17); /* lgdt (%rdi) */
	CHECK_EQUAL(insn.kind, INSN_OTHER);
}

static void test_invpcid(void)
{
	struct insn insn;

	DECODE(&insn, 0, 0x66, 0x0f, 0x38, 0x82, 0x04, 0x24); /* invpcid (%rsp),%rax */
	CHECK_EQUAL(insn.kind, INSN_INVPCID);
	CHECK_EQUAL(insn.reg, 0);
	CHECK_EQUAL(insn.base, 4);
	CHECK_EQUAL(insn.index, REG_NONE);
	DECODE(&insn, 0, 0x66, 0x44, 0x0f, 0x38, 0x82, 0x0a); /* invpcid (%rdx),%r9 */
	CHECK_EQUAL(insn.reg, 9);
	CHECK_EQUAL(insn.base, 2);
	DECODE(&insn, 0, 0x66, 0x0f, 0x38, 0x80, 0x04, 0x24); /* invept (%rsp),%rax */
	CHECK_EQUAL(insn.kind, INSN_OTHER);
}

static void test_magic(void)
{
	struct insn insn;

	DECODE(&insn, 0, 0x0f, 0x1f, 0x80, 0x01, 0x00, 0x54, 0x50);
	CHECK_EQUAL(insn.kind, INSN_MAGIC);
	CHECK_EQUAL(insn.magic, 1);
	DECODE(&insn, 0, 0x0f, 0x1f, 0x80, 0x02, 0x00, 0x54, 0x50);
	CHECK_EQUAL(insn.magic, 2);
	DECODE(&insn, 0, 0x0f, 0x1f, 0x80, 0x00, 0x00, 0x00, 0x00); /* a common long NOP */
	CHECK_EQUAL(insn.kind, INSN_OTHER);
	DECODE(&insn, 0, 0x0f, 0x1f, 0x81, 0x01, 0x00, 0x54, 0x50); /* another register */
	CHECK_EQUAL(insn.kind, INSN_OTHER);
	DECODE(&insn, 0, 0x66, 0x0f, 0x1f, 0x80, 0x01, 0x00, 0x54, 0x50);
	CHECK_EQUAL(insn.kind, INSN_OTHER);
}

static void test_locks(void)
{
	struct insn insn;

	DECODE(&insn, 0, 0xf0, 0x48, 0x0f, 0xb1, 0x17); /* lock cmpxchg %rdx,(%rdi) */
	CHECK(insn.locked);
	DECODE(&insn, 0, 0x48, 0x87, 0x07); /* xchg %rax,(%rdi) */
	CHECK(insn.locked);
	DECODE(&insn, 0, 0x48, 0x87, 0xc7); /* xchg %rax,%rdi */
	CHECK(!insn.locked);
	DECODE(&insn, 0, 0x48, 0x0f, 0xb1, 0x17); /* cmpxchg %rdx,(%rdi) */
	CHECK(!insn.locked);
	DECODE(&insn, 0, 0xf3, 0x48, 0xab); /* rep stos */
	CHECK(!insn.locked);
}

static void test_modifies(void)
{
	struct insn insn;

	DECODE(&insn, 0, 0x49, 0x31, 0x44, 0xcd, 0x00); /* xor %rax,(%r13,%rcx,8) */
	CHECK(insn.modifies);
	DECODE(&insn, 0, 0x48, 0x83, 0x00, 0x01); /* addq $1,(%rax) */
	CHECK(insn.modifies);
	DECODE(&insn, 0, 0xff, 0x0f); /* decl (%rdi) */
	CHECK(insn.modifies);
	DECODE(&insn, 0, 0xf6, 0x1f); /* negb (%rdi) */
	CHECK(insn.modifies);
	DECODE(&insn, 0, 0xf0, 0x66, 0x81, 0x0f, 0x34, 0x12); /* lock orw $0x1234,(%rdi) */
	CHECK(insn.modifies && insn.locked);
	DECODE(&insn, 0, 0x48, 0x33, 0x07); /* xor (%rdi),%rax */
	CHECK(!insn.modifies);
	DECODE(&insn, 0, 0x48, 0x31, 0xc7); /* xor %rax,%rdi */
	CHECK(!insn.modifies);
	DECODE(&insn, 0, 0x48, 0x39, 0x07); /* cmp %rax,(%rdi) */
	CHECK(!insn.modifies);
	DECODE(&insn, 0, 0x48, 0x83, 0x3f, 0x01); /* cmpq $1,(%rdi) */
	CHECK(!insn.modifies);
	DECODE(&insn, 0, 0xf6, 0x07, 0x01); /* testb $1,(%rdi) */
	CHECK(!insn.modifies);
	DECODE(&insn, 0, 0xff, 0x37); /* push (%rdi) */
	CHECK(!insn.modifies);
	DECODE(&insn, 0, 0x0f, 0x01, 0x3f); /* invlpg (%rdi): its second byte is an add's */
	CHECK(!insn.modifies);
	DECODE(&insn, 0, 0x31);
	CHECK(!insn.modifies);
}

/* Cut anywhere, nothing is read past the end (the sanitizer sees to that). */
static void test_short(void)
{
	static const uint8_t bytes[] = { 0x66, 0x47, 0x0f, 0x38, 0x82, 0x84, 0x25, 1, 2, 3, 4 };

	for (size_t length = 0; length <= sizeof(bytes); length++) {
		uint8_t *copy = malloc(length + !length);
		struct insn insn;

		CHECK(copy);
		memcpy(copy, bytes, length);
		insn_decode(copy, length, 0, &insn);
		CHECK_EQUAL(insn.kind == INSN_INVPCID, length > 5);
		free(copy);
	}
}

static void test_calls(void)
{
	struct insn insn;

	DECODE(&insn, 0, 0xe8, 0x00, 0x01, 0x00, 0x00); /* call */
	CHECK_EQUAL(insn.kind, INSN_CALL);
	DECODE(&insn, 0, 0x3e, 0xff, 0xd0); /* notrack call *%rax */
	CHECK_EQUAL(insn.kind, INSN_CALL);
	DECODE(&insn, 0, 0x41, 0xff, 0x54, 0x24, 0x08); /* call *8(%r12) */
	CHECK_EQUAL(insn.kind, INSN_CALL);
	DECODE(&insn, 0, 0xc3); /* ret */
	CHECK_EQUAL(insn.kind, INSN_RETURN);
	DECODE(&insn, 0, 0xf3, 0xc3); /* repz ret */
	CHECK_EQUAL(insn.kind, INSN_RETURN);
	DECODE(&insn, 0, 0xc2, 0x08, 0x00); /* ret $8 */
	CHECK_EQUAL(insn.kind, INSN_RETURN);
	DECODE(&insn, 0, 0x48, 0xcf); /* iretq */
	CHECK_EQUAL(insn.kind, INSN_IRET);
	DECODE(&insn, 0, 0xff, 0xe0); /* jmp *%rax */
	CHECK_EQUAL(insn.kind, INSN_OTHER);
	DECODE(&insn, 0, 0xff, 0x30); /* push (%rax) */
	CHECK_EQUAL(insn.kind, INSN_OTHER);
	DECODE(&insn, 0, 0x48, 0xff, 0x18); /* lcall *(%rax) */
	CHECK_EQUAL(insn.kind, INSN_OTHER);
	DECODE(&insn, 0, 0x0f, 0xc3, 0x07); /* movnti: its second byte is a ret's */
	CHECK_EQUAL(insn.kind, INSN_OTHER);
	DECODE(&insn, 0, 0xff);
	CHECK_EQUAL(insn.kind, INSN_OTHER);
}

int main(void)
{
	test_control_registers();
	test_invlpg();
	test_invpcid();
	test_magic();
	test_locks();
	test_modifies();
	test_short();
	test_calls();
	return 0;
}
