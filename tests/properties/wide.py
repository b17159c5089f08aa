"""Wider models at random, in the words of both PPLs: most of what a model may be made of.

A :class:`Spec` is plain data, from which :func:`model_of` makes the model of either PPL and
:func:`arguments` its data. The latents add up to one linear predictor.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
from typing import Any

import numpy as np
from hypothesis import strategies as st

#: By name, the shape of an event and a distribution about a centre; see :func:`_prior`.
EVENTS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(
        ("Normal", "StudentT", "Cauchy", "Laplace", "Gumbel", "LogNormal", "Gamma", "InverseGamma"),
        (),
    ),
    **dict.fromkeys(
        ("Exponential", "HalfNormal", "HalfCauchy", "Weibull", "Beta", "Uniform", "Pareto"), ()
    ),
    "Dirichlet": (3,),
    "MultivariateNormal": (2,),
    "Ordered": (3,),
    "LKJCholesky": (3, 3),
    "Matrix": (2, 2),
    "Empty": (0,),
    "Flat": (),
}
#: Those whose prior is about a latent before it.
LOCATED = ("Normal", "StudentT", "Cauchy", "Laplace", "Gumbel", "LogNormal", "Gamma")
LIKELIHOODS = ("Normal", "Bernoulli", "Poisson", "StudentT", "GammaPoisson", "Gamma", "Categorical")
DISCRETE = ("Bernoulli", "Poisson", "GammaPoisson", "Categorical")
FAMILIES = (
    "auto",
    "diagonal",
    "covariance_cholesky",
    "precision_cholesky",
    "precision",
    "block_diagonal",
    "sparse_precision",
    "low_rank",
)
#: What is done to the data, and what to a model.
FAULTS = ("nan", "inf", "huge", "outside", "integers", "other_float", "shape", "empty", "list")
DATA = "rows"


@dataclasses.dataclass(frozen=True)
class Latent:
    """A latent site."""

    kind: str
    plates: tuple[int, ...]  #: which of the model's plates it is in
    parent: int | None = None  #: around which of the latents before it its prior is
    wrapped: str = ""  #: ``"scale"``, ``"mask"``, ``"reparam"`` or nothing


@dataclasses.dataclass(frozen=True)
class Spec:
    """A model, and its data."""

    sizes: tuple[int, ...]  #: of the plates, of which the last is that of the rows
    dims: tuple[int, ...]  #: of the plates
    latents: tuple[Latent, ...]
    likelihood: str = "Normal"
    plates: tuple[int, ...] = ()  #: of the data, beside that of the rows
    discrete: tuple[tuple[int, ...], ...] = ()  #: the plates of enumerated latents
    visited: int = 0  #: how many rows a run visits, if not all
    extras: frozenset[str] = frozenset()
    fault: str = ""
    family: str = "auto"
    seed: int = 0


EXTRAS = ("deterministic", "factor", "param", "scale", "mask", "obs_mask", "covariate")


@st.composite
def specs(draw: Any, faults: tuple[str, ...] = ()) -> Spec:
    """Models whose sites fit into each other; data with one of these faults."""
    count = draw(st.integers(1, 4))
    sizes = (*(draw(st.integers(1, 3)) for _ in range(count - 1)), draw(st.integers(2, 5)))
    dims = tuple(draw(st.permutations([-1 - i for i in range(count)])))
    subsets = st.sets(st.integers(0, count - 1), max_size=3).map(lambda s: tuple(sorted(s)))
    latents: list[Latent] = []
    for _ in range(draw(st.integers(1, 4))):
        kind, plates = draw(st.sampled_from(sorted(EVENTS))), draw(subsets)
        around = [i for i, p in enumerate(latents) if set(p.plates) <= set(plates)]
        parent = None
        if kind in LOCATED and around and draw(st.booleans()):
            parent = draw(st.sampled_from(around))
        ways = ["", "", "", "scale", "mask"] + ["reparam"] * (kind == "Normal")
        latents.append(Latent(kind, plates, parent, draw(st.sampled_from(ways))))
    others = st.sets(st.integers(0, count - 2), max_size=2) if count > 1 else st.just(set())
    plates = tuple(sorted(draw(others)))
    within = st.sets(st.sampled_from((*plates, count - 1))).map(lambda s: tuple(sorted(s)))
    discrete = draw(st.lists(within, max_size=2)) if draw(st.integers(0, 2)) == 0 else []
    has_locals = any(count - 1 in latent.plates for latent in latents)
    visited = 0
    if draw(st.integers(0, 29 if has_locals else 3)) == 0:  # of which locals are refused
        visited = draw(st.integers(1, sizes[-1] - 1))
    likelihood = draw(st.sampled_from(LIKELIHOODS))
    extras = draw(st.sets(st.sampled_from(EXTRAS), max_size=3))
    if likelihood in DISCRETE and draw(st.integers(0, 9)):
        extras.discard("obs_mask")  # what is not observed is a latent, and discrete
    return Spec(
        sizes,
        dims,
        tuple(latents),
        likelihood,
        plates,
        tuple(discrete),
        visited,
        frozenset(extras),
        draw(st.sampled_from(faults)) if faults else "",
        draw(st.sampled_from(FAMILIES)),
        draw(st.integers(0, 99)),
    )


def _batch(spec: Spec, plates: tuple[int, ...], rows: int | None = None) -> tuple[int, ...]:
    """The shape of a batch in some plates."""
    sizes = (*spec.sizes[:-1], spec.sizes[-1] if rows is None else rows)
    shape = [1] * max([0, *(-spec.dims[i] for i in plates)])
    for i in plates:
        shape[spec.dims[i]] = sizes[i]
    return tuple(shape)


def arguments(spec: Spec) -> dict[str, Any]:
    """Numpy's; ``y`` may be anything if it is faulty."""
    rng = np.random.default_rng(spec.seed)
    last = len(spec.sizes) - 1
    rows = spec.visited or spec.sizes[-1]
    shape = _batch(spec, (*spec.plates, last), rows)
    top = 2 if spec.likelihood == "Bernoulli" else 3
    y = rng.integers(0, top, shape).astype(float)
    if spec.likelihood not in DISCRETE:
        y = rng.normal(size=shape)
    if spec.likelihood == "Gamma":
        y = np.exp(y)
    found: dict[str, Any] = {"y": _faulty(y, spec)}
    if "covariate" in spec.extras:
        found["x"] = rng.normal(size=shape)
    if "mask" in spec.extras or "obs_mask" in spec.extras:
        found["mask"] = rng.random(shape) < 0.7
    if spec.visited:
        found["indices"] = rng.permutation(spec.sizes[-1])[:rows]
    return found


def _faulty(y: np.ndarray, spec: Spec) -> Any:
    where = (0,) * y.ndim
    if spec.fault in ("nan", "inf", "huge", "outside"):
        y[where] = {"nan": np.nan, "inf": np.inf, "huge": 1e30, "outside": -1.5}[spec.fault]
    if spec.fault == "integers":
        return y.astype(int)
    if spec.fault == "shape":
        return np.concatenate([y, y], spec.dims[-1])
    if spec.fault == "empty":
        return y[..., :0]
    return y.tolist() if spec.fault == "list" else y


def family_of(ppl: Any, spec: Spec) -> Any:
    """What a guide of the model is given as ``family``."""
    if spec.family == "low_rank":
        return ppl.families.LowRankPrecision(rank=1)
    return ppl.family_class("precision") if spec.family == "precision" else spec.family


def tensors(ppl: Any, spec: Spec) -> dict[str, Any]:
    """The arguments with the arrays of the PPL."""
    found = arguments(spec)
    y, mask, indices = found.pop("y"), found.pop("mask", None), found.pop("indices", None)
    found = {name: ppl.array(value) for name, value in found.items()}
    if mask is not None:
        found["mask"] = ppl.array(mask, "bool" if not ppl.is_numpyro else bool)
    if indices is not None:
        found["indices"] = ppl.index(indices)
    if isinstance(y, np.ndarray):
        other = "float64" if ppl.float_type == "float32" else "float32"
        kind = other if spec.fault == "other_float" else ppl.float_type
        is_whole = spec.fault == "integers" or spec.likelihood == "Categorical"
        y = ppl.array(y, "int64" if is_whole and np.isfinite(y).all() else kind)
    return {"y": y, **found}


def model_of(ppl: Any, spec: Spec) -> Any:
    """The model; its site ``n`` is ``s<n>``, its plate ``n`` is ``p<n>``."""
    dist, handlers, last = ppl.dist, ppl.handlers, len(spec.sizes) - 1

    def plate(number: int, indices: Any) -> Any:
        size, dim = spec.sizes[number], spec.dims[number]
        if number < last:
            return ppl.plate(f"p{number}", size, dim=dim)
        if indices is None:
            return ppl.plate(DATA, size, dim=dim)
        if ppl.is_numpyro:
            with handlers.substitute(data={DATA: indices}):
                return ppl.plate(DATA, size, subsample_size=len(indices), dim=dim)
        return ppl.plate(DATA, size, subsample=indices, dim=dim)

    def model(y: Any, x: Any = None, mask: Any = None, indices: Any = None) -> None:
        plates = [plate(number, indices) for number in range(len(spec.sizes))]

        def inside(numbers: tuple[int, ...]) -> contextlib.ExitStack:
            stack = contextlib.ExitStack()
            for number in numbers:
                stack.enter_context(plates[number])
            return stack

        values: list[Any] = []
        total = ppl.array(0.0)
        if "param" in spec.extras:
            positive = dist.constraints.positive
            total = total + 0.1 * ppl.param("shift", ppl.array(1.5), constraint=positive)
        for number, latent in enumerate(spec.latents):
            centre = ppl.array(0.2) if latent.parent is None else values[latent.parent]
            with inside(latent.plates), _wrapped(ppl, latent, number):
                value = ppl.sample(f"s{number}", _prior(ppl, latent.kind, centre))
            values.append(_summed(ppl, value, len(EVENTS[latent.kind])))
            part = values[-1]
            gone = [i for i in latent.plates if i not in (*spec.plates, last)]
            for i in gone:
                part = part.sum(axis=spec.dims[i], keepdims=True)
            if "covariate" in spec.extras and number % 2:
                part = part * x
            total = total + (0.5 + 0.1 * number) * part
        for number, numbers in enumerate(spec.discrete):
            with inside(numbers):
                ways = dist.Categorical(ppl.array([0.2, 0.3, 0.5]))
                how = {"enumerate": "parallel"}
                total = total + 0.7 * ppl.sample(f"k{number}", ways, infer=how)
        if "deterministic" in spec.extras:
            total = ppl.deterministic("predictor", total)
        if "factor" in spec.extras:
            ppl.factor("penalty", -0.1 * (values[0] ** 2).sum())
        with contextlib.ExitStack() as stack:
            stack.enter_context(inside((*spec.plates, last)))
            if "scale" in spec.extras:
                stack.enter_context(handlers.scale(scale=2.5))
            options = {}
            if "obs_mask" in spec.extras:
                options["obs_mask"] = mask
            elif "mask" in spec.extras:
                stack.enter_context(handlers.mask(mask=mask))
            ppl.sample("y", _likelihood(ppl, spec.likelihood, total), obs=y, **options)

    return model


def _wrapped(ppl: Any, latent: Latent, number: int) -> Any:
    handlers = ppl.handlers
    if latent.wrapped == "scale":
        return handlers.scale(scale=0.6)
    if latent.wrapped == "mask":
        return handlers.mask(mask=ppl.array(True, "bool" if not ppl.is_numpyro else bool))
    if latent.wrapped == "reparam":
        reparam = importlib.import_module(f"{ppl.name}.infer.reparam").LocScaleReparam(0.0)
        return handlers.reparam(config={f"s{number}": reparam})
    return contextlib.nullcontext()


def _prior(ppl: Any, kind: str, c: Any) -> Any:
    dist, array = ppl.dist, ppl.array
    exp = functools.partial(lambda x: ppl.np.exp(0.3 * x))
    one, two = array(1.0), array(2.0)
    made = {
        "Normal": lambda: dist.Normal(c, 0.8 * one),
        "StudentT": lambda: dist.StudentT(4.0 * one, c, one),
        "Cauchy": lambda: dist.Cauchy(c, one),
        "Laplace": lambda: dist.Laplace(c, one),
        "Gumbel": lambda: dist.Gumbel(c, one),
        "LogNormal": lambda: dist.LogNormal(0.3 * c, 0.5 * one),
        "Gamma": lambda: dist.Gamma(two, exp(c)),
        "InverseGamma": lambda: dist.InverseGamma(3.0 * one, two),
        "Exponential": lambda: dist.Exponential(two),
        "HalfNormal": lambda: dist.HalfNormal(two),
        "HalfCauchy": lambda: dist.HalfCauchy(one),
        "Weibull": lambda: dist.Weibull(two, 1.5 * one),
        "Beta": lambda: dist.Beta(two, 3.0 * one),
        "Uniform": lambda: dist.Uniform(-one, two),
        "Pareto": lambda: dist.Pareto(one, 3.0 * one),
        "Dirichlet": lambda: dist.Dirichlet(array([1.0, 2.0, 3.0])),
        "MultivariateNormal": lambda: dist.MultivariateNormal(
            array([0.0, 0.5]), array([[1.0, 0.4], [0.4, 2.0]])
        ),
        "Ordered": lambda: dist.TransformedDistribution(
            dist.Normal(array(np.zeros(3)), one).to_event(1), dist.transforms.OrderedTransform()
        ),
        "LKJCholesky": lambda: dist.LKJCholesky(3, 1.5 * one),
        "Matrix": lambda: dist.Normal(array(np.zeros((2, 2))), two).to_event(2),
        "Empty": lambda: dist.Normal(array(np.zeros(0)), one).to_event(1),
        "Flat": lambda: dist.ImproperUniform(dist.constraints.real, (), ()),
    }
    return made[kind]()


def _summed(ppl: Any, value: Any, event_dim: int) -> Any:
    """A number for each element of plates, of which no element of the event counts alike."""
    for _ in range(event_dim):
        size = value.shape[-1]
        value = (value * ppl.array(np.linspace(0.5, 1.0, size))).sum(axis=-1)
    return value


def _likelihood(ppl: Any, name: str, loc: Any) -> Any:
    dist, exp = ppl.dist, lambda x: ppl.np.exp(0.3 * x)
    one = ppl.array(1.0)
    made = {
        "Normal": lambda: dist.Normal(loc, one),
        "StudentT": lambda: dist.StudentT(3.0 * one, loc, one),
        # At logits of exactly zero NumPyro's derivative is not that of either side.
        "Bernoulli": lambda: dist.Bernoulli(logits=loc + 0.1),
        "Poisson": lambda: dist.Poisson(exp(loc)),
        "GammaPoisson": lambda: dist.GammaPoisson(2.0 * one, exp(loc)),
        "Gamma": lambda: dist.Gamma(2.0 * one, exp(loc)),
        "Categorical": lambda: dist.Categorical(
            logits=loc[..., None] * ppl.array([-1.0, 0.0, 1.0])
        ),
    }
    return made[name]()
