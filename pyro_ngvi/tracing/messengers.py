"""Handlers that any run of a model may need: quiet, repeatable noise, factors without errors."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import pyro
import torch
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ngvi.errors import outside_of_domains

#: True if several workers have a part of the rows each, and gradients are summed over workers.
SPLIT_OVER_WORKERS: ContextVar[bool] = ContextVar("SPLIT_OVER_WORKERS", default=False)


class Domains(Messenger):
    """Counts runs at which parameters of distributions are outside of their domain.

    :ivar found: numbers by words; of a site that cannot be sampled there as well.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        flags = outside_of_domains(msg["name"], msg["fn"], torch)
        self.found.update(words for words, flag in flags.items() if flag)


class LastLatentError(Exception):
    """A run has come to its last latent."""


class Latents(Messenger):
    """Keeps the latents of a run.

    :param names: of the latents.
    :param may_end: whether the run ends at the last of them, by :class:`LastLatentError`.
    :ivar found: the sites by name.
    """

    def __init__(self, names: list[str], may_end: bool) -> None:
        super().__init__()
        self.names, self.may_end, self.found = set(names), may_end, dict[str, Any]()

    def _pyro_post_sample(self, msg: dict[str, Any]) -> None:
        if msg["name"] in self.names:
            self.found[msg["name"]] = msg
            if self.may_end and len(self.found) == len(self.names):
                raise LastLatentError


class WithoutSequences(Messenger):
    """A model without its sequential plates, whose elements are sites of their own.

    AutoGuide does not support such plates.
    """

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        frames = msg["cond_indep_stack"]
        msg["cond_indep_stack"] = tuple(frame for frame in frames if frame.vectorized)


class Values(Messenger):
    """Gives sites values, whatever start the model has been given.

    :param value_of: the value of a site, or None to leave it as it is.
    """

    def __init__(self, value_of: Callable[[dict[str, Any]], Tensor | None]) -> None:
        super().__init__()
        self.value_of = value_of

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        value = self.value_of(msg)
        if value is not None:
            msg["value"], msg["done"] = value, True


@contextmanager
def quiet() -> Iterator[None]:
    """No validation by Pyro or torch, whose checks cost time and stop ``torch.func``.

    Everything is as before afterwards, also where torch's default differs from Pyro's.
    """
    validate_args = torch.distributions.Distribution._validate_args
    try:
        with pyro.validation_enabled(False), warnings.catch_warnings():
            # Operations without a batching rule are looped over: slower, and right.
            warnings.filterwarnings("ignore", "There is a performance drop")
            yield
    finally:
        torch.distributions.Distribution.set_default_validate_args(validate_args)


_FACTORISATIONS = {torch.linalg.cholesky, torch.cholesky, Tensor.cholesky}
_INVERSES = {torch.cholesky_inverse, Tensor.cholesky_inverse}


class NanCholesky(TorchFunctionMode):
    """Inside, the factor of a matrix that is not positive definite is NaN, as in other PPLs.

    ``torch.linalg.cholesky`` raises if one matrix of a batch is not positive definite, by rounding
    at one draw, say; and ``torch.cholesky_inverse`` (of ``MultivariateNormal``) at a factor with a
    zero. A draw without a density is no reason to give up the others.
    """

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _FACTORISATIONS and "out" not in kwargs:
            upper = kwargs.pop("upper", False)
            factor, info = torch.linalg.cholesky_ex(*args, **kwargs)
            factor = torch.where((info == 0)[..., None, None], factor, torch.nan)
            return factor.mT if upper else factor
        if func in _INVERSES and "out" not in kwargs:
            is_zero = args[0].diagonal(dim1=-2, dim2=-1) == 0
            args = (args[0].masked_fill(is_zero.any(-1)[..., None, None], torch.nan), *args[1:])
        return func(*args, **kwargs)


def check_gradients(what: str, but: str) -> None:
    """Refuse to be called where torch keeps no graph, and makes tensors that never have one.

    :param what: what needs gradients.
    :param but: what does not.
    :raises RuntimeError: saying where that is.
    """
    if torch.is_inference_mode_enabled():
        raise RuntimeError(
            f"{what} needs gradients: call it outside torch.inference_mode(). {but} may be made "
            "inside."
        )


@contextmanager
def repeatable_noise() -> Iterator[None]:
    """Random numbers drawn inside are drawn again outside."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices=devices):
        yield


class OperationMode(TorchDispatchMode):
    """Sees torch's operations as they run."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Tell whether torch may import its compiler for each operation, which takes a second."""
        return False


class NoiseState:
    """The state of torch's generators, to draw the same random numbers again."""

    def __init__(self) -> None:
        self._cpu = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []

    @contextmanager
    def again(self) -> Iterator[None]:
        """Random numbers as from that state on; the generators go on as if unused."""
        with repeatable_noise():
            torch.set_rng_state(self._cpu)
            torch.cuda.set_rng_state_all(self._cuda)
            yield
