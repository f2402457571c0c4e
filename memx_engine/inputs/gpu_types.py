"""Device types that a cluster file defines or overrides, on top of the catalogue."""

from __future__ import annotations

from dataclasses import replace

from memx_engine.errors import InputError
from memx_engine.inputs.catalogue import find_gpu_type, load_catalogue, missing_peak_hint, scaled
from memx_engine.inputs.cluster import PRECISIONS, GpuType
from memx_engine.inputs.documents import Node
from memx_engine.units import GIB

FIELD_KEYS = (
    "vendor",
    "marketing_name",
    "memory_gib",
    "bf16_tflops",
    "fp16_tflops",
    "fp32_tflops",
    "memory_bandwidth_gb_s",
    "lacks",
    "context_gib",
    "efficiency",
    "aliases",
    "sources",
    "notes",
    "assumed",
)
TYPE_KEYS = ("base", *FIELD_KEYS)
# Of a type defined from nothing, until calibrated; the catalogue's figures for vendors without their own.
_DEFAULT_CONTEXT_BYTES = 3 * GIB
_DEFAULT_EFFICIENCY = 0.55


class TypeBook:
    """The device types that one cluster file can name: the catalogue's, and its own.

    Args:
        node: What stands under ``gpu_types:``; a catalogue id there redefines that device, ``base`` starts from one.
    """

    def __init__(self, node: Node | None) -> None:
        self._catalogue = load_catalogue()
        self._own: dict[str, GpuType] = {}
        self._origin: dict[str, str] = {}
        self._derived: dict[str, GpuType] = {}
        if node is not None and node.expect_mapping():
            for name, entry in (node.fields or {}).items():
                if entry.expect_mapping(TYPE_KEYS):
                    self._own[name] = self._read(name, entry)
        self._known = {**self._catalogue, **self._own}

    def origin(self, gpu_type: GpuType) -> str:
        """The catalogue id that ``gpu_type`` was made from, or its own name."""
        return self._origin.get(gpu_type.name, gpu_type.name)

    def resolve(self, item: Node) -> GpuType | None:
        """The type of one GPU entry, its ``overrides`` applied; None after a problem.

        Equal overrides share one type, under a name of its own (``a100-sxm-80g-custom``).
        """
        written = item.text("type")
        place = item.child("type")
        if place is None or not written:
            return None
        try:
            found = find_gpu_type(written, self._known)
        except InputError as error:
            place.fail(error.message, error.hint)
            return None
        overrides = item.child("overrides")
        if overrides is not None and overrides.expect_mapping(FIELD_KEYS):
            found = self._overridden(found, _with_fields(overrides, found))
        _check_usable(found, place, overrides)
        return found

    def _read(self, name: str, entry: Node) -> GpuType:
        base = self._catalogue.get(name)
        stated = entry.child("base")
        if stated is not None:
            try:
                base = find_gpu_type(stated.as_text(), self._catalogue)
            except InputError as error:
                stated.fail(error.message, error.hint)
        if base is not None:
            self._origin[name] = base.name
            return replace(_with_fields(entry, base), name=name)
        if entry.child("memory_gib") is None:
            entry.fail("memory_gib is missing", "a type of your own needs its memory", "memory_gib")
        blank = GpuType(
            name,
            vendor=entry.text("vendor"),
            marketing_name=name,
            memory_bytes=0,
            context_bytes=_DEFAULT_CONTEXT_BYTES,
            efficiency=_DEFAULT_EFFICIENCY,
            assumed=("context_bytes", "efficiency"),
        )
        return _with_fields(entry, blank)

    def _overridden(self, base: GpuType, changed: GpuType) -> GpuType:
        if changed == base:
            return base
        stem = f"{base.name}-custom"
        name, number = stem, 1
        while name in self._known or name in self._derived:
            known = self._derived.get(name)
            if known is not None and replace(changed, name=name) == known:
                return known
            number += 1
            name = f"{stem}-{number}"
        self._origin[name] = self.origin(base)
        self._derived[name] = replace(changed, name=name)
        return self._derived[name]


def _check_usable(gpu_type: GpuType, place: Node, overrides: Node | None) -> None:
    """A device whose memory or peak nobody published cannot be planned for: ask for the figure."""
    where = overrides or place
    if gpu_type.memory_bytes == 0:
        where.fail(
            f"the memory of {gpu_type.name} is not publicly known",
            "give it in the cluster file: overrides: {memory_gib: ...}",
        )
    supported = [p for p in PRECISIONS if gpu_type.supports(p)]
    needed = [p for p in supported if p != "fp32"] or supported
    if all(gpu_type.peak_flops(p) is None for p in needed):
        key = f"{(needed or PRECISIONS)[0]}_tflops"
        where.fail(f"the peak of {gpu_type.name} is not publicly known", missing_peak_hint(gpu_type, key))


def _with_fields(node: Node, base: GpuType) -> GpuType:
    """``base`` with every field that ``node`` states; a null peak or bandwidth means unknown."""
    changes: dict[str, object] = {}
    for key in ("vendor", "marketing_name"):
        if node.child(key) is not None:
            changes[key] = node.text(key)
    if node.child("memory_gib") is not None:
        changes["memory_bytes"] = round(node.number("memory_gib", low=0, high=4096, unit="GiB", above=True) * GIB)
    for precision in PRECISIONS:
        if node.has(f"{precision}_tflops"):
            changes[f"{precision}_flops"] = _scaled_or_none(node, f"{precision}_tflops", 12, 100_000, "TFLOP/s")
    if node.has("memory_bandwidth_gb_s"):
        changes["memory_bandwidth_bytes_s"] = _scaled_or_none(node, "memory_bandwidth_gb_s", 9, 1_000_000, "GB/s")
    if node.child("context_gib") is not None:
        changes["context_bytes"] = round(node.number("context_gib", low=0, high=256, unit="GiB") * GIB)
    if node.child("efficiency") is not None:
        changes["efficiency"] = node.number("efficiency", low=1e-3, high=1, above=True)
    if node.has("lacks"):
        listed = node.child("lacks")
        items = [listed] if listed is not None and listed.scalar is not None else listed.items() if listed else []
        changes["lacks"] = tuple(item.as_choice(PRECISIONS) for item in items)
    for key in ("aliases", "sources", "notes"):
        if node.has(key):
            changes[key] = node.texts(key)
    if node.has("assumed"):
        changes["assumed"] = node.texts("assumed")
    else:
        changes["assumed"] = tuple(name for name in base.assumed if name not in changes)
    return replace(base, **changes)  # type: ignore[arg-type]  # keys and values are paired above


def _scaled_or_none(node: Node, key: str, power: int, high: float, unit: str) -> float | None:
    if node.child(key) is None:
        return None
    return scaled(node.number(key, low=1e-3, high=high, unit=unit, above=True), power)
