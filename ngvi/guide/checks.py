"""Checks of a model before the first step, said in terms of its sites."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ngvi._warn import warn
from ngvi.errors import (
    DiscreteLatentError,
    InvalidStartError,
    check_broadcast,
    complex_density,
    no_density,
)


def warn_of_rule(guide: Any, optim: Any) -> None:
    """Warn of a rule or a family for which minibatches are too noisy or too many.

    :param optim: of the ``SVI`` that sets the guide up.
    """
    is_part = any(size != visited for size, visited in guide._plates.values())
    if guide._has_plates and is_part and getattr(optim, "wanders", False):
        warn(
            "Snngm() does not converge with latents in a subsampled plate: standard deviations of "
            "the other latents keep rising and falling. Write BLR() with NaturalELBO()."
        )
    is_dense = guide._requested_family is None and guide.family.couples() == "all"
    if is_part and is_dense and is_network(guide):
        warn(
            "family='auto' is a dense Gaussian here, but the latents look like the weights of a "
            "network, learned by minibatches. Write NaturalGaussianGuide(model, 'diagonal', "
            "init_scale=0.05), IVON() and NaturalELBO(1, 'stein'); or name the family."
        )


def is_network(guide: Any) -> bool:
    """Return whether latents are matrices whose rows or columns meet those of other latents.

    The outputs of a layer have a bias and the next layer's weights; those of a regression have a
    bias alone, and scales, which are positive.
    """
    trace = getattr(guide.prototype_trace, "nodes", guide.prototype_trace)
    real = [s for s in guide.sites if "real" in repr(trace[s.name]["fn"].support).lower()]
    shapes = [site.shape for site in real if not site.plates]
    for at, shape in enumerate(shapes):
        others = shapes[:at] + shapes[at + 1 :]
        for width in shape if len(shape) > 1 else ():
            if width > 1 and sum(len(one) for one in others if width in one) > 1:
                return True
    return False


def refuse_discrete(name: str, block: str) -> None:
    """Refuse a discrete latent that nobody enumerates.

    :param block: the call that hides it from a guide.
    :raises DiscreteLatentError: naming the site and the ways out.
    """
    raise DiscreteLatentError(
        f"Continuous inference cannot handle discrete sample site '{name}'. Mark it with "
        "infer={'enumerate': 'parallel'} (or config_enumerate) and use TraceEnum_ELBO "
        "(https://pyro.ai/examples/enumeration.html), hide it from the guide, "
        f"NaturalGaussianGuide({block}(model, hide=['{name}'])), or give its data."
    )


def check_observed(name: str, site: Mapping[str, Any], is_array: bool, way_out: str) -> None:
    """Refuse data that are no array, or of a shape that counts them several times.

    :param is_array: whether they are, for the PPL.
    :param way_out: what it takes.
    :raises TypeError: naming the site.
    :raises ValueError: for a shape, likewise.
    """
    if site["infer"].get("_deterministic"):  # in Pyro, whose plate expands what it holds
        return
    value, fn = site["value"], site["fn"]
    if not is_array:
        raise TypeError(f"Observed site '{name}' has a {type(value).__name__}, and {way_out}.")
    check_broadcast(name, tuple(getattr(value, "shape", ())), tuple(fn.shape()), fn.event_dim)


def without_density(sites: Iterable, xp: Any, inverse: Callable) -> tuple[list[str], bool]:
    """Describe the sites without a finite log density.

    :param sites: the sample sites of a trace, with their names before them.
    :param xp: torch or ``jax.numpy``.
    :param inverse: a site's unconstrained value.
    :return: these, and whether other values of enumerated latents may give a density.
    :raises ValueError: naming a site whose log density cannot be computed.
    """
    bad, is_possible = [], True
    for name, site in sites:
        value, fn, is_observed = site["value"], site["fn"], site["is_observed"]
        kind = "observed site" if is_observed else "latent site"
        shapes = tuple(getattr(value, "shape", ())), tuple(fn.shape())
        is_inside = is_observed or fn.support.is_discrete
        if not is_inside and not (shapes[0] == shapes[1] and xp.isfinite(inverse(site)).all()):
            what = f"no value of its distribution, of shape {shapes[1]}"
            bad.append(f"latent site '{name}' starts at {value}, {what}")
            is_possible = False
            continue
        try:
            log_prob = fn.log_prob(value)
        except Exception as error:
            if "within the support" in str(error):  # Pyro's own validation
                bad.append(f"{kind} '{name}': {error}")
                is_possible = False
                continue
            raise ValueError(no_density(name, *shapes, is_observed, error)) from error
        if "complex" in str(log_prob.dtype):
            raise ValueError(complex_density(name))
        total = log_prob.sum()
        if not xp.isfinite(log_prob).all():
            bad.append(f"{kind} '{name}' has log density {float(total)}")
            is_finite = bool(xp.isfinite(xp.asarray(value)).all())
            is_possible &= is_finite and not bool(xp.isnan(log_prob).any())
        elif not xp.isfinite(total * (1.0 if site["scale"] is None else site["scale"])).all():
            bad.append(f"the log density of {kind} '{name}' overflows in {log_prob.dtype}")
    return bad, is_possible


def invalid_start(bad: list[str]) -> InvalidStartError:
    """Make the error of a start without a finite bound.

    :param bad: as :func:`without_density` has it.
    """
    why = "; ".join(bad) or "its value or its gradient is not finite"
    return InvalidStartError(
        f"The bound is not finite at the guide's starting point: {why}. Check the data and the "
        "priors, or start elsewhere with init_loc_fn=init_to_value(values={...})."
    )
