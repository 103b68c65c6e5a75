/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Runs the simulated device (soc.py): its clocks, requests to the memory controller whose bus it
 * listens to, its UART, and a network of two: the device and UDP sockets on this machine.
 *
 *   soc-harness SNOOP_PS SYS_PS COLUMNS UART
 *
 * Clock periods in picoseconds, a file for the times of all column commands (as harness.cpp
 * writes it), one for what the UART says. Datagrams to the device's UDP port go to a socket on
 * 127.0.0.1, whose port is told. What the device sends to a port of its peer's comes from there.
 * Commands, one a line on standard input, and what is said when they are done, on standard output:
 *
 *                            port N        the socket's, when the device runs
 *   timed FILE TIMES GAP     timed TICKS   requests as harness.cpp takes them; their times count
 *                                          from TICKS on. Said when the last is served
 *   uart HEX                 -             bytes for the UART
 *   hang 0|1                 -             the CPU stands still; it starts from the beginning
 *   end                      end CLOCKS    that were simulated; also the end of the input
 *
 * Exit code 2 and one line on stderr where a command or a file is wrong, 1 where the device does
 * what it must not.
 */
#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "Vtop.h"
#include "bus.h"
#include "verilated.h"

namespace
{

constexpr unsigned reset_steps = 16;
constexpr unsigned steps_between_polls = 256;
constexpr unsigned start_clocks = 1000; /* from the command to the first request, at least */
constexpr uint64_t hang_clocks = 1000000;
constexpr unsigned frame_gap_clocks = 32;
constexpr unsigned frame_bytes_min = 60;
constexpr unsigned datagram_bytes_max = 1472;

using Bytes = std::vector<uint8_t>;

/* Network byte order. */
void put16(Bytes &bytes, uint32_t value)
{
	bytes.push_back(value >> 8);
	bytes.push_back(value);
}

void put32(Bytes &bytes, uint32_t value)
{
	put16(bytes, value >> 16);
	put16(bytes, value);
}

void put_mac(Bytes &bytes, uint64_t mac)
{
	put16(bytes, mac >> 32);
	put32(bytes, mac);
}

uint32_t get16(const Bytes &bytes, size_t at)
{
	return bytes[at] << 8 | bytes[at + 1];
}

uint32_t get32(const Bytes &bytes, size_t at)
{
	return get16(bytes, at) << 16 | get16(bytes, at + 2);
}

/*
 * The other end of the device's Ethernet: a machine at peer_ip, whose ports are those of
 * 127.0.0.1. Frames have neither preamble nor checksum.
 */
class Network
{
      public:
	Network()
	{
		struct sockaddr_in here = {};
		socklen_t length = sizeof(here);
		int buffer_bytes = 4 << 20;

		here.sin_family = AF_INET;
		here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
		socket_ = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
		if (socket_ < 0 ||
		    setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &buffer_bytes,
			       sizeof(buffer_bytes)) ||
		    bind(socket_, reinterpret_cast<struct sockaddr *>(&here), sizeof(here)) ||
		    getsockname(socket_, reinterpret_cast<struct sockaddr *>(&here), &length))
			die(2, "a UDP socket: %s", strerror(errno));
		port_ = ntohs(here.sin_port);
	}
	~Network()
	{
		close(socket_);
	}
	Network(const Network &) = delete;
	Network &operator=(const Network &) = delete;

	unsigned port() const
	{
		return port_;
	}

	/* Take what has come from this machine. */
	void poll()
	{
		uint8_t data[datagram_bytes_max];
		struct sockaddr_in from;
		socklen_t length = sizeof(from);
		ssize_t size;

		while ((size = recvfrom(socket_, data, sizeof(data), 0,
					reinterpret_cast<struct sockaddr *>(&from), &length)) >= 0)
			send_datagram(ntohs(from.sin_port), data, size);
	}

	/* The state before a rising edge of the device's clock. */
	void clock(CData tx_valid, CData tx_data, CData &rx_valid, CData &rx_data)
	{
		if (tx_valid) {
			tx_.push_back(tx_data);
		} else if (!tx_.empty()) {
			receive(tx_);
			tx_.clear();
		}
		rx_valid = 0;
		if (rx_gap_) {
			rx_gap_--;
		} else if (!rx_.empty()) {
			rx_valid = 1;
			rx_data = rx_.front()[rx_at_++];
			if (rx_at_ == rx_.front().size()) {
				rx_.pop_front();
				rx_at_ = 0;
				rx_gap_ = frame_gap_clocks;
			}
		}
	}

      private:
	static constexpr uint64_t peer_mac = UINT64_C(0x020000000002);
	static constexpr unsigned type_ip = 0x0800, type_arp = 0x0806;
	static constexpr unsigned arp_request = 1, arp_reply = 2;
	static constexpr unsigned ip_protocol_udp = 17;
	static constexpr size_t at_ethertype = 12, at_payload = 14;
	static constexpr size_t ip_bytes = 20, udp_bytes = 8;

	Bytes frame(unsigned type)
	{
		Bytes bytes;

		put_mac(bytes, PTAT_DEVICE_MAC);
		put_mac(bytes, peer_mac);
		put16(bytes, type);
		return bytes;
	}
	void send(Bytes bytes)
	{
		if (bytes.size() < frame_bytes_min)
			bytes.resize(frame_bytes_min);
		rx_.push_back(std::move(bytes));
	}
	void send_datagram(unsigned from_port, const uint8_t *data, size_t size)
	{
		Bytes bytes = frame(type_ip);
		uint32_t sum = 0;

		put16(bytes, 0x4500);
		put16(bytes, ip_bytes + udp_bytes + size);
		put32(bytes, 0x4000); /* no identification, do not fragment */
		put16(bytes, 64 << 8 | ip_protocol_udp);
		put16(bytes, 0);
		put32(bytes, PTAT_PEER_IP);
		put32(bytes, PTAT_DEVICE_IP);
		for (size_t at = at_payload; at < bytes.size(); at += 2)
			sum += get16(bytes, at);
		sum = ~(sum % 0xffff);
		bytes[at_payload + 10] = sum >> 8;
		bytes[at_payload + 11] = sum;
		put16(bytes, from_port);
		put16(bytes, PTAT_UDP_PORT);
		put16(bytes, udp_bytes + size);
		put16(bytes, 0); /* no checksum */
		bytes.insert(bytes.end(), data, data + size);
		send(std::move(bytes));
	}
	void receive(const Bytes &bytes)
	{
		/* Too short a frame reaches nobody: LiteEth's padding may leave 58 bytes. */
		if (bytes.size() < frame_bytes_min)
			return;
		if (get16(bytes, at_ethertype) == type_arp)
			receive_arp(bytes);
		else if (get16(bytes, at_ethertype) == type_ip)
			receive_datagram(bytes);
	}
	void receive_arp(const Bytes &bytes)
	{
		if (get16(bytes, at_payload + 6) != arp_request ||
		    get32(bytes, at_payload + 24) != PTAT_PEER_IP)
			return;
		Bytes answer = frame(type_arp);
		put32(answer, 1 << 16 | type_ip);
		put32(answer, 0x0604 << 16 | arp_reply);
		put_mac(answer, peer_mac);
		put32(answer, PTAT_PEER_IP);
		put_mac(answer, PTAT_DEVICE_MAC);
		put32(answer, PTAT_DEVICE_IP);
		send(std::move(answer));
	}
	void receive_datagram(const Bytes &bytes)
	{
		constexpr size_t at_udp = at_payload + ip_bytes;
		struct sockaddr_in to = {};
		size_t size = get16(bytes, at_udp + 4);

		if (bytes[at_payload + 9] != ip_protocol_udp ||
		    get32(bytes, at_payload + 16) != PTAT_PEER_IP)
			return;
		if (size < udp_bytes || at_udp + size > bytes.size())
			die(1, "a datagram of %zu bytes in a frame of %zu", size, bytes.size());
		to.sin_family = AF_INET;
		to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
		to.sin_port = htons(get16(bytes, at_udp + 2));
		/* What the socket does not take is lost, as on any network. */
		sendto(socket_, &bytes[at_udp + udp_bytes], size - udp_bytes, 0,
		       reinterpret_cast<struct sockaddr *>(&to), sizeof(to));
	}

	int socket_;
	unsigned port_;
	Bytes tx_;
	std::deque<Bytes> rx_;
	size_t rx_at_ = 0;
	unsigned rx_gap_ = 0;
};

class Machine
{
      public:
	Machine(uint64_t snoop_ps, uint64_t sys_ps, const char *columns, const char *uart)
	    : columns_(columns, "wb"), uart_(uart, "wb"), snoop_ps_(snoop_ps), sys_ps_(sys_ps)
	{
		top_->sys_rst = top_->snoop_rst = 1;
		for (unsigned i = 0; i < reset_steps; i++)
			step();
		top_->sys_rst = top_->snoop_rst = 0;
		top_->serial_source_ready = 1;
		ticks_ = cycles_ = 0;
	}

	void run()
	{
		bool open = true;

		say("port %u", network_.port());
		while (open) {
			for (unsigned i = 0; i < steps_between_polls; i++)
				step();
			network_.poll();
			open = poll_commands();
			if (timing_ && timed_.done()) {
				timing_ = false;
				columns_.flush();
				say("timed %" PRIu64, timed_start_ticks_);
			}
			if (timing_ && timed_.served() != served_) {
				served_ = timed_.served();
				progress_ = cycles_;
			} else if (timing_ && cycles_ - progress_ > hang_clocks) {
				die(1, "the controller hangs at request %" PRIu64, served_);
			}
		}
		columns_.flush();
		uart_.flush();
		top_->final();
		say("end %" PRIu64, cycles_);
	}

      private:
	__attribute__((format(printf, 1, 2))) static void say(const char *format, ...)
	{
		va_list arguments;

		va_start(arguments, format);
		vprintf(format, arguments);
		va_end(arguments);
		putchar('\n');
		fflush(stdout);
	}

	/* False at the end. */
	bool poll_commands()
	{
		struct pollfd input = { STDIN_FILENO, POLLIN, 0 };
		char text[4096];

		if (::poll(&input, 1, 0) <= 0)
			return true;
		ssize_t size = read(STDIN_FILENO, text, sizeof(text));
		if (size <= 0)
			return false;
		input_.append(text, size);
		for (size_t end; (end = input_.find('\n')) != std::string::npos;) {
			std::string line = input_.substr(0, end);

			input_.erase(0, end + 1);
			if (line == "end")
				return false;
			execute(line);
		}
		return true;
	}

	void execute(const std::string &line)
	{
		std::istringstream words(line);
		std::string command, path, times, hex;
		uint64_t gap_ticks;
		bool hangs;

		words >> command;
		if (command == "timed" && words >> path >> times >> gap_ticks && !timing_) {
			timed_start_ticks_ = ticks_ + phases * start_clocks;
			timed_.begin(load_requests(path), load(times), gap_ticks,
				     timed_start_ticks_, ticks_);
			timing_ = true;
			served_ = 0;
			progress_ = cycles_;
		} else if (command == "uart" && words >> hex) {
			for (size_t i = 0; i + 1 < hex.size(); i += 2)
				serial_.push_back(
					std::strtoul(hex.substr(i, 2).c_str(), nullptr, 16));
		} else if (command == "hang" && words >> hangs) {
			top_->hang = hangs;
		} else {
			die(2, "no command: %s", line.c_str());
		}
	}

	/* To the next rising edge of either clock. */
	void step()
	{
		uint64_t now_ps = std::min(snoop_next_ps_, sys_next_ps_);
		bool snoop = snoop_next_ps_ == now_ps, sys = sys_next_ps_ == now_ps;

		if (snoop) {
			snoop_next_ps_ += snoop_ps_;
			top_->snoop_clk = 0;
			before_snoop_edge();
		}
		if (sys) {
			sys_next_ps_ += sys_ps_;
			top_->sys_clk = 0;
			if (serial_.empty()) {
				top_->serial_sink_valid = 0;
			} else {
				top_->serial_sink_valid = 1;
				top_->serial_sink_data = serial_.front();
			}
		}
		top_->eval();
		if (sys && !top_->sys_rst)
			before_sys_edge();
		if (snoop && !top_->snoop_rst)
			after_snoop_edge();
		if (snoop)
			top_->snoop_clk = 1;
		if (sys)
			top_->sys_clk = 1;
		top_->eval();
	}

	void before_sys_edge()
	{
		if (top_->serial_sink_valid && top_->serial_sink_ready)
			serial_.pop_front();
		if (top_->serial_source_valid)
			uart_.put_byte(top_->serial_source_data);
		network_.clock(top_->eth_source_valid, top_->eth_source_data, top_->eth_sink_valid,
			       top_->eth_sink_data);
	}

	void before_snoop_edge()
	{
		banks_.withdraw(~UINT32_C(0));
		if (!timing_)
			return;
		if (const uint64_t *request = timed_.next(ticks_, columns_, top_->advance))
			banks_.offer(*request);
	}

	/* The state before the edge: what happens at it. */
	void after_snoop_edge()
	{
		if (unsigned seen = top_->column0_phases) {
			uint64_t at = ticks_ + __builtin_ctz(seen);

			if (seen & (seen - 1))
				die(1, "two column commands in one clock");
			columns_.put(column(0, top_->column0_bank, at));
			timed_.seen(at);
		}
		if (banks_.taken())
			timed_.taken();
		ticks_ += phases * (UINT64_C(1) + top_->advance);
		cycles_++;
	}

	std::unique_ptr<Vtop> top_ = std::make_unique<Vtop>();
	Banks banks_ = PTAT_BANKS(*top_, 0);
	File columns_, uart_;
	Network network_;
	uint64_t snoop_ps_, sys_ps_;
	uint64_t snoop_next_ps_ = 0, sys_next_ps_ = 0;
	uint64_t ticks_ = 0, cycles_ = 0;

	std::string input_;
	std::deque<uint8_t> serial_;
	TimedFeed timed_;
	bool timing_ = false;
	uint64_t timed_start_ticks_ = 0;
	uint64_t served_ = 0, progress_ = 0;
};

} // namespace

int main(int argc, char **argv)
{
	if (argc != 5)
		die(2, "usage: soc-harness SNOOP_PS SYS_PS COLUMNS UART");
	Machine(number(argv[1]), number(argv[2]), argv[3], argv[4]).run();
	return 0;
}
