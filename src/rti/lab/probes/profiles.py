"""The redundancy of several models over the relative depth of their trunks, in one figure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rti.errors import InputError
from rti.lab.plots import COLOURS, GREY, MARKERS, panels
from rti.lab.probes import paper

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER_SIZE = (512, 512)  # of the pictures of the paper's MiniT2I-B/16
ALIKE = 0.01  # shares of the tokens may differ by rounding


def profiles(probes: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Of what `rti probe redundancy` wrote for each model: what its blocks retain, cut by content at the core's start.

    `rise` is how much more the best block retains than the first.
    """
    found = {}
    for name, values in probes.items():
        retained = values["by_block"]["adaptive"]
        found[name] = {
            "image_size": values.get("image_size"),  # not known of older data
            "share": values["budget"] / values["patches"],
            "relative_depth": [round(block / max(len(retained) - 1, 1), 4) for block in range(len(retained))],
            "retained": retained,
            "rise": round(max(retained) - retained[0], 6),
        }
    (first, one), *others = found.items()
    for name, other in others:
        if abs(other["share"] - one["share"]) > ALIKE:
            shares = f"{100 * one['share']:.3g} % and {100 * other['share']:.3g} %"
            raise InputError(f"{first} and {name} were probed at {shares} of their tokens; probe at one --budget")
    return found


def profiles_figure(found: dict[str, dict[str, Any]], with_paper: bool = False) -> Figure:
    """Variance retained against relative depth, a line per model, a panel per size of picture, small first.

    One panel for all where the size of any is not known.
    """
    sizes = {name: tuple(one["image_size"] or ()) for name, one in found.items()}
    if () in sizes.values():
        sizes = dict.fromkeys(sizes, ())
    places = sorted(set(sizes.values()))
    columns = panels(len(places), 1.6 + 4.2 * len(places), 4.4)
    for axes, size in zip(columns, places, strict=True):
        for place, (name, one) in enumerate(found.items()):
            if sizes[name] == size:
                style = dict(color=COLOURS[place % len(COLOURS)], marker=MARKERS[place % len(MARKERS)], markersize=4)
                axes.plot(one["relative_depth"], [100 * value for value in one["retained"]], label=name, **style)
        if with_paper and (size == PAPER_SIZE or PAPER_SIZE not in places):
            theirs = paper.BY_BLOCK["adaptive"]
            depth = [block / (len(theirs) - 1) for block in range(len(theirs))]
            axes.plot(depth, [100 * value for value in theirs], "--", color=GREY, linewidth=1.2, label=paper.MODEL)
        axes.set(xlabel="relative depth (0 first block, 1 last)", ylabel="variance retained, %", xlim=(-0.02, 1.02))
        if size:
            axes.set_title("{} x {} pixels".format(*size))
    low = min(axes.get_ylim()[0] for axes in columns)
    high = max(axes.get_ylim()[1] for axes in columns)
    handles = {}
    for axes in columns:
        axes.set_ylim(low, high)  # so that levels can be compared
        handles |= {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure = columns[0].figure
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=min(len(handles), 4), frameon=False)
    share = next(iter(found.values()))["share"]
    figure.suptitle(f"pooled to {100 * share:.3g} % of the tokens, cut by content at the core's start", fontsize=10)
    return figure
