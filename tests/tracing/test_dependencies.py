"""The guide finds which latents are local, says so, and says what keeps others from being so."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from tests.families.hierarchies import models


@pytest.fixture
def model(ppl, request):
    return getattr(models(ppl), request.param)


def _set_up(ppl, model, family="sparse_precision"):
    guide = ppl.guide(model, family)
    ppl.set_up(guide)
    return guide


@pytest.mark.fast_in_numpyro("nested-*")
@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("intercepts", "6 locals of size 1 given 2 globals"),
        ("slopes", "6 locals of size 3 given 2 globals"),
        ("nested", "12 locals of size 1 given 3 locals of size 1 given 1 globals"),
        ("crossed", "6 locals of size 1 given 4 globals"),
        ("two_plates", "6 locals of size 1 and 4 locals of size 1 given 1 globals"),
        ("locals_only", "6 locals of size 1"),
        ("globals_only", "4 globals"),
    ],
    indirect=["model"],
)
def test_the_structure_is_found_and_printed(ppl, model, words):
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        guide = _set_up(ppl, model)
    assert guide.family.describe() == words
    assert words in repr(guide)
    assert "sparse_precision" in repr(guide) and "kB" in repr(guide)


@pytest.mark.fast_in_numpyro("slopes", "nested")
@pytest.mark.parametrize("model", ["intercepts", "slopes", "nested", "crossed"], indirect=True)
def test_the_hessian_has_no_entries_outside_of_the_structure(ppl, model):
    guide = _set_up(ppl, model)
    layout = ppl.module("guide.layout").layout_of(guide, model, (), {})
    hessian = layout.dependencies.hessian_product(np.eye(layout.dim))
    structure = guide.family.structure
    inside = np.zeros(hessian.shape, bool)
    pieces = structure.split_indices()
    for index, piece in enumerate(pieces):
        for other in (index, *structure.ancestors(index)):
            repeats = piece.shape[1] // pieces[other].shape[1]
            for i in range(piece.shape[1]):
                rows = pieces[other][:, i // repeats]
                inside[np.ix_(rows, piece[:, i])] = inside[np.ix_(piece[:, i], rows)] = True
    assert np.abs(hessian[~inside]).max(initial=0) == 0
    assert np.abs(hessian[inside]).min() > 0 or model.__name__ != "intercepts"


@pytest.mark.fast_in_numpyro("chain-*")
@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("chain", "'level' .*plate 'times'.* depends on itself across plate 'times'"),
        ("total", "'effect' .*plate 'groups'.* depends on itself across plate 'groups'"),
        ("mixture", "'effect' .*depends on itself across plate 'groups'"),
    ],
    indirect=["model"],
)
def test_a_model_without_locals_is_dense_and_says_why(ppl, model, words):
    with pytest.warns(UserWarning, match=words):
        guide = _set_up(ppl, model)
    assert guide.family.name == "covariance_cholesky"


@pytest.mark.fast_in_numpyro
@pytest.mark.parametrize("model", ["crossed"], indirect=True)
def test_locals_can_be_declared(ppl, model):
    family = ppl.families.SparsePrecision(locals=["column"])
    guide = _set_up(ppl, model, family)
    assert guide.family.describe() == "3 locals of size 1 given 7 globals"


@pytest.mark.parametrize(
    ("model", "local", "words"),
    [
        ("chain", "level", "contradicts.*'level'.*across plate 'times'"),
        ("chain", "scale", "'scale', which is in no plate"),
        ("chain", "levels", "no latent site 'levels'.*'level'"),
    ],
    indirect=["model"],
)
def test_wrong_declarations_are_refused_by_site(ppl, model, local, words):
    with pytest.raises(ValueError, match=words):
        _set_up(ppl, model, ppl.families.SparsePrecision(locals=[local]))


@pytest.mark.parametrize("model", ["crossed"], indirect=True)
def test_declared_locals_that_depend_on_each_other_are_refused(ppl, model):
    with pytest.raises(ValueError, match="'column'.* depends on 'row'"):
        _set_up(ppl, model, ppl.families.SparsePrecision(locals=["row", "column"]))


@pytest.mark.parametrize("model", ["many_globals"], indirect=True)
def test_too_many_globals_are_refused_by_site(ppl, model):
    with pytest.raises(ValueError, match=r"3000 globals.*'weights' \(3000\)"):
        _set_up(ppl, model)
