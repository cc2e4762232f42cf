"""Hypothesis profiles: examples are derived from the test, so that two runs do the same. HYPOTHESIS_PROFILE=search looks further."""

import os

from hypothesis import HealthCheck, settings

_common = dict(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
settings.register_profile("ci", derandomize=True, database=None, max_examples=200, **_common)
settings.register_profile("search", max_examples=1000, **_common)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
