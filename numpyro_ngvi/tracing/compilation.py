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
from collections.abc import Callable, Hashable
from typing import Any

import jax
import numpy as np

from numpyro_ngvi.tracing.arguments import is_traced
from numpyro_ngvi.tracing.programs import Programs, kept, without_collections
from numpyro_ngvi.tracing.traced import inlined

#: Programs of models that are kept, and traces: those of some ten models, three megabytes each.
MOST_KEPT = 128

_SOONER = {"xla_cpu_use_fusion_emitters": False, "xla_backend_optimization_level": 1}
_AT_ONCE = {
    **_SOONER,
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
}


#: A program that works on this many numbers runs long: it is compiled as ever. On fewer it runs a
#: millisecond: if it runs some tens of times only, it is compiled at once.
MANY = 2**17
#: A search for modes is compiled to be there soon, not to be fast, as long as its draws so far and
#: those that any fit takes, times the numbers of the largest array, are no more than these.
FEW_IN_ALL = 2_500_000
DRAWS_OF_ANY_FIT = 15_000

#: The programs of models, of all fits.
PROGRAMS = Programs(MOST_KEPT)


def few_in_all(draws: int, data_size: int) -> bool:
    """Tell whether Newton's method takes longer to compile than to run, as far as can be told."""
    return (DRAWS_OF_ANY_FIT + draws) * data_size <= FEW_IN_ALL


def compiled(
    function: Callable,
    *,
    runs_once: bool = False,
    num_numbers: int = 0,
    runs_few: bool = False,
    of: Hashable | None = None,
) -> Callable[..., Any]:
    """Return the function, compiled at its first call for arguments of these shapes.

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
    def program(is_short: bool, keys: str) -> Callable:
        if jax.config.jax_disable_jit:
            return function
        jit = _jit(is_short) if num_numbers < MANY else jax.jit
        if is_made:
            return kept(function, PROGRAMS, jit, of)
        # A function of its own, as JAX's caches do not know of another kind of keys.
        return jit(functools.update_wrapper(functools.partial(function), function))

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        leaves = jax.tree.leaves(args)
        if is_traced(leaves):
            # A part of another program, whose options hold.
            return (function if of is None else inlined(function, PROGRAMS, of))(*args)
        is_small = runs_few and sum(map(np.size, leaves)) < MANY
        with without_collections():
            return program(runs_once or is_small, jax.config.jax_default_prng_impl)(*args)

    return call


@functools.cache
def _jit(is_short: bool) -> Callable[[Callable], Callable]:
    """Return ``jax.jit`` with our options, if XLA has them on this kind of device."""
    options = _AT_ONCE if is_short else _SOONER
    if jax.default_backend() == "cpu":
        with contextlib.suppress(Exception):  # an option that is not known is not wanted
            jax.jit(lambda: 0).lower().compile(compiler_options=options)
            return functools.partial(jax.jit, compiler_options=options)
    return jax.jit


def blocks(rows: np.ndarray, at_once: int) -> list[np.ndarray]:
    """Split rows into blocks of one size, which one program does for; the last row fills up.

    :param rows: shape ``(N, d)``.
    """
    if missing := -len(rows) % at_once:
        rows = np.concatenate([rows, np.repeat(rows[-1:], missing, 0)])
    return np.split(rows, len(rows) // at_once)


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
