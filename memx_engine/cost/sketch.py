"""Stage tables reduced over the recompute options, one row per stage signature, shared by every skeleton that has it.

Bounds read only a few numbers per layer count: the least memory, the least time that fits, what an even split takes.
A stage's row of them depends on its signature (GPU type, TP, DP, micro-batch, ends, links, micro-batches in flight), so
that a larger cluster of the same types adds skeletons but few rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from memx_engine.cost.network import PlacementNetwork
from memx_engine.cost.origins import Ints, Learn, Limits, Origin, Origins, Signatures, StageLimits
from memx_engine.cost.pipeline import in_flight
from memx_engine.cost.recompute import basis, strategies
from memx_engine.cost.row_choices import Kind, RowChoices, row_choices
from memx_engine.cost.table import Array, at_least
from memx_engine.plan import FULL, Recompute, Skeleton, StagePlacement

if TYPE_CHECKING:
    from memx_engine.cost.first_principles import FirstPrinciples


Rows = NDArray[np.int32]
_Number = TypeVar("_Number", bound=np.generic)

_MOST_BYTES = 96 << 20
"""Rows are dropped beyond this, with the sketches that need them."""

_MOST_ROWS = 1 << 16  # that a book has room for from the start

_ROWS_OF_ONE_SKETCH = 1024

_MOST_SKETCH_BYTES = 64 << 20
"""Sketches are dropped beyond this."""
_MOST_TIMED_BYTES = 16 << 20
_NEIGHBOURS_UP_TO = 64  # layers
_LAYOUT_BYTES_PER_STAGE, _EVEN_BYTES = 128, 600

_MOST_NUMBERS = 100_000
"""Numbers of one temporary array."""
_MOST_CHOICE_BYTES = 24 << 20
"""Choices of single rows are dropped beyond this."""

FIELDS = ("least", "time", "slope", "high", "even_time", "even_memory", "tail")


class RowBook:
    """Rows for one depth of interleaving, counted in units of v layers; U units.

    Attributes:
        options: Every strategy that any skeleton has, lightest first.
        columns: ``least`` (n, U+1) least memory of at least n units; ``time`` least time of at least n units that fits;
            ``slope`` least growth of ``time`` per unit from one unit to up to n; ``high`` most memory of up to n units
            that fits; ``even_time``, ``even_memory`` of exactly n units with the lightest strategy that fits; ``tail``
            of exactly n units. Times are those of the 1F1B form (over v).
        even_option: (n, U+1) index of that strategy, -1 where none fits.
        least_tail: (m, U+1) least tail of one to n units, by ``tail_of`` (n,): rows differ in it less than otherwise.
        tail_share: (n,) most of tail / time over all counts of units.
        most: (n,) most units that fit. capacity: (n,) less what is left free; whole: (n,) with it.
    """

    def __init__(self, layers: int, virtual_stages: int, options: tuple[Recompute, ...]) -> None:
        self.options, self.units = options, layers // virtual_stages
        self._shape = (layers, virtual_stages)
        self._origins: list[tuple[Origin, int]] = []
        self._choices: dict[tuple[int, Kind], RowChoices] = {}
        self._choice_bytes = 0
        self._strategies: dict[int, tuple[Recompute, ...]] = {}
        self.count = self._room = self._tails = 0
        self.columns = {name: np.empty((0, self.units + 1)) for name in FIELDS}
        self.even_option = np.empty((0, self.units + 1), dtype=np.int16)
        self.most, self.tail_of = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        self.capacity, self.whole, self.tail_share = np.empty(0), np.empty(0), np.empty(0)
        self.least_tail = np.empty((0, self.units + 1))
        # Room for all rows at once, since copying them when there are many takes long.
        self._make_room(min(_MOST_BYTES // self._row_bytes + _ROWS_OF_ONE_SKETCH, _MOST_ROWS))

    @property
    def _row_bytes(self) -> int:
        return (self.units + 1) * (8 * len(FIELDS) + 2)

    @property
    def bytes_held(self) -> int:
        return self.count * self._row_bytes

    def _make_room(self, rows: int) -> None:
        if rows <= self._room:
            return
        self._room = max(64, rows, 3 * self._room // 2)
        self.columns = {name: _longer(values, self._room) for name, values in self.columns.items()}
        self.even_option = _longer(self.even_option, self._room)
        self.most, self.tail_of = _longer(self.most, self._room), _longer(self.tail_of, self._room)
        self.capacity, self.whole = _longer(self.capacity, self._room), _longer(self.whole, self._room)
        self.tail_share = _longer(self.tail_share, self._room)

    def strategies(self, stages: int) -> tuple[Recompute, ...]:
        """The options as a skeleton of so many stages calls them: ``block`` of all that a stage can have is full."""
        known = self._strategies.get(stages)
        if known is None:
            most = self.units - stages + 1
            known = tuple(FULL if o.kind == "block" and o.n >= most else o for o in self.options)
            self._strategies[stages] = known
        return known

    def choices(self, row: int, kind: Kind = "distinct") -> RowChoices:
        """The choices of a row that fit; made anew where they were dropped for others."""
        known = self._choices.get((row, kind))
        if known is None:
            origin, held = self._origins[row]
            known = row_choices(origin, held, self.options, *self._shape, kind, int(self.most[row]))
            if self._choice_bytes > _MOST_CHOICE_BYTES:
                self._choices.clear()
                self._choice_bytes = 0
            self._choices[row, kind] = known
            self._choice_bytes += known.values.nbytes + known.starts.nbytes
        return known

    def add(self, origin: Origin, held: Ints, time_s: Array, memory: Array) -> Ints:
        """Take in H rows: (U+1, R) times, (H, U+1, R) memory with (H,) ``held`` in flight; their numbers."""
        tail_s, capacity = origin.terms.tails[:: self._shape[1]], origin.capacity_bytes
        self._origins += [(origin, count) for count in held.tolist()]
        rows = np.arange(self.count, self.count + len(memory))
        self.count += len(memory)
        self._make_room(self.count)
        fits = memory <= capacity
        any_fits, option = fits.any(axis=2), fits.argmax(axis=2)
        column, units = self.columns, np.arange(self.units + 1)
        column["least"][rows] = least = at_least(memory.min(axis=2))
        column["time"][rows] = time = at_least(np.where(fits, time_s, np.inf).min(axis=2))
        with np.errstate(invalid="ignore"):
            growth = (time[:, 2:] - time[:, 1:2]) / np.maximum(units[2:] - 1, 1)
        column["slope"][rows, 2:] = np.fmin.accumulate(growth, axis=1)
        column["high"][rows] = np.maximum.accumulate(np.where(fits, memory, -np.inf).max(axis=2), axis=1)
        lightest = np.take_along_axis(memory, option[:, :, None], axis=2)[:, :, 0]
        column["even_time"][rows] = np.where(any_fits, time_s[units, option], np.inf)
        column["even_memory"][rows] = np.where(any_fits, lightest, np.inf)
        column["tail"][rows] = tail_s
        if self._tails == len(self.least_tail):
            self.least_tail = _longer(self.least_tail, max(64, 2 * self._tails))
        self.least_tail[self._tails] = np.minimum.accumulate([np.inf, *tail_s[1:]])
        self.tail_of[rows] = self._tails
        self._tails += 1
        self.most[rows] = (least[:, 1:] <= capacity).sum(axis=1)
        self.even_option[rows] = np.where(any_fits, option, -1)
        self.capacity[rows], self.whole[rows] = capacity, capacity + origin.reserve_bytes
        with np.errstate(invalid="ignore", divide="ignore"):
            shares = np.where(np.isfinite(time), tail_s / time, 0.0)[:, 1:]
        self.tail_share[rows] = np.nan_to_num(shares, nan=0.0, posinf=np.inf).max(axis=1, initial=0.0)
        return rows


def _longer(values: NDArray[_Number], count: int) -> NDArray[_Number]:
    """The same with room for ``count`` rows; memory that nothing was written to is not taken from the system."""
    out = np.empty((count, *values.shape[1:]), dtype=values.dtype)
    out[: len(values)] = values
    return out


@dataclass(frozen=True, eq=False, slots=True)
class EvenRow:
    """The even split with the lightest strategy that fits all stages, -1 where none does; (P,) times and memory."""

    option: int
    time_s: Array
    memory: Array


@dataclass(frozen=True, eq=False, slots=True)
class Sketch:
    """A skeleton as rows of a book; the other fields are those of its stage table.

    ``rows`` (P,). ``factor`` multiplies the times of the rows; the other times carry it already.
    ``options``: The strategies of the skeleton's own table. ``limits``: What was held fixed, one for each stage.
    ``even``: The even split where all stages must agree on the recompute; else that of the rows.
    """

    book: RowBook
    rows: Rows
    p2p_s: Array
    wrap_s: float
    fixed_s: float
    gpus: float
    micro_batches: int
    layers: int
    virtual_stages: int
    options: tuple[Recompute, ...]
    factor: float = 1.0
    limits: tuple[StageLimits, ...] | None = None
    even: EvenRow | None = None


class _Layout:
    """What the skeletons of one layout have in common, and their sketches.

    ``runs``: (first, past the last, signature) of neighbouring stages that differ by what they hold in flight alone.
    """

    def __init__(
        self,
        estimator: FirstPrinciples,
        network: PlacementNetwork,
        skeleton: Skeleton,
        signatures: Signatures,
        limits: tuple[StageLimits, ...] | None,
    ) -> None:
        self.network, self.limits = network, limits
        self.s_per_byte = np.array([rate.s_per_byte for rate in (*network.p2p, network.wrap)])
        self.latency = np.array([rate.latency_s for rate in (*network.p2p, network.wrap)])
        self.fixed_s = estimator.fixed_s(skeleton, network, untied=network.ends_cross_vendors)
        self.sketches: dict[tuple[int, int, int, int], Sketch] = {}
        self.runs: list[tuple[int, int, int]] = []
        last = len(skeleton.placements) - 1
        capacity = network.capacity_bytes.tolist()
        start, before = 0, -1
        for i, placement in enumerate(skeleton.placements):
            ends = (i == 0, i == last)
            within = None if limits is None else limits[i]
            own = signatures.number(placement.gpu_type, capacity[i], network.tp[i], network.dp[i], ends, within)
            if i and own != before:
                self.runs.append((start, i, before))
                start = i
            before = own
        self.runs.append((start, last + 1, before))


class Sketcher:
    """Sketches of one estimator's skeletons within some limits, remembered; see :class:`RowBook`."""

    def __init__(self, estimator: FirstPrinciples, limits: Limits | None = None) -> None:
        self._estimator, self.limits = estimator, limits
        self._layers, self._framework = estimator.model.layers, estimator.job.framework
        self._books: dict[int, RowBook] = {}
        self._index: dict[tuple[object, ...], Rows] = {}
        self._signatures = Signatures()
        self._layouts: dict[tuple[StagePlacement, ...], _Layout] = {}
        self._latest: tuple[tuple[StagePlacement, ...], _Layout] | None = None
        self._timed: dict[tuple[object, ...], tuple[Origin, Array]] = {}
        self._at_even: dict[tuple[object, ...], tuple[Array, Array, NDArray[np.bool_]]] = {}
        self._bytes = 0
        self._options: dict[tuple[object, ...], tuple[tuple[Recompute, ...], tuple[int, ...]]] = {}
        # The same object for equal ones, so that they need no comparing.
        self._equal_options: dict[tuple[Recompute, ...], tuple[Recompute, ...]] = {}
        self._stage_limits: dict[tuple[StageLimits, ...], tuple[StageLimits, ...]] = {}
        self._in_flight: dict[tuple[int, int, int], Ints] = {}

    def sketch(self, skeleton: Skeleton, learn: Learn | None = None) -> Sketch:
        """The rows of ``skeleton``, made where they are not known yet.

        Args:
            learn: What is learned of a stage of the skeleton under given options. It may depend on all that a stage's
                row depends on, but for the micro-batches in flight, and is the same in every call.
        """
        layout = self._layout(skeleton)
        key = (skeleton.micro_batch, skeleton.virtual_stages, skeleton.seq_len, skeleton.global_batch)
        known = layout.sketches.get(key)
        if known is not None:
            self._estimator.hits += skeleton.pp
            return known
        made = self._sketch(skeleton, layout, learn)
        self._bytes += _sketch_bytes(made)
        layout.sketches[key] = made
        return made

    def _layout(self, skeleton: Skeleton) -> _Layout:
        placements = skeleton.placements
        if self._latest is not None and self._latest[0] is placements:
            return self._latest[1]
        if self._bytes > _MOST_SKETCH_BYTES:
            self._layouts.clear()
            self._at_even.clear()
            self._bytes = 0
        layout = self._layouts.get(placements)
        if layout is None:
            network, limits = self._estimator.network.place(placements), None
            if self.limits is not None:
                limits = self.limits.of_stages([p.gpu_type for p in placements], self._layers)
                limits = self._stage_limits.setdefault(limits, limits)
            layout = self._layouts[placements] = _Layout(self._estimator, network, skeleton, self._signatures, limits)
            self._bytes += _LAYOUT_BYTES_PER_STAGE * skeleton.pp
        self._latest = (placements, layout)
        return layout

    def _sketch(self, skeleton: Skeleton, layout: _Layout, learn: Learn | None) -> Sketch:
        estimator, v = self._estimator, skeleton.virtual_stages
        book = self._book(v)
        groups = skeleton.micro_batches
        flights = self._in_flight.get((skeleton.pp, groups, v))
        if flights is None:
            flights = np.array(in_flight(skeleton.pp, groups, v))
            self._in_flight[skeleton.pp, groups, v] = flights
        options, grouped = self._own_options(skeleton, int(flights[0]))
        stages = Origins(
            self._estimator, skeleton, layout.network, layout.limits, book.options, options, grouped, learn
        )
        rows = self._rows(skeleton, layout, book, flights, stages)
        whole = skeleton.micro_batch * skeleton.seq_len * estimator.model.hidden * estimator.job.bytes_per_element
        if estimator.job.sequence_parallel or skeleton.tp == 1:
            sent = layout.latency + whole / skeleton.tp * layout.s_per_byte
            p2p, wrap = sent[:-1], float(sent[-1]) if skeleton.pp > 1 else 0.0
        else:
            transfers = estimator.transfers(skeleton, layout.network, untied=layout.network.ends_cross_vendors)
            p2p, wrap = np.array(transfers.p2p_s), transfers.wrap_s
        return Sketch(
            book=book,
            rows=rows,
            p2p_s=p2p,
            wrap_s=wrap,
            fixed_s=layout.fixed_s,
            gpus=float(skeleton.tp * skeleton.dp),
            micro_batches=groups,
            layers=self._layers,
            virtual_stages=v,
            options=options,
            limits=layout.limits,
            even=self._even(layout, flights, stages, book) if estimator.one_recompute_for_all else None,
        )

    def _book(self, v: int) -> RowBook:
        book = self._books.get(v)
        if book is None or book.bytes_held > _MOST_BYTES:
            # Sketches that were handed out keep the old book alive until they are read.
            every = strategies(self._layers, 1, v, self._framework)
            book = self._books[v] = RowBook(self._layers, v, every)
            self._index = {key: rows for key, rows in self._index.items() if key[0] != v}
            for layout in self._layouts.values():
                layout.sketches = {key: made for key, made in layout.sketches.items() if key[1] != v}
        return book

    def _rows(self, skeleton: Skeleton, layout: _Layout, book: RowBook, flights: Ints, stages: Origins) -> Rows:
        """Row numbers by stage; stages of one signature differ by what they hold in flight."""
        out = np.empty(skeleton.pp, dtype=np.int32)
        for start, stop, signature in layout.runs:
            key = stages.key(start, signature)
            known = self._index.get(key)
            if known is None:
                # 1F1B holds at most P <= L micro-batches, interleaving at most 3 P chunks.
                known = self._index[key] = np.full(3 * self._layers + 3, -1, dtype=np.int32)
            held = flights[start:stop]
            rows = known[held]
            missing = held[rows < 0] if rows.min() < 0 else held[:0]
            # Evaluating a signature counts itself.
            self._estimator.hits += stop - start - (len(missing) > 0)
            if len(missing):
                self._add(key, stages, start, self._around(missing, known, skeleton), book, known)
                rows = known[held]
            out[start:stop] = rows
        return out

    def _around(self, missing: Ints, known: Rows, skeleton: Skeleton) -> Ints:
        """What is missing; where a row costs little beside the call, with neighbours that other depths will ask for."""
        if skeleton.virtual_stages > 1 or self._layers > _NEIGHBOURS_UP_TO:
            return np.unique(missing)
        most = min(skeleton.micro_batches, self._layers)
        near = np.arange(max(1, int(missing.min()) - 2), min(most, int(missing.max()) + 6) + 1)
        return near[known[near] < 0]

    def _add(
        self, key: tuple[object, ...], stages: Origins, stage: int, missing: Ints, book: RowBook, known: Rows
    ) -> None:
        v = stages.skeleton.virtual_stages
        timed = self._timed.get(key)
        if timed is None:
            timed = self._time(key, stages.origin(stage), book, v)
        else:
            self._estimator.hits += 1
        origin, time_s = timed
        step = max(1, _MOST_NUMBERS // time_s.size)
        for start in range(0, len(missing), step):
            held = missing[start : start + step]
            memory = origin.memory(tuple(held.tolist()), book.options, self._layers, v)
            known[held] = book.add(origin, held, time_s, memory)

    def _time(self, key: tuple[object, ...], origin: Origin, book: RowBook, v: int) -> tuple[Origin, Array]:
        """The times of a signature, of which the latest are kept: its rows come one after another."""
        time_s = origin.times(book.options, self._layers, v)
        if len(self._timed) * time_s.nbytes > _MOST_TIMED_BYTES:
            self._timed.clear()
        made = self._timed[key] = (origin, time_s)
        return made

    def _even(self, layout: _Layout, flights: Ints, stages: Origins, book: RowBook) -> EvenRow:
        """The even split with one strategy for all stages."""
        skeleton = stages.skeleton
        base, extra = divmod(book.units, skeleton.pp)
        made: list[tuple[Array, Array, NDArray[np.bool_]]] = []
        for start, stop, signature in layout.runs:
            shared = stages.key(start, signature)
            for i in range(start, stop):
                n, held = base + (i < extra), int(flights[i])
                key = (shared, n, held)
                known = self._at_even.get(key)
                if known is None:
                    origin, shape = stages.origin(start), (book.options, self._layers, skeleton.virtual_stages)
                    time_s, memory = origin.times(*shape, n)[n].copy(), origin.memory((held,), *shape, n)[0, n].copy()
                    known = self._at_even[key] = (time_s, memory, memory <= origin.capacity_bytes)
                    self._bytes += _EVEN_BYTES + 17 * len(memory)
                made.append(known)
        usable = np.logical_and.reduce([fits for _, _, fits in made])
        r = int(usable.argmax())
        if not usable[r]:
            none = np.full(skeleton.pp, np.inf)
            return EvenRow(-1, none, none)
        return EvenRow(r, np.array([t[r] for t, _, _ in made]), np.array([m[r] for _, m, _ in made]))

    def _own_options(self, skeleton: Skeleton, first_flights: int) -> tuple[tuple[Recompute, ...], tuple[int, ...]]:
        """The strategies of the skeleton's table, and N of those that are ``uniform:N``."""
        shape = (skeleton.tp, skeleton.micro_batch, skeleton.pp, skeleton.virtual_stages)
        key = (shape, first_flights, skeleton.placements[0].gpu_type)
        known = self._options.get(key)
        if known is None:
            options = self._estimator.recompute_options(skeleton)
            options = self._equal_options.setdefault(options, options)
            known = self._options[key] = (options, tuple(o.n for o in options if o.kind == "uniform"))
        return known


def _sketch_bytes(made: Sketch) -> int:
    """Roughly what a remembered sketch takes: its own objects and its arrays."""
    return 700 + made.rows.nbytes + made.p2p_s.nbytes


def existing(layers: int, options: tuple[Recompute, ...], virtual_stages: int) -> NDArray[np.bool_]:
    """(U+1, R) which strategies exist for n units of v layers."""
    return ~basis(layers, options, virtual_stages)[1][::virtual_stages]
