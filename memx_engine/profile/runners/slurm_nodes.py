"""What a Slurm holds: its nodes with their GPUs, features and states, from any release between 18.08 and 24.11.

``scontrol show node --json`` is asked first (23.02 and later), then ``scontrol show node -o``, then ``sinfo``. Formats
after https://slurm.schedmd.com/scontrol.html, sinfo.html, gres.html and the ``node`` type of the OpenAPI plugins.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from memx_engine.errors import InputError
from memx_engine.inputs.catalogue import find_gpu_type, load_catalogue
from memx_engine.inputs.cluster import Cluster, GpuType
from memx_engine.profile.process import OUTPUT_LIMIT_BYTES, Finished, run
from memx_engine.profile.runner import ProfileError, StopCheck

_COMMAND_S = 30.0
_LISTING_BYTES = 256 << 20
"""Ten thousand nodes are some 30 MB of JSON."""
_SILENT = re.compile(
    r"unable to contact slurm controller|socket timed out on send/recv|zero bytes were transmitted"
    r"|controller is in standby|backup controller",
    re.IGNORECASE,
)
_RECORD = re.compile(r"(?m)^(?=NodeName=)")
_FIELD = re.compile(r"(?:^|\s)(NodeName|Gres|AvailableFeatures|Features|State|Partitions)=(\S*)")
_NOTHING = {"", "(null)", "N/A", "n/a", "none"}
_UNUSABLE = {"DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "MAINT", "FUTURE", "INVALID_REG", "UNKNOWN"}


class SilentControllerError(ProfileError):
    """The Slurm controller does not answer now; it may come back, and the jobs it started go on meanwhile."""


@dataclass(frozen=True)
class SlurmNode:
    """One node. ``gpus``: counts by type, untyped ones under ``""``. ``states``: upper case, such as IDLE, DRAIN."""

    name: str
    gpus: Mapping[str, int]
    features: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()

    @property
    def usable(self) -> bool:
        """Whether jobs can start there now or after those that run."""
        return not _UNUSABLE & set(self.states)


def parse_gres(text: str) -> dict[str, int]:
    """GPU counts by type of a GRES string such as ``gpu:a100:4(S:0-1),gpu:mi300x:8``; untyped GPUs count as ``""``.

    Sockets and indices in parentheses, ``no_consume`` and other resources are passed over; no count is one.
    """
    counts: dict[str, int] = {}
    for word in re.sub(r"\([^)]*\)", "", text).split(","):
        kind, *rest = word.strip().split(":")
        if kind.lower() != "gpu":
            continue
        rest = [part for part in rest if part != "no_consume"]
        count = int(rest.pop()) if rest and rest[-1].isdecimal() else 1
        name = ":".join(rest)
        counts[name] = counts.get(name, 0) + count
    return counts


def parse_json(text: str) -> tuple[SlurmNode, ...] | None:
    """The nodes of ``scontrol show node --json`` or of an older ``sinfo -N --json``; None when it is neither."""
    try:
        document = json.loads(text[max(text.find("{"), 0) :])
    except ValueError:
        return None
    nodes = document.get("nodes") if isinstance(document, dict) else None
    if not isinstance(nodes, list):
        return None
    return _merged(_node_of_json(node) for node in nodes if isinstance(node, dict))


def _node_of_json(node: Mapping[str, Any]) -> SlurmNode:
    states = [*_words(node.get("state")), *_words(node.get("state_flags"))]
    return SlurmNode(
        str(node.get("name", "")),
        parse_gres(str(node.get("gres") or "")),
        tuple(_words(node.get("features"))),
        _states("+".join(states)),
        tuple(_words(node.get("partitions"))),
    )


def _words(value: object) -> list[str]:
    """A list of words that older releases write as one text with commas."""
    parts = value if isinstance(value, list) else str(value or "").split(",")
    return [str(part).strip() for part in parts if str(part).strip() not in _NOTHING]


def _states(text: str) -> tuple[str, ...]:
    """``MIXED*+DRAIN`` as ("MIXED", "DRAIN"); the marks say that a node does not respond, sleeps, and the like."""
    return tuple(word for part in text.upper().split("+") if (word := re.sub(r"[^A-Z_]", "", part)))


def parse_scontrol(text: str) -> tuple[SlurmNode, ...]:
    """The nodes of ``scontrol show node``, with or without ``-o``."""
    nodes = []
    for record in _RECORD.split(text):
        fields: dict[str, str] = {}
        for match in _FIELD.finditer(record):
            # The first counts: a reason or comment at the end may hold anything.
            fields.setdefault(match[1], match[2])
        nodes.append(
            SlurmNode(
                fields.get("NodeName", ""),
                parse_gres(fields.get("Gres", "")),
                tuple(_words(fields.get("AvailableFeatures", fields.get("Features")))),
                _states(fields.get("State", "")),
                tuple(_words(fields.get("Partitions"))),
            )
        )
    return _merged(nodes)


def parse_sinfo(text: str) -> tuple[SlurmNode, ...]:
    """The nodes of ``sinfo -h -N -o '%N|%G|%f|%T|%P'``: a node has one line for each of its partitions."""
    nodes = []
    for line in text.splitlines():
        parts = [part.strip() for part in line.split("|")]
        if len(parts) == 5:
            name, gres, features, state, partition = parts
            partitions = tuple(_words(partition.rstrip("*")))
            nodes.append(SlurmNode(name, parse_gres(gres), tuple(_words(features)), _states(state), partitions))
    return _merged(nodes)


def _merged(nodes: Iterable[SlurmNode]) -> tuple[SlurmNode, ...]:
    found: dict[str, SlurmNode] = {}
    for node in nodes:
        if node.name:
            before = found.get(node.name, node)
            partitions = tuple(dict.fromkeys((*before.partitions, *node.partitions)))
            found[node.name] = replace(before, partitions=partitions)
    return tuple(found.values())


def client(arguments: list[str], should_stop: StopCheck, *, limit_bytes: int = OUTPUT_LIMIT_BYTES) -> Finished:
    """Run a Slurm client; ProfileError when it is not on this machine."""
    if shutil.which(arguments[0]) is None:
        raise ProfileError(
            f"{arguments[0]} is not on this machine", hint="run this on a login node of the Slurm cluster"
        )
    return run(arguments, timeout_s=_COMMAND_S, should_stop=should_stop, output_limit_bytes=limit_bytes)


def is_silent(finished: Finished) -> bool:
    """Whether the client failed because the controller did not answer."""
    return finished.timed_out or (finished.returncode != 0 and _SILENT.search(finished.errors) is not None)


def find_nodes(should_stop: StopCheck = lambda: False) -> tuple[SlurmNode, ...]:
    """All nodes of the Slurm that this machine belongs to.

    Raises:
        SilentControllerError: It does not answer now. ProfileError: There is no working client.
    """
    words = ""
    asked = (["scontrol", "show", "node", "--json"], ["scontrol", "show", "node", "-o"],
             ["sinfo", "-h", "-N", "-o", "%N|%G|%f|%T|%P"])  # fmt: skip
    for arguments, parse in zip(asked, (parse_json, parse_scontrol, parse_sinfo), strict=True):
        if shutil.which(arguments[0]) is None and arguments[0] != "sinfo":
            continue
        finished = client(arguments, should_stop, limit_bytes=_LISTING_BYTES)
        if is_silent(finished):
            raise SilentControllerError("the Slurm controller does not answer", hint="ask whether it is down")
        nodes = parse(finished.output) if finished.returncode == 0 else None
        if nodes:
            return nodes
        words = (finished.errors.strip().splitlines() or [words])[-1]
    raise ProfileError(
        f"Slurm tells of no nodes: {words[:200] or 'its answer cannot be read'}",
        where="sinfo",
        hint="is this a login node of the Slurm cluster?",
    )


@dataclass(frozen=True)
class GpuRequest:
    """What to ask Slurm for. ``gres``: type name, empty for untyped GPUs. ``feature``: constraint, or empty."""

    gres: str
    count: int
    feature: str = ""

    def words(self, count: int) -> str:
        """The value of ``--gres`` for ``count`` GPUs."""
        return f"gpu:{self.gres}:{count}" if self.gres else f"gpu:{count}"


def gpu_request(
    cluster: Cluster, gpu_type: str, nodes: Iterable[SlurmNode], names: Mapping[str, str], partition: str = ""
) -> GpuRequest:
    """What finds the devices of ``gpu_type``: a GRES type of its name, or untyped GPUs on nodes with a feature.

    Args:
        names: GPU type → GRES type or feature, where the operator said so.
        partition: Only its nodes count; empty for all.

    Raises:
        ProfileError: Nothing there matches, or it matches another type of the cluster just as well.
    """
    here = [n for n in nodes if n.gpus and (not partition or not n.partitions or partition in n.partitions)]
    name, typed = _match(cluster.gpu_type(gpu_type), here, names)
    if name is None and len(cluster.gpu_types) == 1 and all(set(n.gpus) == {""} for n in here) and here:
        name, typed = "", True
    if name is None:
        _refuse(gpu_type, here, names, partition)
    twins = [t.name for t in cluster.gpu_types if t.name != gpu_type and _match(t, here, names)[0] == name]
    if twins and name:
        raise ProfileError(
            f"in Slurm {gpu_type} and {', '.join(twins)} are both called {name}",
            where="sinfo",
            hint=f"tell them apart with --gres-name {gpu_type}=NAME, a GPU type of Slurm or a node feature",
        )
    gres, feature = (name, "") if typed else ("", name)
    able = [n for n in here if gres in n.gpus and (not feature or feature in n.features)]
    # A drained node must not decide how much is asked for, unless there is no other.
    counts = [n.gpus[gres] for n in able if n.usable] or [n.gpus[gres] for n in able]
    first = cluster.nodes[cluster.gpus[cluster.ranks_by_type[gpu_type][0]].node_index]
    wanted = sum(group.count for group in first.groups if group.gpu_type.name == gpu_type)
    if max(counts) < wanted:
        raise ProfileError(
            f"the cluster file has {wanted} {gpu_type} in {first.name}, Slurm's nodes have at most {max(counts)}",
            where="sinfo",
            hint="correct the count in the cluster file, or name another partition with --partition",
        )
    return GpuRequest(gres, max(counts), feature)


def _match(gpu_type: GpuType, nodes: Iterable[SlurmNode], names: Mapping[str, str]) -> tuple[str | None, bool]:
    """(Slurm's name for ``gpu_type``, whether it is a GRES type rather than a feature); None when there is none."""
    typed = {name for n in nodes for name in n.gpus if name}
    features = {f for n in nodes if "" in n.gpus for f in n.features}
    said = names.get(gpu_type.name)
    for known, is_type in ((typed, True), (features, False)):
        found = _spelled(known, [said] if said else [gpu_type.name, *gpu_type.aliases])
        if found is None and not said:
            short = [name for name in known if gpu_type.name.lower().startswith(name.lower() + "-")]
            alike = [name for name in known if _catalogue_name(name) == gpu_type.name]
            found = next((some[0] for some in (short, alike) if len(some) == 1), None)
        if found is not None:
            return found, is_type
    return None, True


def _spelled(known: Iterable[str], wanted: Iterable[str]) -> str | None:
    """The first of ``wanted`` that is among ``known`` but for case, spaces and underscores, as ``known`` spells it."""
    by_plain = {re.sub(r"[\s_]", "-", name.lower()): name for name in sorted(known)}
    return next((by_plain[p] for name in wanted if (p := re.sub(r"[\s_]", "-", name.lower())) in by_plain), None)


def _catalogue_name(name: str) -> str:
    """The catalogue's device that a driver's name such as ``nvidia_h100_80gb_hbm3`` means; empty when none."""
    try:
        return find_gpu_type(name.replace("_", " "), load_catalogue()).name
    except InputError:
        return ""


def _refuse(gpu_type: str, nodes: Iterable[SlurmNode], names: Mapping[str, str], partition: str) -> NoReturn:
    nodes = list(nodes)
    typed = sorted({name for n in nodes for name in n.gpus if name})
    features = sorted({f for n in nodes if "" in n.gpus for f in n.features})
    has = "; ".join(
        part
        for part in (
            f"it has {', '.join(typed)}" if typed else "it has no typed GPUs",
            f"nodes with untyped GPUs have the features {', '.join(features)}" if features else "",
        )
        if part
    )
    where = f" in the partition {partition}" if partition else ""
    raise ProfileError(
        f"Slurm has no GPU type that matches {names.get(gpu_type, gpu_type)}{where}",
        where="sinfo",
        hint=f"{has}; name one with --gres-name {gpu_type}=NAME",
    )
