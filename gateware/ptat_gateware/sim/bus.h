/* SPDX-License-Identifier: BSD-2-Clause */
/* What the simulators' harnesses have in common: files, and requests to the memory controllers. */
#ifndef PTAT_SIM_BUS_H
#define PTAT_SIM_BUS_H

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "Vtop.h"

inline constexpr unsigned phases = 4;
inline constexpr unsigned banks = PTAT_RANKS * 8;
inline constexpr unsigned channel_pause = 15;
inline constexpr uint64_t request_write = UINT64_C(1) << 63;
inline constexpr uint64_t request_pause = UINT64_C(1) << 62;
inline constexpr unsigned request_channel_shift = 60;
inline constexpr unsigned request_bank_shift = 56;
inline constexpr unsigned column_channel_shift = 60;
inline constexpr unsigned column_bank_shift = 56;
inline constexpr uint64_t advance_max_clocks = UINT32_MAX;
/* From a column command to its stamp, with room to spare: only then may time jump. */
inline constexpr uint64_t settle_ticks = 32 * phases;

[[noreturn]] __attribute__((format(printf, 2, 3))) inline void die(int status, const char *format,
								   ...)
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
		if (fwrite_unlocked(&word, sizeof(word), 1, file_) != 1)
			die(2, "%s: %s", path_, strerror(errno));
	}
	/* For those who wait: at once in the file. */
	void put_byte(uint8_t byte)
	{
		if (fputc(byte, file_) == EOF)
			die(2, "%s: %s", path_, strerror(errno));
		flush();
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

/* Request ports of a channel's banks: a bit or an address each. */
struct Banks {
	using Bits = std::conditional_t<banks == 8, CData, SData>;

	Bits *valid, *ready, *we;
	IData *addr[banks];

	void offer(uint64_t request) const;
	void withdraw(uint32_t which) const
	{
		*valid &= ~which;
	}
	/* Those whose requests will be taken at the edge. */
	uint32_t taken() const
	{
		return *valid & *ready;
	}
};

/* The log of column commands. */
inline uint64_t column(unsigned channel, unsigned bank, uint64_t ticks)
{
	return static_cast<uint64_t>(channel) << column_channel_shift |
	       static_cast<uint64_t>(bank) << column_bank_shift | ticks;
}

/*
 * Requests one by one, none before its time: an uncached access waits for the one before. A pause
 * only takes its time.
 */
class TimedFeed
{
      public:
	/* Times count from `start_ticks` on. */
	void begin(std::vector<uint64_t> requests, std::vector<uint64_t> times, uint64_t gap_ticks,
		   uint64_t start_ticks, uint64_t now_ticks)
	{
		if (requests.size() != times.size())
			die(2, "%zu requests, %zu times", requests.size(), times.size());
		requests_ = std::move(requests);
		times_ = std::move(times);
		gap_ticks_ = gap_ticks;
		start_ticks_ = start_ticks;
		last_ticks_ = now_ticks;
		served_ = 0;
		outstanding_ = false;
	}
	bool done() const
	{
		return served_ == requests_.size();
	}
	/* Requests that were served. */
	uint64_t served() const
	{
		return served_;
	}
	/*
	 * Before a clock of the bus: the request that is to be offered in it, or nullptr.
	 * `advance`: clocks that may be skipped, because nothing is to come.
	 */
	const uint64_t *next(uint64_t ticks, File &columns, uint32_t &advance)
	{
		advance = 0;
		if (outstanding_ || done())
			return nullptr;
		uint64_t due = std::max(start_ticks_ + times_[served_], last_ticks_ + gap_ticks_);
		if (ticks < due) {
			uint64_t idle_clocks = (due - ticks) / phases;

			if (ticks > last_ticks_ + settle_ticks && idle_clocks > 1)
				advance = std::min(idle_clocks - 1, advance_max_clocks);
			return nullptr;
		}
		if (requests_[served_] & request_pause) {
			columns.put(column(channel_pause, 0, ticks));
			last_ticks_ = ticks;
			served_++;
			return nullptr;
		}
		return &requests_[served_];
	}
	/* What next() gave was taken by its bank. */
	void taken()
	{
		outstanding_ = true;
	}
	/* Its column command was on the bus. */
	void seen(uint64_t ticks)
	{
		last_ticks_ = ticks;
		outstanding_ = false;
		served_++;
	}

      private:
	std::vector<uint64_t> requests_, times_;
	uint64_t gap_ticks_ = 0, start_ticks_ = 0, last_ticks_ = 0;
	size_t served_ = 0;
	bool outstanding_ = false;
};

inline unsigned channel_of(uint64_t request)
{
	return request >> request_channel_shift & 3;
}

inline unsigned bank_of(uint64_t request)
{
	return request >> request_bank_shift & 15;
}

inline void Banks::offer(uint64_t request) const
{
	uint32_t bit = UINT32_C(1) << bank_of(request);

	*valid |= bit;
	*we = request & request_write ? *we | bit : *we & ~bit;
	*addr[bank_of(request)] = static_cast<uint32_t>(request);
}

/* Initialiser of the banks of channel c, those of the second rank after those of the first. */
#define PTAT_ADDR(top, c, b) &(top).banks##c##_addr##b
#define PTAT_RANK_0(top, c)                                                                        \
	PTAT_ADDR(top, c, 0), PTAT_ADDR(top, c, 1), PTAT_ADDR(top, c, 2), PTAT_ADDR(top, c, 3),    \
		PTAT_ADDR(top, c, 4), PTAT_ADDR(top, c, 5), PTAT_ADDR(top, c, 6),                  \
		PTAT_ADDR(top, c, 7)
#define PTAT_RANK_1(top, c)                                                                        \
	PTAT_ADDR(top, c, 8), PTAT_ADDR(top, c, 9), PTAT_ADDR(top, c, 10), PTAT_ADDR(top, c, 11),  \
		PTAT_ADDR(top, c, 12), PTAT_ADDR(top, c, 13), PTAT_ADDR(top, c, 14),               \
		PTAT_ADDR(top, c, 15)
#if PTAT_RANKS == 1
#define PTAT_ADDRS(top, c) PTAT_RANK_0(top, c)
#else
#define PTAT_ADDRS(top, c) PTAT_RANK_0(top, c), PTAT_RANK_1(top, c)
#endif
#define PTAT_BANKS(top, c)                                                                         \
	{                                                                                          \
		&(top).banks##c##_valid, &(top).banks##c##_ready, &(top).banks##c##_we,            \
		{                                                                                  \
			PTAT_ADDRS(top, c)                                                         \
		}                                                                                  \
	}

inline std::vector<uint64_t> load(const std::string &path)
{
	return File(path.c_str(), "rb").words();
}

inline std::vector<uint64_t> load_requests(const std::string &path)
{
	std::vector<uint64_t> requests = load(path);

	for (uint64_t request : requests)
		if (channel_of(request) >= PTAT_CHANNELS || bank_of(request) >= banks)
			die(2, "%s: request %#" PRIx64 ": no such channel or bank", path.c_str(),
			    request);
	return requests;
}

inline uint64_t number(const char *text)
{
	char *end;
	uint64_t value = strtoull(text, &end, 0);

	if (!*text || *end || !value)
		die(2, "%s is no period", text);
	return value;
}

#endif
