"""What must move between two plans of one model: which weights and optimizer states each GPU has and will need.

A model is pieces (layers, token table, output matrix, and so on). Tensor parallelism divides a part of each, and every
rank holds the rest whole (norms and the like). A rank's share of a piece is an interval of [0, 1); with a sharded
optimizer its states are an interval of its stage's flat buffer. What a rank needs and does not have, it must receive,
from another rank or from a checkpoint. Padding rows of the vocabulary are left out, and key/value heads count as
divided by TP.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from memx_engine.cost.parameters import layer_parameters, state_bytes
from memx_engine.inputs.job import Job, Optimizer
from memx_engine.inputs.model import TransformerSpec
from memx_engine.plan import Plan

Part = tuple[str, bool]
"""A piece's name and whether this is its divided part."""
Interval = tuple[float, float]
Shares = dict[Part, list[Interval]]


@dataclass
class Held:
    """Shares of weights and optimizer states on one rank."""

    weights: Shares = field(default_factory=dict)
    optimizer: Shares = field(default_factory=dict)


@dataclass(frozen=True)
class RankMove:
    """What one rank of the new plan must receive, and what it keeps.

    Attributes:
        layers: Layers of which it must receive weights. weights_bytes, optimizer_bytes: To receive.
    """

    rank: int
    stage: int
    layers: int
    weights_bytes: float
    optimizer_bytes: float
    kept_bytes: float

    @property
    def received_bytes(self) -> float:
        return self.weights_bytes + self.optimizer_bytes


@dataclass(frozen=True)
class Migration:
    """Everything that must move.

    Attributes:
        ranks: By rank of the new plan. moved_layers: Distinct layers of which some rank must receive weights.
        lost_weights_bytes, lost_optimizer_bytes: Counted once, what no rank that stays holds: only a checkpoint has it.
    """

    ranks: tuple[RankMove, ...]
    moved_layers: int
    lost_weights_bytes: float
    lost_optimizer_bytes: float

    @property
    def received_bytes(self) -> float:
        return sum(move.received_bytes for move in self.ranks)

    @property
    def kept_bytes(self) -> float:
        return sum(move.kept_bytes for move in self.ranks)


class ModelState:
    """Sizes of a model's pieces, and what plans put where."""

    def __init__(self, model: TransformerSpec, job: Job) -> None:
        self.model, self.job = model, job
        self.weight_bytes = float(job.bytes_per_element)
        self.optimizer_bytes = state_bytes(job, 1).optimizer
        # layer_parameters(tp) = divided / tp + replicated.
        divided = 2.0 * (layer_parameters(model, 1) - layer_parameters(model, 2))
        matrix = float(model.vocab * (model.embedding_width or model.hidden))
        self._sizes: dict[str, tuple[float, float]] = {
            "layer": (divided, layer_parameters(model, 1) - divided),
            "tokens": (matrix, 0.0),
            "positions": (0.0, model.embedding_parameters - matrix),
            "output": (matrix, 0.0),
            "bias": (float(model.vocab if model.head_bias else 0), 0.0),
            "final": (0.0, float(model.projection_parameters + (model.norm_parameters if model.final_norm else 0))),
        }

    def size(self, part: Part) -> float:
        """Parameters of a part, whole."""
        name, divided = part
        return self._sizes[name.partition(":")[0]][0 if divided else 1]

    def held(self, plan: Plan, sharded: bool) -> dict[int, Held]:
        """What every rank of ``plan`` holds; ``sharded``: each DP rank has its share of the optimizer states."""
        out: dict[int, Held] = {}
        for i, pieces in enumerate(self._pieces(plan)):
            stage = plan.stages[i]
            for position, rank in enumerate(stage.ranks):
                d, t = divmod(position, stage.tp)
                shard = (t / stage.tp, (t + 1) / stage.tp)
                parts = [(name, divided) for name in pieces for divided in (True, False) if self.size((name, divided))]
                weights: Shares = {part: [shard if part[1] else (0.0, 1.0)] for part in parts}
                optimizer = self._sharded(parts, shard, d, stage.dp) if sharded else weights
                out[rank] = Held(weights, optimizer)
        return out

    def _pieces(self, plan: Plan) -> list[list[str]]:
        """Names of the pieces of every stage, in the model's order."""
        stages: list[list[str]] = [[] for _ in plan.stages]
        pp, layer = len(stages), 0
        stages[0] += ["tokens", "positions"]
        for k in range(plan.skeleton.virtual_stages):
            for i, stage in enumerate(plan.stages):
                stages[i] += [f"layer:{n}" for n in range(layer, layer + stage.chunk_layers[k])]
                layer += stage.chunk_layers[k]
        tied = self.model.tied_embeddings and not plan.untied
        # A tied head is the token table itself: a copy of it on the last stage, or the same one on a single stage.
        stages[-1] += ["output"] if not tied else ["tokens"] if pp > 1 else []
        stages[-1] += ["bias", "final"]
        return stages

    def _sharded(self, parts: list[Part], shard: Interval, d: int, dp: int) -> Shares:
        """The ``d``-th of ``dp`` equal stretches of a rank's flat buffer, as shares of the parts."""
        width = shard[1] - shard[0]
        sizes = [self.size(part) * (width if part[1] else 1.0) for part in parts]
        total = sum(sizes)
        low, high = d / dp * total, (d + 1) / dp * total
        out: Shares = {}
        start = 0.0
        for part, size in zip(parts, sizes, strict=True):
            a, b = max(low, start), min(high, start + size)
            if b > a:
                inner = ((a - start) / size, (b - start) / size)
                out[part] = [(shard[0] + width * inner[0], shard[0] + width * inner[1]) if part[1] else inner]
            start += size
        return out


def migration(
    state: ModelState, old: Mapping[int, Held], plan: Plan, *, sharded: bool, rank_before: Mapping[int, int]
) -> Migration:
    """What moves from ``old`` (by old rank) to ``plan``.

    Args:
        sharded: Whether the new plan's optimizer is.
        rank_before: New rank to old rank of every GPU that stays.
    """
    new = state.held(plan, sharded)
    stage_of = {rank: i for i, stage in enumerate(plan.stages) for rank in stage.ranks}
    moves, layers = [], set()
    for rank in sorted(new):
        needed, had = new[rank], old.get(rank_before.get(rank, -1), Held())
        weights, missing = _missing(state, needed.weights, had.weights)
        optimizer, _ = _missing(state, needed.optimizer, had.optimizer)
        own = {name for name, _ in missing if name.startswith("layer:")}
        layers |= own
        weights_bytes, optimizer_bytes = weights * state.weight_bytes, optimizer * state.optimizer_bytes
        everything = _total(state, needed.weights) * state.weight_bytes
        everything += _total(state, needed.optimizer) * state.optimizer_bytes
        kept = max(everything - weights_bytes - optimizer_bytes, 0.0)
        moves.append(RankMove(rank, stage_of[rank], len(own), weights_bytes, optimizer_bytes, kept))
    stayed = [old[before] for before in set(rank_before.values()) if before in old]
    return Migration(
        tuple(moves),
        len(layers),
        _lost(state, [h.weights for h in new.values()], [h.weights for h in stayed]) * state.weight_bytes,
        _lost(state, [h.optimizer for h in new.values()], [h.optimizer for h in stayed]) * state.optimizer_bytes,
    )


def _missing(state: ModelState, needed: Shares, had: Shares) -> tuple[float, list[Part]]:
    """Parameters of ``needed`` outside ``had``, and the parts that miss any."""
    total, parts = 0.0, []
    for part, intervals in needed.items():
        lack = sum(b - a for interval in intervals for a, b in _outside(interval, had.get(part, [])))
        if lack > _ROUNDING:
            total += lack * state.size(part)
            parts.append(part)
    return total, parts


def _total(state: ModelState, shares: Shares) -> float:
    return sum(state.size(part) * (b - a) for part, intervals in shares.items() for a, b in intervals)


def _lost(state: ModelState, needed: list[Shares], stayed: list[Shares]) -> float:
    """Parameters that somebody needs and nobody who stayed has, each counted once."""
    wanted, there = _union(needed), _union(stayed)
    total = 0.0
    for part, intervals in wanted.items():
        lack = sum(b - a for interval in intervals for a, b in _outside(interval, there.get(part, [])))
        total += lack * state.size(part) if lack > _ROUNDING else 0.0
    return total


def _union(shares: list[Shares]) -> Shares:
    collected: dict[Part, set[Interval]] = {}
    for share in shares:
        for part, intervals in share.items():
            collected.setdefault(part, set()).update(intervals)
    return {part: _merged(sorted(intervals)) for part, intervals in collected.items()}


def _merged(intervals: list[Interval]) -> list[Interval]:
    out: list[Interval] = []
    for a, b in intervals:
        if out and a <= out[-1][1] + _ROUNDING:
            out[-1] = (out[-1][0], max(out[-1][1], b))
        else:
            out.append((a, b))
    return out


_ROUNDING = 1e-9
"""Shares below this are rounding of interval ends."""


def _outside(interval: Interval, others: list[Interval]) -> Iterator[Interval]:
    """The parts of ``interval`` that no other covers; the others are sorted and do not overlap."""
    low, high = interval
    for a, b in others:
        if b <= low:
            continue
        if a >= high:
            break
        if a > low:
            yield low, a
        low = max(low, b)
    if low < high:
        yield low, high


def is_sharded(job: Job) -> bool:
    return job.optimizer is Optimizer.SHARDED
