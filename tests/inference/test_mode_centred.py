"""``fit`` tries locals by their modes, and keeps them unless their bound is worse.

What it decides is tested on problems of numpy, the first ones here; the rest takes a PPL.
"""

from __future__ import annotations

import dataclasses
import re
from types import SimpleNamespace

import numpy as np
import pytest

from ngvi.inference import mode_centred
from ngvi.inference.mode_centred import BY_MODES, Attempt, alone, compared
from ngvi.inference.options import Levels
from ngvi.inference.report import second_fit
from ngvi.inference.request import Request
from ngvi.inference.search import Status
from ngvi.inference.trace import Trace
from ngvi.inference.verdict.certificate import Certificate
from ngvi.inference.verdict.optima import Exploration, Optimum
from ngvi.inference.verdict.outcome import Outcome
from ngvi.inference.verdict.validation import Validation
from ngvi.latents.layout import Plate, Site
from tests import models
from tests.inference.numpy_problem import State, Target, gaussian
from tests.ppl import SLOW_IN_NUMPYRO

SITES = (Site("x", 0, (3,), (Plate("groups", 3, 0),)),)
WITH_A_GLOBAL = Site("g", 0, ()), Site("x", 1, (2,), (Plate("groups", 2, 0),))
CENTRE, SCALE, RNG = np.array([1.0, 0.0, -1.0]), np.full(3, 0.5), np.random.default_rng(0)
BEST = State(CENTRE, np.log(SCALE))
CALL = SimpleNamespace(reparametrize="auto", request=Request(0.05, 100), rng=RNG)


def ready(gain=0.0, sites=SITES, **options):
    """What was set up: the bound's optimum is the gain."""
    one = Target(lambda x, *_: gaussian(x, CENTRE, SCALE) + gain, 3, **options)
    blocks = SimpleNamespace(mask=np.array([False, True, True]), sites=(("x",),))
    guide = SimpleNamespace(sites=sites, _blocks=blocks)
    return SimpleNamespace(problem=one.problem(), guide=guide, has_start=True, error=None)


def ended(
    status=Status.OPTIMUM, bound=0.0, gap=1.0, losses=(), explored=True, spread=0.3, **options
):
    """An outcome at the optimum."""
    count = len(losses)
    trace = Trace(list(losses), [0.1] * count, [1.0] * count, [0.1] * count, [5] * count)
    found = Validation(bound, 0.1, spread=spread, gap=gap)
    certificate = Certificate(0.01, 0.02)
    best = Optimum(BEST, found, certificate, status, "the guide's start", 8, trace=trace)
    exploration = Exploration(8, 0, 0.1, explored)
    return Outcome(best, [best], exploration, **options)


def pair(gain=0.0, status=Status.OPTIMUM, away=0.0, own=None):
    """A Gaussian over all latents that has ended, and what came before it by modes."""
    one, two = ready(own=own), ready(gain, own=own)
    outcome, other = ended(losses=(2.0, 1.0)), ended(status, gain)
    mean = CENTRE + np.array([away * SCALE[0], 2.0, 2.0])  # of standardised locals any
    for end in (outcome, other):
        end.optimum.state = dataclasses.replace(BEST, own=np.zeros(0) if own is None else own)
    return one, outcome, Attempt(two, other, False), mean


@pytest.mark.parametrize(
    ("gain", "is_better", "words"),
    [
        (1.5, True, "1.50 nats below"),
        (-1.5, False, "1.50 nats below"),
        (0.0, True, "0.00 nats above"),
        (-0.04, True, "0.04 nats above"),
        (-0.06, False, "0.06 nats below"),
    ],
)
def test_locals_by_modes_are_kept_unless_they_are_worse_over_the_same_draws(gain, is_better, words):
    one, outcome, at_first, _ = pair(gain)
    kept, found = compared(one, outcome, at_first, CALL)
    assert kept is (at_first.ready if is_better else one)
    assert found.optimum is (at_first.outcome if is_better else outcome).optimum
    assert not is_better or found.optimum.trace.losses[:2] == [2.0, 1.0]
    result = SimpleNamespace(restarts=found.restarts())
    said = ("not centred; with conditional modes", "centred at conditional modes; without them")
    assert second_fit(result) == f"{said[is_better]} the bound is {words}"
    restarts = {one.name: one.status for one in result.restarts}
    assert restarts == {
        BY_MODES: "kept" if is_better else words,
        "the guide's start": words if is_better else "kept",
    }
    assert found.exploration is outcome.exploration


@pytest.mark.parametrize(
    ("status", "away", "own", "is_there"),
    [
        (Status.OPTIMUM, 0.9, None, True),
        (Status.OPTIMUM, 1.1, None, False),
        (Status.NOISE, 0.0, None, False),
        (Status.OPTIMUM, 0.0, np.zeros(1), False),
    ],
)
def test_the_two_are_compared_where_they_came_to_the_same_globals(status, away, own, is_there):
    one, outcome, at_first, mean = pair(1.5, status, away, own)
    moved = dataclasses.replace(at_first.outcome.optimum.state, mean=mean)
    at_first.outcome.optimum.state = moved
    kept, found = compared(one, outcome, at_first, CALL)
    assert bool(found.by_modes) is is_there


def test_an_error_of_the_fit_by_modes_is_in_the_report_and_a_callback_ends_both():
    def failing(problem, is_good):
        raise RuntimeError("out of memory")

    def stopped(problem, is_good):
        def users(*_):
            raise RuntimeError("that will do")

        Request(0.05, 10, callback=users).monitor().after_step(1.0, 0.0)

    def faulty(first):
        raise TypeError("takes 1 positional argument\nbut 2 were given")

    one, outcome, *_ = pair()
    one.guide.sites = WITH_A_GLOBAL
    call, set_up = SimpleNamespace(**vars(CALL)), lambda first: ready()
    cases = (set_up, failing, "RuntimeError: out"), (faulty, None, "TypeError: takes")
    for call.set_up_by_modes, call.optimise, words in cases:
        kept, found = compared(one, outcome, alone(one, call), CALL)
        result = SimpleNamespace(restarts=found.restarts())
        assert kept is one and f"the bound is not known: {words}" in second_fit(result)
    call.set_up_by_modes, call.optimise = set_up, stopped
    with pytest.raises(RuntimeError, match="that will do"):
        alone(one, call)


# -- one model in both packages -------------------------------------------------------

#: The best full-covariance bound of a careful run of 10^5 draws (posteriordb).
BEST_EIGHT_SCHOOLS = -31.536

_FITTED: dict = {}


@pytest.fixture
def fitted(ppl):
    """Eight schools, without and with a second fit, and what Pyro has in its store then."""
    if ppl.name not in _FITTED:
        ppl.forget()
        model, data = models.eight_schools(ppl), map(ppl.array, models.eight_schools_data())
        data = tuple(data)
        plain = ppl.fit(model, *data, seed=1, effort="quick", reparametrize=False)
        ppl.forget()
        result = ppl.fit(model, *data, seed=2, effort="quick", reparametrize=True)
        store = None if ppl.is_numpyro else set(ppl.lib.get_param_store())
        _FITTED[ppl.name] = plain, result, store
    return _FITTED[ppl.name]


@SLOW_IN_NUMPYRO
def test_the_better_bound_is_kept_and_told(ppl, fitted):
    plain, result, store = fitted
    assert type(plain.guide).__name__ == "NaturalGaussianGuide" and len(plain.restarts) == 1
    assert type(result.guide).__name__ == "ReparametrizedGaussianGuide" and result.converged
    assert result.bound == pytest.approx(-31.40, abs=0.05)  # in both packages
    assert plain.bound - 4 * plain.bound_error < BEST_EIGHT_SCHOOLS < result.bound
    assert [one.name for one in result.restarts] == ["the guide's start"]
    assert re.search(r"locals +centred at conditional modes\n", repr(result))
    names = set(result.diagnostics.accuracy.names)
    assert {"mu", "tau", "eta[7]"} < names  # the model's own latents
    assert "hint" not in repr(result) and "hint" not in repr(plain)
    assert len(result.trace) == result.restarts[0].num_steps
    if store is not None:
        assert store == set(result.params)


def test_through_a_loop_of_the_model_modes_are_not_searched_for_unasked(ppl):
    """Groups revert to a level, step by step."""
    dist, steps = ppl.dist, 100 if ppl.name == "pyro" else 10

    def model(y):
        scale = ppl.sample("scale", dist.HalfNormal(ppl.array(1.0)))
        with ppl.plate("groups", 3):
            effect = ppl.sample("effect", dist.Normal(0.0 * scale, scale))
            end = effect
            if ppl.is_numpyro:
                import jax

                end = jax.lax.scan(lambda x, _: (x - 0.1 * (x - 1.0), x), end, None, steps)[0]
            for _ in range(0 if ppl.is_numpyro else 2 * steps):
                end = end - 0.05 * (end - 1.0)
            ppl.sample("y", dist.Normal(end, 0.5), obs=y)

    look = ppl.module("inference.first_look").look
    plain, data = models.eight_schools(ppl), tuple(map(ppl.array, models.eight_schools_data()))
    assert not look(plain, data, {}).has_loops
    y = ppl.array([1.0, 0.8, 1.2])
    assert look(model, (y,), {}).has_loops
    result = ppl.fit(model, y, effort="quick")
    assert type(result.guide).__name__ == "NaturalGaussianGuide" and result.converged
    assert "reparametrize=True" in second_fit(result)


@pytest.mark.slow
def test_the_fit_by_modes_that_came_first_leaves_a_result_like_any_other(ppl, fitted, monkeypatch):
    ppl.forget()
    model, data = models.eight_schools(ppl), map(ppl.array, models.eight_schools_data())
    monkeypatch.setattr(mode_centred, "LEVELS", Levels(worth=0.0))
    result = ppl.fit(model, *data, seed=2, effort="quick")
    assert result.bound == pytest.approx(fitted[1].bound, abs=0.05)
    assert [one.name for one in result.restarts] == [BY_MODES, "the guide's start"]
    assert result.cost.gradients < 0.7 * (fitted[0].cost.gradients + 2 * fitted[1].cost.gradients)
    assert result.sample(3)["eta"].shape == (3, 8)
    if not ppl.is_numpyro:
        assert set(ppl.lib.get_param_store()) == set(result.params)


@pytest.mark.slow
def test_a_global_that_is_a_parameter_does_not_keep_locals_from_their_modes(ppl):
    """Eight schools, centred, whose mean is fitted by maximum marginal likelihood."""
    dist = ppl.dist

    def model(y, sigma):
        mu = ppl.param("mu", ppl.array(0.0))
        tau = ppl.sample("tau", dist.HalfNormal(ppl.array(10.0)))
        with ppl.plate("schools", 8):
            effect = ppl.sample("effect", dist.Normal(mu, tau))
            ppl.sample("y", dist.Normal(effect, sigma), obs=y)

    result = ppl.fit(model, *map(ppl.array, models.eight_schools_data()))
    assert result.converged and type(result.guide).__name__ == "ReparametrizedGaussianGuide"
    # By quadrature: effects integrated out, the evidence is -30.29 at mu = 7.81.
    assert ppl.numpy(result.params["mu"]) == pytest.approx(7.81, abs=0.2)
    assert -30.55 < result.bound < -30.29 + 3 * result.bound_error


@SLOW_IN_NUMPYRO
def test_draws_predictions_and_files_are_in_the_users_coordinates(ppl, fitted, tmp_path):
    _, result, _ = fitted
    draws = {name: ppl.numpy(value) for name, value in result.sample(5000).items()}
    # By NUTS mu is 4.4 (3.3), tau 3.6 (3.2), and eta of the first school 0.4 (0.9).
    assert draws["mu"].mean() == pytest.approx(4.4, abs=0.3)
    assert draws["tau"].mean() == pytest.approx(3.6, abs=0.3)
    assert draws["eta"][:, 0].mean() == pytest.approx(0.38, abs=0.1)
    assert draws["eta"].std(0) == pytest.approx(np.full(8, 0.96), abs=0.1)
    replicated = ppl.numpy(result.predictive(num_samples=20)["y"])
    assert replicated.shape == (20, 8) and abs(replicated.mean() - 5.0) < 8.0
    result.save(tmp_path / "file")
    again = type(result).load(tmp_path / "file", result.model)
    assert again.restarts == result.restarts and repr(again) == repr(result)
    values = []
    for each in (result, again):
        if not ppl.is_numpyro:
            ppl.lib.set_rng_seed(1)
        values.append(ppl.numpy(each.sample(3)["eta"]))
    np.testing.assert_allclose(*values, rtol=1e-9)


@SLOW_IN_NUMPYRO
def test_groups_that_the_fit_has_not_seen_are_drawn_given_their_data(ppl, fitted):
    # Given mu and tau the posterior of eta is known.
    plain, result, _ = fitted
    y, sigma = np.array([30.0, -8.0]), np.array([3.0, 12.0])
    with pytest.raises(ValueError, match="sample_groups needs locals at conditional modes"):
        plain.sample_groups(ppl.array(y), ppl.array(sigma))
    for count in (2, 1):  # one is enough
        data = ppl.array(y[:count]), ppl.array(sigma[:count])
        found = result.sample_groups(*data, num_samples=2000)
        draws = {name: ppl.numpy(value) for name, value in found.items()}
        mu, tau = draws["mu"][:, None], draws["tau"][:, None]
        variance = 1 / (1 + (tau / sigma[:count]) ** 2)
        mean = variance * tau / sigma[:count] ** 2 * (y[:count] - mu)
        noise = (draws["eta"] - mean) / variance**0.5
        assert noise.shape == (2000, count)
        np.testing.assert_allclose(noise.mean(0), 0.0, atol=4 / 2000**0.5)
        np.testing.assert_allclose(noise.std(0), 1.0, atol=4 / 4000**0.5)
    ours = result.sample(2000)["mu"]  # the globals are those of the fit
    assert draws["mu"].mean() == pytest.approx(ppl.numpy(ours).mean(), abs=0.5)
