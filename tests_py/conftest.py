"""Hypothesis profiles. Examples are derived from the test: two runs do the same. HYPOTHESIS_PROFILE=search goes on."""

import os

for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    # The oracle's matrix products are small: threads of NumPy's BLAS cost more than they give. Read as NumPy is loaded.
    os.environ.setdefault(name, "1")

from hypothesis import HealthCheck, settings  # noqa: E402

_common = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large]}
settings.register_profile("ci", derandomize=True, database=None, max_examples=200, **_common)
settings.register_profile("search", max_examples=1000, **_common)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
