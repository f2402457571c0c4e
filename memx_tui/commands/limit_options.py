"""Options by which the operator holds parts of the plan fixed or forbids them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from memx_engine import OperatorLimits

LIMITS = {
    "pin_layers",
    "pin_recompute",
    "forbid",
    "keep_free",
    "max_layer_difference",
    "type_order",
    "all_orders",
}
"""Names of the options' parameters."""

F = TypeVar("F", bound=Callable[..., Any])


def limit_options(function: F) -> F:
    """``--pin-layers`` to ``--all-orders``."""
    decorators: list[Callable[[F], F]] = [
        click.option(
            "--pin-layers",
            multiple=True,
            metavar="STAGE|TYPE:N,..",
            help="Layers of a stage (counted from 0), or of every stage on a GPU type.",
        ),
        click.option(
            "--pin-recompute",
            multiple=True,
            metavar="[STAGE|TYPE:]WORD,..",
            help="Recompute of a stage, of a GPU type's stages, or of all.",
        ),
        click.option("--forbid", multiple=True, metavar="TYPE,..", help="GPU types that no plan may use."),
        click.option(
            "--keep-free",
            multiple=True,
            metavar="[TYPE:]GIB,..",
            help="GiB to keep free on each GPU, of a type or all.",
        ),
        click.option(
            "--max-layer-difference",
            type=click.IntRange(0),
            metavar="N",
            help="Most that any two stages' layer counts may differ.",
        ),
        click.option("--type-order", metavar="TYPE,TYPE..", help="The order of GPU types along the pipeline."),
        click.option(
            "--all-orders",
            is_flag=True,
            help="Search every distinct order of stages, not only one block for each GPU type.",
        ),
    ]
    for decorator in reversed(decorators):
        function = decorator(function)
    return function


def parse_flags(flags: dict[str, Any]) -> OperatorLimits:
    """The limits that the flags describe. InputError names the flag that cannot be read."""
    from memx_engine import parse_limits

    return parse_limits(
        pin_layers=flags["pin_layers"],
        pin_recompute=flags["pin_recompute"],
        forbid=flags["forbid"],
        keep_free=flags["keep_free"],
        max_layer_difference=flags["max_layer_difference"],
        type_order=flags["type_order"],
        all_orders=flags["all_orders"],
    )
