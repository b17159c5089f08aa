"""Which estimator "auto" takes, and what each costs: decided once, without tensors."""

from __future__ import annotations

import pytest

from ngvi.estimators.additive_terms import NotAdditiveError
from ngvi.estimators.choice import Case
from ngvi.estimators.choice import choose as choice_of
from ngvi.estimators.options import DEFAULTS


def choose(curvature, *case, **options):
    return choice_of(curvature, Case(*case, **options))


def no_hessian():
    return ValueError("The log density of 'y' has a kink")


def no_sum():
    return NotAdditiveError("cholesky")


def never():
    raise AssertionError("nobody asks for a Hessian")


@pytest.mark.parametrize(
    ("dim", "products", "expected"),
    [
        (1, 1, "spherical"),
        (50, 50, "spherical"),  # dense, or a diagonal of a dense Hessian
        (DEFAULTS.max_directions + 1, DEFAULTS.max_directions + 1, "stein"),
        (800, 5, "hessian"),  # structured
        (50_000, 5, "hessian"),
        (100_000, DEFAULTS.max_directions + 1, "stein"),
    ],
)
def test_auto_takes_hessians_where_they_are_cheap_and_else_gradients(dim, products, expected):
    obstacle = (lambda: None) if expected == "hessian" else never
    assert choose("auto", dim, products, obstacle).curvature == expected


def test_auto_goes_around_a_log_density_without_hessians_and_says_why():
    choice = choose("auto", 800, 5, no_hessian)
    assert choice.curvature == "spherical"
    assert "kink" in choice.obstacle
    assert choose("auto", 50_000, 5, no_hessian).curvature == "stein"


def test_auto_integrates_by_terms_where_latents_are_many_and_it_can():
    many = DEFAULTS.min_quadrature_dim
    assert choose("auto", many, many, never, not_additive=lambda: None).curvature == "quadrature"
    assert choose("auto", many, many, never, not_additive=no_sum).curvature == "spherical"
    assert choose("auto", many, many, never).curvature == "spherical"
    assert choose("auto", many - 1, many - 1, never, not_additive=never).curvature == "spherical"
    assert choose("auto", many, 5, lambda: None, not_additive=never).curvature == "hessian"
    assert choose("quadrature", 3, 3, never, not_additive=lambda: None).curvature == "quadrature"
    for not_additive, words in ((no_sum, "cholesky"), (None, "parameters of their own")):
        with pytest.raises(ValueError, match=f"{words}.*'spherical'"):
            choose("quadrature", 3, 3, never, not_additive=not_additive)


def test_of_structured_families_auto_integrates_where_locals_are_thousands():
    many = DEFAULTS.max_directions
    assert choose("auto", many, 5, never, not_additive=lambda: None).curvature == "quadrature"
    assert choose("auto", many, 5, lambda: None, not_additive=no_sum).curvature == "hessian"
    for count, why in ((many, no_sum), (many - 1, never)):
        found = choose("auto", count, 5, never, not_additive=why, has_paths=True)
        assert found.curvature == "spherical"


@pytest.mark.parametrize("curvature", ["hessian", "mean"])
def test_hessians_that_do_not_exist_are_refused_with_an_alternative(curvature):
    with pytest.raises(ValueError, match="'y' has a kink.*'spherical' or curvature='stein'"):
        choose(curvature, 50, 50, no_hessian)


# -- costs --------------------------------------------------------------------------------
