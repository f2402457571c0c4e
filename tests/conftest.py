"""Settings of every test: property tests are reproducible and have no deadline (shared machines are slow at times)."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("memx", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("memx")
