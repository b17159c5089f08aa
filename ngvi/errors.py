"""Checks of arguments, and errors of both packages.

``check_...`` refuse an argument by its name, and return the value that they let through. They raise
``ValueError`` for a value and ``TypeError`` for a type. A schedule, a callable from the number of
steps taken, stands for its values, which nobody checks. Functions without a verb return the text of
an error that a package raises.
"""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ngvi._warn import warn


class InvalidStartError(ValueError):
    """The log density is not finite where a guide would start."""


class DiscreteLatentError(ValueError):
    """A discrete latent is not marked for enumeration."""


class NoLatentsError(RuntimeError):
    """A model has no continuous latent."""


class DamagedFileError(ValueError):
    """A file is not what was written: bytes are missing, or others, or it is no file of ours.

    >>> import ngvi
    >>> issubclass(ngvi.DamagedFileError, ValueError)
    True
    """


# -- numbers --------------------------------------------------------------------------


def is_auto(value: Any, name: str, otherwise: str = "a number or a schedule") -> bool:
    """Return whether ``value`` is ``"auto"``; any other string is refused.

    :param otherwise: what else the option may be, for the error.
    """
    if isinstance(value, str) and value != "auto":
        raise ValueError(f"{name} must be 'auto', {otherwise}, got {value!r}.")
    return isinstance(value, str)


def is_number(value: Any, holds: Callable[[float], bool]) -> bool:
    """Return whether ``value`` is one number of which this holds, or one that JAX traces."""
    if isinstance(value, (bool, str)):
        return False
    try:
        return holds(float(value))
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return hasattr(value, "aval") and value.ndim == 0


def shown(value: Any) -> str:
    """Return a value for an error: an array's shape, or the type of an object of many words."""
    if hasattr(value, "dtype") and isinstance(value.shape, tuple) and value.shape:
        return f"an array of shape {tuple(value.shape)}"
    words = repr(value)
    return f"an object of type {type(value).__name__}" if "\n" in words else words


def _number(value: Any, name: str, words: str, holds: Callable[[float], bool]) -> Any:
    if not is_number(value, holds):
        raise ValueError(f"{name} must be {words}, got {shown(value)}.")
    return value


def check_step_size(value: Any, name: str = "step_size") -> Any:
    """Check that it is a positive, finite number or a schedule."""
    words = "positive and finite, or a schedule"
    return value if callable(value) else _number(value, name, words, lambda x: 0 < x < math.inf)


def step_size_at(value: Any, count: Any) -> Any:
    """Return a step size, or what its schedule gives after ``count`` steps."""
    if not callable(value):
        return value
    name, words = "What the schedule of a step size gives", "zero or positive"
    return _number(value(count), name, words, lambda x: x >= 0)


def check_rho(value: Any, name: str) -> Any:
    """Check that it is a number in (0, 1] or a schedule."""
    words = "in (0, 1] or a schedule"
    return value if callable(value) else _number(value, name, words, lambda x: 0 < x <= 1)


def check_momentum(value: Any, name: str = "beta") -> Any:
    """Check that it is a number in [0, 1)."""
    return _number(value, name, "in [0, 1)", lambda x: 0 <= x < 1)


def check_positive(value: Any, name: str) -> Any:
    """Check that it is a positive number, which may be infinite."""
    return _number(value, name, "positive", lambda x: x > 0)


def check_finite(value: Any, name: str) -> float:
    """Check that it is a positive, finite number."""
    return float(_number(value, name, "positive and finite", lambda x: 0 < x < math.inf))


def check_count(value: Any, name: str, least: int = 1, hint: str = "") -> int:
    """Return an integer of any kind, large enough, as an ``int``.

    :param hint: what else to say if it is not.
    """
    try:
        count = least - 1 if isinstance(value, (bool, np.bool_)) else operator.index(value)
    except TypeError:
        count = least - 1
    if count < least:
        raise ValueError(
            f"{name} must be an integer of at least {least}, got {shown(value)}.{hint}"
        )
    return count


def check_flag(value: Any, name: str) -> bool:
    """Return True or False, of numpy as well, as a ``bool``."""
    if not isinstance(value, (bool, np.bool_)):
        raise ValueError(f"{name} must be True or False, got {value!r}.")
    return bool(value)


def check_key(key: Any, name: str = "rng_key") -> Any:
    """Check that it is one JAX random key, typed or not."""
    kind, axes = str(getattr(key, "dtype", "")), getattr(key, "ndim", None)
    if (not kind.startswith("key<") or axes != 0) and (kind != "uint32" or axes != 1):
        raise TypeError(f"{name} must be one JAX random key, jax.random.key(0), got {shown(key)}.")
    return key


def check_quantiles(quantiles: Any) -> None:
    """Check that levels are in (0, 1)."""
    try:
        levels = np.asarray(quantiles)
    except TypeError:
        return  # JAX traces them
    if levels.dtype.kind not in "iuf" or not ((levels > 0) & (levels < 1)).all():
        raise ValueError(f"quantiles must be in (0, 1), got {quantiles!r}.")


def check_rank(rank: int) -> None:
    """Check for a rank of at least 1."""
    check_count(rank, "rank", hint=" Without correlations use family='diagonal'.")


#: A step that goes this share of the way is the rate of another kind of optimiser.
SMALL_RHO = 0.01


def check_learning_rule(
    step_size: Any,
    precision_step_size: Any,
    momentum: float,
    max_kl: Any,
    names: tuple[str, str] = ("step_size", "precision_step_size"),
) -> None:
    """Check options of the Bayesian learning rule.

    :param names: what the package calls the two step sizes.
    """
    if precision_step_size is not None:
        check_rho(precision_step_size, names[1])
    if not is_auto(step_size, names[0]):
        # A mean with a step size of its own may move as it likes.
        check = check_rho if precision_step_size is None else check_step_size
        check(step_size, names[0])
        is_small = is_number(step_size, lambda x: x < SMALL_RHO) and not hasattr(step_size, "aval")
        if is_small and precision_step_size is None:
            warn(
                f"{names[0]}={step_size!r} of BLR is not a learning rate like Adam's: 1 is a whole "
                "step of Newton's method. Leave it out, BLR() chooses its own."
            )
    check_momentum(momentum, "momentum")
    if max_kl is not None and not is_auto(max_kl, "max_kl", "a number or None"):
        check_positive(max_kl, "max_kl")


# -- functions ------------------------------------------------------------------------


def check_model(model: Any) -> None:
    """Check that something can be run as a model."""
    if isinstance(model, type):
        raise TypeError(
            f"model is the class {model.__name__}: make an object of it, {model.__name__}(...), "
            "whose __call__ takes the model's arguments."
        )
    if inspect.isfunction(model) and model.__code__.co_varnames[:1] == ("self",):
        raise TypeError(
            f"model {model.__qualname__} is a method of no object: write {model.__name__} of an "
            "object of its class."
        )
    if callable(getattr(model, "quantiles", None)):
        raise TypeError("model is a guide: write the model in its place, and guide= for the guide.")
    if not callable(model) or hasattr(model, "log_prob"):
        raise TypeError(
            f"model must be a function with sample statements in its body, got {shown(model)}."
        )
    if inspect.isgeneratorfunction(model) or inspect.iscoroutinefunction(model):
        raise TypeError(
            f"model {model.__name__} is a generator or a coroutine. Leave its yield or async out."
        )
    if hasattr(model, "__wrapped__") and hasattr(model, "lower"):
        raise TypeError(
            "model is compiled by jax.jit. Pass the function itself, model.__wrapped__, which is "
            "compiled anyway."
        )


def check_function(value: Any, name: str, example: str, is_one: bool = True) -> Any:
    """Check that it can be called, and is no class."""
    if not (is_one and callable(value)) or isinstance(value, type):
        raise TypeError(f"{name} must be a function such as {example}, got {shown(value)}.")
    return value


def check_init_loc_fn(init_loc_fn: Any) -> Any:
    """Check that it is a strategy for the start."""
    return check_function(init_loc_fn, "init_loc_fn", "init_to_value(values={...})")


def check_create_plates(create_plates: Any) -> Any:
    """Check for a function that makes plates, or None."""
    example = "lambda *args: plate('data', size, subsample_size=size_of_minibatch)"
    if create_plates is None:
        return None
    is_plate = hasattr(create_plates, "__enter__")  # itself, and not what makes it
    return check_function(create_plates, "create_plates", example, not is_plate)


# -- models ---------------------------------------------------------------------------

#: Name of the standard normal latent that ``fit`` gives to a model without continuous latents. As
#: nothing depends on it, the bound is the log likelihood of the model's own parameters.
NO_LATENTS = "_no_latents"


def no_latents(sites: Iterable[str], params: Iterable[str], prior: str) -> str:
    """Return the error for a model without continuous latents.

    :param sites: what it has.
    :param params: its parameters, a network's maybe.
    """
    names, parameters = ", ".join(map(repr, sites)), list(params)
    if names:
        what = f"has {names}, none of which is a continuous latent with elements"
    else:
        what = "ran without a sample statement of the library that the package is for: it must be "
        what += "a function that has them in its body"
    if parameters:
        some = ", ".join(map(repr, parameters[:3])) + ", ..." * (len(parameters) > 3)
        what += f". Parameters ({some}) have no posterior: give them a prior by {prior}"
    elif names:
        what += f". If it calls a network, make latents of its weights by {prior}"
    return f"The guide found no latent variables. The model {what}."


def no_density(
    name: str, value: tuple[int, ...], of: tuple[int, ...], is_observed: bool, error: object
) -> str:
    """Return the error for a value that its distribution, of shape ``of``, cannot evaluate."""
    kind = "Observed" if is_observed else "Latent"
    start = "" if is_observed else ", or init_loc_fn= if the start is yours"
    return (
        f"{kind} site '{name}' has a value of shape {value}, and its distribution, of shape {of}, "
        f"cannot evaluate it: {error} Check shapes, dtypes and indices of minibatches{start}."
    )


def complex_density(name: str) -> str:
    """Return the error for a log density that is no real number."""
    return (
        f"The log density of site '{name}' is complex: take the real part of the data, or of its "
        "distribution's parameters."
    )


def unequal_scales(latent: str, site: str) -> str:
    """Return the error for an enumerated latent that a site of another scale depends on."""
    return (
        f"Enumerated latent '{latent}' and site '{site}', which depends on it, are scaled "
        "differently. Draw both inside of the subsampled plate or scale handler, or both outside."
    )


def scaled_guide(scale: Any, handler: str) -> str:
    """Return the error for a guide whose density is scaled.

    A factor before the whole loss of a stock ELBO changes only the size of the gradient. Natural
    gradients of second order need none, and would scale the model's part alone.

    :param handler: what scales it, as the PPL calls it.
    """
    return (
        f"The guide's draw is scaled by {scale}, which would give the posterior the wrong width. "
        f"Take {handler} off guide and model, or use tempered(model, T) for another temperature."
    )


def check_broadcast(name: str, value: tuple[int, ...], of: tuple[int, ...], event_dim: int) -> None:
    """Refuse data that are broadcast against their distribution: ``(n, 1)`` and ``(n,)``.

    Data that are only expanded to the shape of their distribution are warned of, but one number
    for all is no mistake of shapes.

    :param value: the shape of the data.
    :param of: that of the distribution, ``event_dim`` of whose dimensions are an event.
    :raises ValueError: naming the site and the shapes.
    """
    try:
        both = np.broadcast_shapes(value, of)
    except ValueError:
        return  # the distribution has its own idea of shapes, or will fail
    event = of[len(of) - event_dim :]
    is_event_expanded = np.broadcast_shapes(value[-event_dim:], event) != value[-event_dim:]
    is_event_expanded = bool(value and event_dim) and is_event_expanded
    are_many = math.prod(value) > 1
    words = f"Observed site '{name}' has data of shape {value} and a distribution of shape {of}: "
    words += f"broadcast to {both}, each datum counts several times. "
    is_column = are_many and not event_dim and len(value) == 1 and of[-2:] == 2 * value
    if both not in (value, of) or is_column or (are_many and is_event_expanded):
        raise ValueError(f"{words}Reshape one of them, such as y[:, 0] for a column.")
    if (are_many and both != value) or is_event_expanded:
        warn(f"{words}Reshape one of them.")


def outside_of_domains(name: str, fn: Any, xp: Any) -> dict[str, Any]:
    """Return whether parameters of a distribution are beyond the bounds of their domain.

    A probability that rounding makes more than one is not.

    :param name: the site's.
    :param xp: torch or ``jax.numpy``.
    :return: flags, by the parameter and the bounds in words.
    """
    found = {}
    while fn is not None:
        for parameter, domain in getattr(fn, "arg_constraints", {}).items():
            domain = getattr(domain, "base_constraint", domain)
            is_simplex = type(domain).__name__.lower().endswith("simplex")
            low: Any = 0.0 if is_simplex else getattr(domain, "lower_bound", None)
            high = 1.0 if is_simplex else getattr(domain, "upper_bound", math.inf)
            value = None if low is None else getattr(fn, parameter, None)
            if value is not None:
                value, slack = xp.asarray(value), 0.0 if high == math.inf else 1e-4
                words = "negative" if low == 0 and not slack else f"outside of [{low:g}, {high:g}]"
                is_out = (value < low - slack) | (value > high + slack)
                found[f"{parameter}= of site '{name}' is {words}"] = is_out.any()
        fn = getattr(fn, "base_dist", None)
    return found
