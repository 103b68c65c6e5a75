/* SPDX-License-Identifier: BSD-2-Clause */
#include "guest_memory.h"

#include <iterator>

#include <sys/mman.h>

#include "die.h"

namespace cosim
{

GuestMemory::~GuestMemory()
{
	clear();
}

void GuestMemory::map(uint64_t address, uint64_t bytes, int fd, uint64_t file_offset)
{
	void *start = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
			   static_cast<off_t>(file_offset));
	/* What is read-only to the machine, its firmware, is nothing that a device writes to. */
	if (start == MAP_FAILED && errno == EACCES)
		return;
	if (start == MAP_FAILED)
		die_of_errno("cannot map the guest's memory");
	unmap(address, bytes);
	pieces_[address] = { static_cast<uint8_t *>(start), bytes };
}

void GuestMemory::unmap(uint64_t address, uint64_t bytes)
{
	auto piece = pieces_.lower_bound(address);
	while (piece != pieces_.end() && piece->first - address < bytes) {
		munmap(piece->second.start, piece->second.bytes);
		piece = pieces_.erase(piece);
	}
}

void GuestMemory::clear()
{
	for (auto &piece : pieces_)
		munmap(piece.second.start, piece.second.bytes);
	pieces_.clear();
}

uint8_t *GuestMemory::at(uint64_t address, uint64_t bytes) const
{
	auto piece = pieces_.upper_bound(address);
	if (piece == pieces_.begin())
		return nullptr;
	piece = std::prev(piece);
	uint64_t offset = address - piece->first;
	if (offset >= piece->second.bytes || bytes > piece->second.bytes - offset)
		return nullptr;
	return piece->second.start + offset;
}

} /* namespace cosim */
