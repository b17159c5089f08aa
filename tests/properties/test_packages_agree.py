"""Whatever the model: both packages see the same latents, density and family."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from ngvi.estimators.choice import CURVATURES

pytest.importorskip("hypothesis")

from hypothesis import given, strategies

from tests.ppl import PPLS, load
from tests.properties.agreement import (
    NUM_POINTS,
    Refused,
    compared,
    densities,
    first_step,
    guide_of,
    layout_of,
)
from tests.properties.examples import examples
from tests.properties.wide import FAULTS, Latent, Spec, specs

#: Much of what a model may be made of, in few models, for each takes seconds to compile.
EXAMPLES = {
    "nested plates": Spec(
        sizes=(2, 1, 3),
        dims=(-1, -3, -2),
        latents=(
            Latent("StudentT", ()),
            Latent("Gamma", (0,), parent=0, wrapped="scale"),
            Latent("Normal", (0, 2), parent=1, wrapped="reparam"),
            Latent("LKJCholesky", (1,)),
        ),
        plates=(0,),
        extras=frozenset({"obs_mask", "covariate"}),
        family="sparse_precision",
        seed=1,
    ),
    "enumeration": Spec(
        sizes=(2, 3),
        dims=(-2, -1),
        latents=(Latent("Ordered", (0,)), Latent("Beta", (1,), wrapped="mask")),
        likelihood="Poisson",
        plates=(0,),
        discrete=((), (1,)),
        extras=frozenset({"mask", "deterministic", "factor", "param"}),
        seed=2,
    ),
    "minibatch": Spec(
        sizes=(2, 4),
        dims=(-1, -2),
        latents=(Latent("Dirichlet", ()), Latent("Matrix", (0,)), Latent("Empty", ())),
        likelihood="Bernoulli",
        visited=3,
        extras=frozenset({"scale"}),
        family="block_diagonal",
        seed=3,
    ),
}


def _what_it_is(spec: Spec):
    def run(ppl):
        model, guide, data = guide_of(ppl, spec)
        rng = np.random.default_rng(spec.seed)
        theta = 0.5 * rng.normal(size=(NUM_POINTS, guide.latent_dim))
        return {**layout_of(guide), **densities(ppl, model, guide, data, theta)}

    return run


def _packages():
    return [load(name) for name in PPLS]


@pytest.mark.parametrize(
    "name",
    [
        "minibatch",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("nested plates", "enumeration")),
    ],
)
def test_both_packages_see_the_same_model(name):
    spec = EXAMPLES[name]
    found, differences = compared(_what_it_is(spec), _packages(), "float64")
    assert not any(isinstance(one, Refused) for one in found), found
    assert not differences


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "count"), [("float64", 6), ("float32", 2)])
def test_both_packages_see_the_same_in_any_model_or_refuse_it_by_name(dtype, count):
    packages = _packages()

    @examples(count)
    @given(specs(("", "", *FAULTS)))
    def run(spec: Spec) -> None:
        found, differences = compared(_what_it_is(spec), packages, dtype)
        refused = [one for one in found if isinstance(one, Refused)]
        if spec.fault == "integers" and spec.likelihood == "Bernoulli" and len(refused) == 1:
            # torch's own Bernoulli has no density at integers, where JAX's has.
            assert isinstance(found[PPLS.index("pyro")], Refused) and "y" in refused[0].named
            return
        assert not differences

    run()


def _as_it_is(latent: Latent) -> Latent:
    return dataclasses.replace(latent, wrapped=latent.wrapped.replace("reparam", ""))


@pytest.mark.slow
def test_both_packages_take_the_same_first_step_in_any_model():
    packages = _packages()

    @examples(6)
    @given(specs(), strategies.sampled_from(CURVATURES[1:]))
    def run(spec: Spec, curvature: str) -> None:
        # Pyro starts what is reparametrized where the site itself would be, NumPyro its noise.
        spec = dataclasses.replace(spec, latents=tuple(map(_as_it_is, spec.latents)))

        def step(ppl):
            with pytest.MonkeyPatch.context() as patch:
                return first_step(ppl, spec, curvature, patch)

        assert not compared(step, packages, "float64")[1]

    run()
