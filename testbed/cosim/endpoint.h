/* SPDX-License-Identifier: BSD-2-Clause */
/* The simulated endpoint, from a root port's side: packets to it, packets from it, clocks. */
#ifndef PTAT_COSIM_ENDPOINT_H
#define PTAT_COSIM_ENDPOINT_H

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <vector>

class Vtop;

namespace cosim
{

/* What was read. */
struct Answer {
	bool good; /* else the endpoint refused */
	uint64_t value;
};

class Endpoint
{
      public:
	/* Called in the middle of a clock. */
	std::function<void(uint64_t address, const uint8_t *data, unsigned bytes)> on_store;
	std::function<void()> on_interrupt;

	Endpoint();
	~Endpoint();

	/* Power-up: memory of zeros, registers at their reset values. */
	void power_up();
	/* What the configuration space says. */
	void set_bus_master(bool allowed);
	void set_max_payload(unsigned bytes);
	void set_link(bool up);

	/* Send a read of up to 8 bytes that begins at any byte; returns its tag. */
	unsigned send_read(uint64_t address, unsigned bytes);
	void send_write(uint64_t address, uint64_t value, unsigned bytes);
	/* The answer to a read, once; false if it has not come. */
	bool answered(unsigned tag, Answer &answer);
	/* Has all that was sent been taken? */
	bool idle() const;

	void run(unsigned clocks);
	/* Let what was sent have its effects, as far as it does not wait. */
	void settle();
	/* Let the trace's time catch up with that of this machine, without simulating it. */
	void catch_up();

	uint64_t clocks() const;

      private:
	struct Word {
		uint64_t data;
		uint8_t enables;
		bool last;
	};
	struct Read {
		uint64_t address;
		unsigned bytes, dwords;
		bool done;
		Answer answer;
	};

	void send(const std::vector<uint32_t> &packet);
	void receive(const std::vector<uint32_t> &packet);
	void complete(const std::vector<uint32_t> &packet);
	void store(const std::vector<uint32_t> &packet);
	void clock();
	/* Clocks since power-up, as the machine's time has it. */
	uint64_t due() const;

	std::unique_ptr<Vtop> top_;
	std::deque<Word> outgoing_;
	std::vector<uint32_t> incoming_;
	std::map<unsigned, Read> reads_; /* by tag */
	unsigned next_tag_ = 0;
	uint64_t clocks_ = 0, skipped_ = 0;
	uint64_t settled_at_ = 0; /* clock */
	std::chrono::steady_clock::time_point start_;
};

} /* namespace cosim */

#endif
