"""The form of what every plan must keep: its fields, and what the operator types back into limits of the search."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from memx_engine import InputError, MemxError
from memx_tui.size_words import parse_amounts, parse_sizes

if TYPE_CHECKING:
    from memx_engine import Cluster, Job, OperatorLimits, SearchOptions, TransformerSpec, Variant
    from memx_tui.session import Session

_MOST_LAYERS = 100_000


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text[:10]) <= _MOST_LAYERS):
        raise InputError(f"{text[:40]!r} is not a whole number of at least 0", hint="for example 2")
    return int(text)


def _words(text: str) -> tuple[str, ...]:
    return (text,)


def _yes(text: str) -> bool:
    return text == "yes"


@dataclass(frozen=True)
class LimitField:
    """One field.

    Attributes:
        hint: How to write it, and what it does.
        empty: Said where nothing is set.
        parse: From text to what the engine's reader of limits takes; raises InputError. "" is never passed.
        choices: The words allowed, where it is not typed freely; the first stands for "not set".
    """

    key: str
    label: str
    hint: str
    parse: Callable[[str], Any]
    empty: str = "none"
    choices: tuple[str, ...] = ()

    @property
    def flag(self) -> str:
        """Of the command line."""
        return "--variance" if self.key == "variance" else f"--{self.key.replace('_', '-')}"


_LIMITS = (
    LimitField("pin_layers", "pin layers", "layers of a stage (from 0) or of every stage on a GPU type: "
               "0:12,t4:4", _words),
    LimitField("pin_recompute", "pin recompute", "recompute of all stages, of one, or of a type's: "
               "full or 0:none,t4:block:3", _words),
    LimitField("forbid", "forbid", "GPU types that no plan uses: t4,v100-sxm-32g", _words),
    LimitField("keep_free", "keep free", "GiB to leave free on every GPU, of a type or of all: 2,t4:1.5", _words),
    LimitField("max_layer_difference", "max layer difference", "most that the layers of any two stages differ: 2",
               _whole),
    LimitField("type_order", "type order", "the order of GPU types along the pipeline: h100,a100", str, empty="free"),
    LimitField("all_orders", "all orders", "yes: every distinct order of stages, not one block for each GPU type; "
               "space turns", _yes, choices=("no", "yes")),
)  # fmt: skip
_VARIANCE = LimitField("variance", "variance", "memory spread of bytes, or of memory / capacity (utilization); space "
                       "turns", str, choices=("bytes", "utilization"))  # fmt: skip
_FREE = (
    LimitField("global_batch", "global batch", "sequences per iteration; several are compared per token: 256,512",
               parse_amounts, empty="as in the job"),
    LimitField("seq_len", "seq len", "tokens per sequence; several are compared per token: 2048,4096", parse_amounts,
               empty="as in the job"),
    LimitField("heads", "heads", "attention heads to consider instead of the model's: 32,40", parse_sizes,
               empty="the model's"),
    LimitField("kv_heads", "kv heads", "KV heads (query groups) to consider instead of the model's: 8,16", parse_sizes,
               empty="the model's"),
)  # fmt: skip
FREE_FIELDS = tuple(spec.key for spec in _FREE)
LIMIT_FORM: dict[str, LimitField] = {spec.key: spec for spec in (*_LIMITS, _VARIANCE, *_FREE)}
"""Every field by its key, in the order of the form."""
_KEY_OF_FLAG = {spec.flag: key for key, spec in LIMIT_FORM.items()}


@dataclass(frozen=True)
class Asked:
    """What the form says.

    Attributes:
        limits: What every plan keeps.
        variance: ``bytes`` or ``utilization``.
        free: Values of the job and the model to choose from, by the names of their fields; empty ones are absent.
    """

    limits: OperatorLimits
    variance: str = "bytes"
    free: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def options(self, options: SearchOptions | None) -> SearchOptions:
        """``options`` (the defaults when None) within these limits."""
        from memx_engine import SearchOptions

        return replace(options or SearchOptions(), limits=self.limits, variance_kind=self.variance)


def read_form(texts: Mapping[str, str]) -> tuple[Asked, dict[str, InputError]]:
    """What was typed, and what is wrong with it by field; fields that cannot be read count as empty."""
    from memx_engine import OperatorLimits, parse_limits

    problems: dict[str, InputError] = {}
    values: dict[str, Any] = {}
    for key, spec in LIMIT_FORM.items():
        text = texts.get(key, "").strip()
        if spec.choices:
            text = _choice(spec, text, problems)
        if not text:
            continue
        try:
            value = spec.parse(text)
            if spec in _LIMITS:
                parse_limits(**{key: value})
        except InputError as error:
            problems[key] = error
        else:
            values[key] = value
    own = {spec.key: values[spec.key] for spec in _LIMITS if spec.key in values}
    limits = parse_limits(**own) if own else OperatorLimits()
    free = {spec.key: values[spec.key] for spec in _FREE if spec.key in values}
    return Asked(limits, values.get("variance", "bytes"), free), problems


def check_form(texts: Mapping[str, str], session: Session, editing: str = "") -> tuple[Asked, dict[str, InputError]]:
    """As :func:`read_form`, and against each other, the cluster, the model and the job, as far as these are known.

    Args:
        editing: The field that is being typed in: a contradiction that names it is shown there.
    """
    from memx_engine import checked_limits

    asked, problems = read_form(texts)
    if not session.ready:
        return asked, problems
    assert session.cluster is not None and session.model is not None
    try:
        job = session.job()  # of the whole cluster: a limit may speak of nodes that are left out for now
    except MemxError:
        return asked, problems  # the search says what is wrong with the job
    try:
        checked_limits(asked.limits, session.cluster, session.model, job)
    except InputError as error:
        problems.setdefault(_blamed(error, editing, _LIMITS[0].key), error)
    try:
        variants_of(session.cluster, session.model, job, asked.free)
    except InputError as error:
        problems.setdefault(_blamed(error, editing, next(iter(asked.free), FREE_FIELDS[0])), error)
    return asked, problems


def variants_of(
    cluster: Cluster, model: TransformerSpec, job: Job, free: Mapping[str, tuple[int, ...]]
) -> tuple[Variant, ...]:
    """Every combination of the free values, one where nothing is free. InputError where they make none."""
    from memx_engine import free_variants

    return free_variants(
        cluster,
        model,
        job,
        global_batches=free.get("global_batch", ()),
        seq_lens=free.get("seq_len", ()),
        heads=free.get("heads", ()),
        kv_heads=free.get("kv_heads", ()),
    )


def _blamed(error: InputError, editing: str, default: str) -> str:
    """Key of the field to show ``error`` at."""
    named = [_KEY_OF_FLAG[flag] for flag in re.findall(r"--[a-z-]+", error.where) if flag in _KEY_OF_FLAG]
    named += [key for key in re.findall(r"[a-z_]+", error.where) if key in FREE_FIELDS]
    if editing in named:
        return editing
    return named[0] if named else default


def _choice(spec: LimitField, text: str, problems: dict[str, InputError]) -> str:
    """The word meant, by its first letters; "" for the one that stands for "not set"."""
    found = [word for word in spec.choices if word.startswith(text.lower())]
    if text and not found:
        problems[spec.key] = InputError(f"{text[:40]!r} is not one of {', '.join(spec.choices)}")
    return found[0] if text and found and found[0] != spec.choices[0] else ""


def form_texts(options: SearchOptions | None, free: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
    """What is set, as the operator would type it, by the names of the fields; fields with nothing set are absent."""
    texts: dict[str, str] = {}
    if options is not None:
        for name, values in options.limits.described().items():
            key = name.removeprefix("fixed_")
            texts[key] = "yes" if values == (True,) else ",".join(map(str, values))
        if options.variance_kind != "bytes":
            texts["variance"] = options.variance_kind
    return texts | {key: ",".join(map(str, values)) for key, values in free.items()}
