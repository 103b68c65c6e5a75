/* SPDX-License-Identifier: BSD-2-Clause */
#include "config_space.h"

#include <linux/pci_regs.h>

namespace cosim
{

namespace
{

constexpr unsigned power_management = 0x40, msi = 0x48, express = 0x60;
constexpr uint16_t class_other_memory = 0x0580;
constexpr unsigned smallest_payload_bytes = 128;

} /* namespace */

ConfigSpace::ConfigSpace(uint16_t vendor, uint16_t device, uint64_t bar_bytes)
{
	set(PCI_VENDOR_ID, 2, vendor);
	set(PCI_DEVICE_ID, 2, device);
	set(PCI_COMMAND, 2, 0,
	    PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER | PCI_COMMAND_PARITY | PCI_COMMAND_SERR |
		    PCI_COMMAND_INTX_DISABLE);
	set(PCI_STATUS, 2, PCI_STATUS_CAP_LIST);
	set(PCI_CLASS_DEVICE, 2, class_other_memory);
	set(PCI_CACHE_LINE_SIZE, 1, 0, 0xff);
	set(PCI_BASE_ADDRESS_0, 8, PCI_BASE_ADDRESS_MEM_TYPE_64 | PCI_BASE_ADDRESS_MEM_PREFETCH,
	    -bar_bytes);
	set(PCI_SUBSYSTEM_VENDOR_ID, 2, vendor);
	set(PCI_SUBSYSTEM_ID, 2, device);
	set(PCI_CAPABILITY_LIST, 1, power_management);
	set(PCI_INTERRUPT_LINE, 1, 0, 0xff);

	set(power_management, 2, PCI_CAP_ID_PM | msi << 8);
	set(power_management + PCI_PM_PMC, 2, 3);
	set(power_management + PCI_PM_CTRL, 2, PCI_PM_CTRL_NO_SOFT_RESET, PCI_PM_CTRL_STATE_MASK);

	set(msi, 2, PCI_CAP_ID_MSI | express << 8);
	set(msi + PCI_MSI_FLAGS, 2, PCI_MSI_FLAGS_64BIT, PCI_MSI_FLAGS_ENABLE);
	set(msi + PCI_MSI_ADDRESS_LO, 8, 0, ~UINT64_C(3));
	set(msi + PCI_MSI_DATA_64, 2, 0, 0xffff);

	set(express, 2, PCI_CAP_ID_EXP);
	set(express + PCI_EXP_FLAGS, 2, 2 | PCI_EXP_TYPE_ENDPOINT << 4);
	set(express + PCI_EXP_DEVCAP, 4, 2 | PCI_EXP_DEVCAP_RBER); /* payloads up to 512 bytes */
	set(express + PCI_EXP_DEVCTL, 2, 0,
	    PCI_EXP_DEVCTL_PAYLOAD | PCI_EXP_DEVCTL_READRQ | PCI_EXP_DEVCTL_RELAX_EN |
		    PCI_EXP_DEVCTL_NOSNOOP_EN | PCI_EXP_DEVCTL_CERE | PCI_EXP_DEVCTL_NFERE |
		    PCI_EXP_DEVCTL_FERE | PCI_EXP_DEVCTL_URRE);
	set(express + PCI_EXP_LNKCAP, 4, PCI_EXP_LNKCAP_SLS_5_0GB | 4 << 4);
	set(express + PCI_EXP_LNKSTA, 2, PCI_EXP_LNKSTA_CLS_5_0GB | 4 << PCI_EXP_LNKSTA_NLW_SHIFT);
	reset();
}

void ConfigSpace::reset()
{
	value_ = initial_;
}

void ConfigSpace::read(uint64_t offset, uint8_t *data, unsigned count) const
{
	for (unsigned i = 0; i < count; i++)
		data[i] = offset + i < bytes ? value_[offset + i] : 0;
}

void ConfigSpace::write(uint64_t offset, const uint8_t *data, unsigned count)
{
	for (unsigned i = 0; i < count && offset + i < bytes; i++) {
		uint8_t &value = value_[offset + i];
		uint8_t mask = writable_[offset + i];
		value = static_cast<uint8_t>((value & ~mask) | (data[i] & mask));
	}
}

uint64_t ConfigSpace::bar() const
{
	uint64_t value = 0;
	for (unsigned i = 0; i < 8; i++)
		value |= static_cast<uint64_t>(value_[PCI_BASE_ADDRESS_0 + i]) << 8 * i;
	return value & ~UINT64_C(0xf);
}

bool ConfigSpace::bus_master() const
{
	return word(PCI_COMMAND) & PCI_COMMAND_MASTER;
}

unsigned ConfigSpace::max_payload_bytes() const
{
	return smallest_payload_bytes
	       << ((word(express + PCI_EXP_DEVCTL) & PCI_EXP_DEVCTL_PAYLOAD) >> 5);
}

uint16_t ConfigSpace::word(unsigned offset) const
{
	return static_cast<uint16_t>(value_[offset] | value_[offset + 1] << 8);
}

void ConfigSpace::set(unsigned offset, unsigned count, uint64_t value, uint64_t writable)
{
	for (unsigned i = 0; i < count; i++) {
		initial_[offset + i] = static_cast<uint8_t>(value >> 8 * i);
		writable_[offset + i] = static_cast<uint8_t>(writable >> 8 * i);
	}
}

} /* namespace cosim */
