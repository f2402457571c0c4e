"""Which nodes to plan without, and from which plan in hand: Enter plans without the node under the cursor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, cast

from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.events import Key
from textual.widgets import Static

from memx_engine import InputError, MemxError
from memx_tui.replanning import Hand, Leaving, hand_of_file
from memx_tui.screens.pick import Item, PickDialog
from memx_tui.screens.prompt import PromptDialog
from memx_tui.widgets.lines import Line, Lines
from memx_tui.widgets.quiet import QuietInput

if TYPE_CHECKING:
    from memx_engine import Cluster
    from memx_tui.app import MemxApp

_NOTHING = "nothing"
_MOST_PERCENT = 1000.0


class _NodeFilter(QuietInput):
    """Leaves space to the dialog, on the way that the arrows take, so that they keep their order."""

    def check_consume_key(self, key: str, character: str | None) -> bool:
        return key != "space" and super().check_consume_key(key, character)

    async def _on_key(self, event: Key) -> None:
        if event.key == "space":
            event.prevent_default()


class NodesDialog(PickDialog[Leaving]):
    """Type to filter, space to choose several, Enter to plan without them.

    Args:
        cluster: With all of its nodes.
        left_out: Names of those that the plans shown are without.
        hands: Plans to start from; the first is taken unless another is chosen.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "toggle_node", "Toggle", id="nodes.toggle", tooltip="Choose this node, or not"),
        Binding("ctrl+o", "choose_hand", "From", id="nodes.from", tooltip="Another plan in hand, also from a file"),
        Binding("ctrl+t", "choose_tolerance", "Tolerance", id="nodes.tolerance",
                tooltip="How far above the best a plan may be that moves less"),
    ]  # fmt: skip
    FILTER = _NodeFilter

    def __init__(self, cluster: Cluster, left_out: Sequence[str], hands: Sequence[Hand]) -> None:
        items = []
        for node in cluster.nodes:
            gpus = ", ".join(f"{group.count}x {group.gpu_type.name}" for group in node.groups)
            note = "left out now" if node.name in left_out else ""
            items.append(Item(Leaving((node.name,)), (node.name, gpus, note)))
        if left_out:
            items.append(Item(Leaving(()), ("every node", "nothing is left out", "")))
        super().__init__("What if these nodes fail?", items, placeholder="type to filter: a node, a GPU type")
        self._toggled: dict[str, None] = {}
        self._hands = list(hands)
        self.asked = Leaving((), hands[0] if hands else None)

    def on_mount(self) -> None:
        super().on_mount()
        self._say()

    @property
    def toggled(self) -> tuple[str, ...]:
        """The nodes that are chosen, in the cluster's order."""
        names = [name for item in self._items for name in item.value.without]
        return tuple(name for name in names if name in self._toggled)

    def action_toggle_node(self) -> None:
        item = self.chosen
        if item is None or not item.value.without:
            return
        (name,) = item.value.without
        if name in self._toggled:
            del self._toggled[name]
        else:
            self._toggled[name] = None
        choices = self.query_one(Lines)
        if choices.highlighted is not None:
            choices.set_line(choices.highlighted, Line(self._line(item)))
        self._say()

    def _take(self) -> None:
        item = self.chosen
        without = self.toggled or (item.value.without if item is not None else None)
        if without is not None:
            self.dismiss(replace(self.asked, without=without))

    def _line(self, item: Item[Leaving]) -> Content:
        names = item.value.without
        mark = "    " if not names else "[x] " if names[0] in self._toggled else "[ ] "
        return Content.assemble((mark, "$accent"), super()._line(item))

    def keys_words(self) -> str:
        several = f" without {len(self.toggled)}" if len(self.toggled) > 1 else ""
        return f"enter Plan{several}   space Choose   ctrl+o From   ctrl+t Tolerance   esc Close"

    def _say(self) -> None:
        """What the moves are counted from, in the frame."""
        hand = self.asked.hand
        words = "from nothing in hand"
        if hand is not None:
            words = f"from {hand.name}, within {self.asked.tolerance * 100:.3g} % of the best"
        self.query_one(".pick-dialog", Vertical).border_subtitle = Content(words)  # Content is kept literal
        self.query_one(".dialog-keys", Static).update(Content(self.keys_words()))

    def action_choose_hand(self) -> None:
        items = [Item(str(at), (hand.name, f"{hand.iteration_time_s:.4g} s")) for at, hand in enumerate(self._hands)]
        items.append(Item(_NOTHING, (_NOTHING, "plan as if nothing ran yet")))
        dialog = PickDialog(
            "Which plan is in hand?", items, placeholder="type to filter, or the path of a plan file", typed=_plan_path
        )
        self.app.push_screen(dialog, self._hand_chosen)

    def _hand_chosen(self, choice: str | None) -> None:
        if choice is None:
            return
        if choice == _NOTHING:
            self.asked = replace(self.asked, hand=None)
        elif choice.isdigit():
            self.asked = replace(self.asked, hand=self._hands[int(choice)])
        else:
            from memx_engine import load_plan

            try:
                hand = hand_of_file(load_plan(choice), Path(choice).name)
            except MemxError as error:
                cast("MemxApp", self.app).show_error(error)
                return
            self._hands.append(hand)
            self.asked = replace(self.asked, hand=hand)
        self._say()

    def action_choose_tolerance(self) -> None:
        dialog = PromptDialog(
            "Tolerance in %",
            f"{self.asked.tolerance * 100:.6g}",
            hint="how far above the best, in Φ and in time, a plan may be that moves less",
            check=parse_percent,
        )
        self.app.push_screen(dialog, self._tolerance_chosen)

    def _tolerance_chosen(self, text: str | None) -> None:
        if text is not None:
            self.asked = replace(self.asked, tolerance=parse_percent(text) / 100.0)
            self._say()


def parse_percent(text: str) -> float:
    """A percentage from 0 to 1000. InputError says what else was typed."""
    try:
        value = float(text.removesuffix("%"))
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= _MOST_PERCENT:
        raise InputError(f"{text[:40]!r} is not a percentage from 0 to {_MOST_PERCENT:g}", hint="for example 2")
    return value


def _plan_path(text: str) -> Item[str] | None:
    if "/" not in text and not text.endswith((".yaml", ".yml")):
        return None
    path = Path(text).expanduser()
    there = path.is_file()
    return Item(str(path.absolute()), (path.name, str(path.parent) if there else "no such file"), "Path", text, there)
