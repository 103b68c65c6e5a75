/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Attaches the simulated PCIe endpoint to a virtual machine.
 *
 *   harness VFIO_SOCKET CONTROL_SOCKET
 *
 * Listens on two Unix sockets.  On the first, QEMU's vfio-user-pci finds the device; one after the
 * other may come.  What it asks of the BAR becomes packets, what the endpoint writes goes into the
 * guest's memory.  The second is another root port's, so to say: one client at a time reads and
 * writes registers there, also while a page walk of the guest waits for its answer.  A line is
 *
 *   read OFFSET             a register of the window (32 bits)
 *   write OFFSET VALUE
 *   memory ADDRESS BYTES    of the guest; the bytes follow the answer's line
 *   link UP                 0: the link is down, the BAR reads as all ones; 1: up again
 *   master ALLOWED          1: let it write to memory, though no driver of the guest has; 0: not so
 *   pretend OFFSET VALUE    the guest reads that from a register of 32 bits, as of other gateware
 *   counts                  clocks simulated, reads and writes of the BAR, is a read waiting
 *
 * and is answered by a line: a number or more, or "error" and why.
 */
#include <cinttypes>
#include <iomanip>
#include <map>
#include <sstream>
#include <string>

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "config_space.h"
#include "die.h"
#include "endpoint.h"
#include "guest_memory.h"
#include "vfio_user.h"

namespace cosim
{

namespace
{

constexpr uint64_t window_start = PTAT_BAR_BYTES - PTAT_WINDOW_BYTES;
constexpr unsigned idle_ms = 1, idle_clocks = 100;
/* Of a waiting read, between two looks at the control socket. */
constexpr unsigned waiting_clocks = 512;
constexpr unsigned after_write_clocks = 8;
constexpr uint64_t memory_bytes_max = 64 << 20;

int listen_at(const char *path)
{
	sockaddr_un address = {};
	address.sun_family = AF_UNIX;
	if (strlen(path) >= sizeof address.sun_path)
		die("the path %s is too long for a socket", path);
	strcpy(address.sun_path, path);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || bind(fd, reinterpret_cast<sockaddr *>(&address), sizeof address) ||
	    listen(fd, 1))
		die_of_errno(path);
	return fd;
}

class Machine;

/* Registers for who is not the guest. */
class Control
{
      public:
	Control(const char *path, Machine &machine) : listening_(listen_at(path)), machine_(machine)
	{
	}
	/* What to poll for. */
	int fd() const
	{
		return client_ < 0 ? listening_ : client_;
	}
	/* `fd` is ready. */
	void serve();

      private:
	void answer(const std::string &line);
	void reply(const std::string &data);

	int listening_, client_ = -1;
	std::string received_;
	Machine &machine_;
};

class Machine : public Device
{
      public:
	explicit Machine(const char *control_path)
	    : config_(PTAT_VENDOR_ID, PTAT_DEVICE_ID, PTAT_BAR_BYTES), control_(control_path, *this)
	{
		endpoint_.on_store = [this](uint64_t address, const uint8_t *data, unsigned bytes) {
			uint8_t *place = memory_.at(address, bytes);
			if (!place)
				die("DMA to %#" PRIx64 ", where the guest has no memory", address);
			memcpy(place, data, bytes);
		};
		endpoint_.on_interrupt = [this] {
			uint64_t one = 1;
			if (interrupt_ >= 0 && write(interrupt_, &one, sizeof one) < 0)
				die_of_errno("cannot interrupt the guest");
		};
		apply_config();
	}
	Machine(const Machine &) = delete;
	Machine &operator=(const Machine &) = delete;
	~Machine() override
	{
		set_interrupt(-1);
	}

	uint64_t bar_bytes() const override
	{
		return PTAT_BAR_BYTES;
	}
	void config_read(uint64_t offset, uint8_t *data, unsigned bytes) override
	{
		config_.read(offset, data, bytes);
	}
	void config_write(uint64_t offset, const uint8_t *data, unsigned bytes) override
	{
		config_.write(offset, data, bytes);
		apply_config();
	}
	uint64_t bar_read(uint64_t offset, unsigned bytes) override;
	void bar_write(uint64_t offset, uint64_t value, unsigned bytes) override;
	void memory_map(uint64_t address, uint64_t bytes, int fd, uint64_t offset) override
	{
		memory_.map(address, bytes, fd, offset);
	}
	void memory_unmap(uint64_t address, uint64_t bytes) override
	{
		memory_.unmap(address, bytes);
	}
	void set_interrupt(int fd) override
	{
		if (interrupt_ >= 0)
			close(interrupt_);
		interrupt_ = fd;
	}
	/* The hard block's registers are lost, as at a secondary bus reset; so is the link. */
	void reset() override
	{
		config_.reset();
		apply_config();
		endpoint_.set_link(false);
		endpoint_.set_link(link_);
	}
	/* QEMU is gone: the card is plugged into the next machine. */
	void unplug()
	{
		set_interrupt(-1);
		memory_.clear();
		config_.reset();
		apply_config();
		endpoint_.power_up();
	}

	/* One QEMU, from its connection to its end. */
	void serve(int socket);
	/* Wait for a connection. */
	int accept_at(int listening);

	uint64_t register_read(uint64_t offset, bool &good);
	void register_write(uint64_t offset, uint64_t value);
	const uint8_t *memory(uint64_t address, uint64_t bytes) const
	{
		return memory_.at(address, bytes);
	}
	void set_master(bool allowed)
	{
		master_ = allowed;
		apply_config();
	}
	void set_link(bool up)
	{
		link_ = up;
		endpoint_.set_link(up);
	}
	void pretend(uint64_t offset, uint64_t value)
	{
		pretended_[window_start + offset] = value;
	}
	std::string counts() const
	{
		std::ostringstream line;
		line << endpoint_.clocks() << ' ' << reads_ << ' ' << writes_ << ' ' << waiting_;
		return line.str();
	}

      private:
	void apply_config()
	{
		endpoint_.set_bus_master(config_.bus_master() || master_);
		endpoint_.set_max_payload(config_.max_payload_bytes());
	}
	/* Wait until `fd` is ready; meanwhile the endpoint's clock ticks, and control is served. */
	bool wait_for(int fd);
	void poll_control();

	ConfigSpace config_;
	GuestMemory memory_;
	Endpoint endpoint_;
	Control control_;
	int interrupt_ = -1;
	bool link_ = true, waiting_ = false, master_ = false;
	uint64_t reads_ = 0, writes_ = 0;
	std::map<uint64_t, uint64_t> pretended_;
};

uint64_t Machine::bar_read(uint64_t offset, unsigned bytes)
{
	reads_++;
	if (!link_)
		return ~UINT64_C(0);
	if (auto found = pretended_.find(offset); found != pretended_.end())
		return found->second;
	endpoint_.catch_up();
	unsigned tag = endpoint_.send_read(config_.bar() + offset, bytes);
	Answer answer;
	for (unsigned clocks = 1; !endpoint_.answered(tag, answer); clocks++) {
		endpoint_.run(1);
		if (clocks % waiting_clocks)
			continue;
		waiting_ = true;
		poll_control();
		endpoint_.catch_up();
	}
	waiting_ = false;
	return answer.value;
}

void Machine::bar_write(uint64_t offset, uint64_t value, unsigned bytes)
{
	writes_++;
	if (!link_)
		return;
	endpoint_.catch_up();
	endpoint_.send_write(config_.bar() + offset, value, bytes);
	/* Writes are posted: the rest of this one's way may pass before the next access. */
	for (unsigned clocks = 1; !endpoint_.idle(); clocks++) {
		endpoint_.run(1);
		if (clocks % waiting_clocks == 0)
			poll_control();
	}
}

uint64_t Machine::register_read(uint64_t offset, bool &good)
{
	unsigned tag = endpoint_.send_read(config_.bar() + window_start + offset, 4);
	Answer answer;
	while (!endpoint_.answered(tag, answer))
		endpoint_.run(1);
	good = answer.good;
	return answer.value;
}

void Machine::register_write(uint64_t offset, uint64_t value)
{
	endpoint_.send_write(config_.bar() + window_start + offset, value, 4);
	while (!endpoint_.idle())
		endpoint_.run(1);
	endpoint_.run(after_write_clocks);
}

void Machine::poll_control()
{
	pollfd ready = { control_.fd(), POLLIN, 0 };
	if (poll(&ready, 1, 0) > 0)
		control_.serve();
}

bool Machine::wait_for(int fd)
{
	/* While QEMU goes on, rather than when it waits again. */
	endpoint_.settle();
	for (;;) {
		pollfd ready[] = { { fd, POLLIN, 0 }, { control_.fd(), POLLIN, 0 } };
		int count = poll(ready, 2, idle_ms);
		if (count < 0 && errno != EINTR)
			die_of_errno("poll");
		if (count > 0 && ready[1].revents)
			control_.serve();
		if (count > 0 && ready[0].revents)
			return true;
		if (count == 0) {
			endpoint_.catch_up();
			endpoint_.run(idle_clocks);
		}
	}
}

void Machine::serve(int socket)
{
	VfioUser qemu(socket, *this);
	while (wait_for(socket) && qemu.serve())
		;
	unplug();
}

int Machine::accept_at(int listening)
{
	wait_for(listening);
	int fd = accept4(listening, nullptr, nullptr, SOCK_CLOEXEC);
	if (fd < 0)
		die_of_errno("accept");
	return fd;
}

void Control::serve()
{
	if (client_ < 0) {
		client_ = accept4(listening_, nullptr, nullptr, SOCK_CLOEXEC);
		return;
	}
	char data[4096];
	ssize_t count = recv(client_, data, sizeof data, 0);
	if (count <= 0) {
		close(client_);
		client_ = -1;
		received_.clear();
		return;
	}
	received_.append(data, static_cast<size_t>(count));
	size_t end;
	while ((end = received_.find('\n')) != std::string::npos) {
		std::string line = received_.substr(0, end);
		received_.erase(0, end + 1);
		answer(line);
	}
}

void Control::answer(const std::string &line)
{
	std::istringstream words(line);
	std::string command;
	uint64_t first = 0, second = 0;
	words >> command >> std::setbase(0) >> first >> second;
	if (command == "read" && first < PTAT_WINDOW_BYTES) {
		bool good;
		uint64_t value = machine_.register_read(first, good);
		return reply(good ? std::to_string(value) + "\n" : "error the endpoint refuses\n");
	}
	if (command == "write" && first < PTAT_WINDOW_BYTES) {
		machine_.register_write(first, second);
		return reply("0\n");
	}
	if (command == "memory" && second <= memory_bytes_max) {
		const uint8_t *start = machine_.memory(first, second);
		if (!start)
			return reply("error the guest has no memory there\n");
		return reply(std::to_string(second) + "\n" +
			     std::string(reinterpret_cast<const char *>(start), second));
	}
	if (command == "pretend" && first < PTAT_WINDOW_BYTES) {
		machine_.pretend(first, second);
		return reply("0\n");
	}
	if (command == "master") {
		machine_.set_master(first);
		return reply("0\n");
	}
	if (command == "link") {
		machine_.set_link(first);
		return reply("0\n");
	}
	if (command == "counts")
		return reply(machine_.counts() + "\n");
	reply("error not understood\n");
}

void Control::reply(const std::string &data)
{
	for (size_t sent = 0; sent < data.size();) {
		ssize_t count = send(client_, data.data() + sent, data.size() - sent, MSG_NOSIGNAL);
		if (count <= 0)
			return; /* noticed where we read */
		sent += static_cast<size_t>(count);
	}
}

} /* namespace */

} /* namespace cosim */

int main(int argc, char **argv)
{
	if (argc != 3) {
		fprintf(stderr, "usage: %s VFIO_SOCKET CONTROL_SOCKET\n", argv[0]);
		return 2;
	}
	int listening = cosim::listen_at(argv[1]);
	cosim::Machine machine(argv[2]);
	for (;;)
		machine.serve(machine.accept_at(listening));
}
