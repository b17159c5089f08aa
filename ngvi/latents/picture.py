"""A picture of which latents the precision of a family couples.

It is drawn from the structure alone: nothing of size ``d^2`` is made, and the picture of
``d = 10^5`` latents has as many pixels as that of 160.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ngvi.latents.forest import Forest
from ngvi.latents.layout import Site

#: Pixels a side, at most: a line one pixel wide must remain visible.
MAX_PIXELS = 160

#: What a pixel shows, and its colour.
NOTHING, LOW_RANK, COUPLED, DIAGONAL = range(4)
COLOURS = ("#ffffff", "#bdd7e7", "#3182bd", "#08306b")
LABELS = ("independent given the rest", "coupled by the low rank", "coupled", "diagonal")

#: What ``Family.couples`` says of families without blocks.
PATTERNS = {"none": NOTHING, "low_rank": LOW_RANK, "all": COUPLED}

#: Sites whose names are written, at most.
MAX_NAMES = 20


def plot_structure(guide_or_family: Any, ax: Any = None) -> Any:
    """Draw which entries of the precision may differ from zero, in the latent vector's order.

    :param guide_or_family: a ``NaturalGaussianGuide`` after its first call, or a family with
        coordinates. Only a guide knows the names of the sites.
    :param ax: matplotlib axes; by default those of a new figure.
    :return: the axes.
    :raises ModuleNotFoundError: without matplotlib.
    :raises ValueError: if the guide or the family has no latents yet.
    """
    family, dim, sites = _what(guide_or_family)
    try:
        from matplotlib import pyplot
        from matplotlib.colors import ListedColormap
        from matplotlib.patches import Patch
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "plot_structure needs matplotlib: pip install matplotlib", name=error.name
        ) from error
    image = precision_pattern(family, dim)
    if ax is None:
        _, ax = pyplot.subplots(figsize=(6.4, 6.8), layout="constrained")
    ax.imshow(
        image,
        cmap=ListedColormap(COLOURS),
        vmin=0,
        vmax=len(COLOURS) - 1,
        extent=(0, dim, dim, 0),
        interpolation="nearest",
    )
    margin = 0.015 * dim  # under the frame a line at the border would not be seen
    ax.set_xlim(-margin, dim + margin)
    ax.set_ylim(dim + margin, -margin)
    words = family.describe()
    ax.set_title(f"Precision of {family.name!r}, d = {dim:,}\n{words}", fontsize=11)
    for site in sites[1:] if len(sites) <= MAX_NAMES else ():
        ax.axhline(site.start, color="0.5", linewidth=0.4)
        ax.axvline(site.start, color="0.5", linewidth=0.4)
    _label(ax, dim, sites)
    if len(image) < dim:
        ax.set_xlabel(f"a pixel is {dim / len(image):.0f} latents wide", fontsize=9)
    shown = [value for value in np.unique(image) if value != NOTHING]
    handles = [Patch(facecolor=COLOURS[value], label=LABELS[value]) for value in shown]
    if np.any(image == NOTHING):
        handles.append(Patch(facecolor="white", edgecolor="0.6", label=LABELS[NOTHING]))
    ax.legend(
        handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2, frameon=False
    )
    return ax


def precision_pattern(family: Any, dim: int) -> np.ndarray:
    """The picture as numbers.

    :param family: with coordinates, or a specification that knows its structure.
    :return: one of the module's four constants for each pixel, ``(n, n)`` with ``n`` at most
        ``MAX_PIXELS``; a pixel of many entries shows the strongest.
    """
    size = min(dim, MAX_PIXELS)
    coupled = family.couples()
    if isinstance(coupled, Forest):
        image = np.full((size, size), NOTHING)
        _mark_blocks(image, coupled)
    else:
        image = np.full((size, size), PATTERNS[coupled])
    np.fill_diagonal(image, DIAGONAL)
    return image


def _what(guide_or_family: Any) -> tuple[Any, int, Sequence[Site]]:
    if hasattr(guide_or_family, "couples"):
        return guide_or_family, guide_or_family.dim, ()
    family = getattr(guide_or_family, "family", None)
    if not hasattr(family, "couples"):
        raise ValueError(
            f"{type(guide_or_family).__name__} has no family yet: plot_structure takes a family, "
            "or a NaturalGaussianGuide after its first call."
        )
    return family, guide_or_family.latent_dim, guide_or_family.sites


def _mark_blocks(image: np.ndarray, structure: Forest) -> None:
    size = len(image)
    pixels = [index * size // structure.dim for index in structure.split_indices()]
    for index, mine in enumerate(pixels):
        _mark(image, mine, mine)
        for ancestor in structure.ancestors(index):
            children = structure.children_per_block(index, ancestor)
            _mark(image, mine, np.repeat(pixels[ancestor], children, 1))


def _mark(image: np.ndarray, left: np.ndarray, right: np.ndarray) -> None:
    """Mark the pixels of every block: rows in ``(k, n)`` with rows in ``(m, n)``."""
    if len(left) * len(right) <= 2500:  # few rows of many blocks
        pairs = [(p, q) for p in left for q in right]
    else:
        columns = zip(left.T, right.T, strict=True)
        pairs = [np.meshgrid(np.unique(p), np.unique(q)) for p, q in columns]
    for p, q in pairs:
        image[p, q] = COUPLED
        image[q, p] = COUPLED


def _label(ax: Any, dim: int, sites: Sequence[Site]) -> None:
    ax.set_xticks([])
    ax.set_yticks([])
    if not sites or len(sites) > MAX_NAMES:
        return
    names: list[str] = []
    centres: list[float] = []
    for site in sites:
        centre = site.start + site.size / 2
        if names and centre - centres[-1] < 0.035 * dim:  # too near to write both
            names[-1] = f"{names[-1]}, {site.name}"
        else:
            names.append(site.name)
            centres.append(centre)
    ax.set_xticks(centres, names, rotation=30, ha="right", fontsize=9)
    ax.set_yticks(centres, names, fontsize=9)
    ax.tick_params(length=0)
