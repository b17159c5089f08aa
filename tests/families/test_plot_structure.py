"""The picture of a precision shows which entries differ from zero, at any dimension."""

from __future__ import annotations

import builtins
import dataclasses

import numpy as np
import pytest

from ngvi.latents import forest as ngvi_forest
from ngvi.latents.picture import precision_pattern
from tests.families.hierarchies import models


def guide_of(backend, model, family):
    guide = backend.guide(model, family)
    backend.set_up(guide)
    return guide


def structured(backend, cls, blocks, parents=None):
    structure = ngvi_forest.forest_from_indices(blocks, parents)
    return getattr(backend.families, cls)(structure=structure)


def test_the_pattern_of_an_arrow_is_that_of_its_precision(backend, rng):
    blocks, parents = [np.arange(2, 8).reshape(3, 2).T, np.array([[0], [1]])], [1, None]
    family = structured(backend, "SparsePrecision", blocks, parents)
    family = family.initial(backend.array(np.zeros(8)), 1.0)
    tril = backend.array(rng.uniform(1, 2, family.precision_tril.shape))
    family = dataclasses.replace(family, precision_tril=tril)
    nonzero = np.abs(backend.numpy(family.precision_matrix)) > 1e-12
    np.testing.assert_array_equal(precision_pattern(family, 8) > 0, nonzero)


def test_blocks_are_where_the_structure_has_them(backend):
    family = structured(backend, "BlockDiagonal", [np.array([[0, 1], [4, 2]]), np.array([[3]])])
    expected = np.eye(5, dtype=bool)
    for pair in [(0, 4), (1, 2)]:
        expected[pair] = expected[pair[::-1]] = True
    np.testing.assert_array_equal(precision_pattern(family, 5) > 0, expected)


@pytest.mark.parametrize(
    ("name", "off_diagonal"), [("Diagonal", 0), ("LowRankPrecision", 1), ("CovarianceCholesky", 2)]
)
def test_families_without_blocks_have_one_colour_off_the_diagonal(backend, name, off_diagonal):
    image = precision_pattern(getattr(backend.families, name)(), 20)
    assert set(image[~np.eye(20, dtype=bool)]) == {off_diagonal}
    assert set(image.diagonal()) == {3}


def test_a_hundred_thousand_latents_are_a_small_picture_with_the_globals_in_it(backend):
    dim = 100_010
    blocks, parents = [np.arange(10, dim)[None], np.arange(10)[:, None]], [1, None]
    image = precision_pattern(structured(backend, "SparsePrecision", blocks, parents), dim)
    assert len(image) <= 500
    assert (image[0] > 0).all() and (image[:, 0] > 0).all()
    assert (image[2:, 2:] > 0).sum() == len(image) - 2


def test_large_blocks_are_marked_like_small_ones(backend):
    blocks = [np.arange(400).reshape(4, 100).T]
    image = precision_pattern(structured(backend, "BlockDiagonal", blocks), 400)
    edge = len(image) // 4
    assert (image[:edge, :edge] > 0).all()
    assert (image[:edge, edge:] == 0).all()


@pytest.mark.fast_in_numpyro("full", "sparse_precision")
@pytest.mark.parametrize("family", ["full", "block_diagonal", "sparse_precision", "diagonal"])
def test_a_guide_is_drawn_with_its_family_dimension_and_sites(backend, family, pyplot):
    guide = guide_of(backend, models(backend).intercepts, family)
    ax = backend.families.plot_structure(guide)
    title = ax.get_title()
    assert guide.family.name in title and "d = 8" in title
    assert [label.get_text() for label in ax.get_yticklabels()] == ["mean", "scale", "effect"]
    ax.figure.canvas.draw()


def test_axes_may_be_given(backend, pyplot):
    _, ax = pyplot.subplots()
    family = backend.families.Diagonal().initial(backend.array(np.zeros(3)), 1.0)
    assert backend.families.plot_structure(family, ax) is ax


def test_a_guide_before_its_first_call_says_so(backend, pyplot):
    guide = backend.package.NaturalGaussianGuide(lambda: None)
    with pytest.raises(ValueError, match="after its first call"):
        backend.families.plot_structure(guide)


def test_without_matplotlib_the_error_says_how_to_get_it(backend, monkeypatch):
    real = builtins.__import__

    def missing(name, *args, **kwargs):
        if name.startswith("matplotlib"):
            raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")
        return real(name, *args, **kwargs)

    family = backend.families.Diagonal().initial(backend.array(np.zeros(3)), 1.0)
    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ModuleNotFoundError, match="pip install matplotlib"):
        backend.families.plot_structure(family)


@pytest.mark.parametrize("family", ["full", "low_rank", "sparse_precision", "diagonal"])
def test_printing_a_guide_tells_family_size_and_structure(backend, family):
    spec = backend.families.LowRankPrecision(rank=2) if family == "low_rank" else family
    guide = guide_of(backend, models(backend).intercepts, spec)
    words = {
        "full": "one dense block",
        "low_rank": "a precision of rank 2 plus a diagonal",
        "sparse_precision": "6 locals of size 1 given 2 globals",
        "diagonal": "independent latents",
    }
    text = repr(guide)
    assert words[family] in text and "d=8" in text and "parameters" in text and "kB" in text
