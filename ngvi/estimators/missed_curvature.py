"""A check that a Hessian by automatic differentiation is the curvature.

It misses curvature silently where a backward pass is wrong, or where all of the curvature sits in
a kink (``abs``, ``relu``). The fundamental theorem of calculus along a segment through a draw,

    grad l(theta + v) - grad l(theta - v) = int_{-1}^{1} hess l(theta + t v) v dt,

finds it: a few quadrature nodes give the right-hand side accurately where ``l`` is smooth.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ngvi.estimators.options import DEFAULTS
from ngvi.families.draws import noise_dim

#: A function's gradients and Hessian's products with ``v`` at some nodes, each of shape ``(n, d)``;
#: None where it has no Hessian.
Along = tuple[np.ndarray, np.ndarray] | None


def half_segment(family: Any) -> Any:
    """Return half a segment through the mean, of shape ``(d,)``, the same one in every run.

    Each whitened coordinate goes on as far, for a kink may be in any.
    """
    signs = np.random.default_rng(0).choice([-1.0, 1.0], noise_dim(family))
    whitened = family.ops.tensor(DEFAULTS.half_segment * signs, family.loc)
    return family.sample(whitened) - family.mean


def missed(
    at_nodes: Callable[[np.ndarray, set[str] | None], dict[str, Along]],
    step: np.ndarray,
    eps: float,
) -> list[str]:
    """Return which functions have a gradient that changes other than their Hessians say.

    :param at_nodes: evaluates functions by name at ``theta + t v``: at these ``t``, of shape
        ``(n,)``, those of the names, or all. What it leaves out is not judged.
    :param step: ``v``, of shape ``(d,)``: a fraction of a standard deviation.
    :param eps: of the precision in which they are computed.
    """
    suspects: set[str] | None = None
    for panels in (1, DEFAULTS.segment_panels):
        nodes, weights = _quadrature(panels)
        suspects = {
            name
            for name, along in at_nodes(nodes, suspects).items()
            if along is None or _defect(*along, step, weights, eps) > DEFAULTS.jump
        }
        if not suspects:
            break
    return sorted(suspects or ())


def what_is_missed(names: list[str], reason: str | None = None) -> str:
    """Say in words what is wrong with a log density.

    :param names: of its sites with such a curvature, as far as they are known.
    :param reason: why it cannot be differentiated twice, if that is so.
    """
    verb = "has a curvature that its Hessian misses, by automatic differentiation (a kink, a step, "
    verb += "or a backward pass that is not itself differentiable)"
    if reason is not None:
        verb = f"cannot be differentiated twice ({reason})"
    sites = ", ".join(map(repr, names))
    return f"The log density {f'of {sites} ' if sites else ''}{verb}"


def _quadrature(panels: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes on [-1, 1], the two ends first, and the weights of the others."""
    nodes, weights = np.polynomial.legendre.leggauss(DEFAULTS.segment_nodes)
    centres = (2.0 * np.arange(panels) + 1.0) / panels - 1.0
    nodes = (centres[:, None] + nodes / panels).reshape(-1)
    return np.concatenate([[-1.0, 1.0], nodes]), np.tile(weights / panels, panels)


def _defect(
    gradients: np.ndarray, products: np.ndarray, step: np.ndarray, weights: np.ndarray, eps: float
) -> float:
    """Return the part of the gradient's change that the Hessian misses; 0 if it cannot be known."""
    # Coordinates differ in scale; the step tells how.
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        gradients, products = (
            np.abs(step) * np.asarray(part, float) for part in (gradients, products)
        )
        change = gradients[1] - gradients[0]
        integral = weights @ products[2:]
        size = max(np.linalg.norm(change), np.linalg.norm(integral))
        rounding = 1e3 * eps * np.linalg.norm(np.abs(gradients).max(0))
        defect = (np.linalg.norm(change - integral) - rounding) / size
    return float(defect) if np.isfinite(defect) else 0.0
