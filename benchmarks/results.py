"""What a result of ``fit`` says of itself, whether it has ``verdict`` and ``cost`` or not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


def cost(result: Any) -> Any:
    """Numbers of ``gradients``, Hessian ``products`` and ``values`` of the log density."""
    if hasattr(result, "cost"):
        return result.cost
    products, values = result.num_hessian_products, getattr(result, "num_values", 0)
    return SimpleNamespace(gradients=result.num_gradients, products=products, values=values)


def num_gradients(result: Any) -> int:
    """Gradients and products, which cost about as much."""
    spent = cost(result)
    return int(spent.gradients + spent.products)


def verdict(result: Any) -> str:
    """``"certified"`` or another word; empty of a result that has none."""
    found = getattr(result, "verdict", "")
    return str(getattr(found, "value", found))


def is_certified(result: Any) -> bool:
    """Whether the result claims an optimum."""
    said = verdict(result)
    return said == "certified" if said else bool(result.converged)
