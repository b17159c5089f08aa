"""Models and data at random, in the words of both PPLs."""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

#: Where a site's values live, and the shape of its event.
SUPPORTS = ("real", "positive", "interval", "simplex", "vector", "matrix", "empty")
LIKELIHOODS = ("normal", "bernoulli", "poisson")
#: What is done to the data.
FAULTS = ("none", "nan", "inf", "huge", "integers", "float32", "empty", "scalar")


class Site(NamedTuple):
    support: str
    plates: int  #: how many of the model's plates it is in
    follows: bool  #: whether its prior is around the site before


class Spec(NamedTuple):
    """A model, and its data."""

    sites: tuple[Site, ...]
    sizes: tuple[int, int]  #: of the plates, the second inside the first
    likelihood: str
    is_mixture: bool  #: whether each row has a component, to be enumerated
    fault: str
    family: str


def specs(faults: tuple[str, ...]) -> st.SearchStrategy[Spec]:
    sites = st.builds(Site, st.sampled_from(SUPPORTS), st.integers(0, 2), st.booleans())
    return st.builds(
        Spec,
        st.lists(sites, min_size=1, max_size=3).map(tuple),
        st.tuples(st.integers(1, 3), st.integers(1, 2)),
        st.sampled_from(LIKELIHOODS),
        st.booleans(),
        st.sampled_from(faults),
        st.sampled_from(("auto", "diagonal", "full", "sparse_precision", "block_diagonal")),
    )


def data(spec: Spec) -> np.ndarray:
    """The responses, four of them but for a fault."""
    y = np.array([0.0, 1.0, 1.0, 0.0])
    if spec.fault in ("nan", "inf", "huge"):
        y[1] = {"nan": np.nan, "inf": np.inf, "huge": 1e30}[spec.fault]
    if spec.fault in ("integers", "float32"):
        y = y.astype(int if spec.fault == "integers" else np.float32)
    return {"empty": y[:0], "scalar": y[1]}.get(spec.fault, y)


def model_of(ppl: Any, spec: Spec) -> Any:
    dist = ppl.dist

    def prior(site, centre):
        plain = dist.Normal(centre, 1.0)
        if site.support in ("vector", "matrix", "empty"):
            shape = {"vector": (2,), "matrix": (2, 1), "empty": (0,)}[site.support]
            return dist.Normal(ppl.array(np.zeros(shape)), 1.0).to_event(len(shape))
        if site.support == "simplex":
            return dist.Dirichlet(ppl.array(np.full(3, 2.0)))
        transforms = {
            "real": lambda: plain,
            "positive": lambda: dist.LogNormal(centre, 0.5),
            "interval": lambda: dist.Uniform(ppl.array(-1.0), ppl.array(2.0)),
        }
        return transforms[site.support]()

    def model(y):
        centre = total = ppl.array(0.0)
        for number, site in enumerate(spec.sites):
            names = ("outer", "inner")[: site.plates]
            plates = [
                ppl.plate(f"{name}{number}", size, dim=-1 - place)
                for place, (name, size) in enumerate(zip(names, spec.sizes, strict=False))
            ]
            around = centre if site.follows else ppl.array(0.0)
            with contextlib.ExitStack() as stack:
                for plate in plates:
                    stack.enter_context(plate)
                value = ppl.sample(f"site{number}", prior(site, around))
            total = total + _sum(value, site)
            if site.plates == 0 and site.support in ("real", "positive", "interval"):
                centre = value
        with ppl.plate("data", len(y) if np.ndim(y) else 1):
            loc = total
            if spec.is_mixture:
                component = ppl.sample(
                    "component", dist.Bernoulli(ppl.array(0.4)), infer={"enumerate": "parallel"}
                )
                loc = loc + component
            ppl.sample("y", _likelihood(ppl, spec.likelihood, loc), obs=y)

    return model


def _sum(value: Any, site: Site) -> Any:
    """Of a site's elements, with dimensions of one where plates are."""
    for _ in range({"vector": 1, "simplex": 1, "empty": 1, "matrix": 2}.get(site.support, 0)):
        value = value.sum(axis=-1)
    for plate in range(site.plates):
        value = value.sum(axis=-1 - plate, keepdims=True)
    return value


def _likelihood(ppl: Any, name: str, loc: Any) -> Any:
    return {
        "normal": lambda: ppl.dist.Normal(loc, 1.0),
        "bernoulli": lambda: ppl.dist.Bernoulli(logits=loc),
        "poisson": lambda: ppl.dist.Poisson(ppl.np.exp(0.3 * loc)),
    }[name]()
