/* SPDX-License-Identifier: BSD-2-Clause */
#include "endpoint.h"

#include <algorithm>
#include <cinttypes>

#include "Vtop.h"
#include "die.h"
#include "verilated.h"

namespace cosim
{

namespace
{

/* First byte of a header (section 2.2.1 of the PCI Express Base Specification 3.0). */
enum Kind : uint8_t {
	read_32 = 0x00,
	read_64 = 0x20,
	write_32 = 0x40,
	write_64 = 0x60,
	completion = 0x0a,
	completion_with_data = 0x4a,
};

constexpr unsigned requester = 0x0000; /* the root complex */
constexpr unsigned completer = 0x0100;
constexpr unsigned tags = 256;
constexpr unsigned reset_clocks = 8;
/* From a packet's last word to its record in a FIFO. */
constexpr unsigned settling_clocks = 24;

uint32_t header(Kind kind, unsigned dwords)
{
	return static_cast<uint32_t>(kind) << 24 | dwords;
}

/* The request's header; `dwords` becomes the length of its data. */
std::vector<uint32_t> request(bool write, uint64_t address, unsigned bytes, unsigned tag,
			      unsigned &dwords)
{
	unsigned before = address & 3;
	unsigned enables = ((1u << bytes) - 1) << before;
	dwords = (before + bytes + 3) / 4;
	unsigned last = dwords > 1 ? enables >> 4 * (dwords - 1) & 0xf : 0;
	bool wide = address >> 32;
	Kind kind = write ? wide ? write_64 : write_32 : wide ? read_64 : read_32;
	std::vector<uint32_t> packet{ header(kind, dwords),
				      requester << 16 | tag << 8 | last << 4 | (enables & 0xf) };
	if (wide)
		packet.push_back(static_cast<uint32_t>(address >> 32));
	packet.push_back(static_cast<uint32_t>(address) & ~3u);
	return packet;
}

} /* namespace */

Endpoint::Endpoint()
{
	power_up();
}

Endpoint::~Endpoint() = default;

void Endpoint::power_up()
{
	top_ = std::make_unique<Vtop>();
	outgoing_.clear();
	incoming_.clear();
	reads_.clear();
	clocks_ = skipped_ = settled_at_ = 0;
	top_->host_id = completer;
	top_->host_max_payload = 128;
	top_->host_link_up = 1;
	top_->tx_ready = 1;
	top_->msi_ready = 1;
	top_->sys_rst = 1;
	run(reset_clocks);
	top_->sys_rst = 0;
	run(reset_clocks);
	start_ = std::chrono::steady_clock::now();
}

void Endpoint::set_bus_master(bool allowed)
{
	top_->host_bus_master = allowed;
}

void Endpoint::set_max_payload(unsigned bytes)
{
	top_->host_max_payload = static_cast<uint16_t>(bytes);
}

void Endpoint::set_link(bool up)
{
	top_->host_link_up = up;
	if (!up) { /* what was on its way is gone */
		outgoing_.clear();
		reads_.clear();
		run(settling_clocks);
		incoming_.clear();
	}
}

unsigned Endpoint::send_read(uint64_t address, unsigned bytes)
{
	unsigned tag = next_tag_++ % tags;
	if (reads_.count(tag))
		die("more than %u reads are under way", tags);
	unsigned dwords;
	send(request(false, address, bytes, tag, dwords));
	reads_[tag] = { address, bytes, dwords, false, {} };
	return tag;
}

void Endpoint::send_write(uint64_t address, uint64_t value, unsigned bytes)
{
	unsigned dwords;
	std::vector<uint32_t> packet = request(true, address, bytes, 0, dwords);
	unsigned __int128 data = static_cast<unsigned __int128>(value) << 8 * (address & 3);
	for (unsigned i = 0; i < dwords; i++)
		packet.push_back(__builtin_bswap32(static_cast<uint32_t>(data >> 32 * i)));
	send(packet);
}

bool Endpoint::answered(unsigned tag, Answer &answer)
{
	auto read = reads_.find(tag);
	/* With the link, requests went away, too: all ones, as a root port says then. */
	if (read == reads_.end()) {
		answer = { false, ~UINT64_C(0) };
		return true;
	}
	if (!read->second.done)
		return false;
	answer = read->second.answer;
	reads_.erase(read);
	return true;
}

bool Endpoint::idle() const
{
	return outgoing_.empty();
}

void Endpoint::run(unsigned clocks)
{
	while (clocks--)
		clock();
}

uint64_t Endpoint::due() const
{
	auto passed = std::chrono::steady_clock::now() - start_;
	uint64_t ns = static_cast<uint64_t>(
		std::chrono::duration_cast<std::chrono::nanoseconds>(passed).count());
	return ns / 1000 * (PTAT_CLOCK_HZ / 1000000) + ns % 1000 * (PTAT_CLOCK_HZ / 1000000) / 1000;
}

void Endpoint::catch_up()
{
	/* What is on its way keeps its time. */
	if (due() < clocks_ + skipped_ + 2 * settling_clocks)
		return;
	settle();
	uint64_t left = due() - clocks_ - skipped_;
	while (left) {
		uint32_t step = static_cast<uint32_t>(std::min<uint64_t>(left, UINT32_MAX));
		top_->advance = step;
		clock();
		skipped_ += step;
		left -= step;
	}
	top_->advance = 0;
}

void Endpoint::settle()
{
	while (clocks_ < settled_at_)
		clock();
}

uint64_t Endpoint::clocks() const
{
	return clocks_;
}

void Endpoint::send(const std::vector<uint32_t> &packet)
{
	for (size_t i = 0; i < packet.size(); i += 2) {
		bool half = i + 1 == packet.size();
		uint64_t high = half ? 0 : packet[i + 1];
		outgoing_.push_back({ packet[i] | high << 32,
				      static_cast<uint8_t>(half ? 0x0f : 0xff),
				      i + 2 >= packet.size() });
	}
}

void Endpoint::clock()
{
	bool sending = !outgoing_.empty();
	if (sending) {
		const Word &word = outgoing_.front();
		top_->rx_dat = word.data;
		top_->rx_be = word.enables;
		top_->rx_last = word.last;
	}
	top_->rx_valid = sending;
	top_->eval();
	bool taken = sending && top_->rx_ready;
	bool received = top_->tx_valid, last = top_->tx_last, interrupt = top_->msi_valid;
	if (received) {
		incoming_.push_back(static_cast<uint32_t>(top_->tx_dat));
		if (top_->tx_be & 0xf0)
			incoming_.push_back(static_cast<uint32_t>(top_->tx_dat >> 32));
	}
	top_->sys_clk = !top_->sys_clk; /* both edges are clocks */
	top_->eval();
	clocks_++;
	if (taken) {
		outgoing_.pop_front();
		settled_at_ = clocks_ + settling_clocks;
	}
	if (received && last) {
		receive(incoming_);
		incoming_.clear();
	}
	if (interrupt && on_interrupt)
		on_interrupt();
}

void Endpoint::receive(const std::vector<uint32_t> &packet)
{
	switch (packet[0] >> 24) {
	case completion:
	case completion_with_data:
		complete(packet);
		break;
	case write_32:
	case write_64:
		store(packet);
		break;
	default:
		die("the endpoint sent a packet of type %02x", packet[0] >> 24);
	}
}

/* Section 2.3.1.1: each field must be what the request makes it. */
void Endpoint::complete(const std::vector<uint32_t> &packet)
{
	unsigned tag = packet.size() >= 3 ? packet[2] >> 8 & 0xff : 0;
	auto found = reads_.find(tag);
	if (packet.size() < 3 || found == reads_.end() || found->second.done)
		die("a completion that nobody waits for, tag %02x", tag);
	Read &read = found->second;
	unsigned status = packet[1] >> 13 & 7;
	read.done = true;
	if (status) {
		read.answer = { false, ~UINT64_C(0) };
		return;
	}
	if (packet[0] >> 24 != completion_with_data || (packet[0] & 0x3ff) != read.dwords ||
	    packet.size() != 3 + read.dwords || packet[1] >> 16 != completer ||
	    (packet[1] & 0xfff) != read.bytes || packet[2] >> 16 != requester ||
	    (packet[2] & 0x7f) != (read.address & 0x7f))
		die("wrong completion of %u bytes at %#" PRIx64 ": %08x %08x %08x, %zu dwords",
		    read.bytes, read.address, packet[0], packet[1], packet[2], packet.size());
	unsigned __int128 data = 0;
	for (unsigned i = 0; i < read.dwords; i++)
		data |= static_cast<unsigned __int128>(__builtin_bswap32(packet[3 + i])) << 32 * i;
	uint64_t value = static_cast<uint64_t>(data >> 8 * (read.address & 3));
	if (read.bytes < 8)
		value &= (UINT64_C(1) << 8 * read.bytes) - 1;
	read.answer = { true, value };
}

void Endpoint::store(const std::vector<uint32_t> &packet)
{
	bool wide = packet[0] >> 24 == write_64;
	size_t data = wide ? 4 : 3;
	unsigned dwords = packet[0] & 0x3ff;
	if (packet.size() != data + dwords || packet[1] >> 16 != completer ||
	    (packet[1] & 0xff) != (dwords > 1 ? 0xffu : 0x0fu))
		die("wrong write: %08x %08x, %zu dwords", packet[0], packet[1], packet.size());
	uint64_t address = wide ? static_cast<uint64_t>(packet[2]) << 32 | packet[3] : packet[2];
	if (wide != (address >> 32 != 0) || address % 4096 + 4 * dwords > 4096 ||
	    4 * dwords > top_->host_max_payload)
		die("wrong write of %u dwords to %#" PRIx64, dwords, address);
	std::vector<uint32_t> words(packet.begin() + static_cast<ptrdiff_t>(data), packet.end());
	for (uint32_t &word : words)
		word = __builtin_bswap32(word);
	if (on_store)
		on_store(address, reinterpret_cast<const uint8_t *>(words.data()), 4 * dwords);
}

} /* namespace cosim */
