"""Pyro's ``SVI``, one step of the process at a time."""

from __future__ import annotations

import pyro.infer

from ngvi._lock import serialised


class SVI(pyro.infer.SVI):
    """``pyro.infer.SVI``, whose steps may be those of several threads: each waits for the others.

    Pyro's handlers are the process's, and so is its parameter store. Two guides in two threads need
    parameters of their own there, as two guides in one: ``pyro.settings.set(module_local_params=
    True)``, or classes of different names. Random numbers come from one generator, in the order in
    which the threads take their steps.

    :param model: a Pyro model.
    :param guide: a guide, for instance ``NaturalGaussianGuide(model)``.
    :param optim: an optimiser of ours, or a ``PyroOptim``.
    :param loss: an ELBO.
    """

    step = serialised(pyro.infer.SVI.step)
    evaluate_loss = serialised(pyro.infer.SVI.evaluate_loss)
    run = serialised(pyro.infer.SVI.run)


__all__ = ["SVI"]
