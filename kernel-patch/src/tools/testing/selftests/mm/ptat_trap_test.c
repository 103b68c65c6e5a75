// SPDX-License-Identifier: GPL-2.0
/*
 * PTAT, trap mode: does a process whose TLB misses trap do and print what it
 * does untraced, and does nobody see the single steps?  Each test runs in a
 * process of its own, once untraced and once traced.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include "../kselftest.h"

#define SELF		"/sys/kernel/mm/ptat/self"
#define DEVICE		"/dev/ptat"
#define RING_BYTES	"/sys/class/misc/ptat/ring_bytes"
#define RING_RECORDS	"/sys/class/misc/ptat/records"
#define FEW_RECORDS	"2048"	/* so that threads have to wait */
#define DETACHED	"/sys/kernel/mm/ptat/stat/detached"
#define PAUSE_S		10
#define PAGE		4096
#define PAGES		4096	/* more than any TLB has */
#define STRIDE		(PAGE / sizeof(uint64_t))
#define TF		0x100UL
#define OUTPUT_BYTES	65536
#define TRACING		"/sys/kernel/tracing/"
#define PROBE		"ptat_trap_test"
#define USER32_CS	0x23
#define USER_DS		0x2b

/* As in linux/ptat.h, which may not be installed. */
struct ring {
	uint64_t head, tail, lost, waits;
	uint32_t records, record_bytes, data_offset, cpu;
};

static uint8_t *pages;

#define require(condition)						\
	do {								\
		if (!(condition)) {					\
			printf("line %d: %s (%s)\n", __LINE__,		\
			       #condition, strerror(errno));		\
			exit(KSFT_FAIL);				\
		}							\
	} while (0)

static bool write_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY);
	bool done = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);

	close(fd);
	return done;
}

static uint8_t *page(unsigned int i)
{
	return pages + (size_t)(i % PAGES) * PAGE;
}

static uint8_t *map(size_t count, int prot)
{
	uint8_t *p = mmap(NULL, count * PAGE, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	require(p != MAP_FAILED);
	return p;
}

/* Accesses that the compiler neither drops nor joins. */
static uint8_t load(const uint8_t *p)
{
	uint8_t value;

	asm volatile("movb %1, %0" : "=q" (value) : "m" (*p));
	return value;
}

static void store(uint8_t *p, uint8_t value)
{
	asm volatile("movb %1, %0" : "=m" (*p) : "q" (value));
}

/* Let nothing else be left in the TLB. */
static void thrash(void)
{
	unsigned int i;

	for (i = 0; i < PAGES; i++)
		load(page(i) + 64);
}

/* pushf and popf whose stack misses: neither may show or lose a trap flag. */
static void test_flags(void)
{
	unsigned long pushed, popped;
	unsigned int i;

	for (i = 0; i < 500; i++) {
		asm volatile("mov %%rsp, %%r12\n\t"
			     "mov %2, %%rsp\n\t"
			     "pushf\n\t"
			     "mov (%%rsp), %0\n\t"
			     "popf\n\t"
			     "pushf\n\t"
			     "pop %1\n\t"
			     "mov %%r12, %%rsp"
			     : "=&r" (pushed), "=&r" (popped)
			     : "r" (page(i * 7 + 1) + PAGE / 2)
			     : "r12", "memory", "cc");
		require(!(pushed & TF) && !(popped & TF));
	}
}

/* Accesses that need two pages, locked ones among them. */
static void test_crossing(void)
{
	unsigned int i;

	for (i = 0; i < 300; i += 3) {
		uint64_t *p = (void *)(page(i) + PAGE - 3), value = i * 0x0101010101UL, found;

		thrash();
		asm volatile("movq %1, %0" : "=m" (*p) : "r" (value));
		thrash();
		asm volatile("movq %1, %0" : "=r" (found) : "m" (*p));
		require(found == value);
	}
	for (i = 0; i < 40; i++) {
		unsigned __int128 *wide = (void *)page(i * 5 + 2);
		uint64_t *split = (void *)(page(i * 5 + 3) - 4);
		uint64_t low = i, high = ~0UL - i;
		bool same;

		*wide = ((unsigned __int128)high << 64) | low;
		thrash();
		asm volatile("lock cmpxchg16b %1; sete %0"
			     : "=q" (same), "+m" (*wide), "+a" (low), "+d" (high)
			     : "b" (1UL), "c" (2UL) : "cc", "memory");
		require(same && *wide == (((unsigned __int128)2 << 64) | 1));
		*split = 5;
		thrash();
		asm volatile("lock addq $3, %0" : "+m" (*split));
		require(*split == 8);
	}
}

/* String instructions, forth and back. */
static void test_strings(void)
{
	const size_t size = 200 * PAGE + 17;
	uint8_t *from = page(0) + 5, *to = page(1000) + PAGE - 6;
	void *d = to, *s = from;
	size_t i, n = size;

	for (i = 0; i < size; i++)
		from[i] = i * 31;
	memset(to, 0, size);
	thrash();
	asm volatile("rep movsb" : "+D" (d), "+S" (s), "+c" (n) : : "memory");
	require(!n && !memcmp(from, to, size));

	memset(to, 0, size);
	thrash();
	d = to + size - 8;
	s = from + size - 8;
	n = size / 8;
	asm volatile("std; rep movsq; cld" : "+D" (d), "+S" (s), "+c" (n) : : "memory");
	require(!memcmp(from + size % 8, to + size % 8, size - size % 8));
}

/* One instruction, eight pages. */
static void test_gather(void)
{
	int32_t index[8], out[8], mask[8];
	unsigned int round, i;

	if (!__builtin_cpu_supports("avx2"))
		exit(KSFT_SKIP);
	for (round = 0; round < 50; round++) {
		for (i = 0; i < 8; i++) {
			index[i] = (round * 61 + i * 97) % (PAGES - 1) * PAGE + PAGE - 2;
			memcpy(pages + index[i], &(int32_t){ round * 100 + i }, 4);
			mask[i] = -1;
		}
		thrash();
		asm volatile("vmovdqu %1, %%ymm1\n\t"
			     "vmovdqu %2, %%ymm2\n\t"
			     "vpgatherdd %%ymm2, (%3,%%ymm1,1), %%ymm0\n\t"
			     "vmovdqu %%ymm0, %0"
			     : "=m" (out)
			     : "m" (index), "m" (mask), "r" (pages)
			     : "xmm0", "xmm1", "xmm2", "memory");
		for (i = 0; i < 8; i++)
			require(out[i] == (int32_t)(round * 100 + i));
	}
}

/* The kernel copies from and to pages that the TLB does not have. */
static void test_kernel_copies(void)
{
	const size_t size = 800000;
	uint8_t *from = page(0) + 5, *to = page(1000) + PAGE - 6;
	struct iovec local, remote;
	unsigned int word = 7;
	size_t got, i;
	int fds[2];

	for (i = 0; i < size; i++)
		from[i] = i * 13;
	require(!pipe(fds));
	require(fcntl(fds[1], F_SETPIPE_SZ, 1 << 20) >= (int)size);
	thrash();
	require(write(fds[1], from, size) == (ssize_t)size);
	thrash();
	for (got = 0; got < size;) {
		ssize_t n = read(fds[0], to + got, size - got);

		require(n > 0);
		got += n;
	}
	require(!memcmp(from, to, size));

	local = (struct iovec){ to, PAGE * 3 };
	remote = (struct iovec){ from, PAGE * 3 };
	memset(to, 0, PAGE * 3);
	thrash();
	require(process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == PAGE * 3);
	require(!memcmp(from, to, PAGE * 3));

	/* Where the kernel may not sleep. */
	for (i = 0; i < 100; i++) {
		uint32_t *futex = (void *)page(i * 11);

		*futex = word;
		thrash();
		require(syscall(SYS_futex, futex, FUTEX_WAIT_PRIVATE, word + 1, NULL) == -1);
		require(errno == EAGAIN);
	}
}

static unsigned int alarms, traps, flags_seen, faults;
static sigjmp_buf again;

static void on_alarm(int number, siginfo_t *info, void *context)
{
	ucontext_t *c = context;

	flags_seen += !!(c->uc_mcontext.gregs[REG_EFL] & TF);
	alarms++;
	load(page(alarms * 13));
}

static void on_trap(int number, siginfo_t *info, void *context)
{
	traps++;
}

static void on_fault(int number, siginfo_t *info, void *context)
{
	faults++;
	siglongjmp(again, 1);
}

static void handle(int number, void (*handler)(int, siginfo_t *, void *))
{
	struct sigaction action = {
		.sa_sigaction = handler,
		.sa_flags = SA_SIGINFO | SA_RESTART,
	};

	require(!sigaction(number, &action, NULL));
}

static void test_signals(void)
{
	struct itimerval often = { { 0, 2000 }, { 0, 2000 } }, never = { { 0, 0 }, { 0, 0 } };
	stack_t stack = { .ss_sp = page(100), .ss_size = 16 * PAGE };
	unsigned int i;

	require(!sigaltstack(&stack, NULL));
	handle(SIGALRM, on_alarm);
	require(!setitimer(ITIMER_REAL, &often, NULL));
	while (__atomic_load_n(&alarms, __ATOMIC_RELAXED) < 100)
		thrash();
	require(!setitimer(ITIMER_REAL, &never, NULL));
	require(!flags_seen);

	handle(SIGTRAP, on_trap);
	for (i = 0; i < 20; i++) {
		thrash();
		asm volatile("int3");
	}
	require(traps == 20);
}

/* A program that steps itself sees each of its instructions once. */
static void test_own_steps(void)
{
	uint64_t *x = (void *)page(77), *y = (void *)page(1078);

	handle(SIGTRAP, on_trap);
	x[0] = 1;
	y[0] = 2;
	thrash();
	asm volatile("pushf\n\t"
		     "orl $0x100, (%%rsp)\n\t"
		     "popf\n\t"
		     "mov (%0), %%rax\n\t"
		     "add (%1), %%rax\n\t"
		     "mov %%rax, (%0)\n\t"
		     "nop\n\t"
		     "pushf\n\t"
		     "andl $~0x100, (%%rsp)\n\t"
		     "popf\n\t"
		     "nop"
		     : : "r" (x), "r" (y) : "rax", "memory", "cc");
	printf("%u own steps\n", traps);
	require(x[0] == 3);
}

/* What is not allowed still is not, and says so. */
static void test_protection(void)
{
	unsigned int i;

	handle(SIGSEGV, on_fault);
	for (i = 0; i < 10; i++) {
		uint8_t *p = map(2, PROT_READ | PROT_WRITE);

		p[0] = 1;
		p[PAGE] = 1;
		require(!mprotect(p, PAGE, PROT_NONE));
		require(!mprotect(p + PAGE, PAGE, PROT_READ));
		thrash();
		if (!sigsetjmp(again, 1)) {
			load(p);
			require(!"read of PROT_NONE");
		}
		if (!sigsetjmp(again, 1)) {
			store(p + PAGE, 2);
			require(!"write of PROT_READ");
		}
		require(p[PAGE] == 1);
		if (!sigsetjmp(again, 1)) {
			((void (*)(void))(p + PAGE))();
			require(!"fetch of PROT_READ");
		}
		munmap(p, 2 * PAGE);
	}
	require(faults == 30);
}

/* syscall as the first instruction of a page that misses: r11 has the flags. */
static void test_syscall_flags(void)
{
	/* mov $39, %eax; syscall; mov %r11, (%rdi); ret */
	static const uint8_t code[] = {
		0xb8, 39, 0, 0, 0, 0x0f, 0x05, 0x4c, 0x89, 0x1f, 0xc3,
	};
	uint8_t *p = map(64, PROT_READ | PROT_WRITE | PROT_EXEC);
	unsigned int round, i;

	for (i = 1; i < 64; i++)
		memcpy(p + i * PAGE - 5, code, sizeof(code));
	for (round = 0; round < 10; round++) {
		for (i = 1; i < 64; i++) {
			unsigned long flags = 0, result;

			if (i % 8 == 0)
				thrash();
			asm volatile("call *%1"
				     : "=a" (result)
				     : "r" (p + i * PAGE - 5), "D" (&flags)
				     : "rcx", "r11", "memory");
			require((pid_t)result == getpid());
			require(!(flags & TF));
		}
	}
}

static void test_fork(void)
{
	int status, i;
	pid_t pid;

	for (i = 0; i < 30; i++) {
		thrash();
		pid = fork();
		if (!pid) {
			unsigned long flags;
			int k;

			for (k = 0; k < 100; k++)
				page(i)[k]++;
			asm volatile("pushf; pop %0" : "=r" (flags));
			_exit(flags & TF ? 99 : i);
		}
		require(waitpid(pid, &status, 0) == pid);
		require(WIFEXITED(status) && WEXITSTATUS(status) == i);
	}
	for (i = 0; i < 5; i++) {
		pid = vfork();
		if (!pid) {
			execl("/proc/self/exe", "ptat_trap_test", "--nothing", NULL);
			_exit(3);
		}
		require(waitpid(pid, &status, 0) == pid);
		require(WIFEXITED(status) && !WEXITSTATUS(status));
	}
}

static void stepped_child(void)
{
	uint8_t sum = 0;
	int i;

	ptrace(PTRACE_TRACEME, 0, 0, 0);
	raise(SIGSTOP);
	for (i = 0; i < 200; i++)
		sum += load(page(i * 3));
	asm volatile("nop; nop; nop");
	_exit(7 + (sum & 0));
}

/* A debugger steps the process: it stops after each instruction, and once. */
static void step_child(int request)
{
	struct user_regs_struct regs;
	unsigned long last = 0;
	unsigned int steps, stuck = 0;
	int status;
	pid_t pid = fork();

	if (!pid)
		stepped_child();
	require(waitpid(pid, &status, 0) == pid);
	for (steps = 0; steps < 3000; steps++) {
		require(!ptrace(request, pid, 0, 0));
		require(waitpid(pid, &status, 0) == pid);
		if (WIFEXITED(status))
			break;
		require(WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP);
		require(!ptrace(PTRACE_GETREGS, pid, 0, &regs));
		stuck += regs.rip == last;
		last = regs.rip;
	}
	printf("%u steps, %u in place\n", steps, stuck);
	if (WIFEXITED(status))
		return;
	require(!ptrace(PTRACE_CONT, pid, 0, 0));
	require(waitpid(pid, &status, 0) == pid);
	require(WIFEXITED(status) && WEXITSTATUS(status) == 7);
}

static void test_ptrace(void)
{
	step_child(PTRACE_SINGLESTEP);
}

static void test_block_steps(void)
{
	step_child(PTRACE_SINGLEBLOCK);
}

static uint64_t saved_rsp, saved_rbp;

/* Calls 32-bit code, which may use registers that both modes have. */
static void call_32bit(uint32_t code, void *stack, uint32_t edi, uint32_t *eax, uint32_t *ebx)
{
	/* Not on the stack, which is another one when it is used. */
	static struct {
		uint32_t offset;
		uint16_t selector;
	} target;

	target.offset = code;
	target.selector = USER32_CS;
	/* 64-bit code needs no data segment, 32-bit code does. */
	asm volatile("mov %%rsp, %[saved_rsp]\n\t"
		     "mov %%rbp, %[saved_rbp]\n\t"
		     "mov %[user_ds], %%ecx\n\t"
		     "mov %%ecx, %%ds\n\t"
		     "mov %[stack], %%rsp\n\t"
		     "lcall *%[target]\n\t"
		     "mov %[saved_rsp], %%rsp\n\t"
		     "mov %[saved_rbp], %%rbp\n\t"
		     "xor %%ecx, %%ecx\n\t"
		     "mov %%ecx, %%ds"
		     : "+a" (*eax), "=b" (*ebx), "+D" (edi),
		       [saved_rsp] "=m" (saved_rsp), [saved_rbp] "=m" (saved_rbp)
		     : [target] "m" (target), [stack] "S" (stack), [user_ds] "i" (USER_DS)
		     : "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15",
		       "memory", "cc");
}

/* In 32-bit code 0x40 is no prefix of pushf, whose flags nobody may touch. */
static void test_32bit_code(void)
{
	/* inc %eax; pushf; pop %ebx; mov (%edi), %dl; lret */
	static const uint8_t code[] = { 0x40, 0x9c, 0x5b, 0x8a, 0x17, 0xcb };
	const int prot = PROT_READ | PROT_WRITE | PROT_EXEC;
	uint8_t *p = mmap(NULL, 64 * PAGE, prot,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
	unsigned int round, i;

	require(p != MAP_FAILED);
	for (i = 1; i < 64; i++)
		memcpy(p + i * PAGE - 1, code, sizeof(code));
	for (round = 0; round < 10; round++) {
		for (i = 1; i < 64; i++) {
			uint32_t eax = i, ebx;
			uint8_t *far = p + (i * 37 % 64) * PAGE + PAGE / 2;

			if (i % 8 == 0)
				thrash();
			call_32bit((uintptr_t)(p + i * PAGE - 1), far, (uintptr_t)far, &eax, &ebx);
			require(eax == i + 1);
			require(!(ebx & TF));
		}
	}
}

/* The linker's: what is first in memory, and in the file. */
extern const uint8_t __executable_start[];

/* Only a load, that a test can put a probe on. */
__attribute__((naked)) static uint8_t probed_load(const uint8_t *p)
{
	asm("movb (%rdi), %al; ret");
}

static unsigned long probe_hits(void)
{
	unsigned long hits = 0;
	FILE *file = fopen(TRACING "uprobe_profile", "r");

	require(file);
	require(fscanf(file, "%*s " PROBE " %lu", &hits) == 1);
	fclose(file);
	return hits;
}

/* The kernel steps the instruction that a probe is on, at another place. */
static void test_uprobe(void)
{
	size_t offset = (uint8_t *)probed_load - __executable_start;
	char program[256] = "", probe[512];
	unsigned int i, sum = 0;

	mount("tracefs", TRACING, "tracefs", 0, NULL);
	if (access(TRACING "uprobe_events", W_OK))
		exit(KSFT_SKIP);
	require(readlink("/proc/self/exe", program, sizeof(program) - 1) > 0);
	snprintf(probe, sizeof(probe), "p:" PROBE " %s:%#zx\n", program, offset);
	require(write_file(TRACING "uprobe_events", probe));
	require(write_file(TRACING "events/uprobes/" PROBE "/enable", "1"));
	for (i = 0; i < 1000; i++) {
		if (i % 100 == 0)
			thrash();
		sum += probed_load(page(i * 7));
	}
	require(sum == 1000 && probe_hits() == 1000);
	require(write_file(TRACING "events/uprobes/" PROBE "/enable", "0"));
	require(write_file(TRACING "uprobe_events", "-:" PROBE "\n"));
}

/* The kernel emulates it: the page is not the process's. */
static void test_vsyscall(void)
{
	long (*vtime)(long *) = (void *)0xffffffffff600400UL;

	handle(SIGSEGV, on_fault);
	if (sigsetjmp(again, 1))
		printf("vsyscall faults\n");
	else
		printf("vsyscall %s\n", vtime(NULL) > 1000 ? "works" : "is wrong");
}

static bool stop;
static unsigned long adds;
static uint64_t *shared;

static void *adder(void *seed)
{
	uint32_t s = (uintptr_t)seed;

	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
		s = s * 1664525 + 1013904223;
		__atomic_fetch_add(&shared[(s >> 20) % 1024 * STRIDE], 1, __ATOMIC_RELAXED);
		__atomic_fetch_add(&adds, 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

static void *mapper(void *unused)
{
	int round, i;

	for (round = 0; round < 200; round++) {
		uint8_t *p = map(64, PROT_READ | PROT_WRITE);

		memset(p, round, 64 * PAGE);
		require(!mprotect(p, 32 * PAGE, PROT_READ));
		for (i = 0; i < 64; i++)
			require(p[i * PAGE + 9] == (uint8_t)round);
		require(!madvise(p + 32 * PAGE, 16 * PAGE, MADV_DONTNEED));
		for (i = 32; i < 48; i++)
			require(!p[i * PAGE]);
		require(!munmap(p, 64 * PAGE));
	}
	__atomic_store_n(&stop, true, __ATOMIC_RELAXED);
	return NULL;
}

static void *protector(void *unused)
{
	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
		require(!mprotect(shared, 1024 * PAGE, PROT_READ | PROT_WRITE));
		sched_yield();
	}
	return NULL;
}

/* Entries change under the feet of other threads. */
static void test_threads(void)
{
	pthread_t threads[4];
	uint64_t sum = 0;
	int i;

	shared = (void *)map(1024, PROT_READ | PROT_WRITE);
	require(!pthread_create(&threads[0], NULL, adder, (void *)1));
	require(!pthread_create(&threads[1], NULL, adder, (void *)2));
	require(!pthread_create(&threads[2], NULL, mapper, NULL));
	require(!pthread_create(&threads[3], NULL, protector, NULL));
	for (i = 0; i < 4; i++)
		require(!pthread_join(threads[i], NULL));
	for (i = 0; i < 1024; i++)
		sum += shared[i * STRIDE];
	require(sum == adds);
}

static const struct {
	const char *name;
	void (*run)(void);
} tests[] = {
	{ "flags", test_flags },
	{ "accesses to two pages", test_crossing },
	{ "string instructions", test_strings },
	{ "gathers", test_gather },
	{ "copies by the kernel", test_kernel_copies },
	{ "signals", test_signals },
	{ "own single steps", test_own_steps },
	{ "protection", test_protection },
	{ "flags of syscall", test_syscall_flags },
	{ "fork, vfork, exec", test_fork },
	{ "ptrace", test_ptrace },
	{ "block steps", test_block_steps },
	{ "32-bit code", test_32bit_code },
	{ "uprobe", test_uprobe },
	{ "vsyscall", test_vsyscall },
	{ "threads", test_threads },
};

/* ---- The recorder ---- */

static struct ring *rings[1024];
static unsigned int ring_count;
static bool ending, paused;
static uint64_t drained;

static void *drain(void *device)
{
	struct pollfd fd = { .fd = *(int *)device, .events = POLLIN };
	bool last;

	do {
		unsigned int i;

		last = __atomic_load_n(&ending, __ATOMIC_ACQUIRE);
		for (i = 0; i < ring_count && !__atomic_load_n(&paused, __ATOMIC_ACQUIRE); i++) {
			uint64_t head = __atomic_load_n(&rings[i]->head, __ATOMIC_ACQUIRE);

			drained += head - rings[i]->tail;
			__atomic_store_n(&rings[i]->tail, head, __ATOMIC_RELEASE);
		}
		poll(&fd, 1, 50);
	} while (!last);
	return NULL;
}

static unsigned long read_number(const char *path)
{
	unsigned long value = 0;
	FILE *file = fopen(path, "r");

	if (file) {
		if (fscanf(file, "%lu", &value) != 1)
			value = 0;
		fclose(file);
	}
	return value;
}

static int open_device(void)
{
	return open(DEVICE, O_RDWR | O_CLOEXEC);
}

static void map_rings(int device)
{
	unsigned long bytes = read_number(RING_BYTES);
	long cpu, cpus = sysconf(_SC_NPROCESSORS_CONF);

	for (cpu = 0; cpu < cpus && ring_count < 1024; cpu++) {
		void *ring = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, device,
				  cpu * bytes);

		if (ring != MAP_FAILED)
			rings[ring_count++] = ring;
	}
	if (!ring_count)
		ksft_exit_fail_msg("can't map a ring: %s\n", strerror(errno));
}

/* Runs a test in a child; returns its wait status, and what it printed. */
static int run(void (*test)(void), bool traced, char *output)
{
	size_t size = 0;
	int fds[2], status;
	pid_t pid;

	fflush(stdout);
	if (pipe(fds))
		ksft_exit_fail_msg("pipe: %s\n", strerror(errno));
	pid = fork();
	if (!pid) {
		int self = open(SELF, O_WRONLY);

		dup2(fds[1], STDOUT_FILENO);
		close(fds[0]);
		close(fds[1]);
		require(!traced || write(self, "2", 1) == 1);
		pages = map(PAGES, PROT_READ | PROT_WRITE);
		madvise(pages, (size_t)PAGES * PAGE, MADV_NOHUGEPAGE);
		memset(pages, 1, (size_t)PAGES * PAGE);
		test();
		exit(KSFT_PASS);
	}
	close(fds[1]);
	for (;;) {
		ssize_t n = read(fds[0], output + size, OUTPUT_BYTES - 1 - size);

		if (n <= 0)
			break;
		size += n;
	}
	output[size] = '\0';
	close(fds[0]);
	waitpid(pid, &status, 0);
	return status;
}

static void compare(const char *name, void (*test)(void))
{
	static char plain[OUTPUT_BYTES], trapped[OUTPUT_BYTES];
	int plain_status = run(test, false, plain);
	uint64_t before = __atomic_load_n(&drained, __ATOMIC_RELAXED);
	int trapped_status = run(test, true, trapped);
	bool same = plain_status == trapped_status && !strcmp(plain, trapped);

	if (WIFEXITED(plain_status) && WEXITSTATUS(plain_status) == KSFT_SKIP) {
		ksft_test_result_skip("%s\n", name);
		return;
	}
	if (plain_status || !same)
		ksft_print_msg("untraced (%#x): %s\n# traced (%#x): %s\n", plain_status, plain,
			       trapped_status, trapped);
	usleep(100000);		/* until all is drained */
	ksft_print_msg("%s: about %lu misses\n", name,
		       (unsigned long)(__atomic_load_n(&drained, __ATOMIC_RELAXED) - before));
	ksft_test_result(!plain_status && same, "%s\n", name);
}

/* A traced process that goes over many pages, again and again. */
static pid_t start_toucher(unsigned int rounds)
{
	pid_t pid = fork();

	if (pid)
		return pid;
	require(write_file(SELF, "1"));
	pages = map(PAGES, PROT_READ | PROT_WRITE);
	madvise(pages, (size_t)PAGES * PAGE, MADV_NOHUGEPAGE);
	for (; rounds; rounds--) {
		/* Each round leaves nothing in the TLB. */
		require(!mprotect(pages, (size_t)PAGES * PAGE, PROT_READ));
		require(!mprotect(pages, (size_t)PAGES * PAGE, PROT_READ | PROT_WRITE));
		memset(pages, rounds, (size_t)PAGES * PAGE);
	}
	_exit(KSFT_PASS);
}

static bool ended_well(pid_t pid)
{
	int status;

	return waitpid(pid, &status, 0) == pid && !status;
}

/* Nobody reads for a while: the process waits, then it goes on. */
static void test_pause(void)
{
	int status;
	bool waited;
	pid_t pid;

	__atomic_store_n(&paused, true, __ATOMIC_RELEASE);
	pid = start_toucher(2);
	sleep(PAUSE_S);
	waited = !waitpid(pid, &status, WNOHANG);
	__atomic_store_n(&paused, false, __ATOMIC_RELEASE);
	ksft_test_result(waited && ended_well(pid), "a recorder pauses\n");
}

/* The recorder is gone, with the process in the middle of its work. */
static void test_killed(void)
{
	int device, pipe_fds[2];
	pid_t recorder, pid;
	char byte;

	if (pipe(pipe_fds))
		ksft_exit_fail_msg("pipe: %s\n", strerror(errno));
	recorder = fork();
	if (!recorder) {
		device = open_device();
		ring_count = 0;
		map_rings(device);
		ending = false;
		if (write(pipe_fds[1], "", 1) == 1)
			drain(&device);
		_exit(KSFT_FAIL);
	}
	require(read(pipe_fds[0], &byte, 1) == 1);
	pid = start_toucher(50);
	usleep(300000);
	kill(recorder, SIGKILL);
	waitpid(recorder, NULL, 0);
	require(ended_well(pid));
	require(read_number(DETACHED) == 1);
	device = open_device();
	require(device >= 0 && !read_number(DETACHED));
	close(device);
	ksft_test_result_pass("a recorder is killed\n");
}

/* Who is nobody cannot see what traced processes do. */
static void test_nobody(void)
{
	pid_t pid = fork();

	if (!pid) {
		require(!setuid(65534));
		require(open_device() < 0 && errno == EACCES);
		require(!write_file(SELF, "1"));
		_exit(KSFT_PASS);
	}
	ksft_test_result(ended_well(pid), "without privileges\n");
}

int main(int argc, char **argv)
{
	unsigned long lost = 0;
	pthread_t drainer;
	unsigned int i;
	int device;

	if (argc > 1 && !strcmp(argv[1], "--nothing"))
		return 0;
	ksft_print_header();
	write_file(RING_RECORDS, FEW_RECORDS);
	device = open_device();
	if (device < 0)
		ksft_exit_skip("can't open " DEVICE " (%s): boot with ptat=SIZE,trap\n",
			       strerror(errno));
	map_rings(device);
	if (pthread_create(&drainer, NULL, drain, &device))
		ksft_exit_fail_msg("can't start a thread\n");

	ksft_set_plan(ARRAY_SIZE(tests) + 5);
	for (i = 0; i < ARRAY_SIZE(tests); i++)
		if (argc < 2 || !strcmp(argv[1], tests[i].name))
			compare(tests[i].name, tests[i].run);
		else
			ksft_test_result_skip("%s\n", tests[i].name);
	test_pause();
	ksft_test_result(open_device() < 0 && errno == EBUSY, "one recorder\n");
	__atomic_store_n(&ending, true, __ATOMIC_RELEASE);
	pthread_join(drainer, NULL);
	for (i = 0; i < ring_count; i++)
		lost += rings[i]->lost;
	ksft_test_result(!lost, "nothing lost: %lu\n", lost);
	for (i = 0; i < ring_count; i++)
		munmap(rings[i], read_number(RING_BYTES));
	close(device);
	test_killed();
	test_nobody();
	ksft_finished();
}
