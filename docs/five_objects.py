"""Draws the picture of ``architecture.md``: ``python docs/five_objects.py``."""

from __future__ import annotations

from pathlib import Path

from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

#: Left, bottom, width, height; a name; what it does.
BOXES = {
    "problem": (
        0.2,
        0.3,
        9.6,
        1.15,
        "Problem",
        "bound, natural gradient, log density, prior, metric: a model and a guide",
    ),
    "starts": (0.2, 3.3, 2.0, 1.5, "starts", "the guide's own,\nthe prior, modes"),
    "multi": (
        3.0,
        3.3,
        3.0,
        1.5,
        "MultiStart + Explorer",
        "which start goes on;\nwhere others lead",
    ),
    "local": (3.0, 1.9, 3.0, 0.95, "LocalSearch", "from one start to an optimum"),
    "certificate": (6.8, 1.9, 3.0, 0.95, "Certificate", "what is left, at most"),
    "checks": (6.8, 3.3, 3.0, 0.95, "CHECKS", "what may be wrong"),
    "verdict": (6.8, 4.7, 3.0, 0.95, "verdict", "certified, local, not converged"),
}
#: From, to, and what goes there.
ARROWS = (
    ((2.2, 4.05), (3.0, 4.05), ""),
    ((4.5, 3.3), (4.5, 2.85), ""),
    ((6.0, 2.375), (6.8, 2.375), ""),
    ((8.3, 2.85), (8.3, 3.3), "optimum"),
    ((8.3, 4.25), (8.3, 4.7), "finding"),
    ((6.0, 4.55), (6.8, 5.0), ""),
    ((4.5, 1.9), (4.5, 1.45), ""),
    ((8.3, 1.9), (8.3, 1.45), ""),
    ((1.2, 3.3), (1.2, 1.45), ""),
)
OBJECTS, OTHERS, LINE = "#deebf7", "#f7f7f7", "#08519c"


def _draw(axes: Axes) -> None:
    for key, (left, bottom, width, height, name, words) in BOXES.items():
        is_object = key not in ("starts", "verdict")
        style = "round,pad=0,rounding_size=0.12"
        colour = OBJECTS if is_object else OTHERS
        axes.add_patch(
            FancyBboxPatch((left, bottom), width, height, style, facecolor=colour, edgecolor=LINE)
        )
        middle = left + width / 2
        weight = "bold" if is_object else "normal"
        axes.text(middle, bottom + height - 0.27, name, ha="center", va="center", weight=weight)
        below = bottom + (height - 0.4) / 2
        axes.text(middle, below, words, ha="center", va="center", fontsize=8.5)
    axes.text(6.7, 5.2, "probability of a better optimum", ha="right", fontsize=8)
    for begin, end, words in ARROWS:
        axes.annotate("", end, begin, arrowprops={"arrowstyle": "->", "color": LINE})
        axes.text(end[0] + 0.12, (begin[1] + end[1]) / 2, words, va="center", fontsize=8)


def main() -> None:
    """Draw it beside this file."""
    figure, axes = pyplot.subplots(figsize=(7.6, 4.5), layout="constrained")
    _draw(axes)
    axes.set(xlim=(0, 10), ylim=(0.1, 5.85))
    axes.set_axis_off()
    figure.savefig(Path(__file__).with_suffix(".png"), dpi=110)


if __name__ == "__main__":
    main()
