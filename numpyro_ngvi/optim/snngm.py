"""Snngm: stochastic normalised natural gradient with momentum (Tan, Table 5)."""

from __future__ import annotations

from typing import Any

import optax

from ngvi.checks import check_momentum, check_step_size, is_auto
from ngvi.optim.snngm import PacedRule, SnngmRule
from ngvi.page import page
from numpyro_ngvi.optim import algebra
from numpyro_ngvi.optim.algebra import Schedule
from numpyro_ngvi.optim.joint import FIELDS, joint


@page(SnngmRule, FIELDS)
def Snngm(
    step_size: float | Schedule | str = "auto",
    beta: float = 0.9,
    other: Any = None,
) -> optax.GradientTransformation:
    """:param step_size: ``"auto"``, or ``alpha_0`` in the units of the unconstrained latents: a
        number (Tan uses 1e-3) or an optax schedule.
    :param beta: momentum, in [0, 1).
    """
    check_momentum(beta)
    if is_auto(step_size, "step_size"):
        return joint(PacedRule(algebra, beta), other, "Snngm")
    return joint(SnngmRule(algebra, check_step_size(step_size), beta), other, "Snngm")
