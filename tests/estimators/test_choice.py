"""Which estimator "auto" takes, and what each costs: decided once, without tensors."""

from __future__ import annotations

import pytest

from ngvi.estimators.additive_terms import NotAdditiveError
from ngvi.estimators.choice import (
    CURVATURES,
    CURVATURES_OF_FIT,
    check_curvature,
    choose,
    cost_of_group,
    cost_of_step,
    is_noisy,
)
from ngvi.estimators.options import DEFAULTS
from ngvi.estimators.table import ESTIMATORS


def no_hessian():
    return ValueError("The log density of 'y' has a kink")


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
    def no_sum():
        return NotAdditiveError("cholesky")

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
    def no_sum():
        return NotAdditiveError("cholesky")

    many = DEFAULTS.max_directions
    assert choose("auto", many, 5, never, not_additive=lambda: None).curvature == "quadrature"
    assert choose("auto", many, 5, lambda: None, not_additive=no_sum).curvature == "hessian"
    assert (
        choose("auto", many, 5, never, not_additive=no_sum, has_paths=True).curvature == "spherical"
    )
    fewer = choose("auto", many - 1, 5, never, not_additive=never, has_paths=True)
    assert fewer.curvature == "spherical"


@pytest.mark.parametrize("curvature", ["hessian", "mean"])
def test_hessians_that_do_not_exist_are_refused_with_an_alternative(curvature):
    with pytest.raises(ValueError, match="'y' has a kink.*'spherical' or curvature='stein'"):
        choose(curvature, 50, 50, no_hessian)


@pytest.mark.parametrize("curvature", ["exact", None, 3])
def test_an_unknown_name_is_refused(curvature):
    with pytest.raises(ValueError, match=f"Unknown curvature={curvature!r}"):
        check_curvature(curvature)


def test_fit_knows_those_of_which_a_bound_over_fixed_draws_has_the_gradient():
    assert set(CURVATURES_OF_FIT) < set(CURVATURES) == {"auto", *ESTIMATORS}
    with pytest.raises(ValueError, match="'auto', 'spherical', 'quadrature', 'hessian', 'stein'"):
        check_curvature("mean", CURVATURES_OF_FIT)


# -- costs --------------------------------------------------------------------------------


def test_two_particles_make_a_group_of_orthogonal_points():
    for particles, groups in [(1, 1), (2, 1), (10, 5), (11, 6)]:
        cost = cost_of_step("spherical", 7, 7, particles)
        assert cost == (groups * 15, groups * 15, 0, groups, 1)
    assert cost_of_step("spherical", 7, 7, 10, num_gradients=16).num_groups == 2


def test_more_groups_may_follow_only_where_their_noise_is_known_and_no_number_is_given():
    assert cost_of_step("spherical", 7, 7, 10, adapts=True).max_batches == DEFAULTS.max_batches
    assert cost_of_step("spherical", 7, 7, 10, num_gradients=16, adapts=True).max_batches == 1
    assert cost_of_step("spherical", 7, 7, 2, adapts=True).max_batches == 1  # of one group
    assert cost_of_step("hessian", 7, 7, 10, adapts=True).max_batches == 1


def test_a_step_is_noisy_while_a_whole_one_loses_a_quarter_of_a_nat_by_its_noise():
    assert is_noisy(1, 0.6, 10.0)
    assert not is_noisy(1, 0.4, 10.0)
    assert is_noisy(2, 2.4, 20.0)
    assert not is_noisy(2, 1.6, 20.0)  # two batches with a noise of 0.8 each
    assert not is_noisy(1, 0.6, 1000.0)  # which its own length hides
    assert not is_noisy(DEFAULTS.max_batches, 1e2, 1.0)
    assert is_noisy(1, 29.0, 60.0) and not is_noisy(1, 31.0, 60.0)  # far out in a tail
    assert not is_noisy(1, float("nan"), float("nan"))


def test_gradients_beside_hessians_add_at_most_a_quarter_to_their_cost():
    assert cost_of_step("hessian", 100, 100, 10) == (10, 100, 1000, 0, 1)
    assert cost_of_step("hessian", 8, 8, 10) == (10, 30, 80, 0, 1)
    assert cost_of_step("gauss_newton", 1, 1, 10) == (10, 10, 10, 0, 1)
    assert cost_of_step("gauss_newton", 2000, 2000, 1).num_gradients == 10
    assert cost_of_step("gauss_newton", 2001, 2001, 1).num_gradients == 1  # VOGN of a network
    assert cost_of_step("hessian", 8, 8, 10, num_gradients=12) == (10, 12, 80, 0, 1)
    assert cost_of_step("stein", 8, 8, 10) == (10, 10, 0, 0, 1)


def test_a_group_of_fit_costs_about_the_same_with_any_curvature():
    spherical = cost_of_group("spherical", 800, 5, 1000)
    hessian = cost_of_group("hessian", 800, 5, 1000)
    assert spherical.num_gradients == 1601
    assert hessian.num_hessians == 64
    assert hessian.num_gradients + 2 * hessian.num_products < spherical.num_gradients
    assert cost_of_group("stein", 800, 5, 1000).num_gradients == 10
