"""Free hyper-parameters: global batch, sequence length and attention heads, where the operator lists values of them.

Plans of different work cannot be compared by their iteration times. They are compared by **time per token**: the
reference time of a variant is that of the first one times its share of tokens, so that Phi weighs seconds per token,
and peak memory and its variance as they are. Inside a variant tokens are constant, so every search stays exact, and the
least Phi over the variants is the least over all of them. What a batch, a sequence or a number of heads is worth to the
trained model is the operator's to judge.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product

from memx_engine.errors import CancelledError, InputError, NoFeasiblePlanError
from memx_engine.inputs.cluster import Cluster
from memx_engine.inputs.job import Job
from memx_engine.inputs.job_file import resolve_job
from memx_engine.inputs.model import TransformerSpec
from memx_engine.search.objective import Objective
from memx_engine.search.options import SearchOptions
from memx_engine.search.result import SearchResult

MOST_VARIANTS = 64

SearchOne = Callable[[TransformerSpec, Job, SearchOptions], SearchResult]


@dataclass(frozen=True)
class Variant:
    """One choice of the free hyper-parameters."""

    model: TransformerSpec
    job: Job

    @property
    def tokens(self) -> int:
        """Per iteration."""
        return self.job.global_batch * self.job.seq_len


@dataclass(frozen=True)
class Searched:
    """What the search of one variant gave. ``result`` is None where nothing fits; ``problem`` then says what binds."""

    variant: Variant
    result: SearchResult | None
    problem: str = ""

    @property
    def s_per_token(self) -> float:
        """Of the best plan; infinite where nothing fits."""
        if self.result is None:
            return float("inf")
        return self.result.plans[0].estimate.iteration_time_s / self.variant.tokens


@dataclass(frozen=True)
class FreeSearch:
    """All variants as they were listed; ``best``: index of the one whose best plan has the least Phi per token."""

    searched: tuple[Searched, ...]
    best: int

    @property
    def result(self) -> SearchResult:
        """The search of the best variant."""
        found = self.searched[self.best].result
        assert found is not None, "the best variant has a plan"
        return found

    @property
    def lower_bound(self) -> float | None:
        """No 1F1B plan of any variant has a lower additive Phi; None where some variant has no bound."""
        bounds = [s.result.certificate.lower_bound for s in self.searched if s.result is not None]
        known = [bound for bound in bounds if bound is not None]
        return min(known) if len(known) == len(bounds) else None

    @property
    def optimal(self) -> bool:
        """No 1F1B plan of any variant has a better additive Phi than the best found, and the plan shown is 1F1B."""
        best = min(s.result.certificate.best for s in self.searched if s.result is not None)
        lower = self.lower_bound
        return self.result.certificate.optimal and lower is not None and lower >= best * (1.0 - 1e-9)


def free_variants(
    cluster: Cluster,
    model: TransformerSpec,
    job: Job,
    *,
    global_batches: Sequence[int] = (),
    seq_lens: Sequence[int] = (),
    heads: Sequence[int] = (),
    kv_heads: Sequence[int] = (),
) -> tuple[Variant, ...]:
    """Every combination of the values listed; an empty list leaves a hyper-parameter as it is.

    Heads and KV heads that make no model together are left out.

    Raises:
        InputError: A value cannot be, no combination of heads can, or there are more than 64 combinations.
    """
    models = [m for h, kv in product(heads or (None,), kv_heads or (None,)) if (m := _with_heads(model, h, kv))]
    if not models:
        raise InputError(
            f"none of the KV heads {_listed(kv_heads or [model.kv_heads])} divides any of the heads "
            f"{_listed(heads or [model.heads])}",
            where="--heads and --kv-heads",
            hint="query heads are shared out evenly among the KV heads",
        )
    out = [
        Variant(m, resolve_job(cluster, m, base=job, global_batch=batch, seq_len=seq_len))
        for m, batch, seq_len in product(models, global_batches or (None,), seq_lens or (None,))
    ]
    if len(out) > MOST_VARIANTS:
        raise InputError(
            f"{len(out)} combinations of free hyper-parameters are listed, and at most {MOST_VARIANTS} are searched",
            where="--global-batch, --seq-len, --heads, --kv-heads",
            hint="list fewer values",
        )
    return tuple(out)


def _listed(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))


def _with_heads(model: TransformerSpec, heads: int | None, kv_heads: int | None) -> TransformerSpec | None:
    """``model`` with other heads; the head size follows where heads x size is the width, else it stays.

    None where the KV heads do not divide the heads. InputError where the heads do not divide the width.
    """
    if heads is None and kv_heads is None:
        return model
    wanted = heads or model.heads
    size = model.head_dim
    if wanted != model.heads and model.heads * model.head_dim == model.hidden:
        if model.hidden % wanted:
            raise InputError(
                f"{wanted} heads do not divide the hidden size {model.hidden}",
                where="--heads",
                hint=f"near it: {_listed(_dividing(model.hidden, wanted))}",
            )
        size = model.hidden // wanted
    shared = kv_heads or (wanted if model.kv_heads == model.heads else model.kv_heads)
    if wanted % shared:
        return None
    if (wanted, shared) == (model.heads, model.kv_heads):
        return model
    said = (
        f"{wanted} heads of size {size} and {shared} KV heads instead of {model.heads} and {model.kv_heads}, as listed"
    )
    return replace(model, heads=wanted, kv_heads=shared, head_dim=size, assumed=(*model.assumed, said))


def _dividing(hidden: int, wanted: int) -> list[int]:
    """The two nearest numbers of heads that divide the width."""
    divisors = [n for n in range(1, hidden + 1) if hidden % n == 0]
    return sorted(sorted(divisors, key=lambda n: (abs(n - wanted), n))[:2])


def per_token(objective: Objective, tokens: int, other_tokens: int) -> Objective:
    """``objective``, made for iterations of ``tokens``, for iterations of ``other_tokens``: time counts per token."""
    references = objective.references
    scaled = replace(references, time_s=references.time_s * other_tokens / tokens)
    return replace(objective, references=scaled)


def search_variants(
    variants: Sequence[Variant],
    options: SearchOptions,
    search_one: SearchOne,
    *,
    should_stop: Callable[[], bool] | None = None,
) -> FreeSearch:
    """Search every variant; the first in which anything fits gives weights and references of all.

    A time limit is shared out evenly. An objective in ``options`` is taken as that of the first variant's work.

    Args:
        search_one: Searches one model and job.
        should_stop: Asked after each variant; True ends with those that are done. Without it whatever ``search_one``
            raises when it is stopped goes on to the caller.

    Raises:
        NoFeasiblePlanError: Nothing fits in any variant; the first one's error.
        CancelledError: Stopped before any plan was found.
    """
    limit = options.time_limit_s
    options = replace(options, time_limit_s=None if limit is None else limit / len(variants))
    known = None if options.objective is None else (options.objective, variants[0].tokens)
    out: list[Searched] = []
    first_error: NoFeasiblePlanError | None = None
    for variant in variants:
        chosen = options
        if known is not None:
            chosen = replace(options, objective=per_token(*known, variant.tokens))
        try:
            result = search_one(variant.model, variant.job, chosen)
        except NoFeasiblePlanError as error:
            first_error = first_error or error
            out.append(Searched(variant, None, error.message))
            continue
        except CancelledError:
            if should_stop is None or known is None:
                raise
            break
        known = known or (result.objective, variant.tokens)
        out.append(Searched(variant, result))
        if should_stop is not None and should_stop():
            break
    found = [(s.result.plans[0].phi, i) for i, s in enumerate(out) if s.result is not None]
    if not found:
        assert first_error is not None, "every variant has failed"
        raise first_error
    return FreeSearch(tuple(out), min(found)[1])
