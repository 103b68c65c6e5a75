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
 * Ends with one line of JSON: {"cycles", "cpu_seconds", "reads"}; exit code 2 and one line on
 * stderr where the script or a file is wrong, 1 where the machine does what it must not.
 */
#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <iomanip>
#include <iostream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "Vtop.h"
#include "ptat_wire.h"
#include "verilated.h"

namespace
{

constexpr unsigned phases = 4;
constexpr unsigned banks = PTAT_RANKS * 8;
constexpr unsigned channel_pause = 15;
constexpr uint64_t request_write = UINT64_C(1) << 63;
constexpr uint64_t request_pause = UINT64_C(1) << 62;
constexpr unsigned request_channel_shift = 60;
constexpr unsigned request_bank_shift = 56;
constexpr unsigned column_channel_shift = 60;
constexpr unsigned column_bank_shift = 56;
constexpr unsigned csr_timeout_clocks = 1000;
constexpr uint64_t advance_max_clocks = UINT32_MAX;
constexpr uint64_t hang_clocks = 1000000;
/* From a column command to its stamp, with room to spare: only then may time jump. */
constexpr uint64_t settle_ticks = 32 * phases;

[[noreturn]] __attribute__((format(printf, 2, 3))) void die(int status, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	fputs("harness: ", stderr);
	vfprintf(stderr, format, arguments);
	fputc('\n', stderr);
	va_end(arguments);
	exit(status);
}

class File
{
      public:
	File(const char *path, const char *mode) : path_(path), file_(fopen(path, mode))
	{
		if (!file_)
			die(2, "%s: %s", path, strerror(errno));
	}
	File(const File &) = delete;
	File &operator=(const File &) = delete;
	~File()
	{
		fclose(file_);
	}
	void put(uint64_t word)
	{
		if (fwrite(&word, sizeof(word), 1, file_) != 1)
			die(2, "%s: %s", path_, strerror(errno));
	}
	void flush()
	{
		if (fflush(file_))
			die(2, "%s: %s", path_, strerror(errno));
	}
	std::vector<uint64_t> words()
	{
		std::vector<uint64_t> all;

		if (fseek(file_, 0, SEEK_END))
			die(2, "%s: %s", path_, strerror(errno));
		all.resize(ftell(file_) / sizeof(uint64_t));
		rewind(file_);
		if (fread(all.data(), sizeof(uint64_t), all.size(), file_) != all.size())
			die(2, "%s: cannot be read", path_);
		return all;
	}

      private:
	const char *path_;
	FILE *file_;
};

struct Bank {
	CData *valid, *ready, *we;
	IData *addr;
};

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
	/* With inputs settled, right before the edge. */
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

/* Requests of one bank in a flood, as indices into all of them. */
struct Queue {
	std::vector<uint32_t> requests;
	size_t next = 0;
	uint64_t pause_clocks = 0;
};

struct Channel {
	Bank bank[banks];
	CData *column_phases, *column_bank;
	Link link;
	Queue queue[banks];
};

class Machine
{
      public:
	Machine(uint64_t snoop_ps, uint64_t sys_ps, const char *columns, char **bus)
	    : columns_(columns, "wb"), snoop_ps_(snoop_ps), sys_ps_(sys_ps)
	{
#define BANK(c, b)                                                                                 \
	{ &top_.bank##c##_##b##_valid, &top_.bank##c##_##b##_ready, &top_.bank##c##_##b##_we,      \
	  &top_.bank##c##_##b##_addr }
#define RANK_0(c)                                                                                  \
	BANK(c, 0), BANK(c, 1), BANK(c, 2), BANK(c, 3), BANK(c, 4), BANK(c, 5), BANK(c, 6),        \
		BANK(c, 7)
#define RANK_1(c)                                                                                  \
	BANK(c, 8), BANK(c, 9), BANK(c, 10), BANK(c, 11), BANK(c, 12), BANK(c, 13), BANK(c, 14),   \
		BANK(c, 15)
#if PTAT_RANKS == 1
#define RANKS(c) RANK_0(c)
#else
#define RANKS(c) RANK_0(c), RANK_1(c)
#endif
#define CHANNEL(c)                                                                                 \
	{                                                                                          \
		{ RANKS(c) }, &top_.column##c##_phases, &top_.column##c##_bank,                    \
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
#undef RANKS
#undef RANK_1
#undef RANK_0
#undef BANK
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
	void after_snoop_edge();
	void offer_flood();
	void offer_timed();
	void offer(uint64_t request, const Bank &bank);
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
	const std::vector<uint64_t> *times_ = nullptr;
	/* flood: requests accepted; timed: index of the request in hand */
	uint64_t accepted_ = 0;
	uint64_t gap_ticks_ = 0, last_ticks_ = 0;
	bool offered_ = false, outstanding_ = false;
};

void Machine::offer(uint64_t request, const Bank &bank)
{
	*bank.valid = 1;
	*bank.we = !!(request & request_write);
	*bank.addr = static_cast<uint32_t>(request);
}

void Machine::clear_banks()
{
	for (unsigned c = 0; c < PTAT_CHANNELS; c++)
		for (const Bank &bank : channels_[c].bank)
			*bank.valid = 0;
}

void Machine::offer_flood()
{
	for (unsigned c = 0; c < PTAT_CHANNELS; c++) {
		for (unsigned b = 0; b < banks; b++) {
			Queue &queue = channels_[c].queue[b];
			const Bank &bank = channels_[c].bank[b];

			*bank.valid = 0;
			if (queue.pause_clocks) {
				queue.pause_clocks--;
				continue;
			}
			if (queue.next < queue.requests.size())
				offer((*requests_)[queue.requests[queue.next]], bank);
		}
	}
}

/* An uncached access waits for the one before: one request is on its way at a time. */
void Machine::offer_timed()
{
	clear_banks();
	top_.advance = 0;
	offered_ = false;
	if (outstanding_ || accepted_ == requests_->size())
		return;
	uint64_t due = std::max((*times_)[accepted_], last_ticks_ + gap_ticks_);
	if (ticks_ < due) {
		uint64_t idle_clocks = (due - ticks_) / phases;

		if (ticks_ > last_ticks_ + settle_ticks && idle_clocks > 1)
			top_.advance = std::min(idle_clocks - 1, advance_max_clocks);
		return;
	}
	uint64_t request = (*requests_)[accepted_];
	if (request & request_pause) {
		columns_.put(static_cast<uint64_t>(channel_pause) << column_channel_shift | ticks_);
		last_ticks_ = ticks_;
		accepted_++;
		return;
	}
	offer(request, channels_[request >> request_channel_shift & 3]
			       .bank[request >> request_bank_shift & 15]);
	offered_ = true;
}

/* The state before a rising edge of the snooper's clock: what happens at it. */
void Machine::after_snoop_edge()
{
	for (unsigned c = 0; c < PTAT_CHANNELS; c++) {
		Channel &channel = channels_[c];

		if (unsigned seen = *channel.column_phases) {
			uint64_t at = ticks_ + __builtin_ctz(seen);

			if (seen & (seen - 1))
				die(1, "two column commands in one clock");
			columns_.put(static_cast<uint64_t>(c) << column_channel_shift |
				     static_cast<uint64_t>(*channel.column_bank)
					     << column_bank_shift |
				     at);
			columns_seen_++;
			if (mode_ == TIMED) {
				last_ticks_ = at;
				outstanding_ = false;
				accepted_++;
			}
		}
		for (unsigned b = 0; b < banks; b++) {
			if (!*channel.bank[b].valid || !*channel.bank[b].ready)
				continue;
			if (mode_ == TIMED) {
				outstanding_ = true;
				continue;
			}
			Queue &queue = channel.queue[b];
			accepted_++;
			queue.next++;
			while (queue.next < queue.requests.size() &&
			       (*requests_)[queue.requests[queue.next]] & request_pause) {
				queue.pause_clocks += static_cast<uint32_t>(
					(*requests_)[queue.requests[queue.next++]]);
				accepted_++;
			}
		}
	}
	ticks_ += phases * (UINT64_C(1) + top_.advance);
	cycles_++;
}

/* To the next rising edge of either clock. */
void Machine::step()
{
	uint64_t now_ps = std::min(snoop_next_ps_, sys_next_ps_);
	bool snoop = snoop_next_ps_ == now_ps, sys = sys_next_ps_ == now_ps;

	if (snoop) {
		snoop_next_ps_ += snoop_ps_;
		top_.snoop_clk = 0;
		if (mode_ == FLOOD)
			offer_flood();
		else if (mode_ == TIMED)
			offer_timed();
	}
	if (sys) {
		sys_next_ps_ += sys_ps_;
		top_.sys_clk = 0;
		for (unsigned c = 0; c < PTAT_CHANNELS; c++)
			channels_[c].link.before_clock();
	}
	top_.eval();
	if (sys && !top_.sys_rst) {
		bool busy = false;

		for (unsigned c = 0; c < PTAT_CHANNELS; c++)
			busy |= channels_[c].link.take();
		silent_clocks_ = busy ? 0 : silent_clocks_ + 1;
	}
	if (snoop && !top_.snoop_rst)
		after_snoop_edge();
	if (snoop)
		top_.snoop_clk = 1;
	if (sys)
		top_.sys_clk = 1;
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

	for (unsigned c = 0; c < PTAT_CHANNELS; c++)
		for (Queue &queue : channels_[c].queue)
			queue = Queue();
	accepted_ = 0;
	for (size_t i = 0; i < requests.size(); i++) {
		uint64_t request = requests[i];
		Queue &queue = channels_[request >> request_channel_shift & 3]
				       .queue[request >> request_bank_shift & 15];

		if (request & request_pause && queue.requests.empty()) {
			queue.pause_clocks += static_cast<uint32_t>(request);
			accepted_++;
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
	if (requests.size() != times.size())
		die(2, "%zu requests, %zu times", requests.size(), times.size());
	requests_ = &requests;
	times_ = &times;
	gap_ticks_ = gap_ticks;
	last_ticks_ = ticks_;
	accepted_ = 0;
	outstanding_ = false;
	mode_ = TIMED;
	uint64_t progress = cycles_, seen = 0;
	while (accepted_ < requests.size()) {
		step();
		if (accepted_ != seen) {
			seen = accepted_;
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

std::vector<uint64_t> load(const std::string &path)
{
	return File(path.c_str(), "rb").words();
}

std::vector<uint64_t> load_requests(const std::string &path)
{
	std::vector<uint64_t> requests = load(path);

	for (uint64_t request : requests)
		if ((request >> request_channel_shift & 3) >= PTAT_CHANNELS ||
		    (request >> request_bank_shift & 15) >= banks)
			die(2, "%s: request %#" PRIx64 ": no such channel or bank", path.c_str(),
			    request);
	return requests;
}

uint64_t number(const char *text)
{
	char *end;
	uint64_t value = strtoull(text, &end, 0);

	if (!*text || *end || !value)
		die(2, "%s is no period", text);
	return value;
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
	double seconds = static_cast<double>(clock()) / CLOCKS_PER_SEC;
	printf("{\"cycles\": %" PRIu64 ", \"cpu_seconds\": %.3f, \"reads\": [", machine.cycles(),
	       seconds);
	for (size_t i = 0; i < reads.size(); i++)
		printf("%s%" PRIu32, i ? ", " : "", reads[i]);
	printf("]}\n");
	return 0;
}
