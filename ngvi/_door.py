"""The doors of public functions: what was called otherwise than it is written, and how it is.

A keyword that a function does not have is compared with those that it has, and with what other
libraries call them.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, TypeVar

from ngvi._warn import warn

Function = TypeVar("Function", bound=Callable)
Class = TypeVar("Class", bound=type)
#: Defaults that are written out in words; of others there are dots.
SHORT = (bool, int, float, str, type, type(None))

#: What an argument is called elsewhere.
CALLED = {
    "step_size": "lr learning_rate stepsize alpha rho",
    "num_particles": "particles num_samples num_draws n_samples",
    "num_samples": "draws num_draws n_samples n_draws size n samples",
    "num_draws": "draws num_samples n_samples n_draws size n",
    "rng_key": "seed random_seed key rng random_state prng_key",
    "seed": "rng_key random_seed key rng random_state",
    "family": "kind covariance method",
    "init_loc_fn": "init init_values init_strategy start",
    "momentum": "beta beta1 b1",
    "max_kl": "clip clip_norm kl",
    "curvature": "hessian estimator",
    "path": "file filename fname",
    "var_names": "names vars sites params parameters",
    "prob": "hdi_prob ci_prob ci level confidence quantiles percentiles",
    "plate": "dim group groups by var_name unit",
    "rows": "index indices idx row i",
    "num_warmup": "warmup warmup_steps tune burn_in num_tune",
    "num_chains": "chains n_chains",
    "target_accept_prob": "target_accept",
}


def door(function: Function) -> Function:
    """``function``, which says how it is called if it was called otherwise.

    :raises TypeError: on such a call.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        _check_call(function, signature, args, kwargs)
        return function(*args, **kwargs)

    return called  # type: ignore[return-value]


def door_of_fields(cls: Class) -> Class:
    """A dataclass that says which fields it has."""
    cls.__init__ = door(cls.__init__)  # type: ignore[misc]
    return cls


def door_with_options_of(*names: str) -> Callable[[Function], Function]:
    """:func:`door` of a method that passes its other keywords on to others of its object.

    :param names: of these, dotted if they are a part's.
    """

    def with_door(function: Function) -> Function:
        own = inspect.signature(function).parameters.values()
        named = [one for one in own if one.kind is not one.VAR_KEYWORD]

        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            others = (inspect.signature(operator.attrgetter(one)(args[0])) for one in names)
            taken = (one for other in others for one in other.parameters.values())
            passed = (one for one in taken if one.kind is one.KEYWORD_ONLY)
            _check_call(function, inspect.Signature([*named, *passed]), args, kwargs)
            return function(*args, **kwargs)

        return called  # type: ignore[return-value]

    return with_door


class TellsWhatItHas:
    """An object that says what it has in the place of an attribute, or an item, that it has not."""

    #: What results of other libraries have, by what there is here.
    _names_elsewhere: ClassVar[Mapping[str, str]] = {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or hasattr(type(self), name):
            return object.__getattribute__(self, name)  # whose error is that of a property, maybe
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}{self._meant(name)}")

    def __getitem__(self, name: Any) -> Any:
        raise TypeError(f"{type(self).__name__} has no items: it has {', '.join(self._has())}.")

    def _has(self) -> list[str]:
        return [one for one in sorted({*dir(type(self)), *vars(self)}) if not one.startswith("_")]

    def _meant(self, name: str) -> str:
        meant = [here for here, names in self._names_elsewhere.items() if name in names.split()]
        near = difflib.get_close_matches(name, self._has(), 1)
        if meant:
            return f": write {meant[0]}."
        return f". Is {near[0]} meant?" if near else f". It has {', '.join(self._has())}."


def signature_of(function: Callable, follow: bool) -> inspect.Signature | None:
    """What a call takes; None if nobody can tell.

    :param follow: to what a decorator or a handler wraps.
    """
    while follow and callable(getattr(function, "fn", None)):
        function = function.fn  # type: ignore[attr-defined]
    if hasattr(function, "forward") and hasattr(function, "named_parameters"):
        function = function.forward  # of a module of torch
    try:
        return inspect.signature(function, follow_wrapped=follow)
    except (TypeError, ValueError):
        return None


def as_written(name: str, parameters: Iterable[inspect.Parameter]) -> str:
    """A function and its arguments, as they are written."""
    plain = [
        one.replace(
            annotation=one.empty, default=one.default if isinstance(one.default, SHORT) else ...
        )
        for one in parameters
    ]
    return f"{name}{inspect.Signature(plain)}".replace("=Ellipsis", "=...")


def _check_call(
    function: Callable, signature: inspect.Signature, args: tuple, kwargs: dict[str, Any]
) -> None:
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        name = _name(function, signature, args)
        raise TypeError(_misfit(name, signature, kwargs, str(error))) from None


def _name(function: Callable, signature: inspect.Signature, args: tuple) -> str:
    """As the user has it: a method by the class of its object, not that which it is from."""
    name = function.__qualname__.removesuffix(".__init__")
    is_method = next(iter(signature.parameters), None) == "self" and args
    return f"{type(args[0]).__name__}.{function.__name__}" if is_method and "." in name else name


def _misfit(name: str, signature: inspect.Signature, kwargs: dict[str, Any], reason: str) -> str:
    names = [one for one in signature.parameters if one != "self"]
    for keyword in kwargs:
        if keyword not in names:
            near = [one for one in names if keyword.lower() in CALLED.get(one, "").split()]
            near = near or difflib.get_close_matches(keyword.lower(), names, 1)
            hint = f"Is {near[0]}= meant?" if near else ""
            has = ", ".join(f"{one}=" for one in names) or "none"
            return f"{name} has no argument {keyword}=. {hint or f'It has {has}.'}"
    called = as_written(name, (signature.parameters[one] for one in names))
    return f"{called} was called otherwise: {reason}."


def not_made(name: str) -> str:
    """For a class in the place of an object of it."""
    return f"{name} itself was given, where one is to be made of it: write {name}(), with brackets."


def check_parts(guide: Any, optim: Any, loss: Any) -> None:
    """Refuse classes and functions in the place of what they make, as ``SVI`` takes it.

    :raises TypeError: naming it.
    """
    if not callable(guide):
        raise TypeError(f"guide must be a guide, NaturalGaussianGuide(model) say, got {guide!r}.")
    for name, value, example in (("optim", optim, "BLR()"), ("loss", loss, "NaturalELBO()")):
        if value is None or isinstance(value, (str, float, int, dict)):
            raise TypeError(f"{name} must be an object such as {example}, got {value!r}.")
    is_function = inspect.isfunction(optim) and not hasattr(optim, "init")
    for value, is_maker in ((guide, isinstance(guide, type)), (optim, is_function), (loss, False)):
        if is_maker or isinstance(value, type):
            raise TypeError(not_made(value.__name__))


#: For a guide in the place of its model.
SWAPPED = (
    "The guide is in the place of the model: it is SVI(model, guide, optim, loss), with the model "
    "first."
)


def warn_of_optimiser(name: str) -> None:
    """Warn of an optimiser that divides each coordinate by its own size."""
    warn(
        f"{name} divides each coordinate of the gradient by its own size, so that what makes the "
        "gradient of this guide natural is lost, and it learns slowly or not at all. Write BLR() "
        "with NaturalELBO(), or Snngm() with the loss that you have."
    )
