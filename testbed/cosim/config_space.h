/* SPDX-License-Identifier: BSD-2-Clause */
/* The endpoint's configuration space: what the hard block of a board's PHY has. */
#ifndef PTAT_COSIM_CONFIG_SPACE_H
#define PTAT_COSIM_CONFIG_SPACE_H

#include <array>
#include <cstdint>

namespace cosim
{

class ConfigSpace
{
      public:
	static constexpr unsigned bytes = 256;

	/* One BAR, of 64-bit addresses and prefetchable, and one MSI. */
	ConfigSpace(uint16_t vendor, uint16_t device, uint64_t bar_bytes);

	/* As after power-up. */
	void reset();
	/* What lies beyond the end reads as 0 and cannot be written. */
	void read(uint64_t offset, uint8_t *data, unsigned count) const;
	void write(uint64_t offset, const uint8_t *data, unsigned count);

	uint64_t bar() const;
	bool bus_master() const;
	unsigned max_payload_bytes() const;

      private:
	uint16_t word(unsigned offset) const;
	void set(unsigned offset, unsigned count, uint64_t value, uint64_t writable = 0);

	std::array<uint8_t, bytes> initial_{}, value_{}, writable_{};
};

} /* namespace cosim */

#endif
