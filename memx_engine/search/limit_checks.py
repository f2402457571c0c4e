"""Whether the operator's limits can hold at all: against each other, the cluster, the model and the job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from itertools import combinations
from typing import TypeVar

from memx_engine.errors import InputError
from memx_engine.inputs.cluster import Cluster
from memx_engine.inputs.job import Attention, Framework, Job
from memx_engine.inputs.model import TransformerSpec
from memx_engine.plan import FULL, SELECTIVE, Recompute
from memx_engine.search.limits import OperatorLimits, Target

T = TypeVar("T")

_UNIFORM = (2, 4, 8)
"""The counts of ``uniform:N`` that the cost model's tables hold."""


def checked_limits(limits: OperatorLimits, cluster: Cluster, model: TransformerSpec, job: Job) -> OperatorLimits:
    """``limits`` with GPU types by their catalogue names.

    Raises:
        InputError: A type is not in the cluster, two limits contradict each other, or one contradicts the model, the
            cluster or the job; the message says which.
    """
    if not limits:
        return limits
    limits = _named(limits, cluster)
    _check_types(limits, cluster)
    _check_layers(limits, model)
    _check_recompute(limits, model, job)
    _check_depth(limits, job)
    _check_orders(limits, cluster)
    return limits


def _named(limits: OperatorLimits, cluster: Cluster) -> OperatorLimits:
    """Types by catalogue name; aliases are understood where they mean one type of the cluster."""

    def name_of(word: str, flag: str) -> str:
        types = cluster.gpu_types
        found = [t.name for t in types if t.name == word]
        found = found or [t.name for t in types if word.lower() in (t.name, *(a.lower() for a in t.aliases))]
        if len(found) == 1:
            return found[0]
        known = [t.name for t in types]
        near = get_close_matches(word, known, 1)
        raise InputError(
            f"the cluster has no GPU type {word!r}" if not found else f"{word!r} is several types of the cluster",
            where=flag,
            hint=f"did you mean {near[0]}? It has {', '.join(known)}" if near else f"it has {', '.join(known)}",
        )

    def by_target(pins: Sequence[tuple[Target, T]], flag: str) -> tuple[tuple[Target, T], ...]:
        return tuple((name_of(t, flag) if isinstance(t, str) else t, value) for t, value in pins)

    return replace(
        limits,
        layers=tuple((name_of(t, "--pin-layers") if isinstance(t, str) else t, n) for t, n in limits.layers),
        recompute=by_target(limits.recompute, "--pin-recompute"),
        forbidden=tuple(dict.fromkeys(name_of(name, "--forbid") for name in limits.forbidden)),
        keep_free_bytes=tuple(
            (None if name is None else name_of(name, "--keep-free"), size) for name, size in limits.keep_free_bytes
        ),
        type_order=limits.type_order and tuple(name_of(name, "--type-order") for name in limits.type_order),
    )


def _check_types(limits: OperatorLimits, cluster: Cluster) -> None:
    known = [t.name for t in cluster.gpu_types]
    if set(limits.forbidden) == set(known):
        raise InputError(
            f"every GPU type of the cluster is forbidden ({', '.join(known)})",
            where="--forbid",
            hint="leave at least one type to plan with",
        )
    for flag, names in (
        ("--pin-layers", [t for t, _ in limits.layers]),
        ("--pin-recompute", [t for t, _ in limits.recompute]),
        ("--type-order", list(limits.type_order or ())),
    ):
        for name in names:
            if name in limits.forbidden:
                raise InputError(
                    f"{name} is forbidden and named by {flag}: both cannot hold",
                    where=f"{flag} and --forbid",
                    hint="drop one of the two",
                )
    _check_once(limits.keep_free_bytes, "--keep-free", "all types")
    for _, size in limits.keep_free_bytes:
        if not size >= 0:
            raise InputError("memory to keep free cannot be negative", where="--keep-free")


def _check_once(pins: Sequence[tuple[Target, object]], flag: str, everything: str) -> None:
    """One value for each target."""
    first: dict[Target, object] = {}
    for target, value in pins:
        if first.setdefault(target, value) != value:
            raise InputError(
                f"{_words(target, everything)} is given {first[target]} and {value}: both cannot hold",
                where=flag,
                hint="drop one of the two",
            )


def _words(target: Target, everything: str = "every stage") -> str:
    return everything if target is None else f"stage {target}" if isinstance(target, int) else target


def _check_layers(limits: OperatorLimits, model: TransformerSpec) -> None:
    flag = "--pin-layers"
    _check_once(limits.layers, flag, "every stage")
    for target, n in limits.layers:
        if n < 1:
            raise InputError(
                f"{_words(target)} is pinned to {n} layers, and every stage needs at least 1",
                where=flag,
                hint="to leave a GPU type out use --forbid; for fewer stages use --pp",
            )
        if n > model.layers:
            raise InputError(f"{_words(target)} is pinned to {n} layers, the model has {model.layers}", where=flag)
    stages = {target: n for target, n in limits.layers if isinstance(target, int)}
    if stages:
        last = max(stages)
        others = last + 1 - len(stages)
        if sum(stages.values()) + others > model.layers:
            listed = " + ".join(f"{n} (stage {i})" for i, n in sorted(stages.items()))
            more = f" and at least 1 on each of the {others} stages between" if others else ""
            raise InputError(
                f"pinned are {listed} = {sum(stages.values())} layers{more}, the model has {model.layers}",
                where=flag,
                hint=f"every layer is placed exactly once: lower the pins to at most {model.layers - others} together"
                if others < model.layers
                else f"stages count from 0, and {model.layers} layers fill at most {model.layers} stages",
            )
        if limits.max_layer_difference is not None:
            spread = max(stages.values()) - min(stages.values())
            if spread > limits.max_layer_difference:
                raise InputError(
                    f"the pinned layers differ by {spread}, and at most {limits.max_layer_difference} are allowed",
                    where=f"{flag} and --max-layer-difference",
                    hint="drop one of the two",
                )
    if limits.max_layer_difference is not None and limits.max_layer_difference < 0:
        raise InputError("the layer difference cannot be negative", where="--max-layer-difference")


def _check_depth(limits: OperatorLimits, job: Job) -> None:
    """Pinned stages must exist in some pipeline of the depths that the job names."""
    depths = job.pp_sizes
    if depths is None:
        return
    most = max(depths)
    for flag, targets in (
        ("--pin-layers", [target for target, _ in limits.layers]),
        ("--pin-recompute", [target for target, _ in limits.recompute]),
    ):
        last = max((target for target in targets if isinstance(target, int)), default=-1)
        if last < most:
            continue
        raise InputError(
            f"stage {last} is pinned, and PP {most} has the stages 0 to {most - 1}",
            where=f"{flag} and --pp",
            hint=f"pin a stage below {most}, or use PP {last + 1} or more",
        )


def _check_recompute(limits: OperatorLimits, model: TransformerSpec, job: Job) -> None:
    flag, pins = "--pin-recompute", limits.recompute
    _check_once(pins, flag, "every stage")
    for (a, one), (b, other) in combinations(pins, 2):
        if None in (a, b) and one != other:
            raise InputError(
                f"{_words(a)} is pinned to {one} and {_words(b)} to {other}: both cannot hold",
                where=flag,
                hint="name the stages or GPU types of each",
            )
        if one != other and job.framework is Framework.MEGATRON:
            raise InputError(
                f"{_words(a)} is pinned to {one} and {_words(b)} to {other}, and Megatron has one recompute setting "
                "for the whole job",
                where=flag,
                hint="pin the same everywhere, or use --framework any",
            )
    layers = dict(limits.layers)
    for target, option in pins:
        _check_option(option, job, flag)
        if option.kind == "block" and option.n > model.layers:
            raise InputError(
                f"{option} recomputes more layers than the {model.layers} of the model",
                where=flag,
                hint=f"use at most block:{model.layers}, or full",
            )
        pinned = layers.get(target) if target is not None else min(layers.values(), default=None)
        if option.kind == "block" and pinned is not None and option.n > pinned:
            raise InputError(
                f"{_words(target)} is pinned to {option} and to {pinned} layers: it has fewer layers than that",
                where=f"{flag} and --pin-layers",
                hint=f"use at most block:{pinned}, or full",
            )


def _check_option(option: Recompute, job: Job, flag: str) -> None:
    if option == SELECTIVE and job.framework is Framework.FLAGSCALE:
        raise InputError(
            "FlagScale sets recompute per stage as off or full", where=flag, hint="pin none, full, uniform or block"
        )
    if option == SELECTIVE and job.attention is Attention.FUSED:
        raise InputError(
            "selective recompute drops the score matrices, and fused attention keeps none: it would save nothing",
            where=flag,
            hint="pin none instead, or use --attention unfused",
        )
    if option.kind == "uniform" and option != FULL and option.n not in _UNIFORM:
        raise InputError(
            f"{option} is not among what the search considers",
            where=flag,
            hint=f"use none, selective, full, block:K, or {', '.join(f'uniform:{n}' for n in _UNIFORM)}",
        )


def _check_orders(limits: OperatorLimits, cluster: Cluster) -> None:
    order = limits.type_order
    if order is None:
        return
    if limits.all_orders:
        raise InputError(
            "one order is asked for, and all of them", where="--type-order and --all-orders", hint="drop one of the two"
        )
    twice = [name for name in order if order.count(name) > 1]
    if twice:
        raise InputError(
            f"{twice[0]} is named twice: each type is one block along the pipeline",
            where="--type-order",
            hint="name every type once; --all-orders searches orders that come back to a type",
        )
    unnamed = [t.name for t in cluster.gpu_types if t.name not in (*order, *limits.forbidden)]
    if unnamed:
        raise InputError(
            f"the order does not say where {', '.join(unnamed)} come{'s' if len(unnamed) == 1 else ''}",
            where="--type-order",
            hint=f"name every type, or leave it out with --forbid {','.join(unnamed)}",
        )
