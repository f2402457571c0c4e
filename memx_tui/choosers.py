"""The lists to choose from: clusters, models, GPU types, links."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from memx_engine import GpuType, gib, load_catalogue, load_links, model_presets, sample_clusters
from memx_tui.cluster_view import PRECISIONS, link_words
from memx_tui.screens.pick import Item, PickDialog

MAX_FILES = 40


def cluster_dialog(recent: Iterable[str], selected: str = "") -> PickDialog[str]:
    """The operator's own files, recent ones first, then samples with their titles; or a typed path."""
    samples = sample_clusters()
    names = {sample.name for sample in samples}
    items = [
        Item(source, (Path(source).name, str(Path(source).parent)), "Recent")
        for source in recent
        if source not in names and Path(source).is_file()
    ]
    items += [Item(str(file), (file.name, ""), "In this folder") for file in _files_here((".yaml", ".yml"))]
    items += [Item(sample.name, (sample.name, sample.title), "Samples") for sample in samples]
    return PickDialog(
        "Open a cluster",
        items,
        placeholder="type to filter, or a path",
        typed=_path_item,
        selected=selected,
    )


def model_dialog(selected: str = "") -> PickDialog[str]:
    """Presets with their titles; or a typed path of a config.json or a folder holding one."""
    items = [Item(name, (name, title), "Presets") for name, title in model_presets().items()]
    items += [Item(str(file), (file.name, ""), "In this folder") for file in _files_here((".json",))]
    return PickDialog(
        "Choose the model",
        items,
        placeholder="type to filter, or the path of a config.json",
        typed=_path_item,
        selected=selected,
    )


def gpu_dialog(own: Iterable[GpuType] = (), selected: str = "") -> PickDialog[str]:
    """The catalogue, after the types that the cluster file defines itself."""
    catalogue = load_catalogue()
    items = [_gpu_item(kind, "In this file") for kind in own if kind.name not in catalogue]
    items += [_gpu_item(kind, kind.vendor) for kind in catalogue.values()]
    return PickDialog(
        "Choose the GPU type", items, placeholder="type to filter: name, vendor, memory", selected=selected
    )


def link_dialog(title: str, selected: str = "") -> PickDialog[str]:
    """Named links with their figures; or a typed bandwidth. The value is YAML source."""
    items = [Item(name, (name, link_words(known.link)), words=known.about) for name, known in load_links().items()]
    return PickDialog(
        title, items, placeholder="type to filter, or a bandwidth in GB/s", typed=_bandwidth_item, selected=selected
    )


def _gpu_item(kind: GpuType, section: str) -> Item[str]:
    memory = f"{gib(kind.memory_bytes):6.1f} GiB" if kind.memory_bytes else "   ?   GiB"
    peaks = [kind.peak_flops(p) for p in PRECISIONS[:2] if kind.supports(p)]
    peak = max((p for p in peaks if p), default=None)
    speed = f"{peak / 1e12:6.1f} TFLOP/s" if peak else "     ? TFLOP/s"
    lacks = f"no {', '.join(kind.lacks)}" if kind.lacks else "" if peak else "set bf16_tflops in the cluster file"
    words = " ".join((kind.marketing_name, *kind.aliases))
    return Item(kind.name, (kind.name, memory, speed, lacks or kind.marketing_name), section, words)


def _path_item(text: str) -> Item[str] | None:
    if "/" not in text and not text.endswith((".yaml", ".yml", ".json")):
        return None
    path = Path(text).expanduser()
    state = "" if path.exists() else "no such file yet" if path.parent.is_dir() else "no such folder"
    return Item(str(path), (text, state), "Path", enabled=path.exists())


def _bandwidth_item(text: str) -> Item[str] | None:
    match = re.fullmatch(r"(\d{1,5}(?:\.\d{1,3})?)\s*(?:GB/s)?", text, re.IGNORECASE)
    if match is None or float(match[1]) <= 0:
        return None
    return Item(f"{{bandwidth_gb_s: {match[1]}}}", (f"{match[1]} GB/s", "one direction; latency by default"), "Typed")


def _files_here(suffixes: tuple[str, ...]) -> list[Path]:
    try:
        found = sorted(p for p in Path.cwd().iterdir() if p.suffix in suffixes and not p.name.startswith("."))
    except OSError:
        # A working directory that cannot be listed has nothing to offer; a path can still be typed.
        return []
    return found[:MAX_FILES]
