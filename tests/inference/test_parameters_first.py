"""Many parameters of the model's own move with every pair of draws, before all else."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ngvi.inference.independent import Independent
from ngvi.inference.parameters_first import MANY, NUM_PAIRS, RATE, ParametersFirst, has_many
from ngvi.inference.progress import Progress
from ngvi.inference.settings import OutOfTime, Settings
from ngvi.inference.stochastic import PLATEAU
from ngvi.inference.sweep import Rows, sweeping
from tests.inference.numpy_engine import Place, Target, divergence

CENTRE, SCALE = np.array([1.0, -1.0]), np.array([0.3, 2.0])
WEIGHTS = np.linspace(-1.0, 1.0, MANY)


def quadratic(value):
    return -50.0 * np.sum((value - WEIGHTS) ** 2), 100.0 * (WEIGHTS - value)


class Recorded(Target):
    """One that lists the parameters it is asked at."""

    def measure(self, place, draws):
        seen.append((place, draws))
        return Target.measure(self, place, draws)


seen: list = []


def first(**options):
    seen.clear()
    options = {"of_ordinary": quadratic, "of_start": np.zeros(MANY)} | options
    target = Recorded(CENTRE, SCALE, **options)
    one = Independent(
        target.engine(), np.random.default_rng(0), Settings(0.05, 1000), Progress(1000, False), 0
    )
    return one, target


@pytest.mark.parametrize("size", [0, 1, MANY - 1, MANY])
def test_parameters_are_many_from_eleven_numbers_on(size):
    options = {"of_ordinary": quadratic, "of_start": np.zeros(size)} if size else {}
    assert has_many(Target(CENTRE, SCALE, **options).engine()) is (size >= MANY)


def test_parameters_move_with_every_pair_and_the_gaussian_once_in_eight():
    one, target = first()
    assert isinstance(one.search, ParametersFirst)
    one.search.limit = 3
    one.search.run(target.initial)
    assert len(seen) == 3 * NUM_PAIRS and len(one.search.trace) == 3
    assert all(len(draws) == 1 and draws[0].is_rough for _, draws in seen)
    assert len({place.ordinary.tobytes() for place, _ in seen}) == 3 * NUM_PAIRS
    assert len({place.loc.tobytes() for place, _ in seen}) == 3


def test_parameters_and_gaussian_come_to_their_optimum():
    one, target = first(noise=1.0)
    one.search.run(target.initial)
    place = one.search.place
    np.testing.assert_allclose(place.ordinary, WEIGHTS, atol=0.02)
    assert divergence(place, Place(CENTRE, np.log(SCALE))) < 0.3
    assert one.search.num_plateaus > 0 and one.search.ordinary_step_size < RATE


@pytest.mark.parametrize("gain", [0.0, 1.0])
def test_the_rate_falls_where_nothing_has_been_gained_at_it(gain):
    search = first()[0].search
    noise = np.random.default_rng(0).standard_normal(2 * PLATEAU)
    search.trace.losses += list(noise - gain * np.arange(2 * PLATEAU))
    search._look_for_plateau()
    assert search.num_plateaus == (gain == 0.0)
    assert (search.ordinary_step_size < RATE) is (gain == 0.0)


def test_from_where_there_is_no_bound_they_go_back_and_on_by_shorter_steps():
    """A wall on the way, over which the first steps lead."""

    def change(place, value):
        return math.nan if np.abs(place.ordinary).max() > 1.01 else value

    one, target = first(change=change)
    one.search.ordinary_step_size = 0.6
    one.search.run(target.initial)
    np.testing.assert_allclose(one.search.place.ordinary, WEIGHTS, atol=0.1)
    assert one.search.ordinary_step_size < 0.6


def test_where_a_sweep_sees_all_rows_a_rough_group_sees_one_minibatch():
    class Swept(Target):
        asked = ()

        def measure(self, place, draws, rows=None):
            self.asked += (rows,)
            return Target.measure(self, place, draws)

    target = Swept(CENTRE, SCALE, is_subsampled=True, rows=Rows("rows", 12, 4))
    engine = sweeping(target.engine())
    draws = engine.evaluator.draws(np.random.default_rng(0), 2)
    engine.evaluator.measure(target.initial, draws)
    assert len(target.asked) == 6 and not any(rows is None for rows in target.asked)
    target.asked = ()
    engine.evaluator.measure(target.initial, [one._replace(is_rough=True) for one in draws])
    assert target.asked == (None, None)


# -- models ---------------------------------------------------------------------------


def network(ppl, x, y, size=40):
    """Its mean is a network, of whose rows a tenth is seen at a time."""
    rng, positive = np.random.default_rng(0), ppl.dist.HalfNormal(1.0)
    first = ppl.param("first", ppl.array(rng.normal(size=20)))
    bias = ppl.param("bias", ppl.array(rng.normal(size=20)))
    second = ppl.param("second", ppl.array(0.1 * rng.normal(size=20)))
    sigma = ppl.sample("sigma", positive)
    with ppl.plate("rows", len(x), subsample_size=size) as rows:
        mean = ppl.np.tanh(x[rows][:, None] * first + bias) @ second
        ppl.sample("y", ppl.dist.Normal(mean, sigma), obs=y[rows])


def test_a_network_is_far_on_its_way_after_as_many_gradients_as_stock_svi_would_take(ppl):
    """A straight line leaves a noise of 0.7, at which the bound is about -430."""
    rng = np.random.default_rng(1)
    x = rng.uniform(-2.0, 2.0, 400)
    y = np.sin(3.0 * x) + 0.1 * rng.normal(size=400)

    def callback(step, bound, distance):
        if step == 60:
            raise OutOfTime

    def model(x, y):
        network(ppl, x, y)

    with pytest.warns(UserWarning, match="not converged"):
        result = ppl.fit(model, ppl.array(x), ppl.array(y), callback=callback)
    assert result.bound > -100.0
    assert result.num_gradients < 1_200
