"""What can be asked from the Plans screen: another search, limits, why not, what more would buy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memx_tui.columns import PlanColumns
from memx_tui.replanning import Hand, Leaving, Replanned, hand_of_result
from memx_tui.screens.base import ModeScreen

if TYPE_CHECKING:
    from memx_engine import RankedPlan
    from memx_tui.limit_form import Asked


class PlansAsking(ModeScreen):
    """The dialogs of the Plans screen."""

    if TYPE_CHECKING:  # what it uses of the whole screen

        def current(self) -> RankedPlan | None:
            """The plan under the cursor."""

    def action_search(self) -> None:
        self.memx.start_search()

    def action_choose_model(self) -> None:
        self.memx.choose_model()

    def action_limits(self) -> None:
        from memx_tui.screens.limits import LimitsDialog

        self.app.push_screen(LimitsDialog(), self._limits_chosen)

    def _limits_chosen(self, asked: Asked | None) -> None:
        if asked is not None:
            self.memx.search_within(asked)

    def action_nodes(self) -> None:
        session = self.session
        if not session.ready or session.searching:
            busy = "a search is running; ctrl+c cancels it"
            self.memx.say(busy if session.searching else "choose a cluster and a model first")
            return
        from memx_tui.screens.nodes import NodesDialog

        assert session.cluster is not None
        self.app.push_screen(NodesDialog(session.cluster, session.without, self._hands()), self._nodes_chosen)

    def _hands(self) -> list[Hand]:
        """The plans in hand: while nodes are left out first the one that was planned again from, then the cursor's."""
        session, current = self.session, self.current()
        model, earlier = session.model, session.hand if session.without else None
        if earlier is not None and model is not None and earlier.before.model.fingerprint != model.fingerprint:
            earlier = None  # of a model that is not planned any more
        hands = [earlier] if earlier is not None else []
        if current is not None and session.result is not None:
            hands.append(hand_of_result(session.result, current))
        return hands

    def _nodes_chosen(self, asked: Leaving | None) -> None:
        from memx_tui.screens.replan import ReplanDialog

        if asked is not None:
            self.app.push_screen(ReplanDialog(asked), self._replanned)

    def _replanned(self, answer: Replanned | None) -> None:
        if answer is not None:
            self.memx.take_replanned(answer)

    def action_variants(self) -> None:
        from memx_tui.screens.variants import variants_dialog

        session = self.session
        if session.free_search is not None and session.result is not None:
            dialog = variants_dialog(session.free_search, session.result, self.memx.glyphs)
            self.app.push_screen(dialog, self._variant_chosen)

    def _variant_chosen(self, index: int | None) -> None:
        session = self.session
        if index is None or session.free_search is None:
            return
        result = session.free_search.searched[index].result
        if result is not None and result is not session.result:
            session.accept(result, PlanColumns.of_result(result), session.result_inputs, session.free_search)
            self.memx.publish("result")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "variants":
            return self.session.free_search is not None
        return super().check_action(action, parameters)

    def action_sensitivity(self) -> None:
        if self.session.result is None:
            self.memx.say("search first")
            return
        from memx_tui.screens.sensitivity import SensitivityDialog

        self.app.push_screen(SensitivityDialog(self.session.result))

    def action_why_not(self) -> None:
        if not self.session.ready:
            self.memx.say("choose a cluster and a model first")
            return
        from memx_tui.screens.why_not import WhyNotDialog

        self.app.push_screen(WhyNotDialog(self.current()))
