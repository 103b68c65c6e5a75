# SPDX-License-Identifier: BSD-2-Clause
# make demo: record, report and validate two programs. make test: everything that CI runs.

PTAT := .venv/bin/ptat
PYTHON := .venv/bin/python

.PHONY: help demo test test-suite test-exact test-studies test-bitstream lint setup packages packages-gateware packages-firmware packages-browser packages-docs \
	packages-kernel kernel-exercise kernel-reclaim kernel-selftests kernel-cost kernel-debug kernel-bisect kernel-series kernel-deb test-kernels \
	kernel plugin check-exact check-controller check-trap check-decoder check-hugepages bench bench-parser faults fuzz sim-snoop sim-soc sim-pcie usb-guest \
	calibrate bench-boards first-report study-pagesize studies-small packages-studies bitstream registers mutate-gateware fresh golden docs man notebook-session clean

help:
	@echo 'make demo             record gups and python3 in the testbed, report, validate'
	@echo 'make test             lint and all tests (boots the patched kernel in QEMU)'
	@echo 'make docs             this documentation as a site: docs/_build/html/index.html'
	@echo 'make man              manual pages: man -M docs/_build/man ptat'
	@echo 'make notebook-session record what notebooks and screenshots are of'
	@echo 'make golden           accept what the reports print now'
	@echo 'make check-exact      every workload against the ground truth; SIZE=small|full'
	@echo 'make check-controller traces behind modelled memory controllers; SIZE=small|full CONTROLLER=…'
	@echo 'make check-trap       each trapped TLB miss against QEMU'"'"'s own walks; SIZE=small|full'
	@echo 'make check-decoder    the snooper on buses of controllers that it was not written for'
	@echo 'make check-hugepages  what larger pages save, predicted and measured'
	@echo 'make kernel-exercise  all that changes page tables, untraced and traced; WORDS=…'
	@echo 'make kernel-reclaim   major faults of a traced process under memory pressure'
	@echo 'make kernel-selftests the kernel'"'"'s own tests of mm, untraced and traced; ALL=1 TRAP=1 STRESS=600'
	@echo 'make kernel-cost      instructions that PTAT costs, against the unpatched kernel'
	@echo 'make kernel-debug     the patched kernel under KASAN, lockdep and the like, and under KCSAN'
	@echo 'make kernel-bisect    after each patch of the series, does what it touches compile?'
	@echo 'make kernel-series    the patches as mails for git am, checked; VERSION=6.12'
	@echo 'make kernel-deb       a Debian package of the patched kernel; CONFIG=FILE'
	@echo 'make test-kernels     the series for other kernels, built and tested; SERIES="6.1 7.3"'
	@echo 'make sim-snoop        the simulated snooper on LiteDRAM; REQUESTS=N'
	@echo 'make sim-soc          a simulated device with its firmware captures a program, over UDP'
	@echo 'make sim-pcie         the simulated PCIe endpoint holds page tables of a guest; SIZE=small'
	@echo 'make mutate-gateware  seeded faults, each of which a test must notice'
	@echo 'make bitstream        place and route for ECP5: clocks reached, size'
	@echo 'make registers        the register map of the gateware'
	@echo 'make usb-guest        ptat record on a real USB stack, with faults on the way; KILLS=N'
	@echo 'make calibrate        learn the simulated controllers'"'"' mapping, and record with it'
	@echo 'make faults           what damage to a session does to its result'
	@echo 'make fuzz             every reader against broken input; MINUTES=10'
	@echo 'make study-pagesize   five desktop programs and their page sizes: docs/studies.md'
	@echo 'make studies-small    each study once, small: docs/studies.md'
	@echo 'make bench            cost of the plugin, speed of simulations'
	@echo 'make bench-boards     what of a link reaches the disk, against a plain receiver in C'
	@echo 'make bench-parser     speed of the parser with a billion records, or RECORDS=N'
	@echo 'make first-report     CPU time of the first report, with nothing compiled'
	@echo 'make fresh            make demo in bare Debian 12 and 13 (root)'

setup: packages .venv/ready kernel plugin

packages:
	@setup/packages.sh

.venv/ready: pyproject.toml | packages
	python3 -c 'import sys; sys.exit(sys.version_info < (3, 11) and "ptat needs Python >= 3.11")'
	python3 -m venv .venv
	.venv/bin/pip install --quiet --editable '.[dev]'
	@touch $@

# Only what builds or simulates gateware waits for its tools.
packages-gateware: packages
	@setup/packages.sh gateware

.venv/gateware-ready: .venv/ready | packages-gateware
	.venv/bin/pip install --quiet --editable '.[gateware]'
	@touch $@

packages-firmware: packages
	@setup/packages.sh firmware

packages-browser: packages
	@setup/packages.sh browser

packages-kernel: packages
	@setup/packages.sh kernel

packages-studies: packages
	@setup/packages.sh studies

packages-docs: packages
	@setup/packages.sh docs

.venv/docs-ready: .venv/ready
	.venv/bin/pip install --quiet --editable '.[docs]'
	@touch $@

kernel: packages
	@kernel-patch/build.sh >/dev/null

plugin: packages
	@testbed/plugin/build.sh >/dev/null

demo: setup
	@testbed/demo.sh

lint: packages .venv/ready
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports
	shellcheck setup/*.sh kernel-patch/*.sh testbed/*.sh testbed/plugin/*.sh docs/notebooks/*.sh .ci/run .ci/kernel
	.venv/bin/clang-format --dry-run -Werror $$(git ls-files '*.c' '*.cpp' '*.h' ':!kernel-patch/src')
	$(PYTHON) kernel-patch/series.py check 6.12

# Place and route is one long process of low priority; nearly always its result is cached.
test: setup .venv/gateware-ready .venv/docs-ready packages-firmware packages-browser packages-docs packages-kernel packages-studies lint
	@MAKE="$(MAKE)" setup/beside.sh test-suite test-bitstream

test-bitstream:
	nice -n 19 $(PYTHON) -m ptat_gateware.synthesis.bitstream

# Kernels are built first, as a build beside tests starves their guests.
test-suite: docs man
	$(PYTHON) -c 'from ptat_testbed.guest import build; build.studies_kernel(), build.board_kernel()'
	$(MAKE) -C testbed/plugin test
	$(MAKE) -C firmware test
	$(PYTHON) -m pytest --numprocesses=auto --maxprocesses=4 --dist=loadfile --durations=25 -m 'not alone'
	$(PYTHON) -m pytest -m alone
	$(MAKE) check-decoder
	$(MAKE) first-report
	$(MAKE) test-exact
	$(MAKE) test-studies

# By itself: beside others, fault events come so late that whose walk one is about is in doubt.
test-exact:
	$(PYTHON) -m ptat_testbed.suites.check_exact --size small
	$(PYTHON) -m ptat_testbed.suites.check_controller --size small
	$(PYTHON) -m ptat_testbed.suites.sim_soc

test-studies:
	rm -rf docs/_build/studies-small
	$(PYTHON) -m ptat_testbed.suites.studies_small --output docs/_build/studies-small

# With notebooks run anew, and pictures of the report of today; a warning fails the build.
docs: .venv/docs-ready packages-browser
	rm -rf docs/notebooks/session/results
	$(PYTHON) docs/screenshots.py docs/_build/generated
	$(PYTHON) docs/figures.py docs/_build/generated/studies
	.venv/bin/sphinx-build --quiet --fail-on-warning --fresh-env \
		--doctree-dir docs/_build/doctrees docs docs/_build/html

man: .venv/docs-ready packages-docs
	$(PYTHON) docs/manual.py docs/_build/man
	mandoc -T lint -W warning docs/_build/man/man1/*.1

notebook-session: setup
	docs/notebooks/record.sh

# Accepts what the reports print now as what they are to print; look at the difference.
golden: .venv/ready
	PTAT_ACCEPT_GOLDEN=1 $(PYTHON) -m pytest -q host/tests/test_output.py host/tests/test_compared.py \
		host/tests/test_kernel_misses.py
	git --no-pager diff --stat host/tests/golden

# All that changes page tables, untraced and traced; WORDS: only groups with these in their names.
kernel-exercise: setup packages-kernel
	@$(PYTHON) -m ptat_testbed.suites.kernel_exercise $(WORDS)

# What reclaim takes from a process that is traced, and from one that is not.
kernel-reclaim: setup packages-kernel
	@$(PYTHON) -m ptat_testbed.suites.kernel_exercise --reclaim

# The kernel's own tests of mm; ALL=1: those that take minutes, too. STRESS: seconds of stress-ng.
STRESS ?= 60
kernel-selftests: setup packages-kernel
	@$(PYTHON) -m ptat_testbed.suites.kernel_selftests $(if $(ALL),--all) $(if $(TRAP),--trap) --stress $(STRESS)

# Each of these builds kernels of its own, once.
kernel-cost: packages .venv/ready
	@$(PYTHON) -m ptat_testbed.suites.kernel_cost

kernel-debug: setup
	@$(PYTHON) -m ptat_testbed.suites.kernel_debug

kernel-bisect: packages .venv/ready
	@$(PYTHON) -m ptat_testbed.suites.kernel_bisect

# The patches of a kernel version as mails, checked: do they apply, does checkpatch complain?
VERSION ?= 6.12
kernel-series: packages .venv/ready
	@$(PYTHON) kernel-patch/series.py write $(VERSION) kernel-series-$(VERSION)
	@echo 'the series is in kernel-series-$(VERSION)/' >&2
	@$(PYTHON) kernel-patch/series.py check $(VERSION)

# A Debian package of the patched kernel, with the configuration of the running one or CONFIG=FILE.
kernel-deb: packages-kernel
	@kernel-patch/deb.sh $(if $(CONFIG),--config $(CONFIG))

test-kernels: packages .venv/ready
	@$(PYTHON) -m ptat_testbed.suites.kernel_versions $(SERIES)

SIZE ?= full
check-exact: setup .venv/gateware-ready
	$(PYTHON) -m ptat_testbed.suites.check_exact --size $(SIZE)

# Attribution exact and the number of misses inside the stated bound; CONTROLLER=ecc-server
check-controller: setup
	@$(PYTHON) -m ptat_testbed.suites.check_controller --size $(SIZE) $(if $(CONTROLLER),--presets $(CONTROLLER))

# Each trapped miss is a walk of QEMU's own TLB, and each walk a record; SIZE=small
check-trap: setup packages-kernel
	@$(PYTHON) -m ptat_testbed.suites.check_trap $(if $(filter small,$(SIZE)),--small)

# Sleeping ranks, posted commands, slow clocks, mirroring, CAL, what is refused: a line for each.
check-decoder: packages .venv/gateware-ready
	@$(PYTHON) gateware/tests/check_decoder.py

check-hugepages: setup
	@$(PYTHON) -m ptat_testbed.suites.check_hugepages

bench: setup .venv/gateware-ready
	$(PYTHON) studies/bench_pages.py
	$(PYTHON) -m ptat_testbed.suites.bench
	$(PYTHON) -m ptat_testbed.suites.bench_traps
	$(PYTHON) gateware/bench_pcie.py
	$(PYTHON) -m ptat_testbed.suites.sim_snoop --requests 10000000
	$(PYTHON) -m ptat_testbed.suites.bench_boards

# Kills of ptat in mid-capture: KILLS=200 takes a quarter of an hour.
KILLS ?= 10

calibrate: packages setup .venv/gateware-ready
	@$(PYTHON) -m ptat_testbed.suites.calibration

bench-boards: setup
	@$(PYTHON) -m ptat_testbed.suites.bench_boards

# Each program's trace is some millions of accesses; CACHE=0 lets all of them reach the memory.
STUDY ?= study-pagesize
CACHE ?= 32K
study-pagesize: packages-studies .venv/ready
	$(PYTHON) docs/examples/pagesize-programs.py $(STUDY)
	$(PTAT) pagesize --machines docs/examples/pagesize-vms.toml --workers 2 \
		$(if $(CACHE:0=),--cache $(CACHE)) --html $(STUDY)/report.html \
		$(foreach name,game office photo pdf multimedia,$(name)=$(STUDY)/$(name).lackey.zst)

# Goes on where it was stopped; results and figures are in studies-small/.
studies-small: setup packages-studies
	@$(PYTHON) -m ptat_testbed.suites.studies_small

# A billion records, if memory and disk have room; or RECORDS=N.
bench-parser: .venv/ready
	$(PYTHON) parser/bench.py $(if $(RECORDS),--records $(RECORDS))

# With an empty cache of compiled code: what a new user waits for.
first-report: .venv/ready
	@$(PYTHON) parser/first_report.py

faults: .venv/ready
	$(PYTHON) parser/faults.py $(if $(SESSION),--session $(SESSION))

bitstream: .venv/gateware-ready packages-firmware
	@$(PYTHON) -m ptat_gateware.synthesis.bitstream

registers: .venv/gateware-ready
	@$(PYTHON) -m ptat_gateware.synthesis.regmap

MINUTES ?= 10
fuzz: .venv/ready
	.venv/bin/pip install --quiet --editable '.[fuzz]'
	$(PYTHON) parser/fuzz.py --minutes $(MINUTES)

# A million controller cycles a second: REQUESTS=10000000 takes minutes.
REQUESTS ?= 300000
sim-snoop: packages .venv/gateware-ready
	$(PYTHON) -m ptat_testbed.suites.sim_snoop --requests $(REQUESTS)

# The simulated PCIe endpoint in a virtual machine, against QEMU's own log; SIZE=small
sim-pcie: setup .venv/gateware-ready
	@$(PYTHON) -m ptat_testbed.suites.sim_pcie $(if $(filter small,$(SIZE)),--small)

sim-soc: setup .venv/gateware-ready packages-firmware
	@$(PYTHON) -m ptat_testbed.suites.sim_soc

mutate-gateware: packages .venv/gateware-ready
	@$(PYTHON) gateware/tests/mutate.py

usb-guest: setup
	@$(PYTHON) -m ptat_testbed.suites.usb_guest --kills $(KILLS)

fresh:
	setup/fresh.sh bookworm demo
	setup/fresh.sh trixie demo

clean:
	rm -rf docs/_build .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
