/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The server's side of vfio-user, as far as QEMU's vfio-user-pci wants it: messages of a socket
 * become calls of a device. (docs/interop/vfio-user.rst in QEMU's sources.)
 */
#ifndef PTAT_COSIM_VFIO_USER_H
#define PTAT_COSIM_VFIO_USER_H

#include <cstddef>
#include <cstdint>
#include <vector>

namespace cosim
{

/* A device with a configuration space, one BAR and one MSI. */
class Device
{
      public:
	virtual ~Device() = default;
	virtual uint64_t bar_bytes() const = 0;
	virtual void config_read(uint64_t offset, uint8_t *data, unsigned bytes) = 0;
	virtual void config_write(uint64_t offset, const uint8_t *data, unsigned bytes) = 0;
	/* `bytes` is at most 8. May take long. */
	virtual uint64_t bar_read(uint64_t offset, unsigned bytes) = 0;
	virtual void bar_write(uint64_t offset, uint64_t value, unsigned bytes) = 0;
	virtual void memory_map(uint64_t address, uint64_t bytes, int fd, uint64_t offset) = 0;
	virtual void memory_unmap(uint64_t address, uint64_t bytes) = 0;
	/* An interrupt is a write of 1 to this eventfd, which is the device's; -1: none. */
	virtual void set_interrupt(int fd) = 0;
	virtual void reset() = 0;
};

class VfioUser
{
      public:
	/* `socket` is connected to QEMU. */
	VfioUser(int socket, Device &device);
	~VfioUser();
	VfioUser(const VfioUser &) = delete;
	VfioUser &operator=(const VfioUser &) = delete;

	/* Serve one message; false: QEMU is gone. */
	bool serve();

      private:
	bool receive(void *data, size_t bytes);
	void close_fds();
	uint32_t answer(unsigned command);
	uint32_t version();
	uint32_t memory_map();
	uint32_t memory_unmap();
	uint32_t device_info();
	uint32_t region_info();
	uint32_t interrupt_info();
	uint32_t set_interrupts();
	uint32_t region_read();
	uint32_t region_write();

	/* A structure at the start of the message; false: the message is too short. */
	template <typename T> bool get(T &value) const;
	template <typename T> void put(const T &value);

	int socket_;
	Device &device_;
	std::vector<int> fds_;
	std::vector<uint8_t> message_, answer_;
};

} /* namespace cosim */

#endif
