"""Whatever the model and its data: a correct answer, or an error that names what is wrong."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest

pytest.importorskip("hypothesis")

from hypothesis import given

from tests.ppl import load
from tests.properties.examples import examples
from tests.properties.models import FAULTS, Spec, data, model_of, specs

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


class _Learned(NamedTuple):
    losses: list[float]
    gaussian: list[np.ndarray]  #: the numbers of it
    median: dict[str, np.ndarray]
    dim: int


def _by_svi(ppl, spec: Spec, model, y) -> _Learned:
    svi = ppl.svi(model, ppl.guide(model, spec.family), args=(y,))
    losses = [svi.step(y) for _ in range(2)]
    return _Learned(losses, [*svi.gaussian], svi.median(), svi.guide.latent_dim)


def _by_fit(ppl, spec: Spec, model, y) -> _Learned:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        result = ppl.fit(model, y, family=spec.family, max_steps=10)
    # Of what has no start a report says which site it is, and there are no numbers.
    if not np.isfinite(result.bound):
        assert not result.converged
        raise ValueError(" ".join(str(one.message) for one in told))
    params = (result.params,) if ppl.is_numpyro else ()
    median = {name: ppl.numpy(x) for name, x in result.guide.median(*params).items()}
    family = result.guide.get_posterior(*params)
    gaussian = [ppl.numpy(family.mean), ppl.numpy(family.variance)]
    return _Learned([result.bound], gaussian, median, result.guide.latent_dim)


def _check(ppl, spec: Spec, learn: Callable = _by_svi) -> None:
    ppl.forget()
    model, y = model_of(ppl, spec), _own(ppl, data(spec))
    try:
        found, refusal = learn(ppl, spec, model, y), None
    except (ValueError, TypeError, RuntimeError) as error:
        refusal = error
    if refusal is not None:
        assert _raised_by(spec, refusal), refusal
        return
    assert spec.fault not in ("nan", "inf")
    assert np.isfinite(found.losses).all()
    assert all(np.isfinite(part).all() for part in found.gaussian)
    median = found.median
    for number, site in enumerate(spec.sites):
        value = median[f"site{number}"]
        assert np.isfinite(value).all()
        assert value.shape == _shape(site, spec.sizes)
        if site.support == "simplex":
            np.testing.assert_allclose(value.sum(-1), 1.0)
    sizes = {"simplex": 2, "vector": 2, "matrix": 2, "empty": 0}
    elements = [math.prod(spec.sizes[: site.plates]) for site in spec.sites]
    dims = [n * sizes.get(site.support, 1) for n, site in zip(elements, spec.sites, strict=True)]
    assert found.dim == sum(dims)


def _shape(site, sizes: tuple[int, int]) -> tuple[int, ...]:
    event = {"simplex": (3,), "vector": (2,), "matrix": (2, 1), "empty": (0,)}
    return (*sizes[: site.plates][::-1], *event.get(site.support, ()))


#: How many models by package; NumPyro compiles each.
COUNTS = [
    ("pyro", _by_svi, 120),
    ("numpyro", _by_svi, 12),
    ("pyro", _by_fit, 20),
    ("numpyro", _by_fit, 4),
]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name, learn, count", COUNTS)
def test_any_model_is_learned_or_refused_by_name(name, learn, count):
    ppl = load(name)

    @examples(count)
    @given(specs(FAULTS))
    def run(spec: Spec) -> None:
        _check(ppl, spec, learn)

    with ppl.float64():
        run()
