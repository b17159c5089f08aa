"""Whatever the model and its data: a correct answer, or an error that names what is wrong."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

pytest.importorskip("hypothesis")

from hypothesis import HealthCheck, given, settings

from tests.ppl import load
from tests.properties.models import FAULTS, Spec, data, model_of, specs

#: The same examples in every run.
OPTIONS = {
    "derandomize": True,
    "deadline": None,
    "database": None,
    "suppress_health_check": list(HealthCheck),
}
#: A site or a plate of the model by its name.
NAMED = re.compile(r"\b(site\d|y|data)\b")


def _raised_by(spec: Spec, error: Exception) -> bool:
    """Whether an error is one that the model or its data deserve."""
    if not NAMED.search(str(error)):
        return False
    nothing_to_do = all(site.support == "empty" for site in spec.sites)
    return nothing_to_do or spec.fault not in ("none", "scalar", "float32")


def _own(ppl, y):
    """The data with their own type."""
    name = "torch" if ppl.name == "pyro" else "jax.numpy"
    module = __import__(name, fromlist=["asarray"])
    return module.asarray(y)


def _check(ppl, spec: Spec) -> None:
    ppl.forget()
    model, y = model_of(ppl, spec), _own(ppl, data(spec))
    refusal = None
    try:
        guide = ppl.guide(model, spec.family)
        svi = ppl.svi(model, guide, args=(y,))
        losses = [svi.step(y) for _ in range(2)]
        median = svi.median()
    except (ValueError, TypeError, RuntimeError) as error:
        refusal = error
    if refusal is not None:
        assert _raised_by(spec, refusal), refusal
        return
    assert spec.fault not in ("nan", "inf")
    assert np.isfinite(losses).all()
    assert all(np.isfinite(part).all() for part in svi.gaussian)
    for number, site in enumerate(spec.sites):
        value = median[f"site{number}"]
        assert np.isfinite(value).all()
        assert value.shape == _shape(site, spec.sizes)
        if site.support == "simplex":
            np.testing.assert_allclose(value.sum(-1), 1.0)
    sizes = {"simplex": 2, "vector": 2, "matrix": 2, "empty": 0}
    elements = [math.prod(spec.sizes[: site.plates]) for site in spec.sites]
    dims = [n * sizes.get(site.support, 1) for n, site in zip(elements, spec.sites, strict=True)]
    assert guide.latent_dim == sum(dims)


def _shape(site, sizes: tuple[int, int]) -> tuple[int, ...]:
    event = {"simplex": (3,), "vector": (2,), "matrix": (2, 1), "empty": (0,)}
    return (*sizes[: site.plates][::-1], *event.get(site.support, ()))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_any_model_is_learned_or_refused_by_name_pyro():
    ppl = load("pyro")

    @settings(max_examples=120, **OPTIONS)
    @given(specs(FAULTS))
    def run(spec: Spec) -> None:
        _check(ppl, spec)

    with ppl.float64():
        run()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_any_model_is_learned_or_refused_by_name_numpyro():
    ppl = load("numpyro")

    @settings(max_examples=12, **OPTIONS)  # each is compiled
    @given(specs(FAULTS))
    def run(spec: Spec) -> None:
        _check(ppl, spec)

    with ppl.float64():
        run()
