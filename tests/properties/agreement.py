"""What the two packages make of one :class:`~tests.properties.wide.Spec`, side by side."""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ngvi.families.points import spherical_points
from tests.properties.wide import Spec, family_of, model_of, tensors

#: A site or a plate of the model by its name.
NAMED = re.compile(r"'(s\d\w*|y\w*|k\d|p\d|rows|penalty)'")
#: Relative rounding errors that may differ.
TOLERANCE = {"float64": 1e-7, "float32": 3e-3}
NUM_POINTS = 3
#: Rounding of squares of gradients, in units of theirs.
UNITS = 4.0


class Refused(NamedTuple):
    """An error, and the sites that it names."""

    kind: str
    named: frozenset[str]
    text: str


def _refusal(error: Exception) -> Refused:
    return Refused(type(error).__name__, frozenset(NAMED.findall(str(error))), str(error))


def guide_of(ppl: Any, spec: Spec) -> tuple[Any, Any, dict[str, Any]]:
    """Model, guide and arguments; the guide is set up."""
    ppl.forget()
    model, data = model_of(ppl, spec), tensors(ppl, spec)
    guide = ppl.guide(model, family_of(ppl, spec), init_loc_fn=functools.partial(_start, ppl))
    ppl.set_up(guide, **data)
    return model, guide, data


def _start(ppl: Any, site: dict[str, Any] | None = None) -> Any:
    """The same in both, near zero on the unconstrained scale and not at what is special there."""
    if site is None:
        return functools.partial(_start, ppl)
    if site["type"] != "sample" or site["is_observed"]:
        return None
    shape = tuple(site["fn"].shape())
    if ppl.is_numpyro:
        from numpyro.distributions.transforms import biject_to
    else:
        from torch.distributions import biject_to
    transform = biject_to(site["fn"].support)
    shape = tuple(transform.inverse_shape(shape))
    values = 0.03 + 0.1 * np.cos(np.arange(np.prod(shape, dtype=int)) + len(site["name"]))
    return transform(ppl.array(values.reshape(shape)))


def layout_of(guide: Any) -> dict[str, Any]:
    """The guide's latents and its family, in plain words."""
    sites = {}
    for site in guide.sites:
        plates = {plate.axis: (plate.name, plate.size) for plate in site.plates}
        sites[site.name] = (site.start, site.shape, plates)
    text = re.sub(r"Guide\(.*?\[", "[", repr(guide))
    return {"sites": sites, "d": guide.latent_dim, "family": guide.family.name, "words": text}


def densities(ppl: Any, model: Any, guide: Any, data: dict, theta: np.ndarray) -> dict[str, Any]:
    """Log density, gradient and a product with the Hessian at some points."""
    return (_of_numpyro if ppl.is_numpyro else _of_pyro)(ppl, model, guide, data, theta)


def _of_numpyro(ppl: Any, model: Any, guide: Any, data: dict, theta: np.ndarray) -> dict[str, Any]:
    import jax
    import jax.numpy as jnp

    key = jax.random.key(0)
    params = {guide._parameter_name: guide._initial_posterior}
    site = f"_{guide.prefix}_latent"

    def run(points: Any, data: dict) -> dict[str, Any]:
        density = ppl.module("tracing").LogDensity(model, guide, (), data, key)

        def one(point: Any) -> Any:
            value = jax.value_and_grad(lambda point: density({site: point}, params, key))
            return jax.jvp(value, (point,), (jnp.cos(jnp.arange(point.size, dtype=point.dtype)),))

        (value, gradient), (_, product) = jax.vmap(one)(points)
        return {"value": value, "gradient": gradient, "Hessian": product}

    found = ppl.compiled(run)(ppl.array(theta), data)
    return {name: np.asarray(part, float) for name, part in found.items()}


def _of_pyro(ppl: Any, model: Any, guide: Any, data: dict, theta: np.ndarray) -> dict[str, Any]:
    import torch

    _, density = ppl.module("estimators").make_plan(model, guide, (), data, validate=False)
    (site,) = density.posteriors
    points = ppl.array(theta).requires_grad_()
    values = density({site: points})
    (gradient,) = torch.autograd.grad(values.sum(), points, create_graph=True)
    product = torch.zeros_like(points)
    if gradient.requires_grad:
        along = (gradient @ torch.cos(torch.arange(points.shape[1]).to(points))).sum()
        (product,) = torch.autograd.grad(along, points, materialize_grads=True)
    found = {"value": values, "gradient": gradient, "Hessian": product}
    return {name: part.detach().double().numpy() for name, part in found.items()}


def _draws(count: int, dim: int) -> np.ndarray:
    return np.random.default_rng([count, dim]).standard_normal((count, dim))


def first_step(ppl: Any, spec: Spec, curvature: str, monkeypatch: Any) -> dict[str, Any]:
    """``NaturalELBO`` of given draws, and where one step of ``BLR`` leads."""
    module = ppl.module("elbo.natural_elbo")

    def orthogonal(*args: Any) -> tuple[Any, Any]:
        dim, groups = args[1:3] if ppl.is_numpyro else args[:2]
        rng = np.random.default_rng([dim, groups])
        noise, weights = zip(*spherical_points(rng, dim, groups), strict=True)
        return ppl.array(np.concatenate(noise)), ppl.array(np.concatenate(weights) / groups)

    def normal(*args: Any, **options: Any) -> Any:
        if not ppl.is_numpyro:
            return ppl.array(_draws(args[0], args[1].shape[-1]))
        return ppl.array(np.concatenate([_draws(count, args[2]) for count in args[1]]))

    monkeypatch.setattr(module, "orthogonal_points", orthogonal)
    monkeypatch.setattr(module, "standard_normal", normal)
    model, guide, data = guide_of(ppl, spec)
    loss = ppl.elbo("NaturalELBO", num_particles=4, curvature=curvature)
    svi = ppl.svi(model, guide, ppl.optimiser("BLR"), loss, **data)
    value = svi.step()
    mean, covariance = svi.gaussian
    return {"loss": np.array(value), "mean": mean, "covariance": covariance}


def compared(run: Callable[[Any], Any], ppls: list[Any], dtype: str) -> tuple[list[Any], list[str]]:
    """What each package finds, and in what they differ.

    :param run: of a package; gives a dictionary of arrays and plain values.
    """
    found: list[Any] = []
    for ppl in ppls:
        with ppl.precision(dtype), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                found.append(run(ppl))
            except (ValueError, TypeError, RuntimeError, NotImplementedError, IndexError) as error:
                found.append(_refusal(error))
    return found, differences(*found, TOLERANCE[dtype], float(np.finfo(dtype).eps))


def differences(one: Any, other: Any, tolerance: float, eps: float) -> list[str]:
    """In words, of two findings of :func:`compared`.

    The Hessian of a sum over states is a difference of squares of gradients, whose rounding is no
    difference: with data of 1e30 it is 1e42 where the Hessian is 1e28.

    :param eps: the relative rounding error of a number.
    """
    if isinstance(one, Refused) or isinstance(other, Refused):
        if not (isinstance(one, Refused) and isinstance(other, Refused)):
            refused = one if isinstance(one, Refused) else other
            who = "first" if refused is one else "second"
            return [f"only the {who} refuses: {refused.kind}: {refused.text[:300]}"]
        nameless = [error for error in (one, other) if not error.named]
        return [f"no site is named: {error.kind}: {error.text[:300]}" for error in nameless]
    words = []
    for name, left in one.items():
        right = other[name]
        if not isinstance(left, np.ndarray):
            if left != right:
                words.append(f"{name}: {left} and {right}")
            continue
        if left.shape != right.shape:
            words.append(f"{name}: shapes {left.shape} and {right.shape}")
            continue
        finite = np.isfinite(left)
        if (finite != np.isfinite(right)).any():
            words.append(f"{name}: not finite in one only: {left.tolist()} and {right.tolist()}")
            continue
        size = np.abs(left[finite]).max(initial=1.0)
        if name == "Hessian":
            squares = np.square(one["gradient"][np.isfinite(one["gradient"])]).max(initial=0.0)
            size = max(size, UNITS * eps * squares / tolerance)
        error = np.abs(left - right)[finite].max(initial=0.0) / size
        if error > tolerance:
            words.append(f"{name}: differs by {error:.1e}: {left.tolist()} and {right.tolist()}")
    return words
