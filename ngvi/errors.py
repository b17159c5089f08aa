"""What both packages refuse: each check of an argument returns the value that it lets through.

A schedule, a callable from the number of steps taken, stands for its values, which nobody checks.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import operator
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import numpy as np


def is_auto(value: Any, name: str, otherwise: str = "a number or a schedule") -> bool:
    """Whether ``value`` is ``"auto"``.

    :param otherwise: what else the option may be, for the error.
    :raises ValueError: for any other string.
    """
    if isinstance(value, str) and value != "auto":
        raise ValueError(f"{name} must be 'auto', {otherwise}, got {value!r}.")
    return isinstance(value, str)


def is_number(value: Any, holds: Callable[[float], bool]) -> bool:
    """Whether ``value`` is one number of which this holds; one that JAX traces is let through."""
    if isinstance(value, (bool, str)):
        return False
    try:
        return holds(float(value))
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return hasattr(value, "aval") and value.ndim == 0


def _got(value: Any) -> str:
    hint = " Options are keyword arguments here, not a dictionary." * isinstance(value, dict)
    return f"got {value!r}.{hint}"


def check_step_size(step_size: Any, name: str = "step_size") -> Any:
    """``step_size``, if it is a positive, finite number or a schedule.

    :raises ValueError: if it is not.
    """
    if not callable(step_size) and not is_number(step_size, lambda x: 0 < x < math.inf):
        raise ValueError(f"{name} must be positive and finite, or a schedule, {_got(step_size)}")
    return step_size


def check_rho(rho: Any, name: str) -> Any:
    """``rho``, if it is a number in (0, 1] or a schedule.

    :raises ValueError: if it is not.
    """
    if not callable(rho) and not is_number(rho, lambda x: 0 < x <= 1):
        raise ValueError(f"{name} must be in (0, 1] or a schedule, {_got(rho)}")
    return rho


def check_momentum(beta: float, name: str = "beta") -> float:
    """``beta``, if it is in [0, 1).

    :raises ValueError: if it is not.
    """
    if not is_number(beta, lambda x: 0 <= x < 1):
        raise ValueError(f"{name} must be in [0, 1), {_got(beta)}")
    return beta


def check_positive(value: float, name: str) -> float:
    """``value``, if it is a positive number; it may be infinite.

    :raises ValueError: if it is not.
    """
    if not is_number(value, lambda x: x > 0):
        raise ValueError(f"{name} must be positive, {_got(value)}")
    return value


def check_finite(value: float, name: str) -> float:
    """``value``, if it is a positive, finite number.

    :raises ValueError: if it is not.
    """
    if not is_number(value, lambda x: 0 < x < math.inf):
        raise ValueError(f"{name} must be positive and finite, {_got(value)}")
    return float(value)


def check_count(value: Any, name: str, least: int = 1, hint: str = "") -> int:
    """``value`` as an ``int``, if it is an integer of any kind, and large enough.

    :param hint: what else to say if it is not.
    :raises ValueError: if it is not.
    """
    try:
        count = least - 1 if isinstance(value, (bool, np.bool_)) else operator.index(value)
    except TypeError:
        count = least - 1
    if count < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}.{hint}")
    return count


def check_flag(value: Any, name: str) -> bool:
    """``value`` as a ``bool``, if it is True or False.

    :raises ValueError: if it is not.
    """
    if not isinstance(value, (bool, np.bool_)):
        raise ValueError(f"{name} must be True or False, got {value!r}.")
    return bool(value)


def check_quantiles(quantiles: Any) -> None:
    """Refuse levels outside (0, 1).

    :raises ValueError: if there is one.
    """
    try:
        levels = np.asarray(quantiles)
    except TypeError:
        return  # JAX traces them
    if levels.dtype.kind not in "iuf" or not ((levels > 0) & (levels < 1)).all():
        raise ValueError(f"quantiles must be in (0, 1), got {quantiles!r}.")


def check_learning_rule(
    step_size: Any,
    precision_step_size: Any,
    momentum: float,
    max_kl: Any,
    names: tuple[str, str] = ("step_size", "precision_step_size"),
) -> None:
    """Refuse what the Bayesian learning rule cannot take.

    :param names: what the package calls the two step sizes.
    :raises ValueError: naming the option.
    """
    if precision_step_size is not None:
        check_rho(precision_step_size, names[1])
    if not is_auto(step_size, names[0]):
        # A mean with a step size of its own may move as it likes.
        check = check_rho if precision_step_size is None else check_step_size
        check(step_size, names[0])
    check_momentum(momentum, "momentum")
    if max_kl is not None and not is_auto(max_kl, "max_kl", "a number or None"):
        check_positive(max_kl, "max_kl")


def check_model(model: Any) -> None:
    """Refuse what cannot be run as a model.

    :raises TypeError: saying what it is.
    """
    if not callable(model) or hasattr(model, "log_prob"):
        raise TypeError(
            f"model must be a function with sample statements in its body, got {model!r}."
        )
    if inspect.isgeneratorfunction(model) or inspect.iscoroutinefunction(model):
        raise TypeError(
            f"model {model.__name__} is a generator or a coroutine: a call does not run its body. "
            "Leave its yield or async out."
        )


def check_callable(value: Any, name: str, example: str) -> Any:
    """``value``, if it can be called.

    :raises TypeError: if it cannot.
    """
    if not callable(value):
        raise TypeError(f"{name} must be a function such as {example}, got {value!r}.")
    return value


def check_init_loc_fn(init_loc_fn: Any) -> Any:
    """``init_loc_fn``, if it can be one.

    :raises TypeError: if it cannot.
    """
    return check_callable(init_loc_fn, "init_loc_fn", "init_to_value(values={...})")


def check_create_plates(create_plates: Any) -> Any:
    """``create_plates``, if it can be one, or None.

    :raises TypeError: if it cannot.
    """
    example = "lambda *args: plate('data', size, subsample_size=size_of_minibatch)"
    return create_plates and check_callable(create_plates, "create_plates", example)


def no_latents(sites: Iterable[str], params: Iterable[str], prior: str) -> str:
    """The error of a model without continuous latents.

    :param sites: what it has.
    :param params: its parameters, a network's maybe.
    :param prior: what gives these a prior.
    """
    names = ", ".join(map(repr, sites))
    if names:
        what = f"has {names}, none of which is a continuous latent with elements"
    else:
        what = "ran without a sample statement: it must be a function that has them in its body, "
        what += "not a class or a function that makes the model"
    numbers = list(params)
    if numbers:
        some = ", ".join(map(repr, numbers[:3])) + ", ..." * (len(numbers) > 3)
        what += (
            f", and {some} are parameters, which have no posterior: give them a prior by {prior}"
        )
    elif names:
        what += ". If it calls a network, whose weights it takes for constants, make latents of "
        what += f"them by {prior}"
    return f"The guide found no latent variables. The model {what}."


#: Of the standard normal latent that ``fit`` gives to a model without continuous latents, so that
#: the parameters of its own have a bound: their log likelihood, for nothing depends on it.
NO_LATENTS = "_no_latents"


def empty_plate(name: str, library: str) -> str:
    """The error of a plate that has no elements, or of which none are visited."""
    return (
        f"Plate '{name}' has no elements, which {library} does not allow: leave an empty batch out."
    )


def no_density(
    name: str, value: tuple[int, ...], of: tuple[int, ...], is_observed: bool, error: object
) -> str:
    """The error of a site whose distribution cannot evaluate its value.

    :param value: the value's shape.
    :param of: the distribution's.
    """
    kind = "Observed" if is_observed else "Latent"
    start = "" if is_observed else ", or init_loc_fn= if the start is yours"
    return (
        f"{kind} site '{name}' has a value of shape {value}, whose log density its distribution, "
        f"of shape {of}, cannot evaluate: {error} Check shapes and dtypes (in a subsampled plate, "
        f"index the data with the plate's indices){start}."
    )


def no_distribution(name: str, error: Exception) -> str:
    """The error of a site whose distribution refuses its parameters, before it has a name."""
    return f"The distribution of site '{name}' cannot be made: {error}"


def complex_density(name: str) -> str:
    """The error of a site whose log density is no real number."""
    return (
        f"The log density of site '{name}' is complex: take the real part of the data, or of what "
        "its distribution is made of."
    )


def unequal_scales(latent: str, site: str) -> str:
    """The error of an enumerated latent that a site of another scale depends on."""
    return (
        f"Enumerated latent '{latent}' and site '{site}', which depends on it, count differently "
        "often, by a subsampled plate or a scale handler, and no sum over values is defined then: "
        "draw both inside of it, or both outside with all rows."
    )


def warn_of_broadcast(
    name: str, value: tuple[int, ...], of: tuple[int, ...], event_dim: int
) -> None:
    """Warn if data and their distribution are expanded against each other: ``(n, 1)`` and ``(n,)``.

    One number in the place of an event is no mistake of shapes.

    :param value: the shape of the data.
    :param of: that of the distribution, and how many of its dimensions are an event.
    """
    try:
        both = np.broadcast_shapes(value, of)
    except ValueError:
        return  # the distribution has its own idea of shapes, or will fail
    event = of[len(of) - event_dim :]
    is_event_expanded = np.broadcast_shapes(value[-event_dim:], event) != value[-event_dim:]
    if both not in (value, of) or (value and event_dim and is_event_expanded):
        warnings.warn(
            f"Observed site '{name}' has data of shape {value} and a distribution of shape {of}, "
            f"which are broadcast to {both}: each datum counts several times. Reshape one of them.",
            stacklevel=2,
        )


def scaled_guide(scale: Any, handler: str) -> str:
    """The error of a guide whose density counts otherwise than once.

    Of a stock ELBO a factor before the whole loss changes nothing but the gradient's size. Natural
    gradients of second order need none, and would be those of the model's part alone.

    :param scale: how often it counts.
    :param handler: what scales it, as the PPL calls it.
    """
    return (
        f"The guide's draw is scaled by {scale}, and NaturalELBO scales the model alone: the "
        f"posterior would have the wrong width. Take {handler} off guide and model: steps do not "
        "depend on the size of the loss, and a plate with subsample_size= scales its minibatch by "
        "itself. A posterior of another temperature is that of tempered(model, T)."
    )


#: What a failure of a model's numbers may come from, where it computes with halves of single ones.
HALF_PRECISION = (
    " The model computes in float16, of which 65,504 is the largest number, in products and sums "
    "of the gradient too: bfloat16 and float32 go further, and data and outputs may be scaled."
)


class InvalidStartError(ValueError):
    """The log density is not finite where a guide would start."""


class DiscreteLatentError(ValueError):
    """A discrete latent is not marked for enumeration."""


class NoLatentsError(RuntimeError):
    """A model has no continuous latent."""


def check_names(names: Collection[str], own: Iterable[str], hint: str) -> None:
    """Refuse a model whose site is called as one of the guide's own.

    :param names: of the model's sites.
    :param own: of the guide's.
    :param hint: what else to do than to rename the site.
    :raises ValueError: naming the site.
    """
    for name in own:
        if name in names:
            raise ValueError(f"The model's site '{name}' is called as one of the guide's: {hint}")


#: Of packages whose data frames and columns neither library computes with.
OF_FRAMES = ("pandas", "polars", "xarray", "pyarrow")


@contextlib.contextmanager
def told_of_arguments(
    args: tuple, kwargs: dict, convert: str, others: tuple = ()
) -> Iterator[None]:
    """Add to the error of a model that fails which of its arguments are no arrays.

    A note, for the error and where it came from are the model's own. Where the model converts
    them itself nothing fails, and nothing is said.

    :param convert: what makes an array of the library, for words.
    :param others: types that the library does not take either.
    """
    try:
        yield
    except (TypeError, ValueError, IndexError, AttributeError, RuntimeError) as error:
        named = {**{f"argument {index}": value for index, value in enumerate(args)}, **kwargs}
        foreign = {name: _foreign(value, others) for name, value in named.items()}
        words = [f"{name} {words}" for name, words in foreign.items() if words]
        is_ours = isinstance(error, (InvalidStartError, DiscreteLatentError, NoLatentsError))
        is_told = any(OF_ARGUMENTS in note for note in getattr(error, "__notes__", ()))
        if words and not is_ours and not is_told:
            codes = ""
            if any(kind in one for one in words for kind in NO_NUMBERS.values()):
                codes = "; for texts codes, np.unique(texts, return_inverse=True)[1]"
            error.add_note(
                f"{OF_ARGUMENTS}, counted from zero, {', '.join(words)}: pass {convert}(...) of "
                f"its numbers (of a data frame, of each column{codes})."
            )
        raise


#: How the note begins.
OF_ARGUMENTS = "Of the model's arguments"
#: What arrays hold that neither library computes with, by numpy's kind of dtype.
NO_NUMBERS = {"U": "texts", "S": "texts", "T": "texts", "O": "objects", "M": "dates", "m": "times"}


def _foreign(value: Any, others: tuple) -> str:
    """What an argument is that is no array of numbers, in words; or nothing."""
    holds = NO_NUMBERS.get(getattr(getattr(value, "dtype", None), "kind", ""))
    name = type(value).__name__
    if holds is not None:
        return f"holds {holds} ({name} of {value.dtype})"
    if isinstance(value, others) or type(value).__module__.partition(".")[0] in OF_FRAMES:
        return f"is of type {name}"
    while isinstance(value, (list, tuple)) and value:
        value = value[0]
        if isinstance(value, str):
            return f"holds texts ({name})"
        if isinstance(value, (int, float, np.number)):
            return f"is of type {name}"
    return ""


#: Kinds of arguments that are looked at: numbers may be of another kind in every step.
MAX_SIGNATURES = 20


class LatentShapes:
    """The unconstrained shapes of a model's latents, checked once for every new kind of arguments.

    A guide holds one coordinate per latent. A model whose latents follow the data would be
    replayed with values of the wrong size, and fail far from the cause.

    :param expected: the shapes that the guide was set up with, by site.
    :param signature: what tells the arguments of its set-up from others, hashable.
    """

    def __init__(self, expected: dict[str, tuple[int, ...]], signature: Any) -> None:
        self._expected, self._seen = expected, {signature}

    def compare(
        self,
        signature: Any,
        shapes: Callable[[], dict[str, tuple[int, ...]]],
        is_trained: Callable[[], bool],
    ) -> None:
        """Look at the shapes for arguments with a new signature.

        :param shapes: finds them; empty if the model does not run with these arguments.
        :param is_trained: whether a loss is being computed. For a prediction, a model may have
            other sites.
        :raises ValueError: naming the site whose size has changed, or that is new or gone.
        """
        if signature in self._seen or len(self._seen) > MAX_SIGNATURES:
            return
        found = shapes()
        for name in {**found, **self._expected} if found else ():
            shape, expected = found.get(name), self._expected.get(name)
            if shape == expected or (None in (shape, expected) and not is_trained()):
                continue
            has = "is missing" if shape is None else f"has unconstrained shape {shape}"
            had = "out it" if expected is None else f" {expected}"
            raise ValueError(
                f"Latent site '{name}' {has} for these arguments, but the guide was set up "
                f"with{had}. A guide's latents are fixed by its first call: make a new "
                "NaturalGaussianGuide for these arguments."
            )
        self._seen.add(signature)

    @property
    def sites(self) -> tuple[str, ...]:
        """The latents that the guide was set up with."""
        return tuple(self._expected)

    def require(self, found: dict[str, tuple[int, ...]]) -> None:
        """Refuse another model than the guide's.

        :param found: the shapes of its latents; empty if they are not known.
        :raises ValueError: naming a site.
        """
        for name, expected in self._expected.items() if found else ():
            if found.get(name) != expected:
                raise ValueError(
                    f"guide= is the guide of another model: its latent site '{name}', of "
                    f"unconstrained shape {expected}, is {found.get(name, 'missing')} in this one."
                )


def require_sites(expected: Iterable[str], found: Collection[str]) -> None:
    """Refuse a model without a latent of the guide's.

    :param found: the names of the model's sample sites.
    :raises ValueError: naming the latents that it lacks, and what it has instead.
    """
    missing = [name for name in expected if name not in found]
    if missing:
        raise ValueError(
            f"The guide is that of another model: its latents {', '.join(map(repr, missing))} are "
            f"missing in this one, which samples {', '.join(map(repr, sorted(found)))}. Make the "
            "guide of the model that SVI is given."
        )


def check_rank(rank: int, dim: int | None = None) -> None:
    """Refuse a rank that no factor can have.

    :raises ValueError: if it is below 1 or above the dimension.
    """
    check_count(rank, "rank", hint=" Without correlations use family='diagonal'.")
    if dim is not None and rank > dim:
        raise ValueError(
            f"LowRankPrecision(rank={rank}) has a rank above the model's {dim} latents. Use a rank "
            f"of at most {dim}, or family='covariance_cholesky', which holds every covariance."
        )
