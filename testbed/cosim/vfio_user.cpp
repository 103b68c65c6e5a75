/* SPDX-License-Identifier: BSD-2-Clause */
#include "vfio_user.h"

#include <cerrno>
#include <cstring>
#include <string>

#include <linux/vfio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "die.h"

namespace cosim
{

namespace
{

enum Command : uint16_t {
	VERSION = 1,
	DMA_MAP = 2,
	DMA_UNMAP = 3,
	DEVICE_GET_INFO = 4,
	DEVICE_GET_REGION_INFO = 5,
	DEVICE_GET_IRQ_INFO = 7,
	DEVICE_SET_IRQS = 8,
	REGION_READ = 9,
	REGION_WRITE = 10,
	DEVICE_RESET = 13,
};

struct Header {
	uint16_t id, command;
	uint32_t size, flags, error;
};
constexpr uint32_t flag_reply = 1, flag_no_reply = 0x10, flag_error = 0x20;
constexpr size_t message_bytes_max = 1 << 20;
constexpr size_t fds_max = 16;

struct Mapping {
	uint32_t argsz, flags;
	uint64_t offset, address, size;
};
struct Unmapping {
	uint32_t argsz, flags;
	uint64_t address, size;
};
struct Access {
	uint64_t offset;
	uint32_t region, count;
};

} /* namespace */

VfioUser::VfioUser(int socket, Device &device) : socket_(socket), device_(device)
{
}

VfioUser::~VfioUser()
{
	close_fds();
	close(socket_);
}

bool VfioUser::serve()
{
	Header header;
	if (!receive(&header, sizeof header))
		return false;
	if (header.size < sizeof header || header.size > message_bytes_max)
		die("QEMU sent a message of %u bytes", header.size);
	message_.resize(header.size - sizeof header);
	if (!receive(message_.data(), message_.size()))
		return false;
	answer_.clear();
	uint32_t error = answer(header.command);
	close_fds();
	if (header.flags & flag_no_reply)
		return true;
	if (error)
		answer_.clear();
	Header reply = { header.id, header.command,
			 static_cast<uint32_t>(sizeof header + answer_.size()),
			 flag_reply | (error ? flag_error : 0), error };
	const uint8_t *start = reinterpret_cast<const uint8_t *>(&reply);
	answer_.insert(answer_.begin(), start, start + sizeof reply);
	for (size_t sent = 0; sent < answer_.size();) {
		ssize_t count =
			send(socket_, answer_.data() + sent, answer_.size() - sent, MSG_NOSIGNAL);
		if (count <= 0)
			return false;
		sent += static_cast<size_t>(count);
	}
	return true;
}

bool VfioUser::receive(void *data, size_t bytes)
{
	uint8_t *place = static_cast<uint8_t *>(data);
	while (bytes) {
		alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * fds_max)];
		iovec vector = { place, bytes };
		msghdr message = {};
		message.msg_iov = &vector;
		message.msg_iovlen = 1;
		message.msg_control = control;
		message.msg_controllen = sizeof control;
		ssize_t count = recvmsg(socket_, &message, MSG_CMSG_CLOEXEC);
		if (count <= 0)
			return false;
		for (cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
			size_t fds = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
			size_t before = fds_.size();
			fds_.resize(before + fds);
			memcpy(fds_.data() + before, CMSG_DATA(c), fds * sizeof(int));
		}
		place += count;
		bytes -= static_cast<size_t>(count);
	}
	return true;
}

void VfioUser::close_fds()
{
	for (int fd : fds_)
		close(fd);
	fds_.clear();
}

/* Fill in the answer; an error number if the command cannot be done. */
uint32_t VfioUser::answer(unsigned command)
{
	switch (command) {
	case VERSION:
		return version();
	case DMA_MAP:
		return memory_map();
	case DMA_UNMAP:
		return memory_unmap();
	case DEVICE_GET_INFO:
		return device_info();
	case DEVICE_GET_REGION_INFO:
		return region_info();
	case DEVICE_GET_IRQ_INFO:
		return interrupt_info();
	case DEVICE_SET_IRQS:
		return set_interrupts();
	case REGION_READ:
		return region_read();
	case REGION_WRITE:
		return region_write();
	case DEVICE_RESET:
		device_.reset();
		return 0;
	default:
		return ENOTSUP;
	}
}

uint32_t VfioUser::version()
{
	static const std::string ours = "{\"capabilities\":{\"max_msg_fds\":8,"
					"\"max_data_xfer_size\":65536,\"pgsizes\":4096}}";
	if (message_.size() < 4)
		return EINVAL;
	answer_.assign(message_.begin(), message_.begin() + 4); /* the same version */
	answer_.insert(answer_.end(), ours.c_str(), ours.c_str() + ours.size() + 1);
	return 0;
}

uint32_t VfioUser::memory_map()
{
	Mapping mapping;
	if (!get(mapping))
		return EINVAL;
	if (!fds_.empty())
		device_.memory_map(mapping.address, mapping.size, fds_[0], mapping.offset);
	return 0;
}

uint32_t VfioUser::memory_unmap()
{
	Unmapping unmapping;
	if (!get(unmapping))
		return EINVAL;
	device_.memory_unmap(unmapping.address, unmapping.size);
	put(unmapping);
	return 0;
}

uint32_t VfioUser::device_info()
{
	uint32_t info[4] = { sizeof info, VFIO_DEVICE_FLAGS_RESET | VFIO_DEVICE_FLAGS_PCI,
			     VFIO_PCI_NUM_REGIONS, VFIO_PCI_NUM_IRQS };
	put(info);
	return 0;
}

uint32_t VfioUser::region_info()
{
	vfio_region_info info;
	if (!get(info))
		return EINVAL;
	info.argsz = sizeof info;
	info.flags = info.cap_offset = 0;
	info.size = info.offset = 0;
	if (info.index == VFIO_PCI_BAR0_REGION_INDEX)
		info.size = device_.bar_bytes();
	if (info.index == VFIO_PCI_CONFIG_REGION_INDEX)
		info.size = 256;
	if (info.size)
		info.flags = VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE;
	put(info);
	return 0;
}

uint32_t VfioUser::interrupt_info()
{
	vfio_irq_info info;
	if (!get(info))
		return EINVAL;
	info.argsz = sizeof info;
	info.count = info.index == VFIO_PCI_MSI_IRQ_INDEX;
	info.flags = info.count ? VFIO_IRQ_INFO_EVENTFD | VFIO_IRQ_INFO_NORESIZE : 0;
	put(info);
	return 0;
}

uint32_t VfioUser::set_interrupts()
{
	vfio_irq_set set;
	if (!get(set))
		return EINVAL;
	if (set.index != VFIO_PCI_MSI_IRQ_INDEX || !(set.flags & VFIO_IRQ_SET_ACTION_TRIGGER))
		return 0;
	device_.set_interrupt(fds_.empty() ? -1 : dup(fds_[0]));
	return 0;
}

uint32_t VfioUser::region_read()
{
	Access access;
	if (!get(access) || access.count > 4096)
		return EINVAL;
	put(access);
	answer_.resize(sizeof access + access.count);
	uint8_t *data = answer_.data() + sizeof access;
	if (access.region == VFIO_PCI_CONFIG_REGION_INDEX) {
		device_.config_read(access.offset, data, access.count);
	} else if (access.region == VFIO_PCI_BAR0_REGION_INDEX && access.count <= 8) {
		uint64_t value = device_.bar_read(access.offset, access.count);
		memcpy(data, &value, access.count);
	} else {
		return EINVAL;
	}
	return 0;
}

uint32_t VfioUser::region_write()
{
	Access access;
	if (!get(access) || access.count > message_.size() - sizeof access)
		return EINVAL;
	const uint8_t *data = message_.data() + sizeof access;
	if (access.region == VFIO_PCI_CONFIG_REGION_INDEX) {
		device_.config_write(access.offset, data, access.count);
	} else if (access.region == VFIO_PCI_BAR0_REGION_INDEX && access.count <= 8) {
		uint64_t value = 0;
		memcpy(&value, data, access.count);
		device_.bar_write(access.offset, value, access.count);
	} else {
		return EINVAL;
	}
	put(access);
	return 0;
}

template <typename T> bool VfioUser::get(T &value) const
{
	if (message_.size() < sizeof value)
		return false;
	memcpy(&value, message_.data(), sizeof value);
	return true;
}

template <typename T> void VfioUser::put(const T &value)
{
	const uint8_t *start = reinterpret_cast<const uint8_t *>(&value);
	answer_.assign(start, start + sizeof value);
}

} /* namespace cosim */
