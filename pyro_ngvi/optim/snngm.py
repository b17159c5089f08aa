"""Snngm: stochastic normalised natural gradient with momentum (Tan, Table 5)."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from pyro_ngvi.families.coordinates import num_parameters
from pyro_ngvi.optim.joint import Families, JointOptim, JointOptimizer, joint_norm


class SnngmOptimizer(JointOptimizer):
    """The torch optimiser of :class:`Snngm`, with options ``lr`` and ``beta``."""

    default_options: ClassVar[dict[str, Any]] = {"lr": 1e-3, "beta": 0.9}

    def direction(self, gradients: Families, families: Families) -> Families:
        beta = self.option("beta")
        norm = float(joint_norm(gradients))
        weight = (1 - beta) / norm if norm > 0 else 0.0
        momentum = [
            m.map(lambda m, g: (beta * m).add_(g, alpha=weight), g)
            for m, g in zip(self.momentum(families), gradients, strict=True)
        ]
        self.set_momentum(families, momentum)
        scale = math.sqrt(num_parameters(families)) / (1 - beta ** (self.count(families) + 1))
        return [m.map(lambda m: scale * m) for m in momentum]


class Snngm(JointOptim):
    """Momentum of the normalised natural gradient over all natural parameters jointly.

    With ``g_t`` the natural gradient of the bound over ``lambda``, the joint vector of all
    natural parameters (Tan, Table 5, middle column)::

        m_t = beta m_{t-1} + (1 - beta) g_t / ||g_t||
        lambda <- lambda + alpha m_t / (1 - beta^t),     alpha = lr sqrt(len(lambda))

    A step moves ``lambda`` by at most ``alpha``, whatever the size of the gradient: large
    steps cannot happen far from the optimum, and near it a constant ``lr`` leaves a noise of
    that size, which a decreasing schedule removes. The scale of the loss plays no role.

    :param optim_args: ``lr`` (``alpha_0``, in the units of the unconstrained latents; a
        number, default 1e-3, or a schedule from the number of steps taken) and ``beta``
        (momentum in [0, 1), default 0.9); or a callable from a parameter's name to these.
    :param clip_args: ``clip_norm`` of the joint natural gradient and ``clip_value``, as in
        ``PyroOptim``; or a callable from module name and parameter name to these.
    :param other: a ``PyroOptim`` for parameters that are not natural; by default
        ``pyro.optim.Adam({"lr": 1e-3})``.
    :param scheduler: makes a ``torch.optim.lr_scheduler`` from the torch optimiser;
        ``svi.optim.step()`` advances it.
    :raises ValueError: for options unknown or outside their range; on the first step, if
        there are no natural parameters or the first gradient is not finite.
    """

    torch_optimizer = SnngmOptimizer
