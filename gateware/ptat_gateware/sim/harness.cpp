/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Drives the simulated machine (top.py): feeds memory requests, serves the CSR bus, and takes the
 * blocks off the links.
 *
 *   harness SNOOP_PS SYS_PS COLUMNS BUS... < SCRIPT
 *
 * Clock periods in picoseconds (equal periods share their edges), a file for the times of all
 * column commands, one file of blocks for each channel. The script has one command a line:
 *
 *   write ADDRESS VALUE     to a CSR (byte address)
 *   read ADDRESS            of a CSR; the values are printed at the end
 *   stall OPEN CLOSED SEED  the links take words in spells of about OPEN clocks, then none for
 *                           about CLOSED; CLOSED 0: always
 *   flood FILE              offer requests as fast as the banks take them
 *   timed FILE TIMES GAP    one request at a time, in order, none before its time and none
 *                           within GAP ticks of the one before; idle time is skipped
 *   run CLOCKS              of the snooper
 *   drain CLOCKS            run until the links have been silent for so long
 *
 * FILE holds a 64-bit word for each request: 63 write, 62 pause, 61:60 channel, 59:56 bank, rank
 * above, 31:0 address in the bank. A pause is no request: in a flood its bank waits 31:0 clocks; in
 * timed mode it only takes up its time. TIMES holds a 64-bit number of ticks for each request.
 *
 * COLUMNS gets a 64-bit word for each column command on a DFI (and each pause of timed mode):
 * 63:60 channel (15: a pause), 59:56 rank and bank, 55:0 ticks. A tick is one CK; 0 is the first
 * after reset. These times are the harness's own count.
 *
 * Ends with one line of JSON: {"cycles", "reads"}; exit code 2 and one line on
 * stderr where the script or a file is wrong, 1 where the machine does what it must not.
 */
#include <algorithm>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iomanip>
#include <iostream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "Vtop.h"
#include "bus.h"
#include "ptat_wire.h"
#include "verilated.h"

namespace
{

constexpr unsigned csr_timeout_clocks = 1000;
constexpr uint64_t hang_clocks = 1000000;
/* The blocks of one channel, and when they are taken. */
class Link
{
      public:
	Link(CData *valid, CData *ready, CData *last, QData *data, const char *path)
	    : valid_(valid), ready_(ready), last_(last), data_(data), file_(path, "wb")
	{
	}
	void stall(unsigned open_clocks, unsigned closed_clocks, unsigned seed)
	{
		open_clocks_ = open_clocks;
		closed_clocks_ = closed_clocks;
		random_.seed(seed);
		left_ = 0;
		*ready_ = 1;
	}
	void before_clock()
	{
		if (!closed_clocks_) {
			*ready_ = 1;
		} else if (left_-- == 0) {
			*ready_ = !*ready_;
			left_ = random_() % (2 * (*ready_ ? open_clocks_ : closed_clocks_));
		}
	}
	/* Right before the edge. */
	bool take()
	{
		if (!*valid_)
			return false;
		if (!*ready_)
			return true;
		bool last = words_ % PTAT_WIRE_BLOCK_WORDS == PTAT_WIRE_WORD_CHECK;
		if (*last_ != last)
			die(1, "link: `last` is %d at word %" PRIu64 " of a block", *last_,
			    words_ % PTAT_WIRE_BLOCK_WORDS);
		file_.put(*data_);
		words_++;
		return true;
	}
	void finish()
	{
		if (words_ % PTAT_WIRE_BLOCK_WORDS)
			die(1, "link: the last block has %" PRIu64 " words",
			    words_ % PTAT_WIRE_BLOCK_WORDS);
		file_.flush();
	}

      private:
	CData *valid_, *ready_, *last_;
	QData *data_;
	File file_;
	uint64_t words_ = 0;
	unsigned open_clocks_ = 0, closed_clocks_ = 0, left_ = 0;
	std::minstd_rand random_;
};

template <typename Function> void for_each_bit(uint32_t bits, Function &&function)
{
	for (; bits; bits &= bits - 1)
		function(static_cast<unsigned>(__builtin_ctz(bits)));
}

/* Requests of one bank in a flood, as indices into all of them. */
struct Queue {
	std::vector<uint32_t> requests;
	size_t next = 0;
	uint64_t pause_clocks = 0;
};

struct Channel {
	Banks ports;
	CData *column_phases, *column_bank;
	Link link;
	Queue queue[banks];
	/* Banks that are to be offered their next request. */
	uint32_t waiting = 0;
};

class Machine
{
      public:
	Machine(uint64_t snoop_ps, uint64_t sys_ps, const char *columns, char **bus)
	    : columns_(columns, "wb"), snoop_ps_(snoop_ps), sys_ps_(sys_ps)
	{
#define CHANNEL(c)                                                                                 \
	{                                                                                          \
		PTAT_BANKS(top_, c), &top_.column##c##_phases, &top_.column##c##_bank,             \
			{ &top_.link##c##_valid, &top_.link##c##_ready, &top_.link##c##_last,      \
			  &top_.link##c##_data, bus[c] },                                          \
		{                                                                                  \
		}                                                                                  \
	}
		channels_ = new Channel[PTAT_CHANNELS]{
			CHANNEL(0),
#if PTAT_CHANNELS == 2
			CHANNEL(1),
#endif
		};
#undef CHANNEL
		top_.sys_rst = top_.snoop_rst = 1;
		for (int i = 0; i < 16; i++)
			step();
		top_.sys_rst = top_.snoop_rst = 0;
		ticks_ = cycles_ = 0;
	}
	~Machine()
	{
		delete[] channels_;
	}
	Machine(const Machine &) = delete;
	Machine &operator=(const Machine &) = delete;

	uint32_t csr(uint32_t address, bool write, uint32_t value);
	void stall(unsigned open_clocks, unsigned closed_clocks, unsigned seed);
	void flood(const std::vector<uint64_t> &requests);
	void timed(const std::vector<uint64_t> &requests, const std::vector<uint64_t> &times,
		   uint64_t gap_ticks);
	void run(uint64_t clocks);
	void drain(uint64_t clocks);
	void finish();
	uint64_t cycles() const
	{
		return cycles_;
	}

      private:
	void step();
	void before_snoop_edge();
	void offer_flood();
	void offer_timed();
	void clear_banks();

	Vtop top_;
	Channel *channels_;
	File columns_;
	uint64_t snoop_ps_, sys_ps_;
	uint64_t snoop_next_ps_ = 0, sys_next_ps_ = 0;
	uint64_t ticks_ = 0, cycles_ = 0;
	uint64_t silent_clocks_ = 0;
	uint64_t columns_seen_ = 0;

	enum { IDLE, FLOOD, TIMED } mode_ = IDLE;
	const std::vector<uint64_t> *requests_ = nullptr;
	TimedFeed timed_;
};

void Machine::clear_banks()
{
	for (unsigned c = 0; c < PTAT_CHANNELS; c++)
		channels_[c].ports.withdraw(~UINT32_C(0));
}

void Machine::offer_flood()
{
	for (unsigned c = 0; c < PTAT_CHANNELS; c++) {
		Channel &channel = channels_[c];

		channel.ports.withdraw(channel.waiting);
		for_each_bit(channel.waiting, [&](unsigned b) {
			Queue &queue = channel.queue[b];

			if (queue.pause_clocks) {
				queue.pause_clocks--;
				return;
			}
			channel.waiting &= ~(UINT32_C(1) << b);
			if (queue.next < queue.requests.size())
				channel.ports.offer((*requests_)[queue.requests[queue.next]]);
		});
	}
}

void Machine::offer_timed()
{
	clear_banks();
	if (const uint64_t *request = timed_.next(ticks_, columns_, top_.advance))
		channels_[channel_of(*request)].ports.offer(*request);
}

/* The state before an edge of the snooper's clock: what happens at it. */
void Machine::before_snoop_edge()
{
	for (unsigned c = 0; c < PTAT_CHANNELS; c++) {
		Channel &channel = channels_[c];

		if (unsigned seen = *channel.column_phases) {
			uint64_t at = ticks_ + __builtin_ctz(seen);

			if (seen & (seen - 1))
				die(1, "two column commands in one clock");
			columns_.put(column(c, *channel.column_bank, at));
			columns_seen_++;
			if (mode_ == TIMED)
				timed_.seen(at);
		}
		for_each_bit(channel.ports.taken(), [&](unsigned b) {
			if (mode_ == TIMED) {
				timed_.taken();
				return;
			}
			Queue &queue = channel.queue[b];
			channel.waiting |= UINT32_C(1) << b;
			queue.next++;
			while (queue.next < queue.requests.size() &&
			       (*requests_)[queue.requests[queue.next]] & request_pause) {
				queue.pause_clocks += static_cast<uint32_t>(
					(*requests_)[queue.requests[queue.next++]]);
			}
		});
	}
	ticks_ += phases * (UINT64_C(1) + top_.advance);
	cycles_++;
}

/*
 * To the next cycle of either clock. Each change of a clock is one (top.py), and no output that is
 * looked at follows the inputs of the same cycle: one evaluation has it all.
 */
void Machine::step()
{
	uint64_t now_ps = std::min(snoop_next_ps_, sys_next_ps_);
	bool snoop = snoop_next_ps_ == now_ps, sys = sys_next_ps_ == now_ps;

	if (snoop) {
		snoop_next_ps_ += snoop_ps_;
		top_.snoop_clk ^= 1;
		if (mode_ == FLOOD)
			offer_flood();
		else if (mode_ == TIMED)
			offer_timed();
		if (!top_.snoop_rst)
			before_snoop_edge();
	}
	if (sys) {
		bool busy = false;

		sys_next_ps_ += sys_ps_;
		top_.sys_clk ^= 1;
		for (unsigned c = 0; c < PTAT_CHANNELS; c++) {
			channels_[c].link.before_clock();
			if (!top_.sys_rst)
				busy |= channels_[c].link.take();
		}
		silent_clocks_ = busy ? 0 : silent_clocks_ + 1;
	}
	top_.eval();
}

uint32_t Machine::csr(uint32_t address, bool write, uint32_t value)
{
	top_.csr_adr = address / 4;
	top_.csr_dat_w = value;
	top_.csr_we = write;
	top_.csr_stb = 1;
	for (unsigned i = 0; i < csr_timeout_clocks; i++) {
		/* ack is registered: it stands after the edge, and is taken at the next. */
		step();
		if (top_.csr_ack) {
			uint32_t read = top_.csr_dat_r;
			uint64_t edge_ps = sys_next_ps_;

			while (sys_next_ps_ == edge_ps)
				step();
			top_.csr_stb = 0;
			edge_ps = sys_next_ps_;
			while (sys_next_ps_ == edge_ps)
				step();
			return read;
		}
	}
	die(1, "no answer from CSR %#x", address);
}

void Machine::stall(unsigned open_clocks, unsigned closed_clocks, unsigned seed)
{
	for (unsigned c = 0; c < PTAT_CHANNELS; c++)
		channels_[c].link.stall(open_clocks, closed_clocks, seed + c);
}

void Machine::run(uint64_t clocks)
{
	for (uint64_t end = cycles_ + clocks; cycles_ < end;)
		step();
}

void Machine::drain(uint64_t clocks)
{
	silent_clocks_ = 0;
	for (uint64_t start = cycles_; silent_clocks_ < clocks;) {
		step();
		if (cycles_ - start > hang_clocks + 100 * clocks)
			die(1, "the links are never silent");
	}
}

void Machine::flood(const std::vector<uint64_t> &requests)
{
	uint64_t columns_wanted = columns_seen_;

	for (unsigned c = 0; c < PTAT_CHANNELS; c++) {
		for (Queue &queue : channels_[c].queue)
			queue = Queue();
		channels_[c].waiting = (UINT32_C(1) << banks) - 1;
	}
	for (size_t i = 0; i < requests.size(); i++) {
		uint64_t request = requests[i];
		Queue &queue = channels_[channel_of(request)].queue[bank_of(request)];

		if (request & request_pause && queue.requests.empty()) {
			queue.pause_clocks += static_cast<uint32_t>(request);
			continue;
		}
		queue.requests.push_back(static_cast<uint32_t>(i));
		columns_wanted += !(request & request_pause);
	}
	requests_ = &requests;
	mode_ = FLOOD;
	uint64_t progress = cycles_, seen = columns_seen_;
	while (columns_seen_ < columns_wanted) {
		step();
		if (columns_seen_ != seen) {
			seen = columns_seen_;
			progress = cycles_;
		} else if (cycles_ - progress > hang_clocks) {
			die(1,
			    "the controller hangs with %" PRIu64 " of %" PRIu64 " requests served",
			    seen, columns_wanted);
		}
	}
	mode_ = IDLE;
	clear_banks();
}

void Machine::timed(const std::vector<uint64_t> &requests, const std::vector<uint64_t> &times,
		    uint64_t gap_ticks)
{
	timed_.begin(requests, times, gap_ticks, 0, ticks_);
	mode_ = TIMED;
	uint64_t progress = cycles_, seen = 0;
	while (!timed_.done()) {
		step();
		if (timed_.served() != seen) {
			seen = timed_.served();
			progress = cycles_;
		} else if (cycles_ - progress > hang_clocks) {
			die(1, "the controller hangs at request %" PRIu64, seen);
		}
	}
	mode_ = IDLE;
	top_.advance = 0;
	clear_banks();
}

void Machine::finish()
{
	columns_.flush();
	for (unsigned c = 0; c < PTAT_CHANNELS; c++)
		channels_[c].link.finish();
	top_.final();
}

} // namespace

int main(int argc, char **argv)
{
	if (argc != 4 + PTAT_CHANNELS)
		die(2, "usage: harness SNOOP_PS SYS_PS COLUMNS BUS... < SCRIPT");
	Machine machine(number(argv[1]), number(argv[2]), argv[3], argv + 4);
	std::vector<uint32_t> reads;
	std::string line;

	while (std::getline(std::cin, line)) {
		std::istringstream words(line);
		std::string command, path, times;
		uint64_t a = 0, b = 0, c = 0;

		words >> command >> std::setbase(0);
		if (command == "write" && words >> a >> b)
			machine.csr(a, true, b);
		else if (command == "read" && words >> a)
			reads.push_back(machine.csr(a, false, 0));
		else if (command == "stall" && words >> a >> b >> c)
			machine.stall(a, b, c);
		else if (command == "flood" && words >> path)
			machine.flood(load_requests(path));
		else if (command == "timed" && words >> path >> times >> a)
			machine.timed(load_requests(path), load(times), a);
		else if (command == "run" && words >> a)
			machine.run(a);
		else if (command == "drain" && words >> a)
			machine.drain(a);
		else
			die(2, "not a command: %s", line.c_str());
	}
	machine.finish();
	printf("{\"cycles\": %" PRIu64 ", \"reads\": [", machine.cycles());
	for (size_t i = 0; i < reads.size(); i++)
		printf("%s%" PRIu32, i ? ", " : "", reads[i]);
	printf("]}\n");
	return 0;
}
