"""MemX engine: plans large-model training on clusters of different GPUs.

The public names below are all that the interface uses; each is imported on first use so that starting stays quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from memx_engine.cost.events import Timeline as Timeline
    from memx_engine.cost.first_principles import FirstPrinciples as FirstPrinciples
    from memx_engine.cost.table import Estimator as Estimator
    from memx_engine.errors import CancelledError as CancelledError
    from memx_engine.errors import InputError as InputError
    from memx_engine.errors import MemxError as MemxError
    from memx_engine.errors import NoFeasiblePlanError as NoFeasiblePlanError
    from memx_engine.errors import OutputError as OutputError
    from memx_engine.errors import UnsupportedModelError as UnsupportedModelError
    from memx_engine.evaluate.accuracy import AccuracyOptions as AccuracyOptions
    from memx_engine.evaluate.accuracy import AccuracyTable as AccuracyTable
    from memx_engine.evaluate.command import Ground as Ground
    from memx_engine.evaluate.command import evaluate as _evaluate
    from memx_engine.evaluate.command import is_testbed as is_testbed
    from memx_engine.export.comparison import compare_document as compare_document
    from memx_engine.export.comparison import comparison_notes as comparison_notes
    from memx_engine.export.documents import explain_document as explain_document
    from memx_engine.export.documents import search_document as search_document
    from memx_engine.export.plan_file import PlanFile as PlanFile
    from memx_engine.export.plan_file import load_plan as load_plan
    from memx_engine.export.plan_file import plan_file as plan_file
    from memx_engine.export.plan_file import plan_text as plan_text
    from memx_engine.export.plan_file import save_plan as save_plan
    from memx_engine.export.what_if import free_document as free_document
    from memx_engine.export.what_if import moves_by_node as moves_by_node
    from memx_engine.export.what_if import replan_document as replan_document
    from memx_engine.export.what_if import sensitivity_document as sensitivity_document
    from memx_engine.inputs.catalogue import LinkDefault as LinkDefault
    from memx_engine.inputs.catalogue import load_catalogue as load_catalogue
    from memx_engine.inputs.catalogue import load_links as load_links
    from memx_engine.inputs.cluster import Cluster as Cluster
    from memx_engine.inputs.cluster import GpuGroup as GpuGroup
    from memx_engine.inputs.cluster import GpuType as GpuType
    from memx_engine.inputs.cluster import Link as Link
    from memx_engine.inputs.cluster import LinkClass as LinkClass
    from memx_engine.inputs.cluster import Node as Node
    from memx_engine.inputs.cluster_file import SampleCluster as SampleCluster
    from memx_engine.inputs.cluster_file import cluster_text as cluster_text
    from memx_engine.inputs.cluster_file import load_cluster as load_cluster
    from memx_engine.inputs.cluster_file import parse_cluster as parse_cluster
    from memx_engine.inputs.cluster_file import sample_clusters as sample_clusters
    from memx_engine.inputs.cluster_file import validate_cluster_text as validate_cluster_text
    from memx_engine.inputs.job import Attention as Attention
    from memx_engine.inputs.job import Job as Job
    from memx_engine.inputs.job_file import resolve_job as resolve_job
    from memx_engine.inputs.model import TransformerSpec as TransformerSpec
    from memx_engine.inputs.model_file import load_model as load_model
    from memx_engine.inputs.model_file import model_presets as model_presets
    from memx_engine.inputs.nodes import Problem as Problem
    from memx_engine.lockfile import LockedError as LockedError
    from memx_engine.measurement import Measurement as Measurement
    from memx_engine.measurement import Outcome as Outcome
    from memx_engine.measurement import Point as Point
    from memx_engine.measurement import Truth as Truth
    from memx_engine.plan import Estimate as Estimate
    from memx_engine.plan import GpuEstimate as GpuEstimate
    from memx_engine.plan import MemoryBreakdown as MemoryBreakdown
    from memx_engine.plan import Plan as Plan
    from memx_engine.plan import Provenance as Provenance
    from memx_engine.plan import Recompute as Recompute
    from memx_engine.plan import Skeleton as Skeleton
    from memx_engine.plan import Stage as Stage
    from memx_engine.plan import StagePlacement as StagePlacement
    from memx_engine.plan import Verdict as Verdict
    from memx_engine.predict.calibrated import Calibrated as Calibrated
    from memx_engine.predict.learning import Learned as Learned
    from memx_engine.predict.learning import learn as learn
    from memx_engine.predict.learning import learned_document as learned_document
    from memx_engine.predict.trained import PREDICTORS as PREDICTORS
    from memx_engine.profile.described import OfCluster as OfCluster
    from memx_engine.profile.design import DesignSummary as DesignSummary
    from memx_engine.profile.design import ProfileDesign as ProfileDesign
    from memx_engine.profile.design import design_document as design_document
    from memx_engine.profile.design import design_profile as design_profile
    from memx_engine.profile.impact import Impact as Impact
    from memx_engine.profile.importers.exporting import EXPORTS as EXPORTS
    from memx_engine.profile.importers.exporting import export_table as export_table
    from memx_engine.profile.importers.reading import FileImport as FileImport
    from memx_engine.profile.importers.reading import Reasons as Reasons
    from memx_engine.profile.importers.reading import import_document as import_document
    from memx_engine.profile.importers.reading import import_file as import_file
    from memx_engine.profile.loop import ProfileOptions as ProfileOptions
    from memx_engine.profile.loop import refuse_without_resume as refuse_without_resume
    from memx_engine.profile.loop import run_profile as run_profile
    from memx_engine.profile.parameters import exhaustive_count as exhaustive_count
    from memx_engine.profile.parameters import sparse_count as sparse_count
    from memx_engine.profile.progress import EventKind as EventKind
    from memx_engine.profile.progress import ProfileEvent as ProfileEvent
    from memx_engine.profile.progress import ProfileProgress as ProfileProgress
    from memx_engine.profile.progress import TypeProgress as TypeProgress
    from memx_engine.profile.progress import TypeState as TypeState
    from memx_engine.profile.records import measurement_to_document as measurement_to_document
    from memx_engine.profile.result import ProfileResult as ProfileResult
    from memx_engine.profile.result import TypeResult as TypeResult
    from memx_engine.profile.result import profile_document as profile_document
    from memx_engine.profile.runner import ProfileError as ProfileError
    from memx_engine.profile.runner import Runner as Runner
    from memx_engine.profile.runners.command import CommandRunner as CommandRunner
    from memx_engine.profile.runners.command import CommandTemplate as CommandTemplate
    from memx_engine.profile.runners.local import LocalRunner as LocalRunner
    from memx_engine.profile.runners.slurm import SlurmOptions as SlurmOptions
    from memx_engine.profile.runners.slurm import SlurmRunner as SlurmRunner
    from memx_engine.profile.runners.ssh import SshOptions as SshOptions
    from memx_engine.profile.runners.ssh import SshRunner as SshRunner
    from memx_engine.profile.runners.testbed import TestbedRunner as TestbedRunner
    from memx_engine.profile.runners.testbed import parse_testbed as parse_testbed
    from memx_engine.profile.store import MeasurementStore as MeasurementStore
    from memx_engine.profile.store import MemoryStore as MemoryStore
    from memx_engine.profile.trends import Trend as Trend
    from memx_engine.profile.trends import attention_doubt as attention_doubt
    from memx_engine.profile.trends import measured_trends as measured_trends
    from memx_engine.search.explain import Explanation as Explanation
    from memx_engine.search.explain import PlanRequest as PlanRequest
    from memx_engine.search.explain import Reason as Reason
    from memx_engine.search.explain import explain_plan as explain_plan
    from memx_engine.search.explain import explain_request as explain_request
    from memx_engine.search.gap import Gap as Gap
    from memx_engine.search.gap import gap_by_certificate as gap_by_certificate
    from memx_engine.search.implied import dp_choices as dp_choices
    from memx_engine.search.limit_checks import checked_limits as checked_limits
    from memx_engine.search.limit_words import parse_limits as parse_limits
    from memx_engine.search.limits import OperatorLimits as OperatorLimits
    from memx_engine.search.listing import with_plan as with_plan
    from memx_engine.search.objective import Objective as Objective
    from memx_engine.search.objective import References as References
    from memx_engine.search.objective import Weights as Weights
    from memx_engine.search.objective import parse_weights as parse_weights
    from memx_engine.search.replan import Before as Before
    from memx_engine.search.replan import Replan as Replan
    from memx_engine.search.replan import replan as replan
    from memx_engine.search.replan import without_nodes as without_nodes
    from memx_engine.search.result import Certificate as Certificate
    from memx_engine.search.result import PlanTable as PlanTable
    from memx_engine.search.result import PruneCounts as PruneCounts
    from memx_engine.search.result import RankedPlan as RankedPlan
    from memx_engine.search.result import SearchProgress as SearchProgress
    from memx_engine.search.result import SearchResult as SearchResult
    from memx_engine.search.run import SearchOptions as SearchOptions
    from memx_engine.search.run import search as _search
    from memx_engine.search.sensitivity import Gain as Gain
    from memx_engine.search.sensitivity import Sensitivity as Sensitivity
    from memx_engine.search.sensitivity import find_sensitivity as find_sensitivity
    from memx_engine.search.variants import FreeSearch as FreeSearch
    from memx_engine.search.variants import Variant as Variant
    from memx_engine.search.variants import free_variants as free_variants
    from memx_engine.search.variants import per_token as per_token
    from memx_engine.search.variants import search_variants as search_variants
    from memx_engine.units import gib as gib
    from memx_engine.workspace import StorageError as StorageError
    from memx_engine.workspace import Workspace as Workspace

    search_plans = _search
    evaluate_predictions = _evaluate

_HOMES = {
    "cost.events": ("Timeline",),
    "cost.first_principles": ("FirstPrinciples",),
    "cost.table": ("Estimator",),
    "errors": (
        "CancelledError",
        "InputError",
        "MemxError",
        "NoFeasiblePlanError",
        "OutputError",
        "UnsupportedModelError",
    ),
    "evaluate.accuracy": ("AccuracyOptions", "AccuracyTable"),
    "evaluate.command": ("Ground", "is_testbed"),
    "export.comparison": ("compare_document", "comparison_notes"),
    "export.documents": ("explain_document", "search_document"),
    "export.plan_file": ("PlanFile", "load_plan", "plan_file", "plan_text", "save_plan"),
    "export.what_if": ("free_document", "moves_by_node", "replan_document", "sensitivity_document"),
    "inputs.catalogue": ("LinkDefault", "load_catalogue", "load_links"),
    "inputs.cluster": ("Cluster", "GpuGroup", "GpuType", "Link", "LinkClass", "Node"),
    "inputs.cluster_file": (
        "SampleCluster",
        "cluster_text",
        "load_cluster",
        "parse_cluster",
        "sample_clusters",
        "validate_cluster_text",
    ),
    "inputs.job": (
        "Attention",
        "Job",
    ),
    "inputs.job_file": ("resolve_job",),
    "inputs.model": ("TransformerSpec",),
    "inputs.model_file": ("load_model", "model_presets"),
    "inputs.nodes": ("Problem",),
    "lockfile": ("LockedError",),
    "measurement": ("Measurement", "Outcome", "Point", "Truth"),
    "plan": (
        "Estimate",
        "GpuEstimate",
        "MemoryBreakdown",
        "Plan",
        "Provenance",
        "Recompute",
        "Skeleton",
        "Stage",
        "StagePlacement",
        "Verdict",
    ),
    "predict.calibrated": ("Calibrated",),
    "predict.trained": ("PREDICTORS",),
    "predict.learning": ("Learned", "learn", "learned_document"),
    "profile.design": ("DesignSummary", "ProfileDesign", "design_document", "design_profile"),
    "profile.described": ("OfCluster",),
    "profile.impact": ("Impact",),
    "profile.importers.exporting": ("EXPORTS", "export_table"),
    "profile.importers.reading": ("FileImport", "Reasons", "import_document", "import_file"),
    "profile.loop": ("ProfileOptions", "refuse_without_resume", "run_profile"),
    "profile.parameters": ("exhaustive_count", "sparse_count"),
    "profile.progress": ("EventKind", "ProfileEvent", "ProfileProgress", "TypeProgress", "TypeState"),
    "profile.records": ("measurement_to_document",),
    "profile.result": ("ProfileResult", "TypeResult", "profile_document"),
    "profile.runner": ("ProfileError", "Runner"),
    "profile.runners.command": ("CommandRunner", "CommandTemplate"),
    "profile.runners.local": ("LocalRunner",),
    "profile.runners.slurm": ("SlurmOptions", "SlurmRunner"),
    "profile.runners.ssh": ("SshOptions", "SshRunner"),
    "profile.runners.testbed": ("TestbedRunner", "parse_testbed"),
    "profile.store": ("MeasurementStore", "MemoryStore"),
    "profile.trends": ("Trend", "attention_doubt", "measured_trends"),
    "search.explain": ("Explanation", "PlanRequest", "Reason", "explain_plan", "explain_request"),
    "search.gap": ("Gap", "gap_by_certificate"),
    "search.implied": ("dp_choices",),
    "search.limit_checks": ("checked_limits",),
    "search.limit_words": ("parse_limits",),
    "search.limits": ("OperatorLimits",),
    "search.listing": ("with_plan",),
    "search.objective": ("Objective", "References", "Weights", "parse_weights"),
    "search.result": ("Certificate", "PlanTable", "PruneCounts", "RankedPlan", "SearchProgress", "SearchResult"),
    "search.replan": ("Before", "Replan", "replan", "without_nodes"),
    "search.sensitivity": ("Gain", "Sensitivity", "find_sensitivity"),
    "search.run": ("SearchOptions",),
    "search.variants": ("FreeSearch", "Variant", "free_variants", "per_token", "search_variants"),
    "units": ("gib",),
    "workspace": ("StorageError", "Workspace"),
}
_HOME_OF = {name: (f"memx_engine.{home}", name) for home, names in _HOMES.items() for name in names}
# ``memx_engine.search`` is the package once anything of it is imported, so the function has another name here.
_HOME_OF["search_plans"] = ("memx_engine.search.run", "search")
_HOME_OF["evaluate_predictions"] = ("memx_engine.evaluate.command", "evaluate")

__all__ = ["__version__", *sorted(_HOME_OF)]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'memx_engine' has no attribute {name!r}")
    home, name_there = _HOME_OF[name]
    return getattr(import_module(home), name_there)
