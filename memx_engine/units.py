"""Unit constants. Inside the engine values are bytes, seconds, FLOP/s and bytes/s; other units exist at the edge."""

from __future__ import annotations

from typing import Final

MIB: Final = 1 << 20
GIB: Final = 1 << 30
GB: Final = 10**9
TERA: Final = 10**12
MICRO: Final = 1e-6


def gib(size_bytes: float) -> float:
    """Bytes as GiB (2^30), for display."""
    return size_bytes / GIB
