"""Reading the operator's limits as they are written on the command line and in plan files."""

from __future__ import annotations

from collections.abc import Sequence

from memx_engine.errors import InputError
from memx_engine.plan import Recompute
from memx_engine.search.limits import OperatorLimits, Target
from memx_engine.units import GIB

_LAYERS = "for example 0:12 for the first stage, or a100-sxm-80g:6"
_FREE = "for example 2, or t4:1.5"


def parse_limits(
    *,
    pin_layers: Sequence[str] = (),
    pin_recompute: Sequence[str] = (),
    forbid: Sequence[str] = (),
    keep_free: Sequence[str] = (),
    max_layer_difference: int | None = None,
    type_order: str | None = None,
    all_orders: bool = False,
) -> OperatorLimits:
    """The limits of these words; every sequence holds words or comma-separated lists of them.

    Raises:
        InputError: A word cannot be read; ``where`` is its flag.
    """
    return OperatorLimits(
        layers=tuple(_layer_pin(word) for word in _words(pin_layers)),
        recompute=tuple(_recompute_pin(word) for word in _words(pin_recompute)),
        forbidden=tuple(_words(forbid)),
        keep_free_bytes=tuple(_free(word) for word in _words(keep_free)),
        max_layer_difference=max_layer_difference,
        type_order=None if type_order is None else tuple(_words([type_order])),
        all_orders=all_orders,
    )


def _words(values: Sequence[str]) -> list[str]:
    return [word.strip() for value in values for word in value.split(",") if word.strip()]


def _target(word: str) -> int | str:
    return int(word) if _is_number(word) else word


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) < 10


def _layer_pin(word: str) -> tuple[int | str, int]:
    target, _, layers = word.rpartition(":")
    if not target or not _is_number(layers):
        raise InputError(f"{word!r} is not a stage or GPU type and its layers", where="--pin-layers", hint=_LAYERS)
    return _target(target), int(layers)


def _recompute_pin(word: str) -> tuple[Target, Recompute]:
    head, colon, rest = word.partition(":")
    whole = not colon or head in ("block", "uniform")
    try:
        option = Recompute.parse(word if whole else rest)
    except InputError as error:
        hint = f"{error.hint or 'for example block:3'}; with 0: or t4: before it for a stage or GPU type"
        raise InputError(error.message, where="--pin-recompute", hint=hint) from None
    return None if whole else _target(head), option


def _free(word: str) -> tuple[str | None, float]:
    target, colon, size = word.rpartition(":")
    try:
        gib = float(size)
    except ValueError:
        gib = -1.0
    if not 0.0 <= gib < 1e6 or (colon and not target):
        raise InputError(f"{word!r} is not a size in GiB", where="--keep-free", hint=_FREE)
    return target or None, gib * GIB
