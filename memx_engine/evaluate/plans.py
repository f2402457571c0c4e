"""Whole plans to judge predictions on: drawn without looking at any prediction."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from memx_engine.cost.first_principles import FirstPrinciples
from memx_engine.cost.recompute import counts
from memx_engine.inputs.cluster import Cluster
from memx_engine.inputs.job import Job
from memx_engine.inputs.model import TransformerSpec
from memx_engine.plan import FULL, NONE, Plan, Recompute, Skeleton
from memx_engine.predict.iteration_features import reference_plan
from memx_engine.search.space import enumerate_space

TRIES = 8
"""Plans drawn of one skeleton until one of them runs."""

_JITTER = 0.15


def draw_plans(cluster: Cluster, model: TransformerSpec, job: Job, seed: int) -> Iterator[Iterator[Plan]]:
    """For every skeleton of the search space, in random order, up to :data:`TRIES` of its plans.

    Half of the splits are even, half follow the catalogue's computing powers with some jitter. Recompute is drawn for
    each GPU type, or once for all stages; the first half of the tries draws from all strategies, the rest recomputes
    everything more and more often, since few plans fit otherwise.
    """
    rng = np.random.default_rng([seed, 20])
    skeletons = list(enumerate_space(cluster, model, job).skeletons())
    rules = FirstPrinciples(cluster, model, job)
    for place in rng.permutation(len(skeletons)).tolist():
        yield _plans(skeletons[place], cluster, model, job, rules, rng)


def _plans(
    skeleton: Skeleton,
    cluster: Cluster,
    model: TransformerSpec,
    job: Job,
    rules: FirstPrinciples,
    rng: np.random.Generator,
) -> Iterator[Plan]:
    for attempt in range(TRIES):
        plan = reference_plan(skeleton, model.layers, untied=rules.must_untie(skeleton))
        if skeleton.virtual_stages == 1 and rng.random() < 0.5:
            layers = _by_power(skeleton, cluster, job, model.layers, rng)
            stages = [replace(s, chunk_layers=(n,)) for s, n in zip(plan.stages, layers, strict=True)]
            plan = replace(plan, stages=tuple(stages))
        if min(min(stage.chunk_layers) for stage in plan.stages) < 1:
            return
        most = min(min(stage.chunk_layers) for stage in plan.stages)
        options = [o for o in rules.recompute_options(skeleton) if counts(most, o) is not None]
        full = attempt / TRIES
        words = {name: _recompute(options, rng, full) for name in skeleton.type_order}
        if rules.one_recompute_for_all or rng.random() < 0.5:
            words = dict.fromkeys(words, next(iter(words.values())))
        yield replace(plan, stages=tuple(replace(s, recompute=words[s.gpu_type]) for s in plan.stages))


def _recompute(options: Sequence[Recompute], rng: np.random.Generator, full: float) -> Recompute:
    """Strategies of one kind count together, so that the many ``block:K`` do not crowd out the others."""
    if FULL in options and rng.random() < full:
        return FULL
    kinds = sorted({option.kind for option in options})
    kind = kinds[rng.integers(len(kinds))] if kinds else NONE.kind
    own = [option for option in options if option.kind == kind] or [NONE]
    return own[rng.integers(len(own))]


def _by_power(skeleton: Skeleton, cluster: Cluster, job: Job, layers: int, rng: np.random.Generator) -> tuple[int, ...]:
    """Layers of every stage by its type's power, at least one each where there are enough."""
    powers = []
    for placement in skeleton.placements:
        gpu_type = cluster.gpu_type(placement.gpu_type)
        power = (gpu_type.peak_flops(job.precision.value) or 1.0) * gpu_type.efficiency
        powers.append(power * math.exp(rng.normal(0.0, _JITTER)))
    shares = np.array(powers) / sum(powers) * (layers - skeleton.pp)
    whole = np.floor(shares).astype(int)
    rest = layers - skeleton.pp - int(whole.sum())
    whole[np.argsort(whole - shares)[: max(rest, 0)]] += 1
    return tuple(int(n) + 1 for n in whole)
