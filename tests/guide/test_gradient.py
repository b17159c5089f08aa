"""The gradient of any stock ELBO is, on the guide, the natural gradient.

The Euclidean gradient is that of the same ELBO with a plain guide, whose parameters are the same
coordinates as raw arrays and whose draws use the same noise; it is multiplied by the inverse of the
dense Fisher matrix of :mod:`tests.reference`.
"""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest

from tests import models
from tests.guide import plain_guides
from tests.ppl import load
from tests.reference import FAMILIES, natural_gradient, random_gaussian, relative_error

#: The bar of the issue; rounding measures about 1e-14.
TOLERANCE = 1e-10

LINEAR = ("Trace", "TraceGraph", "TraceMeanField", "TraceEnum")
ELBOS = {"numpyro": LINEAR, "pyro": (*LINEAR, *(f"Jit{name}" for name in LINEAR))}

#: Two particles show what more would do.
PARTICLES = {
    "1": {},
    "2": {"num_particles": 2, "vectorize_particles": False},
    "2 vectorised": {"num_particles": 2, "vectorize_particles": True},
}


def _model(ppl, elbo, small):
    """A model and its arguments; a ``small`` one compiles in a third of the time."""
    if "Enum" in elbo:
        return models.mixture(ppl), models.data()
    if small:
        return models.regression(ppl), models.regression_data()
    return models.hierarchy(ppl), models.data()


def assert_natural(name, elbo, family_name, particles, subsample_size, stick, plain_sticks):
    """The guide's gradient is ``F^-1`` times the plain guide's, of the same draws."""
    ppl = load(name)
    ppl.forget()
    model, args = _model(ppl, elbo, ppl.is_numpyro and (stick or elbo != "Trace"))
    args = tuple(map(ppl.argument, args))
    kwargs = {"subsample_size": subsample_size}
    options = dict(PARTICLES[particles])
    if elbo == "Renyi":
        options = {"num_particles": 2, "alpha": 0.5}
    if name == "pyro" and ("Enum" in elbo or "Jit" in elbo):
        options["max_plate_nesting"] = 1

    def loss():  # a new one each time: Pyro's compiled ones remember their first guide
        return ppl.elbo("RenyiELBO" if elbo == "Renyi" else f"{elbo}_ELBO", **options)

    guide = ppl.guide(model, family_name, sticking_the_landing=stick)
    ppl.set_up(guide, *args)
    loc, scale = random_gaussian(family_name, guide.latent_dim, np.random.default_rng(2))
    loc, scale = 0.3 * loc, 0.3 * scale
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit's tracer has much to say
        run = ppl.loss_and_gradient(loss(), model, guide, *args, **kwargs)
        ours_loss, ours = run(ppl.family(family_name, loc, scale), 3)
        point = (family_name, loc, scale)
        plain_loss, euclidean = plain_guides.loss_and_gradient(
            ppl, loss(), model, point, plain_sticks, args, kwargs, 3
        )
    # Same noise, same minibatch: else the comparison below would mean nothing.
    assert np.isclose(ours_loss, plain_loss, rtol=1e-12)
    expected = natural_gradient(family_name, loc, scale, *euclidean)
    for actual, e in zip(ppl.coordinates(ours), expected, strict=True):
        assert relative_error(actual, e) < TOLERANCE


def _cases():
    """NumPyro compiles each case; what another case shows as well is left to the slow tests."""
    for name, particles, size in itertools.product(ELBOS, PARTICLES, (None, models.SUBSAMPLE)):
        for elbo, family in itertools.product(ELBOS[name], FAMILIES):
            usual = (particles, size) == ("1", models.SUBSAMPLE)
            if name == "numpyro":
                shown = usual and elbo == "Trace" and family != "diagonal"
            else:
                shown = "Jit" not in elbo or usual
            marks = () if shown else pytest.mark.slow
            batch = "subsampled" if size else "full batch"
            identity = f"{name}-{elbo}-{particles}-{batch}-{family}"
            yield pytest.param(name, elbo, particles, size, family, marks=marks, id=identity)


@pytest.mark.parametrize(("name", "elbo", "particles", "subsample_size", "family"), list(_cases()))
def test_the_gradient_of_a_stock_elbo_is_the_natural_gradient(
    name, elbo, particles, subsample_size, family
):
    with load(name).float64():
        assert_natural(name, elbo, family, particles, subsample_size, False, False)


#: The one that NumPyro compiles in the fast tests.
SHOWN = "covariance_cholesky", "Trace"


@pytest.mark.parametrize(
    ("name", "elbo", "family"),
    [
        pytest.param(
            name,
            elbo,
            family,
            marks=pytest.mark.slow if name == "numpyro" and (family, elbo) != SHOWN else (),
        )
        for name in ELBOS
        for elbo in ELBOS[name]
        for family in FAMILIES
    ],
)
def test_by_default_the_landing_sticks_in_every_linear_elbo(name, elbo, family):
    """Then the plain guide's ``log q`` has its parameters detached as well."""
    with load(name).float64():
        assert_natural(name, elbo, family, "1", None, "auto", True)


@pytest.mark.parametrize("family_name", ["covariance_cholesky"])
def test_by_default_the_landing_does_not_stick_in_an_elbo_that_weights_its_draws(ppl, family_name):
    assert_natural(ppl.name, "Renyi", family_name, "1", None, "auto", False)
