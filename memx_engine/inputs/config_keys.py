"""Typed reading of the keys of a Hugging Face ``config.json``: every value checked, every default reported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

from memx_engine.errors import InputError
from memx_engine.inputs.nodes import Node

DEFAULTS_FROM: Final = "transformers 4.57.1"

LIMITS: Final[Mapping[str, int]] = {
    "layers": 512,
    "width": 1 << 20,
    "ffn": 1 << 23,
    "heads": 1 << 14,
    "vocab": 1 << 25,
    "positions": 1 << 30,
}
"""Far above any model that exists: a value beyond is a slip."""


Number = TypeVar("Number", int, float, bool)


class ConfigKeys:
    """The keys of one model.

    Readers take several names of one key (``hidden_size``, ``n_embd``), the first that is there counts, and a default:
    None where the class has none, which makes the key required. A default that is used adds a sentence to ``assumed``.
    """

    def __init__(self, node: Node, config_class: str) -> None:
        self.node = node
        self.config_class = config_class
        self.assumed: list[str] = []

    def find(self, *keys: str) -> Node | None:
        """The value of the first of ``keys`` that is written, be it null."""
        fields = self.node.fields or {}
        return next((fields[key] for key in keys if key in fields), None)

    def is_set(self, *keys: str) -> bool:
        """True when one of ``keys`` is written with a value."""
        node = self.find(*keys)
        return node is not None and not node.is_null

    def fail(self, message: str, *keys: str, hint: str = "") -> InputError:
        """An error at the first of ``keys`` that is written, else at the whole object."""
        return InputError(message, where=(self.find(*keys) or self.node).where, hint=hint)

    def integer(
        self, *keys: str, default: int | None, limit: str, null: int | None = None, shown: str | None = None
    ) -> int:
        """A whole number from 1 to the limit named ``limit``.

        ``null`` is what an explicit null means to the class (None: nothing, an error); ``shown`` says the default in
        words.
        """
        node = self.find(*keys)
        if node is None:
            return self._assume(keys, default, shown)
        if node.is_null and null is not None:
            return null
        self._refuse_null(node, keys)
        return node.as_integer(1, LIMITS[limit])

    def window(self, key: str, default: int | None) -> int | None:
        """A number of positions, where null means that there is no window."""
        node = self.find(key)
        if node is None:
            if default is None:
                return None  # no window is what one expects; nothing to report
            return self._assume((key,), default)
        return None if node.is_null else node.as_integer(1, LIMITS["positions"])

    def boolean(self, *keys: str, default: bool) -> bool:
        node = self.find(*keys)
        if node is None:
            return self._assume(keys, default)
        self._refuse_null(node, keys)
        return node.as_flag()

    def dropout(self, key: str, default: float) -> bool:
        """True where the probability under ``key`` is not zero."""
        node = self.find(key)
        if node is None:
            return self._assume((key,), default) > 0
        self._refuse_null(node, (key,))
        return node.as_number(0.0, 1.0) > 0

    def layer_types(self, layers: int) -> tuple[str, ...] | None:
        """The words under ``layer_types``, one per layer; None where absent or null."""
        if not self.is_set("layer_types"):
            return None
        types = self.node.texts("layer_types")
        if len(types) != layers:
            raise self.fail(f"layer_types has {len(types)} entries for {layers} layers", "layer_types")
        return types

    def _assume(self, keys: Sequence[str], default: Number | None, shown: str | None = None) -> Number:
        if default is None:
            raise InputError(
                f"{keys[0]} is missing",
                where=self.node.where,
                hint=f"add {keys[0]}; {self.config_class} has no default",
            )
        word = shown or (str(default).lower() if isinstance(default, bool) else f"{default}")
        self.assumed.append(f"{keys[0]} is not given: {word}, the default of {self.config_class} ({DEFAULTS_FROM})")
        return default

    def _refuse_null(self, node: Node, keys: Sequence[str]) -> None:
        if node.is_null:
            raise InputError(
                "null is not a value here", where=node.where, hint=f"give {keys[0]}, or leave it out for the default"
            )
