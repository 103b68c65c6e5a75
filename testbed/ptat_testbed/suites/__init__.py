# SPDX-License-Identifier: BSD-2-Clause
"""What `make` runs beyond the tests: checks against the ground truth, kernels, benchmarks."""
