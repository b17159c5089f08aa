"""Checks of the arguments of ``fit``, before anything runs.

One table says what each option may be. A keyword that neither ``fit`` nor the model has is compared
with both, and with what other libraries call the same.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import math
import os
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import numpy as np

from ngvi import errors
from ngvi._door import as_written, known_as, written_here
from ngvi.estimators.choice import CURVATURES_OF_FIT, check_curvature
from ngvi.inference.options import EFFORTS, FitOptions
from ngvi.inference.tells import signature_of

#: The methods that may make the draws of a result.
AUTO, GAUSSIAN, CORRECTED, NUTS = WHO = "auto", "gaussian", "corrected", "nuts"

# -- options --------------------------------------------------------------------------


def check_word(value: Any, name: str, words: Collection[str]) -> str:
    """Check that an option is one of some words."""
    if value not in words:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, words))}, got {value!r}.")
    return value


def check_num_components(value: Any, name: str) -> int | str:
    """Check a number of components, or ``"auto"``."""
    if isinstance(value, str) and value == "auto":
        return value
    return errors.check_count(value, name, hint=" Or 'auto', one for each mode.")


def check_seconds(value: Any, name: str) -> float:
    """Check a positive number of seconds, or None for no limit."""
    if value is None:
        return math.inf
    if not errors.is_number(value, lambda x: x > 0):
        raise ValueError(f"{name} must be positive, in seconds, or None, got {value!r}.")
    return float(value)


def check_callback(value: Any, name: str) -> Any:
    """Check a function of three arguments, or None."""
    if value is None:
        return None
    words = f"{name} must be a function of the number of steps, the bound and its distance to the "
    words += "optimum, such as lambda step, bound, distance: print(bound)"
    if not callable(value):
        raise ValueError(f"{words}, got {value!r}.")
    if (signature := signature_of(value, follow=True)) is not None:
        try:
            signature.bind(1, 0.0, 0.0)
        except TypeError:
            raise ValueError(f"{words}: {_call(value)} does not take three arguments.") from None
    return value


def check_path(value: Any, name: str, is_needed: bool = False) -> Any:
    """Check the path of a file; or None, if it is not needed."""
    is_path = isinstance(value, (str, os.PathLike)) and str(value) != "" and "\0" not in str(value)
    if not is_path and (is_needed or value is not None):
        raise TypeError(f"{name} must be the path of a file, such as 'fit.ngvi', got {value!r}.")
    return value


def check_options(value: Any, name: str) -> FitOptions:
    """Check ``FitOptions``, by default new ones."""
    if value is None:
        return FitOptions()
    if not isinstance(value, FitOptions):
        raise TypeError(f"{name} must be FitOptions(...), got {value!r}.")
    _check_fields(value, f"{name}=FitOptions")
    return value


def _check_fields(value: Any, name: str) -> None:
    """Refuse fields of options that are of another kind than their defaults.

    :raises TypeError: naming the field.
    """
    for field in dataclasses.fields(value):
        own, default, where = getattr(value, field.name), field.default, f"{name}.{field.name}"
        kinds = {float: (int, float, np.number), int: (int, np.integer), tuple: (tuple, list)}
        kind = type(default)
        if not isinstance(own, kinds.get(kind, kind)):
            words = f"{kind.__name__}(...)" if dataclasses.is_dataclass(default) else kind.__name__
            raise TypeError(f"{where} must be of type {words}, got {errors.shown(own)}.")
        if dataclasses.is_dataclass(default):
            _check_fields(own, where)


def check_batches(value: Any, name: str) -> Any:
    """Check an iterable of batches, or None."""
    parts = value if isinstance(value, (tuple, list)) else ()
    is_one = len({len(getattr(one, "shape", ())) for one in parts}) > 1
    if is_one or hasattr(value, "dtype") or isinstance(value, (str, bytes, int, float)):
        raise TypeError(
            f"{name} must be an iterable of batches, not an array or one batch: write a DataLoader "
            f"or [(X1, y1), (X2, y2)]. Got {errors.shown(value)}."
        )
    return value


#: Checks of options by name: a function of the value and the name, which returns what
#: ``fit`` goes on with. Options that are not here are checked where they are used.
OPTIONS: dict[str, Callable[[Any, str], Any]] = {
    "tolerance": errors.check_finite,
    "max_steps": errors.check_count,
    "effort": partial(check_word, words=EFFORTS),
    "num_components": check_num_components,
    "curvature": lambda value, _: check_curvature(value, CURVATURES_OF_FIT),
    "allow_prior": errors.check_flag,
    "draws": partial(check_word, words=WHO),
    "progress_bar": errors.check_flag,
    "time_limit": check_seconds,
    "callback": check_callback,
    "checkpoint": check_path,
    "batches": check_batches,
    "options": check_options,
    "init_loc_fn": lambda value, _: value if value is None else errors.check_init_loc_fn(value),
}


def checked(given: dict[str, Any]) -> dict[str, Any]:
    """Return the options as ``fit`` goes on with them.

    :param given: by their names; others are let through.
    :raises ValueError: for a value, naming the option.
    :raises TypeError: for a type.
    """
    return {
        name: OPTIONS[name](value, name) if name in OPTIONS else value
        for name, value in given.items()
    }


# -- the call of the model ------------------------------------------------------------

SEED = "the seed"
#: Types that are no arguments of a model, by the names of its type's bases.
FOREIGN = {
    "AutoGuide": "a guide: write guide=",
    "PyroOptim": "an optimiser, and fit needs none: leave it out",
    "_NumPyroOptim": "an optimiser, and fit needs none: leave it out",
    "GradientTransformation": "an optimiser, and fit needs none: leave it out",
    "ELBO": "a loss, and fit needs none: leave it out",
    "SVI": "an SVI, and fit needs none: leave it out",
    "Family": "a family: write family=",
}
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class ModelCall:
    """The model and its arguments, as ``fit`` is given them.

    :param fit: the function, whose own keywords are not the model's.
    :param seed: how the package is given the seed, in words.
    """

    def __init__(
        self, fit: Callable, model: Callable, args: tuple, kwargs: dict[str, Any], seed: str
    ) -> None:
        self.name = fit.__name__
        self.model, self.args, self.kwargs, self.seed = model, args, kwargs, seed
        own = inspect.signature(fit).parameters.values()
        self.options = [one.name for one in own if one.kind is inspect.Parameter.KEYWORD_ONLY]

    def check(self) -> None:
        """Refuse what cannot be a call of the model.

        Behind a handler that takes anything nobody can tell: :meth:`explain` does once it fails.

        :raises TypeError: naming the argument, with what to write.
        """
        for index, value in enumerate(self.args):
            if value is self.model:
                raise TypeError(
                    f"{self.name} has the model already, and argument {index} of the model's, "
                    "counted from zero, is the model itself: leave it out."
                )
            kind = value if isinstance(value, type) else type(value)
            for base in kind.__mro__:
                if base.__name__ in FOREIGN:
                    raise TypeError(
                        f"{self.name} takes the model's arguments by place, and argument "
                        f"{index} of them, counted from zero, is {FOREIGN[base.__name__]}."
                    )
        signature = signature_of(self.model, follow=False)
        if signature is not None:
            self._compare(signature)

    def explain(self, error: Exception) -> None:
        """Say of a model that has raised how it is called, if that was wrong.

        :raises TypeError: naming the argument, with what to write.
        """
        signature = signature_of(self.model, follow=True)
        if not isinstance(error, TypeError) or signature is None:
            return
        try:
            self._compare(signature)
        except TypeError as explained:
            raise explained from error

    def _compare(self, signature: inspect.Signature) -> None:
        named = signature.parameters
        if not _takes_any(signature):
            for name in self.kwargs:
                if name not in named:
                    raise TypeError(
                        f"{self.name} has no argument {name}=, and neither has the model, "
                        f"{_call(self.model)}. {self._meant(name, list(named))}"
                    )
        try:
            signature.bind(*self.args, **self.kwargs)
        except TypeError as error:
            raise TypeError(self._misfit(signature, str(error))) from None

    def _misfit(self, signature: inspect.Signature, reason: str) -> str:
        """Why the arguments are not those of the model."""
        places = [one for one in signature.parameters.values() if one.kind in POSITIONAL]
        words = f"{self.name} calls the model with its arguments, and {_call(self.model)} "
        if reason.startswith("missing"):
            needed = [one.name for one in places if one.default is one.empty]
            first = "model, " * (self.name == "fit")
            return f"{words}is {reason}: write {self.name}({first}{', '.join(needed)})."
        if reason.startswith("too many"):
            words += f"takes {len(places)} by place, not {len(self.args)}. Options are "
            strings = [value for value in self.args if isinstance(value, str)]
            return f"{words}keywords, such as family={strings[0] if strings else 'diagonal'!r}."
        return f"{words}has {reason}."

    def _meant(self, name: str, of_model: list[str]) -> str:
        """Return what to write in the place of a keyword that nobody has."""
        word = name.lower()
        if habit := written_here(self.name, word):
            return f"There is {self.seed if habit == SEED else habit}."
        lower = {one.lower(): one for one in of_model}
        near = known_as(word, self.options, 0.8) or difflib.get_close_matches(word, lower, 1)
        if near:
            return f"Is {lower.get(near[0], near[0])}= meant?"
        options = ", ".join(f"{one}=" for one in self.options) or "none"
        return f"Options of {self.name} are {options}."


def check_predictive(
    predictive: Callable, model: Callable, args: tuple, kwargs: dict[str, Any], of_fit: tuple
) -> None:
    """Refuse what are no arguments of the model, as ``predictive`` of a result takes them.

    :param of_fit: the model's arguments by place in the fit.
    :raises TypeError: saying what to write.
    """
    name, is_number = predictive.__name__, len(args) == 1 and isinstance(args[0], int)
    if is_number and not (of_fit and isinstance(of_fit[0], int)):
        raise TypeError(
            f"{name} takes the model's arguments, and the first of them is {args[0]!r}: for so "
            f"many draws write {name}(num_samples={args[0]!r})."
        )
    if args or kwargs:
        ModelCall(predictive, model, args, kwargs, "rng_key= in NumPyro").check()


def _takes_any(signature: inspect.Signature) -> bool:
    kinds = [one.kind for one in signature.parameters.values()]
    return inspect.Parameter.VAR_KEYWORD in kinds


def _call(function: Callable) -> str:
    """Return a function and its arguments, as they are written."""
    name = getattr(function, "__name__", type(function).__name__)
    signature = signature_of(function, follow=True)
    return f"{name}(...)" if signature is None else as_written(name, signature.parameters.values())
