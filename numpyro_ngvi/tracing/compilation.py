"""``jax.jit`` for programs of our own, which in a new process take longer to compile than to run.

On a CPU most of XLA's compilation is spent on kernels, one after another, 20 to 150 ms each.
Without its newer emitters of fused kernels a program is there in 60% of the time, and as fast
(measured on regressions with 10 to 300 latents; at 10^5 latents a step takes 1.2 times as long, and
they are left in); without LLVM's optimisation in an eighth, but up
to nine times as slow. NumPyro's own programs, and those that a user compiles, are compiled as ever.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import jax
import jaxlib
import numpy as np

#: The CPU's sums over more than 32,768 numbers are wrong in jaxlib 0.10.2, silently: the log
#: likelihood of 110 rows under a Beta distribution, at 300 draws at once, by hundreds of nats
#: (https://github.com/jax-ml/jax/issues/39103). pyproject.toml excludes that version; where it is
#: there all the same, our own programs do without YNNPACK's fusions.
_RIGHT = {"xla_cpu_experimental_ynn_fusion_type": ""} if jaxlib.__version__ == "0.10.2" else {}
_SOONER = {**_RIGHT, "xla_cpu_use_fusion_emitters": False}
_AT_ONCE = {
    **_SOONER,
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
}
_OPTIONS = {"as ever": _RIGHT, "sooner": _SOONER, "at once": _AT_ONCE}


#: Of so many numbers a program is long at work on them, and of so few for a millisecond.
MANY_NUMBERS, FEW_NUMBERS = 2**17, 2**16


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
        kind = "at once" if is_short else "sooner"
        options = _known("as ever" if num_numbers >= MANY_NUMBERS else kind)
        return jax.jit(function, compiler_options=options)

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        leaves = jax.tree.leaves(args)
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            return function(*args)  # a part of another program, whose options hold
        is_small = runs_few and sum(map(np.size, leaves)) <= FEW_NUMBERS
        return program(runs_once or is_small)(*args)

    return call


def blocks(rows: np.ndarray, at_once: int) -> list[np.ndarray]:
    """So many rows each, of which the last is repeated as it takes: one program does for all.

    :param rows: shape ``(N, d)``.
    """
    padded = np.pad(rows, ((0, -len(rows) % at_once), (0, 0)), "edge")
    return np.split(padded, len(padded) // at_once)


def in_double_precision() -> contextlib.AbstractContextManager:
    """In which JAX computes in double precision, in this thread and for as long as it lasts."""
    return enable_x64(True)


def in_single_precision() -> contextlib.AbstractContextManager:
    """In which it does not."""
    return enable_x64(False)


def enable_x64(is_on: bool) -> contextlib.AbstractContextManager:
    """``jax.enable_x64``, in versions before it too."""
    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(is_on)
    from jax.experimental import enable_x64 as experimental  # its place before JAX 0.8

    return experimental(is_on)


@functools.cache
def _known(kind: str) -> dict[str, Any] | None:
    """Those of our options that XLA has, on the device that is used by default."""
    if jax.default_backend() != "cpu":
        return None
    wanted = _OPTIONS[kind]
    if not wanted or _are_known(wanted):
        return wanted or None
    return {name: value for name, value in wanted.items() if _are_known({name: value})} or None


def _are_known(options: dict[str, Any]) -> bool:
    try:
        jax.jit(lambda: 0).lower().compile(compiler_options=options)
    except Exception:  # noqa: BLE001  an option that is not known is not wanted
        return False
    return True
