"""The catalogue of devices (``gpus.yaml``): what each is, what it reaches, and the links it comes with."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path
from types import MappingProxyType

from memx_engine.errors import InputError
from memx_engine.inputs.cluster import PRECISIONS, GpuType, Link
from memx_engine.inputs.documents import Node, nearest, read_document
from memx_engine.units import GIB, MIB

_FILE = Path(__file__).with_name("gpus.yaml")
_TOKEN = re.compile(r"[0-9a-z]+(?:\.[0-9]+)?")
_VENDOR_WORDS = frozenset(
    "nvidia amd intel huawei tesla geforce quadro instinct radeon ascend biren iluvatar metax kunlunxin cambricon "
    "r tm c corporation graphics device gpu accelerator hbm hbm2 hbm2e hbm3 hbm3e".split()
)
_FORM_WORDS = {"sxm": "sxm", "sxm2": "sxm", "sxm4": "sxm", "sxm5": "sxm", "pcie": "pcie", "pci": "pcie", "nvl": "nvl"}
_MEMORY_WORD = re.compile(r"(\d+)(?:g|gb|gib)")
SPANS = ("node", "numa", "pair", "four")


@dataclass(frozen=True)
class LinkDefault:
    """A link of the catalogue: its name there, its figures, and the source in words."""

    name: str
    link: Link
    about: str


@dataclass(frozen=True)
class Interconnect:
    """The links a device comes with inside a host; ``span`` says how far an island reaches (see :data:`SPANS`)."""

    island: LinkDefault
    node: LinkDefault
    numa: LinkDefault
    span: str

    def island_size(self, count: int) -> int:
        """GPUs per island where ``count`` like devices sit in one host."""
        if self.span == "node":
            return count
        if self.span == "numa":
            return numa_domain_size(count)
        size = 2 if self.span == "pair" else 4
        return size if count % size == 0 else count


def numa_domain_size(count: int) -> int:
    """GPUs per NUMA domain where the file does not say: hosts of eight and more have two domains."""
    return count // 2 if count >= 8 and count % 2 == 0 else count


@cache
def load_catalogue() -> Mapping[str, GpuType]:
    """Every device type by its id, in the order of the file. ``memory_bytes`` 0: not publicly known."""
    root = _root()
    vendors = (root.fields or {})["vendors"]
    gpus = (root.fields or {})["gpus"]
    return MappingProxyType({name: _gpu_type(name, node, vendors) for name, node in (gpus.fields or {}).items()})


@cache
def load_links() -> Mapping[str, LinkDefault]:
    """Every named link of the catalogue; a cluster file may use these names."""
    entries = (_root().fields or {})["links"].fields or {}
    return MappingProxyType({name: _link_default(name, node) for name, node in entries.items()})


@cache
def interconnect(name: str) -> Interconnect:
    """The links that device ``name`` comes with; PCIe 4 for one outside the catalogue."""
    links = load_links()
    gpus = (_root().fields or {})["gpus"]
    entry = gpus.child(name)
    stated = entry.child("links") if entry else None
    if stated is None:
        return Interconnect(links["pcie-4"], links["pcie-4"], links["pcie-4-numa"], "numa")
    island, node, numa = (links[stated.text(key)] for key in ("island", "node", "numa"))
    return Interconnect(island, node, numa, stated.choice("span", SPANS))


def find_gpu_type(name: str, catalogue: Mapping[str, GpuType] | None = None) -> GpuType:
    """The type that ``name`` means: an id, an alias, or the name a vendor's tool prints.

    The longest alias wins (``H200`` is not ``H20``), and what the alias leaves over must agree with the type
    (``A100 80GB`` is not the 40 GB card).

    Raises:
        InputError: No type is called so (the nearest names are offered), or several are (they are listed).
    """
    known = load_catalogue() if catalogue is None else catalogue
    if name in known:
        return known[name]
    words = _words(name)
    matches = [(length, t) for t in known.values() if (length := _match_length(words, t)) > 0]
    longest = max((length for length, _ in matches), default=0)
    best = [t for length, t in matches if length == longest]
    if len(best) == 1:
        return best[0]
    if best:
        names = ", ".join(t.name for t in best)
        raise InputError(f"GPU type {name!r} could be several devices", hint=f"write one of {names}")
    close = _nearest_types(name, known)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    raise InputError(
        f"GPU type {name!r} is not in the catalogue", hint=f"{hint}A type of your own goes under gpu_types:"
    )


def missing_peak_hint(gpu_type: GpuType, key: str) -> str:
    """What to write where a peak of ``gpu_type`` is not publicly known, with what the catalogue's notes say."""
    notes = [note for note in gpu_type.notes if "peak" in note or "rate" in note or key in note]
    about = f" ({notes[0]})" if notes else ""
    return f"give it in the cluster file: overrides: {{{key}: ...}}{about}"


def scaled(value: float, power: int) -> float:
    """``value * 10**power`` without binary rounding: what a person wrote in decimal stays exact both ways."""
    return float(Decimal(repr(value)).scaleb(power))


@cache
def _root() -> Node:
    return read_document(str(_FILE))


def _link_default(name: str, node: Node) -> LinkDefault:
    bandwidth = scaled(node.number("bandwidth_gb_s", low=0, high=10_000, above=True), 9)
    latency = scaled(node.number("latency_us", low=0, high=1e6), -6)
    return LinkDefault(name, Link(bandwidth, latency, node.flag("shared", False)), node.text("about"))


def _gpu_type(name: str, node: Node, vendors: Node) -> GpuType:
    vendor = node.text("vendor")
    defaults = vendors.child(vendor) or vendors.child("other") or vendors
    peaks = {p: _tera(node, f"{p}_tflops") for p in PRECISIONS}
    bandwidth = node.number("memory_bandwidth_gb_s", low=0, high=100_000, default=0)
    efficiency = node.number("efficiency", low=0, high=1, default=0)
    assumed = [*node.texts("assumed"), "context_bytes"]
    return GpuType(
        name=name,
        vendor=vendor,
        marketing_name=node.text("name"),
        memory_bytes=int(node.number("memory_mib", low=0, high=2**22, default=0)) * MIB,
        bf16_flops=peaks["bf16"],
        fp16_flops=peaks["fp16"],
        fp32_flops=peaks["fp32"],
        memory_bandwidth_bytes_s=scaled(bandwidth, 9) if bandwidth else None,
        lacks=node.texts("lacks"),
        context_bytes=int(defaults.number("context_gib", low=0, high=64) * GIB),
        efficiency=efficiency or defaults.number("efficiency", low=0, high=1),
        aliases=node.texts("aliases"),
        sources=node.texts("sources"),
        notes=node.texts("notes"),
        assumed=tuple(assumed if efficiency else [*assumed, "efficiency"]),
    )


def _tera(node: Node, key: str) -> float | None:
    value = node.number(key, low=0, high=1e6, default=0)
    return scaled(value, 12) if value else None


def _words(name: str) -> tuple[str, ...]:
    return tuple(_TOKEN.findall(name.casefold()))


def _match_length(words: tuple[str, ...], gpu_type: GpuType) -> int:
    """Characters of the longest alias within ``words``, 0 when none fits or the words left over contradict."""
    best = 0
    for alias in (gpu_type.name, *gpu_type.aliases):
        wanted = [w for w in _words(alias) if w not in _VENDOR_WORDS]
        left = [w for w in words if w not in _VENDOR_WORDS]
        if not wanted or any(word not in left for word in wanted):
            continue
        for word in wanted:
            left.remove(word)
        if all(_agrees(word, gpu_type) for word in left):
            best = max(best, sum(map(len, wanted)))
    return best


def _agrees(word: str, gpu_type: GpuType) -> bool:
    memory = _MEMORY_WORD.fullmatch(word)
    if memory:
        return abs(int(memory[1]) - gpu_type.memory_bytes / GIB) <= 0.08 * int(memory[1])
    form = _FORM_WORDS.get(word)
    return form is not None and form in gpu_type.name


def _nearest_types(name: str, known: Mapping[str, GpuType]) -> list[str]:
    spellings = {spelling: t.name for t in known.values() for spelling in (t.name, *t.aliases)}
    close = nearest(name, spellings, count=6)
    return list(dict.fromkeys(spellings[spelling] for spelling in close))[:3]
