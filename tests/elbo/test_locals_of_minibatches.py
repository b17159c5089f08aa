"""``NaturalELBO`` with latents in a subsampled plate: a minibatch moves those that it visits."""

from __future__ import annotations

import numpy as np
import pytest

from tests.guide.test_subsampled_latents import (
    BATCHES,
    LOCAL,
    N,
    _coordinates,
    _given_zero,
    _guide,
    _parts,
    _perturbed,
    _start,
    check_bound_and_gradients,
)
from tests.ppl import SLOW_IN_NUMPYRO, slow_but


def _elbo(ppl, curvature, num_particles=4):
    return ppl.elbo("NaturalELBO", num_particles=num_particles, curvature=curvature)


# -- the direction --------------------------------------------------------------------


@pytest.mark.fast_in_numpyro("diagonal-spherical")
@pytest.mark.parametrize("curvature", ["hessian", "spherical", "stein", "mean"])
@pytest.mark.parametrize("family", LOCAL)
def test_bound_and_natural_gradients_are_those_of_all_data(ppl, family, curvature):
    found = check_bound_and_gradients(
        ppl, _guide(ppl, family), _elbo(ppl, curvature), rtol=1e-8, has_zeros=True
    )
    assert np.std(found[0], 0).max() > 1e-3
    assert np.std(found[1], 0).max() > 1e-5


@SLOW_IN_NUMPYRO
@pytest.mark.parametrize("family", LOCAL)
def test_a_minibatch_of_all_elements_makes_the_step_of_a_plate_that_is_not_subsampled(ppl, family):
    whole = np.arange(N)
    guide = _guide(ppl, family)
    here = _perturbed(ppl, _start(ppl, guide, whole))
    run = ppl.loss_and_gradient(_elbo(ppl, "hessian"), guide.model, guide)
    value, gradient = run(here, 3, ppl.index(whole))
    model = guide.model
    ppl.forget()
    plain = ppl.guide(model, family)
    ppl.set_up(plain, ppl.index(whole))
    run = ppl.loss_and_gradient(_elbo(ppl, "hessian"), model, plain)
    plain_value, plain_gradient = run(here, 3, ppl.index(whole))
    np.testing.assert_allclose(value, plain_value, rtol=1e-10)
    for name, part in gradient.coordinates().items():
        expected = ppl.numpy(getattr(plain_gradient, name))
        np.testing.assert_allclose(ppl.numpy(part), expected, rtol=1e-10, atol=1e-12)


# -- steps ----------------------------------------------------------------------------


@pytest.mark.fast_in_numpyro
@pytest.mark.parametrize("family", slow_but("sparse_precision", LOCAL))
def test_unvisited_locals_keep_their_coordinates_bit_for_bit(ppl, family):
    guide = _guide(ppl, family)
    svi = ppl.svi(guide.model, guide, args=BATCHES[:1])
    element, before = _coordinates(guide), ppl.copy(svi.family)
    for batch in [*BATCHES, *BATCHES]:  # what the last step moved is not carried on
        assert np.isfinite(svi.step(batch))
        after = ppl.copy(svi.family)
        old_loc, old_factor, columns = _parts(ppl, before, before)
        new_loc, new_factor, _ = _parts(ppl, after, after)
        if family == "sparse_precision":
            # The mean of a local given the globals, whitened: it follows theirs, and is rounded.
            old_loc, new_loc = (_given_zero(ppl, one) for one in (before, after))
        unvisited = (element >= 0) & ~np.isin(element, batch)
        moved = np.isin(element, [-1, *batch])
        tolerance = 1e-12 if family == "sparse_precision" else 0.0
        np.testing.assert_allclose(new_loc[unvisited], old_loc[unvisited], tolerance, tolerance)
        np.testing.assert_array_equal(
            new_factor[unvisited[columns]], old_factor[unvisited[columns]]
        )
        assert (new_loc[moved] != old_loc[moved]).all()
        before = after


GROUPS, EACH_GROUP, SEEN = 40, 3, 8
MEANS = np.random.default_rng(5).normal(1.0, 1.5, GROUPS)
ROWS = MEANS[:, None] + np.random.default_rng(6).normal(0.0, 1.0, (GROUPS, EACH_GROUP))


def _linear(ppl):
    """``y_ij ~ N(b_i, 1)``, ``b_i ~ N(mu, 1.5)``, ``mu ~ N(0, 3)``, and its plates."""

    def create_plates():
        return ppl.plate("groups", GROUPS, subsample_size=SEEN, dim=-1)

    def model():
        mu = ppl.sample("mu", ppl.dist.Normal(ppl.array(0.0), 3.0))
        plate = create_plates()
        with plate:
            effect = ppl.sample("effect", ppl.dist.Normal(mu, 1.5))
            rows = ppl.array(ROWS)[ppl.indices(plate)]
            ppl.sample("y", ppl.dist.Normal(effect[:, None], 1.0).to_event(1), obs=rows)

    return model, create_plates


def _exact():
    """Mean and covariance of ``mu`` and the effects."""
    precision = np.diag(np.r_[1 / 9, np.zeros(GROUPS)])
    precision[0, 0] += GROUPS / 2.25
    precision[0, 1:] = precision[1:, 0] = -1 / 2.25
    precision[1:, 1:] += (1 / 2.25 + EACH_GROUP) * np.eye(GROUPS)
    covariance = np.linalg.inv(precision)
    return covariance @ np.r_[0.0, ROWS.sum(1)], covariance


def _of_run(ppl, step_size, num_steps):
    model, create_plates = _linear(ppl)
    ppl.forget()
    guide = ppl.guide(model, "sparse_precision", create_plates=create_plates)
    optimiser = ppl.optimiser("BLR", step_size)
    svi = ppl.svi(model, guide, optimiser, ppl.elbo("NaturalELBO", num_particles=2))
    svi.run(num_steps)
    return svi


@pytest.mark.slow
@pytest.mark.parametrize("step_size", [None, lambda t: 1.0 / (1.0 + 0.05 * t)])
def test_minibatches_find_the_posterior_of_a_linear_model(ppl, step_size):
    svi = _of_run(ppl, step_size, 800)
    mean, covariance = _exact()
    sd = np.sqrt(np.diag(covariance))
    family = svi.family
    error = np.abs(ppl.numpy(family.mean) - mean) / sd
    # Of a global a step sees eight groups of forty, of a local its own rows: the noise of the
    # global falls like that of an average over steps, and locals follow it.
    assert error[0] < 0.25
    assert error.max() < 0.3
    np.testing.assert_allclose(ppl.numpy(family.stddev), sd, rtol=0.02)


# -- what a rule makes of it ----------------------------------------------------------


# -- what cannot be done is said ------------------------------------------------------


@pytest.mark.fast_in_numpyro
def test_quadrature_names_the_alternative(ppl):
    guide = _guide(ppl, "sparse_precision")
    with pytest.raises(ValueError, match=r"quadrature.*curvature='spherical'"):
        ppl.svi(guide.model, guide, None, _elbo(ppl, "quadrature"), BATCHES[:1]).step()
