"""The keys of the Plans screen."""

from __future__ import annotations

from textual.binding import Binding, BindingType

PLANS_BINDINGS: list[BindingType] = [
    Binding("slash", "filter", "Filter", id="plans.filter", tooltip="Filter, such as tp<=4 pp>=2 worst<90"),
    Binding("space", "mark", "Mark", id="plans.mark", tooltip="Mark this plan, A to D, for Compare"),
    Binding("e", "export", "Export", id="plans.export", tooltip="Save this plan as YAML"),
    Binding(
        "l", "limits", "Limits", id="plans.limits", tooltip="What every plan must keep: pins, forbidden types and more"
    ),
    Binding(
        "w",
        "why_not",
        "Why not",
        id="plans.why-not",
        tooltip="Ask about any plan: its rank, or why it is not listed",
    ),
    Binding(
        "W",
        "sensitivity",
        "What if",
        id="plans.sensitivity",
        tooltip="What more memory, faster links or one more node would buy",
    ),
    Binding(
        "n", "nodes", "Nodes", id="plans.nodes", tooltip="What if a node fails: plan again without it, and what moves"
    ),
    Binding("c", "compare", "Compare", id="plans.compare", tooltip="Compare the marked plans"),
    Binding(
        "v",
        "variants",
        "Combinations",
        id="plans.variants",
        tooltip="Free batch, sequence and heads: every combination with its best plan",
    ),
    Binding("s", "sort_menu", "Sort", id="plans.sort", tooltip="Choose the sort column"),
    Binding("r", "search", "Run", id="plans.search", tooltip="Search with the present cluster, model and job"),
    Binding("enter", "detail", "Detail", id="plans.detail", tooltip="Every GPU on its own row, and back"),
    Binding("m", "choose_model", "Model", id="plans.model", tooltip="Choose another model and search with it"),
    Binding("f", "fits", "Fits", id="plans.fits", tooltip="Hide plans that fill over 90 % of a GPU"),
    Binding("p", "frontier", "Frontier", id="plans.frontier", tooltip="Only plans on the Pareto frontier"),
    Binding("y", "copy", "Copy", id="plans.copy", tooltip="Copy this plan's YAML to the terminal's clipboard"),
    Binding("Y", "write", "Write", id="plans.write", show=False, tooltip="Write this plan's YAML to a new file"),
    Binding("left_square_bracket", "move_plan(-1)", "Up", id="plans.before", show=False, tooltip="The plan before"),
    Binding("right_square_bracket", "move_plan(1)", "Down", id="plans.after", show=False, tooltip="The next plan"),
    Binding("x", "axes", "Axes", id="plans.axes", tooltip="Plot time against worst peak, or memory spread"),
    Binding("z", "zoom", "Zoom", id="plans.zoom", tooltip="Give the focused pane the whole screen, and back"),
    Binding(
        "less_than_sign",
        "sort_column(-1)",
        "Sort left",
        id="plans.sort-left",
        show=False,
        tooltip="Sort by the previous column",
    ),
    Binding(
        "greater_than_sign",
        "sort_column(1)",
        "Sort right",
        id="plans.sort-right",
        show=False,
        tooltip="Sort by the next column",
    ),
    Binding("I", "invert", "Invert", id="plans.invert", show=False, tooltip="Invert the sort order"),
    Binding(
        "tab",
        "next_pane(1)",
        "Pane",
        id="plans.next-pane",
        show=False,
        tooltip="Next pane; on small screens turns the lower pane",
    ),
    Binding("shift+tab", "next_pane(-1)", "Pane back", id="plans.previous-pane", show=False, tooltip="Previous pane"),
    Binding(
        "escape", "back", "Back", id="plans.back", show=False, tooltip="Leave zoom, detail or filter, in this order"
    ),
]
