#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause
# usage: setup/fresh.sh bookworm|trixie [make target]
#
# Runs a make target (default: demo) of a clone of HEAD in a bare Debian made
# by debootstrap, which has git, make and python3 and nothing else: proof that
# no step leans on what a developer's machine happens to have.
set -euo pipefail

suite=${1:?usage: setup/fresh.sh bookworm|trixie [make target]}
target=${2:-demo}
top=$(git -C "$(dirname "$0")" rev-parse --show-toplevel)
[ "$(id -u)" = 0 ] || {
	echo "fresh: debootstrap and chroot need root" >&2
	exit 2
}
command -v debootstrap >/dev/null || apt-get -qq install -y debootstrap >&2

root=$(mktemp -d "${PTAT_FRESH_DIR:-/var/tmp}/ptat-fresh-$suite.XXXXXX")
# shellcheck disable=SC2317 # reached through the trap
cleanup() {
	local mount
	for mount in dev/pts dev/shm dev sys proc; do
		# Lazily: what an interrupted run left behind may still use them.
		if mountpoint -q "$root/$mount"; then umount --lazy "$root/$mount"; fi
	done
	rm -rf --one-file-system "$root"
}
trap cleanup EXIT

debootstrap --variant=minbase --include=git,make,python3,ca-certificates "$suite" "$root" >&2
for mount in proc sys dev dev/pts; do mount --bind "/$mount" "$root/$mount"; done
mount -t tmpfs tmpfs "$root/dev/shm"

# How this machine reaches the registries (resolver, certificates, apt and pip settings) goes along.
cp -L /etc/resolv.conf "$root/etc/resolv.conf"
cp -L /etc/hosts "$root/etc/hosts"
for file in /usr/local/share/ca-certificates/*.crt /etc/pip.conf; do
	if [ -e "$file" ]; then install -D -m 644 "$file" "$root$file"; fi
done
grep -liE 'proxy|acquire::https' /etc/apt/apt.conf.d/* 2>/dev/null |
	xargs -r cp -t "$root/etc/apt/apt.conf.d" || true
chroot "$root" update-ca-certificates >&2

git clone -q "$top" "$root/root/ptat"
start=$(date +%s)
status=0
chroot "$root" env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \
	make -C /root/ptat "$target" >&2 || status=$?
cold_seconds=$(($(date +%s) - start))
warm_seconds=null
if [ "$status" = 0 ] && [ "$target" = demo ]; then
	start=$(date +%s)
	chroot "$root" env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \
		make -C /root/ptat "$target" >&2 || status=$?
	warm_seconds=$(($(date +%s) - start))
fi
printf '{"fresh": "%s", "target": "%s", "exit_status": %d, "cold_seconds": %d, "warm_seconds": %s}\n' \
	"$suite" "$target" "$status" "$cold_seconds" "$warm_seconds"
exit "$status"
