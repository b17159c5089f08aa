"""A log density that is a program of its sites' values, and what is left of it given some."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal


class OfSites:
    """A function of the whole latent vector, traced once.

    :param program: of the unconstrained values by site, and of ``params``.
    :param params: the leaves of the program's further arguments.
    :param unpack: from a vector ``(d,)`` to the values by site.
    :param locals: the names of the sites that are local.
    """

    def __init__(
        self,
        program: ClosedJaxpr,
        params: Sequence[jax.Array],
        unpack: Callable[[jax.Array], dict[str, jax.Array]],
        locals: Sequence[str],
    ) -> None:
        # Or XLA would compute with the data as it compiles, for minutes (919 rows: two and a half).
        self._constants = jax.lax.optimization_barrier(program.consts)
        self._program, self._params = program.jaxpr, params
        self._unpack, self._locals = unpack, locals

    def __call__(self, theta: jax.Array) -> jax.Array:
        values = jax.tree.leaves(self._unpack(theta))
        return jax.core.eval_jaxpr(self._program, self._constants, *values, *self._params)[0]

    def fixed(self) -> OfSites:
        """Return the same density, without derivatives by its parameters."""
        other = copy.copy(self)
        other._params = jax.lax.stop_gradient(self._params)
        return other

    def given(self, latent: jax.Array) -> Callable[[jax.Array], jax.Array]:
        """Return the density as a function of the vector's locals.

        Whatever hangs on the other latents alone is computed once, however often it is called, and
        has no part in its derivatives.
        """
        values = self._unpack(latent)
        names = sorted(values)  # as the leaves of a dictionary are
        locals = [name for name in names if name in self._locals]
        others = [values[name] for name in names if name not in self._locals]
        early, rest = halved(self._program, [name in locals for name in names])
        known = jax.core.eval_jaxpr(early, self._constants, *others, *self._params)

        def density(point: jax.Array) -> jax.Array:
            values = self._unpack(point)
            own = [values[name] for name in locals]
            return jax.core.eval_jaxpr(rest, (), *known, *own)[0]

        return density


def halved(program: Jaxpr, is_open: Sequence[bool]) -> tuple[Jaxpr, Jaxpr]:
    """Split a program into what can be computed before its open arguments are known, and the rest.

    :param is_open: whether an argument is; those beyond are not.
    :return: a program of the other arguments, and one of its results and the open arguments.
    """
    is_open = [*is_open, *[False] * (len(program.invars) - len(is_open))]
    given = [var for var, late in zip(program.invars, is_open, strict=True) if not late]
    late = [var for var, late in zip(program.invars, is_open, strict=True) if late]
    known = dict.fromkeys([*program.constvars, *given])  # in order, for the same program each time
    first, rest = [], []
    for equation in program.eqns:
        if all(isinstance(atom, Literal) or atom in known for atom in equation.invars):
            first.append(equation)
            known.update(dict.fromkeys(equation.outvars))
        else:
            rest.append(equation)
    wanted = {atom for one in rest for atom in one.invars if not isinstance(atom, Literal)}
    wanted.update(atom for atom in program.outvars if not isinstance(atom, Literal))
    passed = [var for var in known if var in wanted]
    return (
        program.replace(invars=given, outvars=passed, eqns=first),
        program.replace(constvars=[], invars=[*passed, *late], eqns=rest),
    )
