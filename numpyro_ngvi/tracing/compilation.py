"""``jax.jit`` for programs of our own, which in a new process take longer to compile than to run.

On a CPU most of XLA's compilation is spent on kernels, one after another. Without its newer
emitters of fused kernels a program is there in 60% of the time, and as fast, unless it works on
very many numbers. LLVM's first level of optimisation takes 80% of that, and is hardly slower; none
of it takes an eighth, but is up to nine times as slow. NumPyro's own programs, and those that a
user compiles, are compiled as ever.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import jax
import jaxlib
import numpy as np

from numpyro_ngvi.tracing.programs import Programs, kept, without_collections
from numpyro_ngvi.tracing.traced import inlined

#: The CPU's sums over more than 32,768 numbers are wrong in jaxlib 0.10.2, silently
#: (https://github.com/jax-ml/jax/issues/39103). pyproject.toml excludes that version; where it is
#: there all the same, our own programs do without YNNPACK's fusions.
_RIGHT = {"xla_cpu_experimental_ynn_fusion_type": ""} if jaxlib.__version__ == "0.10.2" else {}
_SOONER = {
    **_RIGHT,
    "xla_cpu_use_fusion_emitters": False,
    "xla_backend_optimization_level": 1,
}
_AT_ONCE = {
    **_SOONER,
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
}


class ProgramSizes(NamedTuple):
    """How many numbers a program works on decides how it is compiled."""

    many: int = 2**17  #: from here on it is long at work on them: compiled as ever
    few: int = 2**16  #: up to here for a millisecond: compiled at once, if it runs tens of times
    #: A search for modes is compiled to be there soon, not to be fast, as long as its draws so far
    #: and those that any fit takes, times the numbers of the largest array, are no more than these.
    few_in_all: int = 2_500_000
    draws_of_any_fit: int = 15_000
    most_steps: int = 16  #: programs of one SVI's step: others are of constants that change
    most_kept: int = 64  #: of programs, those of some ten models: each takes three megabytes

    def are_few_in_all(self, draws: int, data_size: int) -> bool:
        """Whether Newton's method takes longer to compile than to run, as far as can be told."""
        return (self.draws_of_any_fit + draws) * data_size <= self.few_in_all


SIZES = ProgramSizes()
#: The programs of models, of all fits.
PROGRAMS = Programs(SIZES.most_kept)
if hasattr(os, "register_at_fork"):  # another thread of the parent may be at them
    os.register_at_fork(after_in_child=PROGRAMS.renew_lock)


def compiled(
    function: Callable,
    *,
    runs_once: bool = False,
    num_numbers: int = 0,
    runs_few: bool = False,
    of: Hashable | None = None,
) -> Callable[..., Any]:
    """The function, compiled at its first call for arguments of these shapes.

    A function that is made in another one, as a model's are, is traced then, and compiled only if
    no program that does the same is kept (:mod:`~numpyro_ngvi.tracing.programs`).

    :param runs_once: the program runs a few times at most: let it be slow, and there at once.
    :param num_numbers: how many it works on in every run.
    :param runs_few: it runs some tens of times, and as if once where its arguments are small.
    :param of: all that the function reads besides its arguments: it is not traced anew where one
        that reads the same was traced for arguments of these shapes.
    """
    is_made = hasattr(function, "__self__") or "<locals>" in getattr(
        function, "__qualname__", "<locals>"
    )

    @functools.cache
    def program(is_short: bool) -> Callable:
        if jax.config.jax_disable_jit:
            return function
        jit = _JITS[num_numbers >= SIZES.many, is_short]
        return kept(function, PROGRAMS, jit, of) if is_made else jit(function)

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        leaves = jax.tree.leaves(args)
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            # A part of another program, whose options hold.
            return (function if of is None else inlined(function, PROGRAMS, of))(*args)
        is_small = runs_few and sum(map(np.size, leaves)) <= SIZES.few
        with without_collections():
            return program(runs_once or is_small)(*args)

    return call


def _jit(options: dict[str, Any], function: Callable) -> Callable:
    names = _known(jax.default_backend(), tuple(options))
    return jax.jit(function, compiler_options={name: options[name] for name in names} or None)


def _known(backend: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """Which of our options XLA has, on this kind of device."""
    if backend != "cpu":
        return ()
    # All at once, as a rule, which is one small program.
    return names if _are_known(*_AT_ONCE) else tuple(filter(_are_known, names))


@functools.cache
def _are_known(*names: str) -> bool:
    options = {name: value for name, value in _AT_ONCE.items() if name in names}
    try:
        jax.jit(lambda: 0).lower().compile(compiler_options=options)
    except Exception:  # noqa: BLE001  an option that is not known is not wanted
        return False
    return True


#: By whether a program works on many numbers, and whether it is to be there at once.
_JITS = {
    (False, False): functools.partial(_jit, _SOONER),
    (False, True): functools.partial(_jit, _AT_ONCE),
    (True, False): functools.partial(_jit, _RIGHT),
    (True, True): functools.partial(_jit, _RIGHT),
}


def blocks(rows: np.ndarray, at_once: int) -> list[np.ndarray]:
    """So many rows each, of which the last is repeated as it takes: one program does for all.

    :param rows: shape ``(N, d)``.
    """
    padded = np.pad(rows, ((0, -len(rows) % at_once), (0, 0)), "edge")
    return np.split(padded, len(padded) // at_once)


def enable_x64(is_on: bool) -> contextlib.AbstractContextManager:
    """``jax.enable_x64``, in versions before it too: the precision of what this thread computes."""
    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(is_on)
    from jax.experimental import enable_x64 as experimental  # its place before JAX 0.8

    return experimental(is_on)


def full_products() -> contextlib.AbstractContextManager:
    """Products of matrices in the precision of their numbers, unless the user has chosen another.

    On a GPU JAX keeps ten bits of the factors of single precision, which no search can end with.
    """
    is_open = jax.config.jax_default_matmul_precision is None and jax.default_backend() != "cpu"
    return jax.default_matmul_precision("highest") if is_open else contextlib.nullcontext()
