# SPDX-License-Identifier: BSD-2-Clause
"""How all tests use Hypothesis: the same examples in each run, however slow the machine is.

``pytest --hypothesis-profile=random`` looks for others.
"""

from hypothesis import HealthCheck, settings

# Neither knows a slow test from a busy machine.
settings.register_profile("random", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", settings.get_profile("random"), derandomize=True)
settings.load_profile("same")
