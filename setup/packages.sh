#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause
# usage: setup/packages.sh [gateware|firmware|browser|docs|kernel|studies]
#
# Installs the Debian packages that ptat is built and run with; with "gateware",
# those that simulating the gateware needs, too; with "firmware", those that
# testing and compiling the firmware needs; with "browser", the one that tests of
# the HTML report look at it with; with "docs", the one that checks manual pages;
# with "studies", the programs of the study of page sizes and what traces them,
# and what makes file systems.
# Does nothing, fast, when all are there.
set -euo pipefail

die() {
	printf 'setup: %s\n' "$@" >&2
	exit 2
}
say() { printf 'setup: %s\n' "$*" >&2; }

packages=(
	# the guest: QEMU and the kernel's source
	qemu-system-x86 seabios linux-source-6.12
	# building the kernel
	build-essential bc bison ccache flex libelf-dev libssl-dev kmod lz4 xz-utils perl
	# building the plugin (its header comes from QEMU's source package: dpkg-dev)
	libglib2.0-dev zlib1g-dev pkg-config dpkg-dev
	# Python, and the lint of shell
	python3-venv shellcheck
	ca-certificates git
	# boards on USB
	libusb-1.0-0
)
qemu_major_min=10

case "${1:-}" in
"") ;;
# iverilog gives cocotb a simulator to run in
gateware) packages+=(verilator iverilog) ;;
# clang is for libFuzzer; ninja builds picolibc
firmware) packages+=(libcmocka-dev clang libclang-rt-dev gcc-riscv64-unknown-elf ninja-build) ;;
browser) packages+=(chromium) ;;
# tracing programs for the study of page sizes, what is traced, and file systems
studies) packages+=(valgrind zstd freecell-solver-bin vim graphicsmagick poppler-utils vorbis-tools e2fsprogs xfsprogs fio) ;;
# coccinelle finds stores to page tables; the libraries are the kernel's mm selftests'
kernel) packages+=(coccinelle debhelper e2fsprogs rsync stress-ng redis-server libcap-dev libnuma-dev liburing-dev) ;;
docs) packages+=(mandoc) ;;
*) die "there is no group '$1' of packages; usage: setup/packages.sh [gateware|firmware|browser|docs|kernel|studies]" ;;
esac

[ -r /etc/os-release ] || die "this is no Debian (no /etc/os-release); use Debian 12 or 13"
# shellcheck source=/dev/null
. /etc/os-release
release="${ID:-unknown} ${VERSION_ID:-unknown}"

case "$release" in
"debian 12") suite=bookworm-backports ;;
"debian 13") suite= ;;
ubuntu*)
	# 24.04 has QEMU 8.2 (plugin API 2; we need 4), and no Ubuntu packages the source of 6.12.
	die "$PRETTY_NAME is not supported: it packages neither QEMU >= 10 with its source nor linux-source-6.12" \
		"run ptat in Debian 13, for example: debootstrap trixie /srv/ptat && chroot /srv/ptat"
	;;
*) die "$release is not supported: use Debian 12 or 13" ;;
esac
[ "$(dpkg --print-architecture)" = amd64 ] || die "ptat's testbed needs an amd64 machine"

qemu_is_new() {
	local version
	version=$(qemu-system-x86_64 --version 2>/dev/null) || return 1
	version=${version#*version }
	[ "${version%%.*}" -ge "$qemu_major_min" ]
}

missing=()
for package in "${packages[@]}"; do
	[ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] ||
		missing+=("$package")
done
qemu_is_new || [[ " ${missing[*]} " == *" qemu-system-x86 "* ]] || missing+=(qemu-system-x86)
[ ${#missing[@]} -gt 0 ] || exit 0

as_root=()
if [ "$(id -u)" != 0 ]; then
	command -v sudo >/dev/null || die "these packages are missing: ${missing[*]}" \
		"run this as root, or install sudo"
	as_root=(sudo)
fi
apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0)

if [ -n "$suite" ] && ! grep -rqsE "^[^#]*$suite" /etc/apt/sources.list /etc/apt/sources.list.d; then
	say "adding $suite in /etc/apt/sources.list.d/ptat-backports.sources (QEMU >= 10, Linux 6.12)"
	mirror=$(apt-get indextargets --format "\$(REPO_URI)" 'Created-By: Packages' \
		"Codename: $VERSION_CODENAME" | grep -v security | head -n 1)
	"${as_root[@]}" tee /etc/apt/sources.list.d/ptat-backports.sources >/dev/null <<-EOF
		Types: deb
		URIs: ${mirror:-http://deb.debian.org/debian}
		Suites: $suite
		Components: main
		Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
	EOF
fi

say "installing ${missing[*]}"
"${apt[@]}" update || die "apt-get update failed: is the network up?"
# Only what the release itself is too old for comes from backports.
newer=()
usual=()
for package in "${missing[@]}"; do
	case "$package" in
	qemu-system-x86 | seabios | linux-source-6.12) newer+=("$package") ;;
	*) usual+=("$package") ;;
	esac
done
# In this order: -t brings newer libraries along, which the release's own -dev packages refuse.
if [ ${#usual[@]} -gt 0 ]; then
	"${apt[@]}" install -y --no-install-recommends "${usual[@]}" >&2 ||
		die "could not install ${usual[*]}"
fi
if [ ${#newer[@]} -gt 0 ]; then
	"${apt[@]}" install -y --no-install-recommends ${suite:+-t "$suite"} "${newer[@]}" >&2 ||
		die "could not install ${newer[*]}"
fi
qemu_is_new || die "QEMU >= $qemu_major_min is needed, found: $(qemu-system-x86_64 --version | head -n 1)"
