/* SPDX-License-Identifier: BSD-2-Clause */
/* The virtual machine's memory, as its pieces are handed over: what the endpoint's DMA reaches. */
#ifndef PTAT_COSIM_GUEST_MEMORY_H
#define PTAT_COSIM_GUEST_MEMORY_H

#include <cstddef>
#include <cstdint>
#include <map>

namespace cosim
{

class GuestMemory
{
      public:
	GuestMemory() = default;
	GuestMemory(const GuestMemory &) = delete;
	GuestMemory &operator=(const GuestMemory &) = delete;
	~GuestMemory();

	/* The guest's `address` is `file_offset` of `fd`, which stays the caller's. */
	void map(uint64_t address, uint64_t bytes, int fd, uint64_t file_offset);
	void unmap(uint64_t address, uint64_t bytes);
	void clear();

	/* Null if not all of it is memory of one piece. */
	uint8_t *at(uint64_t address, uint64_t bytes) const;

      private:
	struct Piece {
		uint8_t *start;
		uint64_t bytes;
	};
	std::map<uint64_t, Piece> pieces_; /* by their first address */
};

} /* namespace cosim */

#endif
