"""Every number that the cost model's formulas rest on, so that its fingerprint changes when one of them does."""

from __future__ import annotations

from memx_engine.cost import activations, compute, memory, network, parameters, stage


def cost_constants() -> dict[str, float]:
    """Module-level numbers of the cost model, by module and name."""
    return {
        f"{module.__name__}.{name}": value
        for module in (activations, compute, memory, network, parameters, stage)
        for name, value in vars(module).items()
        if name.strip("_").isupper() and isinstance(value, int | float)
    }
