"""Pyro's ``SVI``, with one step at a time in a process."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import pyro
import pyro.infer
import torch
from pyro.poutine import runtime

from ngvi._door import check_parts, door
from ngvi._lock import remembered, serialised
from ngvi.optim.von import check_curvature_of


class SVI(pyro.infer.SVI):
    """``pyro.infer.SVI`` for one or more threads, whose steps wait for each other.

    Threads share Pyro's handlers and its parameter store. Like two guides in one thread, guides in
    two threads need separate parameters: ``pyro.settings.set(module_local_params=True)``, or
    classes of different names. All threads draw from one random generator, in the order of their
    steps.

    >>> guide = NaturalGaussianGuide(model)
    >>> svi = SVI(model, guide, BLR(), NaturalELBO())
    >>> losses = [svi.step(y) for _ in range(20)]
    >>> f"{guide.median()['mean']:.1f}"
    '2.0'

    :param model: a Pyro model.
    :param guide: a guide, for instance ``NaturalGaussianGuide(model)``.
    :param optim: an optimiser of ours, or a ``PyroOptim``.
    :param loss: an ELBO.
    :raises ValueError: for ``VOGN`` or ``IVON`` with the curvature of another rule.
    """

    @door
    def __init__(
        self,
        model: Callable,
        guide: Callable,
        optim: pyro.optim.PyroOptim,
        loss: pyro.infer.ELBO | Callable[..., torch.Tensor],
        loss_and_grads: Callable | None = None,
        num_samples: int = 0,
        num_steps: int = 0,
    ) -> None:
        check_parts("pyro_ngvi", model, guide, optim, loss)
        check_curvature_of(optim, loss)
        super().__init__(model, guide, optim, loss, loss_and_grads, num_samples, num_steps)

    step = serialised(pyro.infer.SVI.step)
    evaluate_loss = serialised(pyro.infer.SVI.evaluate_loss)

    @functools.wraps(pyro.infer.SVI.run)
    @serialised
    def run(self, *args: Any, **kwargs: Any) -> Any:
        if not self.num_steps:
            raise RuntimeError(
                "svi.run, which Pyro has deprecated, takes the steps of SVI(..., num_steps=), by "
                "default none. Write a loop of svi.step(...), with the arguments of the model."
            )
        return super().run(*args, **kwargs)


#: What handlers of ours change for the process.
CHECKS = (
    *("validate_distributions_pyro", "validate_distributions_torch"),
    *("validate_infer", "validate_poutine"),
)


_processes = {os.getpid()}


@remembered
def _handlers_and_checks() -> Callable[[], None]:
    """Handlers, plates and checks as they are now, to be so again after a call that is ended.

    In a child that is forked torch computes on one thread: it would wait for threads of its parent,
    which it does not have.
    """
    if os.getpid() not in _processes:
        _processes.add(os.getpid())
        torch.set_num_threads(1)
    stack, checks = list(runtime._PYRO_STACK), {name: pyro.settings.get(name) for name in CHECKS}
    plates = list(runtime._DIM_ALLOCATOR._stack)

    def restore() -> None:
        runtime._PYRO_STACK[:] = stack
        runtime._DIM_ALLOCATOR._stack[:] = plates
        pyro.settings.set(**checks)

    return restore


__all__ = ["SVI"]
