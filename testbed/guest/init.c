// SPDX-License-Identifier: BSD-2-Clause
/*
 * Process 1 of the testbed's guest: gives one command the host's file system,
 * records the kernel's side of its TLB misses, and tells the host how it went.
 *
 * Devices: virtio serial ports `control`, `stdin`, `stdout`, `stderr`; 9p
 * shares `root` (the host's /, read-only) and `kernel` (the session's kernel/,
 * written here).
 *
 * control, from the host: first the configuration as strings `key=value`, each
 * with its NUL, ended by an empty string:
 *	arg      one argument of the command, in order
 *	env      one string of its environment
 *	cwd      its directory
 *	rlimit   "resource soft hard", numbers
 *	self     what the command writes to /sys/kernel/mm/ptat/self
 *	levels   what is written to /sys/kernel/mm/ptat/levels
 *	readback what is written to /sys/kernel/mm/ptat/readback; else the kernel's choice stays
 *	marker-access what is written to /sys/kernel/mm/ptat/marker_access; else markers are stores
 *	event    a tracepoint to enable, as system/name
 *	buffer   ring buffer of each CPU in KiB
 *	traps    if it is there: TLB misses trap; write their records to kernel/trapN.raw
 *	maps     record what the command maps to kernel/maps.jsonl; the value is
 *	         the socket of libptat-heap.so, empty if it is not used
 *	hostname
 * then lines: "go" (after start and stop), "signal N" (for the command).
 *
 * control, to the host, lines:
 *	release R, cpus N       once the guest is up
 *	start                   the bus capture may begin; waits for "go"
 *	alive                   every two seconds
 *	exec-failed ERRNO TEXT  the command can't be run
 *	log-failed FILE: TEXT   the log could not be written: the run is aborted
 *	exited N, killed N      the command's end
 *	stop                    the capture is over; waits for "go"
 *	stdout N, stderr N      bytes that the command wrote
 *	tsc_hz N
 *	text NAME N             followed by N bytes: a file of the kernel
 *	done                    nothing more will come; the host ends the machine
 *	error TEXT              the machine can't do it
 *
 * stdin: chunks, each a 32-bit length and as many bytes; length 0 is the end.
 * stdout, stderr: bytes.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include "maps.h"
#include "ptat_recording.h" /* generated; the host's recordings of its own machine follow it, too */
#include "traps.h"

#define LOG_MOUNT "/run/ptat-kernel"
#define LOG_PAGES 120 /* one 9p request */
#define ALIVE_MS  2000

/* Long NOPs that the plugin knows and real machines ignore. */
#define CAPTURE(code) asm volatile(".byte 0x0f,0x1f,0x80," #code ",0x00,0x54,0x50" ::: "memory")

struct config {
	char **argv, **envp, **rlimits, **events;
	const char *cwd, *self, *levels, *readback, *marker_access, *buffer, *traps, *maps,
		*hostname;
};

struct relay {
	pthread_t thread;
	int from, to;
	uint64_t bytes;
};

struct logger {
	pthread_t thread;
	int cpu, raw, file;
};

static int control = -1;
static pthread_mutex_t control_lock = PTHREAD_MUTEX_INITIALIZER;
static int log_dir;    /* the session's kernel/ */
static int log_end;    /* eventfd: readable once the loggers shall finish */
static int log_broken; /* eventfd: readable once a logger can't write */

static bool write_all(int fd, const void *data, size_t size)
{
	for (const char *p = data; size;) {
		ssize_t n = write(fd, p, size);

		if (n < 0)
			return false;
		p += n;
		size -= n;
	}
	return true;
}

static void tell(const char *format, ...)
{
	char line[1024];
	va_list ap;
	int n;

	va_start(ap, format);
	n = vsnprintf(line, sizeof(line) - 1, format, ap);
	va_end(ap);
	if (n > (int)sizeof(line) - 2)
		n = sizeof(line) - 2;
	/* Names may hold anything; a line is a line. */
	for (int i = 0; i < n; i++)
		if (line[i] == '\n')
			line[i] = ' ';
	line[n++] = '\n';
	pthread_mutex_lock(&control_lock);
	write_all(control, line, n);
	pthread_mutex_unlock(&control_lock);
}

static void tell_text(const char *name, const char *text, size_t size)
{
	pthread_mutex_lock(&control_lock);
	dprintf(control, "text %s %zu\n", name, size);
	write_all(control, text, size);
	pthread_mutex_unlock(&control_lock);
}

/* The host ends the machine, or run_alive() does when the host is gone. */
static void wait_for_end(void)
{
	for (;;)
		pause();
}

static void *run_alive(void *unused)
{
	struct pollfd fd = { .fd = control };

	while (!poll(&fd, 1, ALIVE_MS))
		tell("alive");
	reboot(RB_POWER_OFF);
	return unused;
}

static void fail(const char *format, ...)
{
	char text[512];
	va_list ap;

	va_start(ap, format);
	vsnprintf(text, sizeof(text), format, ap);
	va_end(ap);
	tell("error %s", text);
	wait_for_end();
}

#define fail_errno(format, ...) fail(format ": %s", ##__VA_ARGS__, strerror(errno))

static void *must(void *pointer)
{
	if (!pointer)
		fail_errno("the guest's init");
	return pointer;
}

static void make_dir(const char *path)
{
	if (mkdir(path, 0755) && errno != EEXIST)
		fail_errno("mkdir %s", path);
}

static void mount_at(const char *type, const char *source, const char *path, unsigned long flags,
		     const char *options)
{
	make_dir(path);
	if (mount(source, path, type, flags, options))
		fail_errno("mount %s on %s", type, path);
}

static bool put(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	bool done = fd >= 0 && write_all(fd, text, strlen(text));

	if (fd >= 0)
		close(fd);
	return done;
}

static void must_put(const char *path, const char *text)
{
	if (!put(path, text))
		fail_errno("write \"%s\" to %s", text, path);
}

/* The whole of a small file of the kernel; such files have no size. */
static char *slurp(const char *path, size_t *size)
{
	size_t room = PTAT_PAGE_BYTES;
	char *data = must(malloc(room));
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n;

	*size = 0;
	if (fd < 0) {
		free(data);
		return NULL;
	}
	while ((n = read(fd, data + *size, room - *size)) > 0) {
		*size += n;
		if (*size == room)
			data = must(realloc(data, room *= 2));
	}
	close(fd);
	return data;
}

/* ---- Ports to the host ---- */

static int open_port(const char *name)
{
	struct dirent *entry;
	char path[300], got[64];
	DIR *ports = opendir("/sys/class/virtio-ports");
	int fd = -1;

	while (ports && fd < 0 && (entry = readdir(ports))) {
		size_t size;
		char *text;

		snprintf(path, sizeof(path), "/sys/class/virtio-ports/%s/name", entry->d_name);
		text = slurp(path, &size);
		if (!text)
			continue;
		snprintf(got, sizeof(got), "%.*s", (int)size, text);
		got[strcspn(got, "\n")] = 0;
		free(text);
		if (strcmp(got, name))
			continue;
		snprintf(path, sizeof(path), "/dev/%s", entry->d_name);
		fd = open(path, O_RDWR | O_CLOEXEC);
	}
	if (ports)
		closedir(ports);
	return fd;
}

/* Ports come up one after the other, each first as not connected. */
static int wait_port(const char *name)
{
	struct pollfd port = { .fd = -1 };

	for (;;) {
		if (port.fd < 0)
			port.fd = open_port(name);
		if (port.fd >= 0 && poll(&port, 1, 0) >= 0 && !(port.revents & POLLHUP))
			return port.fd;
		usleep(2000);
	}
}

static void append(char ***list, char *value)
{
	size_t n = 0;

	while (*list && (*list)[n])
		n++;
	*list = must(realloc(*list, (n + 2) * sizeof(**list)));
	(*list)[n] = value;
	(*list)[n + 1] = NULL;
}

/* Reads up to the empty string, and not a byte more. */
static char *read_config(void)
{
	size_t size = 0, room = 1 << 16;
	char *data = must(malloc(room));

	for (;;) {
		if (read(control, data + size, 1) != 1)
			wait_for_end();
		if (!data[size] && (!size || !data[size - 1]))
			return data;
		if (++size == room)
			data = must(realloc(data, room *= 2));
	}
}

static void parse_config(struct config *config, char *data)
{
	for (char *s = data; *s; s += strlen(s) + 1) {
		size_t key = strcspn(s, "=");
		char *value = s + key + (s[key] == '=');

#define IS(name) (key == strlen(name) && !strncmp(s, name, key))
		if (IS("arg"))
			append(&config->argv, value);
		else if (IS("env"))
			append(&config->envp, value);
		else if (IS("rlimit"))
			append(&config->rlimits, value);
		else if (IS("event"))
			append(&config->events, value);
		else if (IS("cwd"))
			config->cwd = value;
		else if (IS("self"))
			config->self = value;
		else if (IS("levels"))
			config->levels = value;
		else if (IS("readback"))
			config->readback = value;
		else if (IS("marker-access"))
			config->marker_access = value;
		else if (IS("buffer"))
			config->buffer = value;
		else if (IS("traps"))
			config->traps = value;
		else if (IS("maps"))
			config->maps = value;
		else if (IS("hostname"))
			config->hostname = value;
		else
			fail("the guest's init knows no \"%s\"", s);
#undef IS
	}
}

/* A line of the host, without its end; false when there is none. */
static bool read_line(char *line, size_t size)
{
	size_t n = 0;
	char c;

	while (read(control, &c, 1) == 1) {
		if (c == '\n') {
			line[n] = 0;
			return true;
		}
		if (n < size - 1)
			line[n++] = c;
	}
	return false;
}

static void wait_go(void)
{
	char line[64];

	while (read_line(line, sizeof(line)))
		if (!strcmp(line, "go"))
			return;
	wait_for_end();
}

/* ---- The file system ---- */

static void link_dev(const char *target, const char *path)
{
	if (symlink(target, path) && errno != EEXIST)
		fail_errno("symlink %s", path);
}

static void mount_root(void)
{
	make_dir("/lower");
	make_dir("/rw");
	make_dir("/new");
	mount_at("9p", "root", "/lower", MS_RDONLY,
		 "trans=virtio,version=9p2000.L,msize=512000,cache=loose");
	mount_at("tmpfs", "tmpfs", "/rw", 0, "mode=755");
	make_dir("/rw/upper");
	make_dir("/rw/work");
	mount_at("overlay", "overlay", "/new", 0,
		 "lowerdir=/lower,upperdir=/rw/upper,workdir=/rw/work");
	if (chdir("/new") || mount(".", "/", NULL, MS_MOVE, NULL) || chroot(".") || chdir("/"))
		fail_errno("change to the host's file system");

	mount_at("proc", "proc", "/proc", 0, NULL);
	mount_at("sysfs", "sysfs", "/sys", 0, NULL);
	mount_at("debugfs", "debugfs", "/sys/kernel/debug", 0, NULL);
	mount_at("tracefs", "tracefs", PTAT_TRACING, 0, NULL);
	mount_at("devtmpfs", "devtmpfs", "/dev", 0, NULL);
	mount_at("devpts", "devpts", "/dev/pts", 0, "ptmxmode=666");
	mount_at("tmpfs", "tmpfs", "/dev/shm", 0, "mode=1777");
	mount_at("hugetlbfs", "hugetlbfs", "/dev/hugepages", 0, NULL);
	link_dev("/proc/self/fd", "/dev/fd");
	link_dev("/proc/self/fd/0", "/dev/stdin");
	link_dev("/proc/self/fd/1", "/dev/stdout");
	link_dev("/proc/self/fd/2", "/dev/stderr");
	mount_at("tmpfs", "tmpfs", "/run", 0, "mode=755");

	/* Only we reach the session. */
	mount_at("9p", "kernel", LOG_MOUNT, 0,
		 "trans=virtio,version=9p2000.L,msize=512000,cache=none");
	log_dir = open(LOG_MOUNT, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (log_dir < 0 || umount2(LOG_MOUNT, MNT_DETACH) || rmdir(LOG_MOUNT))
		fail_errno("hide " LOG_MOUNT);
}

static void loopback_up(void)
{
	struct ifreq lo = { .ifr_name = "lo", .ifr_flags = IFF_UP };
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	if (fd < 0 || ioctl(fd, SIOCSIFFLAGS, &lo))
		fail_errno("bring up lo");
	close(fd);
}

/* ---- The kernel's log ---- */

static int create_log(const char *name)
{
	return openat(log_dir, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
}

static void copy_to_log(const char *from, const char *name)
{
	size_t size;
	char *data = slurp(from, &size);
	int fd;

	if (!data)
		fail_errno("read %s", from);
	fd = create_log(name);
	if (fd < 0 || !write_all(fd, data, size) || close(fd))
		tell("log-failed kernel/%s: %s", name, strerror(errno));
	free(data);
}

static void setup_tracing(const struct config *config)
{
	static const struct {
		const char *file, *text;
	} settings[] = PTAT_TRACE_SETTINGS;
	static const char *const formats[] = PTAT_PAGE_FORMATS;
	char path[300], name[200];

	for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++) {
		snprintf(path, sizeof(path), PTAT_TRACING "/%s", settings[i].file);
		must_put(path, settings[i].text);
	}
	must_put(PTAT_TRACING "/" PTAT_BUFFER_SIZE, config->buffer);
	for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++) {
		snprintf(path, sizeof(path), PTAT_TRACING "/" PTAT_EVENTS "/%s", formats[i]);
		snprintf(name, sizeof(name), "formats/%s", formats[i]);
		copy_to_log(path, name);
	}
	for (char **event = config->events; event && *event; event++) {
		snprintf(path, sizeof(path), PTAT_TRACING "/" PTAT_EVENTS "/%s/format", *event);
		snprintf(name, sizeof(name), "formats/%s", basename(*event));
		copy_to_log(path, name);
		snprintf(path, sizeof(path), PTAT_TRACING "/" PTAT_EVENTS "/%s/enable", *event);
		must_put(path, "1");
	}
}

/* Moves what the ring buffer holds to the host. */
static bool drain(struct logger *logger, char *pages)
{
	bool more = true;

	while (more) {
		size_t size = 0;

		while (size < LOG_PAGES * PTAT_PAGE_BYTES) {
			ssize_t n = read(logger->raw, pages + size, PTAT_PAGE_BYTES);

			if (n <= 0) {
				more = false;
				break;
			}
			/* A page is written whole; what follows n is unused. */
			memset(pages + size + n, 0, PTAT_PAGE_BYTES - n);
			size += PTAT_PAGE_BYTES;
		}
		if (!write_all(logger->file, pages, size))
			return false;
	}
	return true;
}

static void *run_logger(void *argument)
{
	struct logger *logger = argument;
	struct pollfd fds[2] = {
		{ .fd = logger->raw, .events = POLLIN },
		{ .fd = log_end, .events = POLLIN },
	};
	char *pages = must(aligned_alloc(PTAT_PAGE_BYTES, LOG_PAGES * PTAT_PAGE_BYTES));
	bool end;

	do {
		poll(fds, 2, PTAT_LOG_FLUSH_MS);
		end = fds[1].revents;
		if (!drain(logger, pages)) {
			tell("log-failed kernel/cpu%d.raw: %s", logger->cpu, strerror(errno));
			eventfd_write(log_broken, 1);
			break;
		}
	} while (!end);
	free(pages);
	return NULL;
}

static struct logger *start_loggers(int cpus)
{
	struct logger *loggers = must(calloc(cpus, sizeof(*loggers)));
	char path[200];

	for (int cpu = 0; cpu < cpus; cpu++) {
		struct logger *logger = &loggers[cpu];

		logger->cpu = cpu;
		snprintf(path, sizeof(path), PTAT_TRACING "/per_cpu/cpu%d/trace_pipe_raw", cpu);
		logger->raw = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
		if (logger->raw < 0)
			fail_errno("open %s", path);
		snprintf(path, sizeof(path), "cpu%d.raw", cpu);
		logger->file = create_log(path);
		if (logger->file < 0)
			fail_errno("create kernel/%s", path);
		if (pthread_create(&logger->thread, NULL, run_logger, logger))
			fail_errno("start a thread");
	}
	return loggers;
}

static void end_loggers(struct logger *loggers, int cpus)
{
	char from[200], to[32];

	eventfd_write(log_end, 1);
	for (int cpu = 0; cpu < cpus; cpu++) {
		pthread_join(loggers[cpu].thread, NULL);
		if (close(loggers[cpu].file))
			tell("log-failed kernel/cpu%d.raw: %s", cpu, strerror(errno));
		snprintf(from, sizeof(from), PTAT_TRACING "/per_cpu/cpu%d/stats", cpu);
		snprintf(to, sizeof(to), "cpu%d.stats", cpu);
		copy_to_log(from, to);
	}
}

/* ---- What is mapped ---- */

static void *run_maps(void *maps)
{
	if (!maps_run(maps)) {
		tell("log-failed kernel/maps.jsonl: %s", strerror(errno));
		eventfd_write(log_broken, 1);
	}
	return NULL;
}

static pthread_t start_maps(const char *socket)
{
	struct maps_request request = {
		.root = getpid(),
		.end = log_end,
		.out = create_log("maps.jsonl"),
		.socket = *socket ? socket : NULL,
	};
	struct maps *maps = request.out < 0 ? NULL : maps_begin(&request);
	pthread_t thread;

	if (!maps)
		fail_errno("record what is mapped");
	if (pthread_create(&thread, NULL, run_maps, maps))
		fail_errno("start a thread");
	return thread;
}

/* ---- TLB misses that trap ---- */

static void traps_broken(const char *file)
{
	tell("log-failed kernel/%s: %s", file, strerror(errno));
	eventfd_write(log_broken, 1);
}

static struct traps *start_traps(void)
{
	struct traps *traps = traps_begin(log_dir, traps_broken);

	if (!traps)
		fail_errno("record traps");
	return traps;
}

/* All records are written; tell how many there are. */
static void end_traps(struct traps *traps)
{
	size_t length;
	char *text = NULL;
	FILE *lines = must(open_memstream(&text, &length));

	traps_drain(traps, lines);
	fclose(lines);
	tell_text("traps", text, length);
	free(text);
}

/* ---- The command ---- */

static void *relay_out(void *argument)
{
	struct relay *relay = argument;
	char data[32768];
	ssize_t n;

	while ((n = read(relay->from, data, sizeof(data))) > 0) {
		write_all(relay->to, data, n);
		relay->bytes += n;
	}
	return NULL;
}

static bool read_all(int fd, void *data, size_t size)
{
	for (char *p = data; size;) {
		ssize_t n = read(fd, p, size);

		if (n <= 0)
			return false;
		p += n;
		size -= n;
	}
	return true;
}

static void *relay_in(void *argument)
{
	struct relay *relay = argument;
	char data[32768];
	uint32_t left;

	while (read_all(relay->from, &left, sizeof(left)) && left) {
		while (left) {
			size_t n = left < sizeof(data) ? left : sizeof(data);

			if (!read_all(relay->from, data, n))
				return NULL;
			/* A command that reads no further loses the rest. */
			write_all(relay->to, data, n);
			left -= n;
		}
	}
	close(relay->to);
	return NULL;
}

static void start_relay(struct relay *relay, void *(*run)(void *))
{
	if (pthread_create(&relay->thread, NULL, run, relay))
		fail_errno("start a thread");
}

static void cant_run(int report, const char *what)
{
	dprintf(report, "%d %s: %s", errno, what, strerror(errno));
	_exit(127);
}

static void exec_command(const struct config *config, const int streams[3], int report)
{
	sigset_t none;

	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	signal(SIGPIPE, SIG_DFL);
	setsid();
	for (int i = 0; i < 3; i++)
		dup2(streams[i], i);
	for (char **r = config->rlimits; r && *r; r++) {
		unsigned long long soft, hard;
		struct rlimit limit;
		int resource;

		if (sscanf(*r, "%d %llu %llu", &resource, &soft, &hard) == 3) {
			limit.rlim_cur = soft;
			limit.rlim_max = hard;
			setrlimit(resource, &limit);
		}
	}
	environ = config->envp;
	if (chdir(config->cwd))
		cant_run(report, config->cwd);
	if (!put(PTAT_CONTROL "/self", config->self))
		cant_run(report, PTAT_CONTROL "/self");
	execvp(config->argv[0], config->argv);
	cant_run(report, config->argv[0]);
}

/* Returns the command's process id, or 0 if it can't be executed. */
static pid_t start_command(const struct config *config, const int streams[3])
{
	char why[512];
	int report[2];
	pid_t child;
	ssize_t n;

	if (pipe2(report, O_CLOEXEC))
		fail_errno("make a pipe");
	child = fork();
	if (child < 0)
		fail_errno("fork");
	if (!child)
		exec_command(config, streams, report[1]);
	close(report[1]);
	for (int i = 0; i < 3; i++)
		close(streams[i]);
	n = read(report[0], why, sizeof(why));
	if (n > 0) {
		tell("exec-failed %.*s", (int)n, why);
		waitpid(child, NULL, 0);
		child = 0;
	}
	close(report[0]);
	return child;
}

/*
 * Until no process is left. The recording ends with the command; what it left
 * running ends then too, so that every table is given back.
 */
static void attend(pid_t child, int children)
{
	struct pollfd fds[3] = {
		{ .fd = control, .events = POLLIN },
		{ .fd = children, .events = POLLIN },
		{ .fd = log_broken, .events = POLLIN },
	};
	struct signalfd_siginfo info;
	bool ending = false;
	char line[64];
	int status, number;
	pid_t pid;

	for (;;) {
		if (!poll(fds, 3, PTAT_MARKER_MS))
			must_put(PTAT_CONTROL "/marker", PTAT_MARKER_CLOCK);
		if (fds[0].revents & POLLIN && read_line(line, sizeof(line)) &&
		    sscanf(line, "signal %d", &number) == 1)
			kill(-child, number);
		if (fds[2].revents & POLLIN) {
			fds[2].fd = -1;
			kill(-1, SIGKILL);
		}
		if (fds[1].revents & POLLIN && read(children, &info, sizeof(info)) < 0)
			fail_errno("read signals");
		while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
			if (pid != child)
				continue;
			ending = true;
			if (WIFSIGNALED(status))
				tell("killed %d", WTERMSIG(status));
			else
				tell("exited %d", WEXITSTATUS(status));
		}
		if (pid < 0)
			return;
		if (ending)
			kill(-1, SIGKILL);
	}
}

/* ---- What the host wants to know afterwards ---- */

static void tell_file(const char *name, const char *path)
{
	size_t size;
	char *data = slurp(path, &size);

	if (!data)
		fail_errno("read %s", path);
	tell_text(name, data, size);
	free(data);
}

/* The files of a directory that hold a number each, as lines "name number". */
static void tell_directory(const char *name, const char *path)
{
	struct dirent *entry;
	size_t length, size;
	char *text = NULL;
	FILE *lines = must(open_memstream(&text, &length));
	DIR *directory = must(opendir(path));

	while ((entry = readdir(directory))) {
		char file[512], *content;

		if (entry->d_name[0] == '.')
			continue;
		snprintf(file, sizeof(file), "%s/%s", path, entry->d_name);
		content = slurp(file, &size);
		if (content)
			fprintf(lines, "%s %.*s", entry->d_name, (int)size, content);
		free(content);
	}
	closedir(directory);
	fclose(lines);
	tell_text(name, text, length);
	free(text);
}

/* The number in a file of PTAT's. */
static unsigned long long ptat_number(const char *path)
{
	size_t size;
	char *content = slurp(path, &size);
	unsigned long long number = 0;

	if (content && size) {
		content[size - 1] = 0;
		number = strtoull(content, NULL, 0);
	}
	free(content);
	return number;
}

static void wait_tables_free(void)
{
	for (int ms = 0; ms < PTAT_TABLES_FREE_MS && ptat_number(PTAT_CONTROL "/stat/used");
	     ms += 10)
		usleep(10000);
}

/* What follows `key` in the kernel's messages, as a number of MHz; else 0. */
static double read_mhz(const char *key)
{
	char record[8192];
	double mhz = 0;
	ssize_t n;
	int fd = open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC);

	while ((n = read(fd, record, sizeof(record) - 1)) > 0 || (n < 0 && errno == EPIPE)) {
		char *at;

		record[n < 0 ? 0 : n] = 0;
		at = strstr(record, key);
		if (at)
			mhz = strtod(at + strlen(key), NULL);
	}
	close(fd);
	return mhz;
}

/*
 * The kernel's first guess is off by up to a percent here; a second after boot it knows better.
 */
static void tell_tsc_hz(bool refined)
{
	double mhz = 0;

	for (int tries = 0; refined && !mhz && tries < 30; tries++) {
		if (tries)
			usleep(100000);
		mhz = read_mhz("tsc: Refined TSC clocksource calibration: ");
	}
	if (!mhz)
		mhz = read_mhz("tsc: Detected ");
	tell("tsc_hz %.0f", mhz * 1e6);
}

int main(void)
{
	pthread_t alive, maps = 0;
	struct traps *traps = NULL;
	struct relay in, out, err;
	struct logger *loggers;
	struct config config = { 0 };
	struct utsname name;
	int cpus = sysconf(_SC_NPROCESSORS_ONLN);
	int pipes[3][2], children;
	sigset_t chld;
	pid_t child;

	/* In all threads: else one of them would take the signal, and ignore it. */
	sigemptyset(&chld);
	sigaddset(&chld, SIGCHLD);
	sigprocmask(SIG_BLOCK, &chld, NULL);
	mount_at("devtmpfs", "devtmpfs", "/dev", 0, NULL);
	mount_at("sysfs", "sysfs", "/sys", 0, NULL);
	control = wait_port("control");
	if (pthread_create(&alive, NULL, run_alive, NULL))
		fail_errno("start a thread");
	in.from = wait_port("stdin");
	out.to = wait_port("stdout");
	err.to = wait_port("stderr");
	parse_config(&config, read_config());

	mount_root();
	loopback_up();
	sethostname(config.hostname, strlen(config.hostname));
	if (access(PTAT_CONTROL "/self", F_OK))
		fail("the guest's kernel has no " PTAT_CONTROL
		     ": it lacks the ptat patch, or refused its region");
	must_put(PTAT_CONTROL "/levels", config.levels);
	if (config.traps)
		traps = start_traps();
	if (config.readback)
		must_put(PTAT_CONTROL "/readback", config.readback);
	if (config.marker_access)
		must_put(PTAT_CONTROL "/marker_access", config.marker_access);
	setup_tracing(&config);

	signal(SIGPIPE, SIG_IGN);
	children = signalfd(-1, &chld, SFD_CLOEXEC);
	log_end = eventfd(0, EFD_CLOEXEC);
	log_broken = eventfd(0, EFD_CLOEXEC);
	for (int i = 0; i < 3; i++)
		if (pipe2(pipes[i], O_CLOEXEC))
			fail_errno("make a pipe");
	in.to = pipes[0][1];
	out.from = pipes[1][0];
	err.from = pipes[2][0];

	uname(&name);
	tell("release %s", name.release);
	tell("cpus %d", cpus);
	tell_directory("region", PTAT_CONTROL "/region");
	tell_file("readback", PTAT_CONTROL "/readback");
	tell_tsc_hz(false);
	loggers = start_loggers(cpus);
	if (config.maps)
		maps = start_maps(config.maps);
	start_relay(&in, relay_in);
	start_relay(&out, relay_out);
	start_relay(&err, relay_out);

	tell("start");
	wait_go();
	CAPTURE(0x01);
	must_put(PTAT_CONTROL "/marker", PTAT_MARKER_START);
	child = start_command(&config, (int[3]){ pipes[0][0], pipes[1][1], pipes[2][1] });
	if (child)
		attend(child, children);
	must_put(PTAT_CONTROL "/marker", PTAT_MARKER_STOP);
	CAPTURE(0x02);
	tell("stop");
	wait_go();

	end_loggers(loggers, cpus);
	if (traps)
		end_traps(traps);
	if (config.maps)
		pthread_join(maps, NULL);
	pthread_join(out.thread, NULL);
	pthread_join(err.thread, NULL);
	tell("stdout %llu", (unsigned long long)out.bytes);
	tell("stderr %llu", (unsigned long long)err.bytes);
	tell_tsc_hz(true);
	wait_tables_free();
	tell_directory("stat", PTAT_CONTROL "/stat");
	/* Where the kernel has given up the region, there is nothing to compare. */
	if (!ptat_number(PTAT_CONTROL "/stat/detached"))
		tell_file("check", PTAT_CHECK_FILE);
	if (traps)
		traps_end(traps);
	tell("done");
	wait_for_end();
}
