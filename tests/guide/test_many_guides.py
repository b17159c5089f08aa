"""A hundred guides in one process, stepped in turn: none of them sees another's parameters."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

from tests.models import Y

NUM_GUIDES, STEPS = 100, 3


def _model(ppl, shift):
    """Conjugate, of sites of the same names, whose posterior is at ``v sum(y + shift)``."""

    def model(y):
        mu = ppl.sample("mu", ppl.dist.Normal(ppl.array(0.0), 1.0))
        with ppl.plate("data", len(y)):
            ppl.sample("y", ppl.dist.Normal(mu, 1.0), obs=y + shift)

    return model


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pyro", "numpyro"])  # which compiles a hundred programs
def test_a_hundred_guides_stepped_in_turn_find_a_hundred_posteriors(name):
    from tests.ppl import load

    pytest.importorskip(name)
    ppl = load(name)
    ppl.forget()
    shifts = np.linspace(-5.0, 5.0, NUM_GUIDES)
    with contextlib.ExitStack() as stack:
        stack.enter_context(ppl.float64())
        options = {}
        if ppl.is_numpyro:
            import jax

            options["rng_key"] = jax.random.key(0)
        else:  # as the error says that two guides of one name get otherwise
            stack.enter_context(ppl.lib.settings.context(module_local_params=True))
        runs = []
        for shift in shifts:
            model = _model(ppl, shift)
            parts = ppl.guide(model, "full"), ppl.optimiser("BLR", 1.0), ppl.elbo("NaturalELBO")
            runs.append(ppl.package.SVI(model, *parts, **options))
        y = ppl.array(Y)
        for _ in range(STEPS):
            for svi in runs:
                svi.step(y)
        posteriors = [
            svi.guide.get_posterior(*((svi.params,) if ppl.is_numpyro else ())) for svi in runs
        ]
        means, variances = (
            [float(ppl.numpy(getattr(q, part))[0]) for q in posteriors]
            for part in ("mean", "variance")
        )
    exact_variance = 1 / (1 + len(Y))
    np.testing.assert_allclose(means, [exact_variance * (Y + s).sum() for s in shifts], 1e-6, 1e-6)
    np.testing.assert_allclose(variances, exact_variance, 1e-6)


def test_fits_one_after_another_are_those_of_a_fresh_process(ppl):
    """... also in Pyro, where the parameter store outlives each of them."""
    y = ppl.array(Y)
    with ppl.float64():
        found = [ppl.fit(_model(ppl, shift), y) for shift in (0.0, 3.0, 0.0)]
    bounds = [one.bound for one in found]
    assert bounds[0] == bounds[2] != bounds[1]
    means = [ppl.numpy(one.posterior.mean) for one in found]
    np.testing.assert_array_equal(means[0], means[2])
