"""NumPyro's ``SVI`` with a stateful ``step``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.infer
from numpyro import primitives
from numpyro.infer.svi import SVIRunResult, SVIState

from ngvi._door import check_parts
from ngvi._foreign import note_foreign_arguments
from ngvi._lock import remembered, serialised
from ngvi._warn import warn
from ngvi.errors import check_count, check_key, shown
from ngvi.estimators.natural_elbo import WatchedLosses
from ngvi.optim.rule import SKIPPED
from ngvi.optim.von import check_curvature_of
from numpyro_ngvi.elbo import NaturalELBO
from numpyro_ngvi.optim.state import JointState
from numpyro_ngvi.tracing.compilation import compiled

#: Steps that look at what others have counted, at first, and from then on each of this number: a
#: read of a GPU takes half a step.
FIRST_LOOKS, LOOK_EACH = 16, 64
#: Programs of steps that are kept: others are of constants that change.
MOST_STEPS = 16

#: The signature and words of another function; its type would be that of no method.
described_as: Any = functools.wraps


class Optimiser(Protocol):
    """An optax transformation or a NumPyro optimiser."""

    @property
    def init(self) -> Callable: ...
    @property
    def update(self) -> Callable: ...


class SVI(numpyro.infer.SVI):
    """``numpyro.infer.SVI`` that can also keep its own state, as Pyro's does.

    ``init``, ``update``, ``run``, ``evaluate`` and ``get_params`` are NumPyro's, unchanged.
    With ``rng_key``, the object also keeps its own state.

    >>> guide = NaturalGaussianGuide(model)
    >>> svi = SVI(model, guide, BLR(), NaturalELBO(), rng_key=jax.random.key(0))
    >>> losses = [svi.step(y) for _ in range(20)]
    >>> f"{guide.median(svi.params)['mean']:.1f}"
    '2.0'

    :param model: a NumPyro model.
    :param guide: a guide, for instance ``NaturalGaussianGuide(model)``.
    :param optim: an optax transformation or a NumPyro optimiser.
    :param loss: a NumPyro ELBO.
    :param rng_key: the JAX random key that :meth:`step` starts from, which alone needs one.
    :param static_kwargs: as in NumPyro: arguments that never change.
    :raises ValueError: for ``VOGN`` or ``IVON`` with the curvature of another rule.

    Threads share NumPyro's handlers, so they wait for each other while a model is traced; compiled
    steps run in parallel.
    """

    stable_update = serialised(numpyro.infer.SVI.stable_update)

    def __init__(
        self,
        model: Callable,
        guide: Callable,
        optim: Optimiser,
        loss: numpyro.infer.ELBO,
        *,
        rng_key: jax.Array | None = None,
        **static_kwargs: Any,
    ) -> None:
        check_parts("numpyro_ngvi", model, guide, optim, loss)
        check_curvature_of(optim, loss)
        super().__init__(model, guide, optim, loss, **static_kwargs)
        self._optim_as_given = optim
        self._rng_key = None if rng_key is None else check_key(rng_key)
        #: The state after the last :meth:`step`; None before the first. Assign one to resume, to a
        #: fresh object as well: states are pytrees of arrays, which pickle and Orbax can hold.
        self.state: SVIState | None = None
        self._last: SVIState | None = None  #: The state that :meth:`step` has left.
        self._compiled: dict[Any, Callable] = {}
        self._num_steps = 0
        # Of draws, of steps, and the loss, of one under way.
        self._counts: tuple[list, list, list] = [], [], []
        self._losses = WatchedLosses()
        self._has_warned_of_steps = False
        self._num_dropped = loss.new_count() if isinstance(loss, NaturalELBO) else None

    @described_as(numpyro.infer.SVI.init)
    @serialised
    def init(self, rng_key: jax.Array, *args: Any, **kwargs: Any) -> SVIState:
        return super().init(check_key(rng_key), *args, **kwargs)

    @described_as(numpyro.infer.SVI.update)
    @serialised
    def update(self, svi_state: SVIState, *args: Any, **kwargs: Any) -> tuple[SVIState, jax.Array]:
        return super().update(_checked(svi_state), *args, **kwargs)

    @described_as(numpyro.infer.SVI.evaluate)
    @serialised
    def evaluate(self, svi_state: SVIState, *args: Any, **kwargs: Any) -> jax.Array:
        return super().evaluate(_checked(svi_state), *args, **kwargs)

    @described_as(numpyro.infer.SVI.run)
    @serialised
    def run(self, rng_key: jax.Array, num_steps: int, *args: Any, **kwargs: Any) -> SVIRunResult:
        order = " It is run(rng_key, num_steps, ...), with the arguments of the model behind these."
        num_steps = check_count(num_steps, "num_steps", hint=order)
        result = super().run(check_key(rng_key), num_steps, *args, **kwargs)
        if not isinstance(result.losses, jax.core.Tracer):
            watched = WatchedLosses()
            for loss in np.asarray(result.losses):
                watched.seen(float(loss))
        return result

    def __getstate__(self) -> dict[str, Any]:
        # What NumPyro makes of an optax transformation does not pickle, and no program does.
        return {k: v for k, v in vars(self).items() if k != "optim"} | {"_compiled": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        other = numpyro.infer.SVI(self.model, self.guide, self._optim_as_given, self.loss)
        self.optim = other.optim

    @property
    def params(self) -> dict[str, Any]:
        """Values of all parameters after the last :meth:`step`.

        :raises RuntimeError: before the first step.
        """
        if self.state is None or self.constrain_fn is None:
            raise RuntimeError("svi.params exists only after the first svi.step(...).")
        return self.get_params(self.state)

    def step(self, *args: Any, **kwargs: Any) -> jax.Array:
        """Take a step on these arguments of the model and guide.

        The first call initialises, and each new combination of shapes compiles. Arrays, floats
        and containers of them may change without compiling again. Other arguments, such as
        ints, bools and strings, are constants: a new value compiles again.

        :return: the loss in nats, the negative bound on the log evidence before the step, as an
            array of shape ``()``. Only reading it waits for the device.
        :raises ValueError: without ``rng_key``; or if the first loss is not finite.
        :warns ngvi.UsageWarning: once, when a step was skipped; the optimiser counts them
            all in ``num_skipped``, in the ``optim_state`` of :attr:`state`. Once, when
            ``NaturalELBO`` has dropped draws. A step waits for neither, so a later step may
            warn, and after the first few only some check.
        """
        first = self.state is None
        if first and self._rng_key is None:
            raise ValueError(
                "svi.step() needs a random key: SVI(..., rng_key=jax.random.key(0)). "
                "Without one, use svi.init and svi.update as in NumPyro."
            )
        is_set_up = not first and self.constrain_fn is not None
        if first:
            self.state = self._last = self.init(self._rng_key, *args, **kwargs)
        elif not is_set_up:  # the state of another object, whose set-up is not in it
            self._last = self.init(jax.random.key(0), *args, **kwargs)
        if self.state is not self._last and self._last is not None:  # else it is of init
            self._check_same_model(self.state, self._last)
        with note_foreign_arguments(args, kwargs, "jnp.asarray"):
            state, loss, num_dropped = self._updated(args, kwargs)
        is_lost = first and not jnp.isfinite(loss)
        self.state = self._last = None if is_lost else state
        if self._num_dropped is not None:
            self._num_dropped.total = num_dropped
        if is_lost:
            raise ValueError(
                f"The first loss is {float(loss)} where the guide starts. Start elsewhere "
                "(init_loc_fn=), narrower (init_scale=), or check the data's support."
            )
        self._num_steps += 1
        if self._num_steps <= FIRST_LOOKS or self._num_steps % LOOK_EACH == 0:
            self._look_at_counts(loss)
        return loss

    def _check_same_model(self, given: SVIState, own: SVIState) -> None:
        """Refuse the state of a model or guide of other parameters.

        :raises ValueError: naming a parameter.
        """
        leaves = jax.tree_util.tree_leaves_with_path
        found, expected = (
            {jax.tree_util.keystr(path): f"shape {jnp.shape(leaf)}" for path, leaf in leaves(one)}
            for one in (self.optim.get_params(state.optim_state) for state in (given, own))
        )
        for name in {**expected, **found}:
            has, had = (shapes.get(name, "no elements") for shapes in (found, expected))
            if has != had:
                raise ValueError(
                    f"The state is of another model or guide: params{name} has {has}, and here "
                    f"{had}. Assign a state of the same model and family, or None to start anew."
                )

    def _look_at_counts(self, loss: jax.Array) -> None:
        """Warn of what a step has counted that was under way, unless it still is."""
        dropped, skipped, losses = self._counts
        if not all(count.is_ready() for count in (*dropped, *skipped, *losses)):
            return
        for before in losses:
            self._losses.seen(float(before))
        for total in dropped:
            self.loss.add_up(self._num_dropped, int(total))
        if any(map(int, skipped)):
            self._has_warned_of_steps = True  # once is enough
            warn(f"A step {SKIPPED}")
        dropped = [self._num_dropped.total] if self._num_dropped else []
        states = jax.tree.leaves(self.state.optim_state, is_leaf=_counts_skipped)
        skipped = [state.num_skipped for state in states if _counts_skipped(state)]
        self._counts = dropped, [] if self._has_warned_of_steps else skipped, [loss]

    def _updated(self, args: tuple, kwargs: dict[str, Any]) -> tuple[SVIState, jax.Array, Any]:
        leaves, structure = jax.tree.flatten((args, kwargs))
        dynamic = [leaf if _is_dynamic(leaf) else None for leaf in leaves]
        static = tuple(None if _is_dynamic(leaf) else _Constant(leaf) for leaf in leaves)
        total = None if self._num_dropped is None else self._num_dropped.total
        return self._compiled_update(structure, static)(self.state, dynamic, total)

    def _compiled_update(self, structure: Any, static: tuple) -> Callable:
        key = (structure, static)
        if key not in self._compiled:
            while len(self._compiled) >= MOST_STEPS:
                del self._compiled[next(iter(self._compiled))]

            def update(
                state: SVIState, dynamic: list, total: Any
            ) -> tuple[SVIState, jax.Array, Any]:
                leaves = [
                    leaf if constant is None else constant.value
                    for leaf, constant in zip(dynamic, static, strict=True)
                ]
                args, kwargs = jax.tree.unflatten(structure, leaves)
                if not isinstance(self.loss, NaturalELBO):
                    return *self.update(state, *args, **kwargs), None
                mutable = {**(state.mutable_state or {}), NaturalELBO.COUNT: total}
                state = state._replace(mutable_state=mutable)
                state, loss = self.update(state, *args, **kwargs)
                mutable = dict(state.mutable_state)
                num_dropped = mutable.pop(NaturalELBO.COUNT)
                return state._replace(mutable_state=mutable or None), loss, num_dropped

            size = sum(map(jnp.size, jax.tree.leaves(self.state)))
            self._compiled[key] = compiled(update, num_numbers=size)
        return self._compiled[key]


def _checked(svi_state: Any) -> SVIState:
    if not isinstance(svi_state, SVIState):
        raise TypeError(
            "The first argument is the state, svi.state or that of svi.init(rng_key, ...) or "
            f"svi.update, got {shown(svi_state)}. svi.step keeps the state itself."
        )
    return svi_state


@remembered
def _handlers() -> Callable[[], None]:
    """Handlers as they are now, to be so again after a call that is ended on its way."""
    stack = list(primitives._PYRO_STACK)
    return lambda: primitives._PYRO_STACK.__setitem__(slice(None), stack)


class _Constant:
    """A static argument, equal to another by value where it has a hash, else by identity."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Constant) or type(self.value) is not type(other.value):
            return False
        return self.value is other.value or bool(self.value == other.value)

    def __hash__(self) -> int:
        try:
            return hash((type(self.value), self.value))
        except TypeError:
            return id(self.value)


def _counts_skipped(node: Any) -> bool:
    return isinstance(node, JointState)


def _is_dynamic(leaf: Any) -> bool:
    return isinstance(leaf, float) or hasattr(leaf, "dtype")
