"""A step that is not finite is not taken; an optimiser with nothing natural to move says so."""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest

from tests.optim.table5 import driver, random_gradients, start


def _spoil(gradient, bad):
    spoiled = {name: (f, loc.copy(), scale.copy()) for name, (f, loc, scale) in gradient.items()}
    spoiled["dense"][1][0] = bad
    return spoiled


def _snapshot(run, names=("dense", "mean_field")):
    return [np.array(a) for name in names for a in run.gaussian(name)] + [run.parameter("w")]


@pytest.mark.parametrize(
    ("name", "bad", "where"),
    [
        *itertools.product(["Snngm", "Nagm"], [np.nan, np.inf], ["a family", "a model parameter"]),
    ],
)
def test_a_non_finite_gradient_changes_nothing_and_is_counted(backend, name, bad, where, rng):
    point, w = start(rng), np.ones(2)
    first, second, third = random_gradients(point, 3, rng)
    g = rng.normal(size=2)
    run, clean = (driver(backend, backend.optimiser(name, 0.01), point, {"w": w}) for _ in range(2))
    for each in (run, clean):
        each.step(first, {"w": g})
    before = _snapshot(run)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if where == "a family":
            run.step(_spoil(second, bad), {"w": g})
        else:
            run.step(second, {"w": np.array([bad, 1.0])})
    for a, b in zip(_snapshot(run), before, strict=True):
        np.testing.assert_array_equal(a, b)
    assert (run.num_skipped, clean.num_skipped) == (1, 0)
    # The state is untouched as well: the next step is the one of a run without the accident.
    for each in (run, clean):
        each.step(third, {"w": g})
    for a, b in zip(_snapshot(run), _snapshot(clean), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", ["Snngm", "Nagm"])
def test_a_step_whose_result_overflows_is_not_taken(backend, name, rng):
    point = start(rng)
    first, second = random_gradients(point, 2, rng)
    schedule = (lambda t: 0.01 if t == 0 else np.inf) if backend.name == "pyro" else None
    if schedule is None:
        import jax.numpy as jnp

        schedule = lambda t: jnp.where(t == 0, 0.01, jnp.inf)  # noqa: E731
    run = driver(backend, backend.optimiser(name, schedule), point, {"w": np.ones(2)})
    run.step(first, {"w": np.ones(2)})
    before = _snapshot(run)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run.step(second, {"w": np.ones(2)})
    for a, b in zip(_snapshot(run), before, strict=True):
        np.testing.assert_array_equal(a, b)
    assert run.num_skipped == 1


@pytest.mark.parametrize("factor", [1e3, -1e3])
def test_a_step_to_where_slopes_are_a_thousandfold_is_taken_back(backend, factor, rng):
    """As from the side of a hill into a tail, from which no slope leads back."""
    point, w = start(rng), np.ones(2)
    (gradient,) = random_gradients(point, 1, rng)
    far = {name: (f, factor * loc, factor * scale) for name, (f, loc, scale) in gradient.items()}
    run = driver(backend, backend.optimiser("BLR", "auto"), point, {"w": w})
    before = _snapshot(run)
    run.step(gradient, {"w": w})
    there = _snapshot(run)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run.step(far, {"w": w})
    for a, b in zip(_snapshot(run), before, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)
    assert run.num_skipped == 1
    run.step(gradient, {"w": w})  # a tenth of it
    assert 0 < abs(run.gaussian("dense")[0] - before[0]).max() < abs(there[0] - before[0]).max()


def test_a_step_that_would_be_indefinite_widens_in_float32_and_in_a_scan(ppl):
    """In the tail of a Cauchy likelihood the log density is convex, and ``S`` would be negative."""
    begin, steps = 8.0, 12
    of_likelihood = 2 * (begin**2 - 1) / (1 + begin**2) ** 2
    assert 1 / 30.0**2 - of_likelihood < 0  # A, which a whole step would make of S

    def model(y):
        mu = ppl.sample("mu", ppl.dist.Normal(ppl.array(0.0), 30.0))
        ppl.sample("y", ppl.dist.Cauchy(mu, 1.0), obs=y)

    with ppl.precision("float32"):
        y, start = ppl.array(0.0), ppl.start_at(mu=begin)
        guide = ppl.guide(model, "full", init_loc_fn=start, init_scale=0.1)
        optimiser = ppl.optimiser("BLR", 1.0)
        svi = ppl.package.SVI(model, guide, optimiser, ppl.elbo("NaturalELBO", curvature="mean"))
        if ppl.is_numpyro:
            import jax

            def advance(state, _):
                state, _ = svi.update(state, y)
                return state, svi.get_params(state)["auto_posterior"]

            state = svi.init(jax.random.key(0), y)
            _, path = jax.jit(lambda s: jax.lax.scan(advance, s, length=steps))(state)
            means, widths = (ppl.numpy(x)[:, 0] for x in (path.loc, path.scale_tril[..., 0]))
        else:
            ppl.forget()
            found = []
            for _ in range(steps):
                svi.step(y)
                found.append([ppl.numpy(one).item() for one in guide.parameters()])
            means, widths = np.array(found).T
            assert optimiser.num_skipped == 0
    assert np.isfinite(means).all() and (widths > 0).all()
    assert widths[0] == pytest.approx(0.1 * 2**0.5, rel=1e-5)  # an eigenvalue of one half


@pytest.mark.parametrize("name", ["Snngm", "Nagm", "BLR"])
def test_without_natural_parameters_the_optimiser_says_what_to_use(backend, name):
    with pytest.raises(ValueError, match=rf"{name} sees no natural parameters.*\bAdam\b"):
        run = driver(backend, backend.optimiser(name, 0.01), {}, {"w": np.ones(2)})
        run.step({}, {"w": np.ones(2)})


IN_UNIT, POSITIVE = r"must be in \(0, 1\]", "must be positive and finite, or a schedule"
BELOW_1 = r"must be in \[0, 1\)"
BAD_OPTIONS = [
    *(("BLR", "step_size", bad, r"\(0, 1\]") for bad in (0.0, 1.5, -1.0, np.nan)),
    ("BLR", "step_size", "fast", "'auto', a number or a schedule"),
    *(("BLR", "precision_step_size", bad, rf"precision_\w+ {IN_UNIT}") for bad in (0.0, 2.0)),
    *(("BLR", "momentum", bad, f"momentum {BELOW_1}") for bad in (1.0, -0.1)),
    *(("BLR", "max_kl", bad, "max_kl must be positive") for bad in (0.0, np.nan)),
    ("BLR", "max_kl", "some", "max_kl must be 'auto', a number or None"),
    *(("VON", "step_size", bad, r"\(0, 1\]") for bad in (0.0, 2.0)),
    ("VOGN", "step_size", 0.0, POSITIVE),
    ("VOGN", "beta1", 1.0, f"beta1 {BELOW_1}"),
    ("VOGN", "beta2", 1.0, f"beta2 {BELOW_1}"),
    ("IVON", "beta2", -0.1, f"beta2 {BELOW_1}"),
]


@pytest.mark.parametrize(("name", "option", "value", "words"), BAD_OPTIONS)
def test_bad_options_are_refused_by_name(backend, name, option, value, words):
    with pytest.raises(ValueError, match=words):
        backend.optimiser(name, **{option: value})
