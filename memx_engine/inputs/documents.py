"""The edge where files are read and written: safe YAML and JSON with positions, atomic writes.

Every error names ``file:line: key``. See :mod:`memx_engine.inputs.nodes` for what a loader can ask of a document.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from memx_engine.errors import InputError, OutputError
from memx_engine.inputs.nodes import Node, Problem, Problems, nearest
from memx_engine.inputs.scanning import scan_json, scan_yaml
from memx_engine.units import MIB

__all__ = [
    "Node",
    "Problem",
    "Problems",
    "dump_yaml",
    "nearest",
    "node_from_value",
    "parse_document",
    "read_document",
    "read_text",
    "write_text_atomically",
]

MAX_BYTES = 8 * MIB
_FLOW_WIDTH = 96


def read_text(source: str, *, limit_bytes: int = MAX_BYTES) -> str:
    """The text of a file, or of standard input when ``source`` is ``-``.

    Never reads more than ``limit_bytes``; a larger file is refused before anything is parsed.

    Raises:
        InputError: Missing, a directory, unreadable, too large, empty, or not UTF-8 text.
    """
    where = "<stdin>" if source == "-" else source
    try:
        if source == "-":
            data = sys.stdin.buffer.read(limit_bytes + 1)
        else:
            with open(source, "rb") as file:
                data = file.read(limit_bytes + 1)
    except FileNotFoundError as error:
        raise InputError("no such file", where=where, hint="check the path") from error
    except IsADirectoryError as error:
        raise InputError("this is a directory, not a file", where=where) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"cannot be read: {reason}", where=where) from error
    if len(data) > limit_bytes:
        raise InputError(
            f"the file is larger than {limit_bytes / MIB:.0f} MiB, too large for a description",
            where=where,
            hint="is this the right file?",
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"not UTF-8 text (byte 0x{data[error.start]:02x})",
            where=f"{where}:{line}",
            hint="save the file as UTF-8; is it a text file?",
        ) from error
    if not text.strip():
        raise InputError("the file is empty", where=where)
    return text


def parse_document(text: str, name: str = "<text>", *, collect: bool = False) -> tuple[Node | None, Problems]:
    """Parse YAML, or JSON when the text begins with ``{`` and ``name`` ends in ``.json``.

    Args:
        text: The whole document.
        name: What errors call it.
        collect: Gather problems instead of raising the first.

    Returns:
        The root (None when nothing could be read, only when collecting) and where problems go.

    Raises:
        InputError: The first problem, unless collecting.
    """
    problems = Problems(name, collect=collect)
    if len(text) > MAX_BYTES:
        problems.add(Problem(0, "", f"the text is longer than {MAX_BYTES / MIB:.0f} MiB"))
        return None, problems
    scan = scan_json if name.lower().endswith(".json") else scan_yaml
    return scan(text, problems), problems


def read_document(source: str) -> Node:
    """The root of the document in a file (``-``: standard input); JSON by its ``.json`` ending, YAML otherwise.

    Raises:
        InputError: What :func:`read_text` raises, or text that cannot be parsed.
    """
    name = "<stdin>" if source == "-" else source
    text = read_text(source)
    if source == "-" and text.lstrip().startswith("{"):
        problems = Problems(name)
        root = scan_json(text, problems)
    else:
        root, _ = parse_document(text, name)
    assert root is not None  # without collecting, a missing root has raised
    return root


def node_from_value(value: object, where: str = "<document>") -> Node:
    """Wrap a plain Python value (dict, list, scalar) so that loaders can check it; ``where`` starts its errors."""
    return _wrap(value, Problems(where), "")


def _wrap(value: object, problems: Problems, path: str) -> Node:
    if isinstance(value, Node):
        return value
    if isinstance(value, Mapping):
        prefix = f"{path}." if path else ""
        fields = {str(key): _wrap(item, problems, f"{prefix}{key}") for key, item in value.items()}
        return Node(problems, path, 0, fields=fields)
    if isinstance(value, Sequence) and not isinstance(value, str):
        elements = [_wrap(item, problems, f"{path}[{i}]") for i, item in enumerate(value)]
        return Node(problems, path, 0, elements=elements)
    if isinstance(value, str):
        return Node(problems, path, 0, scalar=str(value))
    if value is None or isinstance(value, bool):
        return Node(problems, path, 0, scalar={None: "null", True: "true", False: "false"}[value], plain=True)
    return Node(problems, path, 0, scalar=repr(value), plain=True)


class _Dumper(yaml.SafeDumper):
    """Block style, with short mappings, short lists and lists of numbers in brackets; never an alias."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_mapping(self, tag: str, mapping: Any, flow_style: bool | None = None) -> yaml.MappingNode:
        node = super().represent_mapping(tag, mapping, flow_style)
        if mapping and _fits_one_line(mapping.values(), sum(len(str(key)) + 4 for key in mapping)):
            node.flow_style = True
        return node

    def represent_sequence(self, tag: str, sequence: Any, flow_style: bool | None = None) -> yaml.SequenceNode:
        node = super().represent_sequence(tag, sequence, flow_style)
        # Lists of numbers (ranks, layers) wrap inside their brackets rather than take a line each.
        node.flow_style = _fits_one_line(sequence, 4) or all(isinstance(item, int | float) for item in sequence)
        return node


def _fits_one_line(values: Any, extra: int) -> bool:
    scalars = [value for value in values if not isinstance(value, dict | list | tuple)]
    return len(scalars) == len(values) and sum(len(str(value)) + 2 for value in scalars) + extra <= _FLOW_WIDTH


def _represent_plain_str(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_str(str(value))


_Dumper.add_multi_representer(str, _represent_plain_str)  # StrEnum members


def dump_yaml(document: Mapping[str, object]) -> str:
    """YAML text of plain values (dict, list, tuple, str, int, float, bool, None), keys in the given order."""
    return str(yaml.dump(dict(document), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110))


def write_text_atomically(path: str | Path, text: str, force: bool = False) -> None:
    """Write ``text`` beside ``path`` and rename it into place, so that no reader sees half a file.

    Raises:
        OutputError: The file exists and ``force`` is false, or the folder cannot be written.
    """
    target = Path(path)
    if target.is_dir():
        raise OutputError("this is a directory", where=str(path), hint="give a file name")
    if not force and (target.exists() or target.is_symlink()):
        raise OutputError("the file exists already", where=str(path), hint="choose another name, or --force")
    temporary = target.with_name(f".{target.name[:100]}.{os.getpid()}.tmp")
    try:
        with open(temporary, "x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except (OSError, ValueError) as error:
        with suppress(OSError, ValueError):
            temporary.unlink(missing_ok=True)
        reason = getattr(error, "strerror", None) or str(error)
        raise OutputError(f"cannot be written: {reason}", where=str(path), hint="choose another folder") from error
