"""``jax.jit`` for programs of our own, which in a new process take longer to compile than to run.

On a CPU most of XLA's compilation is spent on kernels, one after another. Without its newer
emitters of fused kernels a program is there in 60% of the time, and as fast, unless it works on
very many numbers; without LLVM's optimisation in an eighth, but up to nine times as slow. NumPyro's
own programs, and those that a user compiles, are compiled as ever.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jaxlib
import numpy as np

#: The CPU's sums over more than 32,768 numbers are wrong in jaxlib 0.10.2, silently
#: (https://github.com/jax-ml/jax/issues/39103). pyproject.toml excludes that version; where it is
#: there all the same, our own programs do without YNNPACK's fusions.
_RIGHT = {"xla_cpu_experimental_ynn_fusion_type": ""} if jaxlib.__version__ == "0.10.2" else {}
_SOONER = {**_RIGHT, "xla_cpu_use_fusion_emitters": False}
_AT_ONCE = {
    **_SOONER,
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
}


class ProgramSizes(NamedTuple):
    """How many numbers a program works on decides how it is compiled."""

    many: int = 2**17  #: from here on it is long at work on them: compiled as ever
    few: int = 2**16  #: up to here for a millisecond: compiled at once, if it runs tens of times


SIZES = ProgramSizes()


def compiled(
    function: Callable, *, runs_once: bool = False, num_numbers: int = 0, runs_few: bool = False
) -> Callable[..., Any]:
    """The function, compiled at its first call for arguments of these shapes.

    :param runs_once: the program runs a few times at most: let it be slow, and there at once.
    :param num_numbers: how many it works on in every run.
    :param runs_few: it runs some tens of times, and as if once where its arguments are small.
    """

    @functools.cache
    def program(is_short: bool) -> Callable:
        options = _AT_ONCE if is_short else _SOONER
        options = _RIGHT if num_numbers >= SIZES.many else options
        known = {name: value for name, value in options.items() if _is_known(name, value)}
        return jax.jit(function, compiler_options=known or None)

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        leaves = jax.tree.leaves(args)
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            return function(*args)  # a part of another program, whose options hold
        is_small = runs_few and sum(map(np.size, leaves)) <= SIZES.few
        return program(runs_once or is_small)(*args)

    return call


@functools.cache
def _is_known(name: str, value: Any) -> bool:
    """Whether XLA has an option, on the device that is used by default."""
    if jax.default_backend() != "cpu":
        return False
    try:
        jax.jit(lambda: 0).lower().compile(compiler_options={name: value})
    except Exception:  # noqa: BLE001  an option that is not known is not wanted
        return False
    return True


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
