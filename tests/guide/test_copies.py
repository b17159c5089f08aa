"""Pickle, cloudpickle and deepcopy of every public object: the copy works, and the original too."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import numpy as np
import pytest

from tests.inference import results
from tests.ppl import load

cloudpickle = pytest.importorskip("cloudpickle")

Y = np.array([1.0, 2.0, 0.5, 1.5])

WAYS = {
    "pickle": lambda one: pickle.loads(pickle.dumps(one)),
    "cloudpickle": lambda one: cloudpickle.loads(cloudpickle.dumps(one)),
    "deepcopy": copy.deepcopy,
}


@dataclasses.dataclass(frozen=True)
class Model:
    """Of either PPL, and of a module, as pickle wants it."""

    name: str
    kind: str = "groups"

    def __call__(self, y):
        ppl = load(self.name)
        dist, one = ppl.dist, ppl.array(1.0)
        if self.kind == "conjugate":
            rate = ppl.sample("rate", dist.Gamma(2 * one, one))
            with ppl.plate("rows", len(y)):
                return ppl.sample("y", dist.Exponential(rate), obs=y)
        scale = ppl.sample("scale", dist.HalfNormal(one))
        if self.kind == "dynamic":
            effect = ppl.sample("effect", dist.Uniform(0 * one, scale))
            with ppl.plate("rows", len(y)):
                return ppl.sample("y", dist.Normal(effect, one), obs=y)
        with ppl.plate("groups", len(y)):
            effect = ppl.sample("effect", dist.Normal(0 * one, scale))
            return ppl.sample("y", dist.Normal(effect, one), obs=y)


def _guide(ppl, kind):
    model = Model(ppl.name, "groups" if kind in ("natural", "reparametrized") else kind)
    if kind == "reparametrized":
        return model, ppl.package.ReparametrizedGaussianGuide(model)
    if kind == "conjugate":
        return model, ppl.module("conjugate").ConjugateGuide(model, {"rate": "gamma"})
    return model, ppl.guide(model)


@pytest.mark.fast_in_numpyro("reparametrized")
@pytest.mark.parametrize("kind", ["natural", "reparametrized", "dynamic", "conjugate"])
def test_a_guide_and_its_copies_draw_alike(ppl, kind):
    _, guide = _guide(ppl, kind)
    y = ppl.array(Y)
    ppl.set_up(guide, y)
    drawn = ppl.call(guide, y)
    for one in (*(way(guide) for way in WAYS.values()), guide):
        again = ppl.call(one, y)
        for name, value in drawn.items():
            np.testing.assert_array_equal(ppl.numpy(value), ppl.numpy(again[name]))


@pytest.mark.fast_in_numpyro("reparametrized")
@pytest.mark.parametrize("kind", ["natural", "reparametrized", "conjugate"])
def test_a_guide_that_is_not_set_up_and_its_copies_can_be(ppl, kind):
    _, guide = _guide(ppl, kind)
    for one in (*(way(guide) for way in WAYS.values()), guide):
        ppl.forget()
        ppl.set_up(one, ppl.array(Y))


def test_a_guide_of_a_function_in_a_function_is_refused_by_pickle_and_stays_as_it_is(ppl):
    def model(y):
        return Model(ppl.name)(y)

    guide = ppl.package.ReparametrizedGaussianGuide(model)
    y = ppl.array(Y)
    ppl.set_up(guide, y)
    with pytest.raises((AttributeError, pickle.PicklingError), match="model"):
        pickle.dumps(guide)
    ppl.call(guide, y)
    ppl.call(WAYS["cloudpickle"](guide), y)


@pytest.mark.fast_in_numpyro("natural")
@pytest.mark.parametrize("kind", ["natural", "reparametrized"])
def test_a_result_and_its_copies_give_the_same_draws(ppl, kind):
    model, guide = _guide(ppl, kind)
    result = results.result(ppl, model, (ppl.array(Y),), guide=guide)

    def draws(one):
        if not ppl.is_numpyro:
            ppl.np.manual_seed(0)
        drawn = one.sample(5) | one.predictive(num_samples=5)
        return {name: ppl.numpy(value) for name, value in drawn.items()}

    expected = draws(result)
    for way in WAYS.values():
        again = way(result)
        for name, value in draws(again).items():
            np.testing.assert_array_equal(value, expected[name])
        assert again.bound == result.bound and repr(again) == repr(result)
    draws(result)


@pytest.mark.fast_in_numpyro("BLR")
@pytest.mark.parametrize("rule", ["BLR", "Snngm"])
def test_a_run_and_its_copies_take_the_same_steps(ppl, rule):
    """With a parameter of the model's own, and the state of its optimiser."""
    model, y = WithParameter(ppl.name), ppl.array(Y)
    optimiser = getattr(ppl.package, rule)()
    if ppl.is_numpyro:
        import jax

        options = {"rng_key": jax.random.key(0)}
    else:
        options = {}
    run = ppl.package.SVI(model, ppl.guide(model), optimiser, ppl.elbo(), **options)

    def steps(one):
        if not ppl.is_numpyro:
            ppl.np.manual_seed(1)
        return [float(one.step(y)) for _ in range(2)]

    steps(run)
    store = ppl.lib.get_param_store() if not ppl.is_numpyro else None
    saved = store and copy.deepcopy(store.get_state())
    copies = [way(run) for way in WAYS.values()]
    expected = steps(run)
    for one in copies:
        if store is not None:
            ppl.forget()
            store.set_state(copy.deepcopy(saved))
        assert steps(one) == expected


@dataclasses.dataclass(frozen=True)
class WithParameter:
    name: str

    def __call__(self, y):
        ppl = load(self.name)
        shift = ppl.param("shift", ppl.array(0.1))
        mean = ppl.sample("mean", ppl.dist.Normal(shift, ppl.array(1.0)))
        with ppl.plate("rows", len(y)):
            ppl.sample("y", ppl.dist.Normal(mean, ppl.array(1.0)), obs=y)
