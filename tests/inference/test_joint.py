"""Gaussians and ordinary parameters as one vector, on a bound that depends on both."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from ngvi.inference import joint as room
from ngvi.inference.engine import Direction, Engine, Measured
from ngvi.inference.joint import joint
from ngvi.inference.progress import Progress
from ngvi.inference.search import Search
from ngvi.inference.settings import Settings
from ngvi.inference.stochastic import StochasticSearch
from tests.inference.numpy_engine import Parameters, Target, metric

DIM, SHAPES = 2, ((2, 3), (), (1,))
SIZE = 8  # numbers of the ordinary parameters


@dataclasses.dataclass
class Coupled(Target):
    """``log p = -|theta - A w|^2 / 2 - w B w / 2 + c w``: without the coupling a bound of its own.

    Where ``B`` is small, parameters and means have a long way to go together.
    """

    ridge: float = 0.05

    def __post_init__(self):
        super().__post_init__()
        rng = np.random.default_rng(3)
        self.has_ordinary = True
        self.initial = dataclasses.replace(self.initial, ordinary=tuple(map(np.zeros, SHAPES)))
        self.coupling = rng.normal(size=(self.dim, SIZE))
        self.curvature = np.diag(self.ridge * np.geomspace(1.0, 30.0, SIZE))
        self.linear = 0.3 * rng.normal(size=SIZE)
        # ``theta = A w`` at the optimum, where only ``B`` and ``c`` are left.
        self.optimum = np.linalg.solve(self.curvature, self.linear)
        self.best = 0.5 * self.linear @ self.optimum

    def measure(self, place, draws):
        self.num_gradients += 5 * len(draws)
        w = flat(place.ordinary)
        gap, variances = place.loc - self.coupling @ w, np.exp(2 * place.log_scale)
        kl = np.sum(0.5 * (variances + gap**2 - 1) - place.log_scale)
        value = -kl - 0.5 * w @ self.curvature @ w + self.linear @ w
        gradient = np.concatenate([-gap, 1 - variances])
        of_w = self.coupling.T @ gap - self.curvature @ w + self.linear
        vectors = np.broadcast_to(gradient / metric(place), (len(draws), 2 * self.dim))
        mean = Direction(vectors[0], gradient, shaped(of_w))
        return Measured(np.full(len(draws), value), vectors, mean)

    def values(self, place, theta):
        self.num_values += len(theta)
        w = flat(place.ordinary)
        gap = theta - self.coupling @ w
        normal = -0.5 * np.sum(gap**2, 1) - 0.5 * self.dim * np.log(2 * np.pi)
        return normal - 0.5 * w @ self.curvature @ w + self.linear @ w

    def moved(self, place, steps):
        assert [np.shape(step) for step in steps] == list(SHAPES)
        new = tuple(a + b for a, b in zip(place.ordinary, steps, strict=True))
        return dataclasses.replace(place, ordinary=new)


def flat(ordinary):
    return np.concatenate([np.ravel(part) for part in ordinary])


def shaped(vector):
    return [
        part.reshape(shape) for part, shape in zip(np.split(vector, [6, 7]), SHAPES, strict=True)
    ]


def target(**options):
    return Coupled(np.zeros(DIM), np.ones(DIM), **options)


def run(kind, engine, max_steps=300):
    settings, progress = Settings(0.02, max_steps), Progress(max_steps, False)
    one = kind(engine, np.random.default_rng(0), settings, progress)
    return one.run(engine.parameters.initial)


def measured(one, place=None):
    engine = joint(one.engine())
    draws = engine.evaluator.draws(np.random.default_rng(0), 2)
    return engine, engine.evaluator.measure(place or one.initial, draws)


# -- the search -----------------------------------------------------------------------


def test_strongly_coupled_parameters_converge_together_in_few_steps():
    one = target()
    outcome = run(Search, joint(one.engine()))
    assert outcome.converged
    assert len(outcome.trace) < 120
    assert -outcome.trace.losses[-1] == pytest.approx(one.best, abs=0.02)
    w = flat(outcome.place.ordinary)
    gap = w - one.optimum
    assert 0.5 * gap @ one.curvature @ gap < 0.02 < 0.05 * one.best
    np.testing.assert_allclose(outcome.place.loc, one.coupling @ w, atol=0.05)
    # The claim can fail: by turns it takes more than the steps there are.
    other = target()
    alone = run(StochasticSearch, other.engine(), 120)
    assert not alone.converged and -alone.trace.losses[-1] < one.best - 0.05


def test_probes_know_the_gain_that_is_left_where_parameters_and_gaussians_trade():
    """On a quadratic bound exactly; the metric alone promises a part."""
    one = target()
    away = np.geomspace(3.0, 0.01, SIZE)  # most where it is flattest
    place = dataclasses.replace(one.initial, ordinary=tuple(shaped(one.optimum + away)))
    place = dataclasses.replace(place, loc=one.coupling @ flat(place.ordinary))
    engine, found = measured(one, place)
    geometry = engine.geometry(place, [])
    gap = one.best - found.value
    pairs = geometry.probes(found, engine.evaluator.draws(np.random.default_rng(1), 2))
    assert len(pairs) == len(one.optimum)
    assert engine.geometry(place, pairs).corrected(found.mean).gain == pytest.approx(gap, rel=0.02)
    assert geometry.corrected(found.mean).gain < 0.5 * gap
    # A direction that they found may be taken at once, up to ten times a first step.
    far = geometry.corrected(found.mean).direction
    far.vector[-1] = 0.5
    geometry.allow(far)
    assert engine.evaluator.limits[-1] == pytest.approx(0.5)
    far.vector[-1] = 500.0
    geometry.allow(far)
    assert engine.evaluator.limits[-1] == pytest.approx(5.0)


def test_steps_that_have_become_too_short_to_tell_anything_are_forgotten_before_a_claim():
    """As where draws of a broad start are enormous, and gradients fall because Gaussians move."""
    one = target()
    engine, found = measured(one)
    geometry = engine.geometry(one.initial, [])
    draws = engine.evaluator.draws(np.random.default_rng(1), 2)

    def promised(**options):
        pairs = geometry.probes(found, draws, **options)
        return engine.geometry(one.initial, pairs).corrected(found.mean).gain

    expected = promised()
    assert expected > 0.1
    state = engine.evaluator
    state.gamma, state.limits = 1e-20 * state.gamma, 1e-12 * state.limits
    assert promised() < 1e-6
    assert promised(widely=True) == pytest.approx(expected, rel=0.02)


def test_of_a_length_that_is_not_finite_nothing_is_forgotten(monkeypatch):
    one = target()
    engine, found = measured(one)
    geometry = engine.geometry(one.initial, [])
    draws = engine.evaluator.draws(np.random.default_rng(1), 2)
    geometry.probes(found, draws)
    state, measure = engine.evaluator, one.measure
    state.gamma, state.limits = 1e-4 * state.gamma, 1e-3 * state.limits

    def overflowing(place, draws):
        result = measure(place, draws)
        if np.max(np.abs(flat(place.ordinary))) < 1e-4:
            return result
        vector = np.full_like(result.mean.vector, np.nan)
        return result._replace(mean=result.mean._replace(vector=vector))

    monkeypatch.setattr(one, "measure", overflowing)
    short = state.limits
    pairs = geometry.probes(found, draws, widely=True)
    assert pairs and all(np.isfinite(fall).all() for _, fall in pairs)
    assert state.limits is short


def test_without_parameters_an_engine_is_itself():
    engine = Target(np.zeros(2), np.ones(2)).engine()
    assert joint(engine) is engine


# -- the vectors ----------------------------------------------------------------------


def test_the_ordinary_gradients_stand_at_the_end_of_every_vector():
    one = target()
    engine, found = measured(one)
    plain = one.measure(one.initial, [None, None])
    ordinary = flat(plain.mean.ordinary)
    for row in found.vectors:
        np.testing.assert_array_equal(row, np.concatenate([plain.mean.vector, ordinary]))
    np.testing.assert_array_equal(found.mean.vector[2 * DIM :], ordinary)
    np.testing.assert_array_equal(found.mean.covector[2 * DIM :], ordinary)
    np.testing.assert_array_equal(found.values, plain.values)
    assert engine.evaluator.num_gradients == one.num_gradients == 20


def test_groups_that_join_keep_the_gradients_of_parameters():
    """A search that takes more draws for its noise goes on with all of its parameters."""
    one = target()
    engine, found = measured(one)
    joined = found.joined(
        found._replace(
            mean=found.mean._replace(ordinary=[3.0 * part for part in found.mean.ordinary])
        )
    )
    for part, first in zip(joined.mean.ordinary, found.mean.ordinary, strict=True):
        np.testing.assert_allclose(part, 2.0 * np.asarray(first))
    geometry = engine.geometry(one.initial, [])
    assert geometry.step(geometry.corrected(joined.mean).direction, 1.0, 1.0) is not None


def test_the_first_step_of_a_parameter_has_a_fixed_length():
    """Of each, however steep the bound is along it."""
    one = target()
    engine, found = measured(one)
    corrected = engine.geometry(one.initial, []).corrected(found.mean)
    steps = shaped(corrected.direction.vector[2 * DIM :])
    for step, gradient in zip(steps, found.mean.ordinary, strict=True):
        assert np.sqrt(np.mean(step**2)) == pytest.approx(room.FIRST)
        np.testing.assert_allclose(step, gradient * np.max(step / gradient))
    still = found.mean._replace(vector=np.zeros(2 * DIM + SIZE), covector=np.zeros(2 * DIM + SIZE))
    assert engine.geometry(one.initial, []).corrected(still).gain == 0.0


def accepted(curvature, is_short):
    """The geometry after a step of all parameters along which the gradient fell like this."""
    one = target()
    engine, found = measured(one)
    geometry = engine.geometry(one.initial, [])
    step = geometry.step(geometry.corrected(found.mean).direction, 1.0, 1.0)
    after = found.mean._replace(vector=found.mean.vector - curvature * step.change)
    geometry.accepted(step, found.mean, after, is_short)
    return engine.evaluator, found, step


def test_gamma_is_the_inverse_curvature_along_the_last_short_step():
    """``s y / y y`` (Nocedal and Wright, 7.20), for each parameter, by a tenfold at most."""
    before, _, _ = accepted(0.0, False)
    first = before.gamma / room.LONGER  # a gradient that has not fallen at all
    for curvature in (0.5 / first[0], 2.0 / first[1]):
        state, _, _ = accepted(curvature, True)
        expected = np.clip(1 / curvature, first / room.MAX_CHANGE, first * room.MAX_CHANGE)
        np.testing.assert_allclose(state.gamma, expected)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("steepness", [1.0, 1e21, 1e38])
def test_gamma_follows_gradients_whose_squares_overflow(steepness):
    """In single precision, where it became a tenth instead."""
    one = target()
    engine, found = measured(one)
    vector = found.mean.vector / np.abs(found.mean.vector).max()
    vector[2 * DIM :] *= steepness
    before = found.mean._replace(vector=np.float32(vector), covector=np.float32(vector))
    geometry = engine.geometry(one.initial, [])
    step = geometry.step(geometry.corrected(before).direction, 1.0, 1.0)
    first = engine.evaluator.gamma.copy()
    after = before._replace(vector=before.vector / 2)
    geometry.accepted(step._replace(change=np.float32(step.change)), before, after, True)
    np.testing.assert_allclose(engine.evaluator.gamma, 2 * first, rtol=1e-5)


def test_steps_get_longer_while_the_gradient_keeps_its_direction():
    state, _, _ = accepted(0.0, False)
    np.testing.assert_allclose(state.limits, room.FIRST * room.LONGER)
    first = state.gamma / room.LONGER
    turned, _, _ = accepted(2.0 / first.min(), False)
    assert (turned.gamma < first).any() and (turned.limits < room.LONGER * room.FIRST).any()
    one = target()
    engine, found = measured(one)
    geometry = engine.geometry(one.initial, [])
    geometry.corrected(found.mean)
    geometry.refused()
    np.testing.assert_allclose(engine.evaluator.limits, room.FIRST * room.SHORTER)


# -- the step -------------------------------------------------------------------------


@pytest.mark.parametrize("radius", [1e-6, 1e-2, 1.0])
def test_a_step_stays_within_the_radius_and_its_slope_is_the_bounds(radius):
    one = target()
    engine, found = measured(one)
    geometry = engine.geometry(one.initial, [])
    corrected = geometry.corrected(found.mean).direction
    step = geometry.step(corrected, 1.0, radius)
    assert 0 <= step.length <= radius * (1 + 1e-12) and 0 < step.rho <= 1
    for part in shaped(step.change[2 * DIM :]):  # in their own units
        assert np.sqrt(np.mean(part**2)) <= room.FIRST * (1 + 1e-12)
    # The change is from the old parameters to the new ones.
    np.testing.assert_allclose(step.change[2 * DIM :], flat(step.place.ordinary))
    np.testing.assert_allclose(step.change[:DIM], step.place.loc)
    slope = found.mean.covector @ step.change
    assert step.slope == pytest.approx(slope)


def test_a_step_that_is_not_finite_leads_nowhere():
    one = target()
    engine, found = measured(one)
    geometry = engine.geometry(one.initial, [])
    corrected = geometry.corrected(found.mean).direction
    bad = corrected._replace(vector=np.where(np.arange(2 * DIM + SIZE) > 5, np.nan, 0.1))
    assert geometry.step(bad, 1.0, 1.0) is None


def test_an_inner_step_that_leads_nowhere_is_none():
    one = target()
    inner = one.engine()

    def geometry(place, pairs):
        found = inner.geometry(place, pairs)
        found.step = lambda *_: None
        return found

    engine = joint(Engine(one, Parameters(one), geometry))
    found = engine.evaluator.measure(one.initial, [None, None])
    where = engine.geometry(one.initial, [])
    assert where.step(where.corrected(found.mean).direction, 1.0, 1.0) is None
