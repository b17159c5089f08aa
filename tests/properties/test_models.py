"""Whatever the model and its data: a correct answer, or an error that names what is wrong."""

from __future__ import annotations

import math
import re
import warnings
from typing import Any

import numpy as np
import pytest

pytest.importorskip("hypothesis")

from hypothesis import given

from tests.ppl import load
from tests.properties.examples import examples
from tests.properties.wide import EVENTS, FAULTS, Spec, family_of, model_of, specs, tensors


def _by_svi(ppl: Any, spec: Spec) -> tuple[list, Any, dict]:
    """Numbers that must be finite, the guide, and medians by site."""
    model, given = model_of(ppl, spec), tensors(ppl, spec)
    svi = ppl.svi(model, ppl.guide(model, family_of(ppl, spec)), **given)
    losses = [svi.step() for _ in range(2)]
    return [losses, *svi.gaussian], svi.guide, svi.median()


def _by_fit(ppl: Any, spec: Spec) -> tuple[list, Any, dict]:
    model, given = model_of(ppl, spec), tensors(ppl, spec)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        result = ppl.fit(model, family=family_of(ppl, spec), max_steps=10, **given)
    # Of what has no start a report says which site it is, and there are no numbers.
    if not np.isfinite(result.bound):
        assert not result.converged
        raise ValueError(" ".join(str(one.message) for one in told))
    params = (result.params,) if ppl.is_numpyro else ()
    median = {name: ppl.numpy(x) for name, x in result.guide.median(*params).items()}
    posterior = result.guide.get_posterior(*params)
    numbers = [[result.bound], ppl.numpy(posterior.mean), ppl.numpy(posterior.variance)]
    return numbers, result.guide, median


def _check(ppl: Any, spec: Spec, learn: Any) -> None:
    ppl.forget()
    try:
        (numbers, guide, median), words = learn(ppl, spec), ""
    except (ValueError, TypeError, RuntimeError, NotImplementedError, IndexError) as error:
        words = str(error)
    if words:
        assert NAMED.search(words) or "density is not finite" in words, words
        return
    assert spec.fault not in ("nan", "inf") or spec.extras & {"mask", "obs_mask"}
    assert all(np.isfinite(part).all() for part in numbers)
    for number, latent in enumerate(spec.latents):
        if latent.wrapped == "reparam":  # its noise is the latent
            continue
        value, event = median[f"s{number}"], EVENTS[latent.kind]
        assert np.isfinite(value).all()
        assert value.size == math.prod((*event, *(spec.sizes[i] for i in latent.plates)))
        if latent.kind == "Dirichlet":
            np.testing.assert_allclose(value.sum(-1), 1.0)
    assert guide.latent_dim == sum(site.size for site in guide.sites)


#: A site or a plate of the model by its name, also in what the PPL itself says.
NAMED = re.compile(r"\b(s\d|y|y_\w*observed|k\d|p\d|rows|penalty)\b")

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
    @given(specs(("", "", *FAULTS)))
    def run(spec: Spec) -> None:
        if not (spec.fault == "empty" and spec.discrete):  # of which NumPyro's own words name none
            _check(ppl, spec, learn)

    with ppl.float64():
        run()
