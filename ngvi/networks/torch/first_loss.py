"""Whether a loss is a mean over a batch, as rules take it, by the graph of its first ``backward``.

Nothing later can see it: a sum of ``B`` losses is the loss of a posterior ``B`` times as sharp.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from ngvi._warn import warn

#: Of a loss that is a sum of losses, how many steps of its graph are looked at.
MAX_NODES = 100


class FirstLoss(TorchFunctionMode):
    """Looks at the first loss that is differentiated, and warns of a sum or of a small ``ess``."""

    def __init__(self, groups: list[dict[str, Any]], rule: str) -> None:
        super().__init__()
        self._rule = rule
        self._ess = min(group["ess"] for group in groups)
        self._weights = {tuple(param.shape) for group in groups for param in group["params"]}
        self._is_over = False

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if func is Tensor.backward and not self._is_over:
            self._is_over = True
            if words := self._words(*self._looked_at(args[0].grad_fn)):
                warn(words)
        return func(*args, **(kwargs or {}))

    def _words(self, summed: int, rows: int, is_of_all: bool) -> str:
        if summed > 1:
            return (
                f"The loss is a sum over {summed} rows, and ess={self._ess:g} is for a mean over "
                f"examples: of a sum the posterior is {summed} times too sharp. Take the "
                "mean, reduction='mean'."
            )
        if is_of_all:
            return (
                f"The loss is a mean times ess={self._ess:g}, as of all data, and {self._rule} "
                f"multiplies by ess itself: the posterior is {self._ess:g} times too sharp. Take "
                "the mean alone."
            )
        if rows > self._ess:
            return (
                f"ess={self._ess:g} is below the {rows} rows of one batch: it is the number of "
                "training examples, len(dataset), and not of batches."
            )
        return ""

    def _looked_at(self, loss: Any) -> tuple[int, int, bool]:
        """The rows over which a term of a loss is a sum, those of its sums and means, and whether
        one of these is a mean times ``ess``.

        Terms are those of sums, differences and multiples by numbers. Their product says whether a
        sum is a mean; one above one, such as a ``GradScaler``'s, says nothing.
        """
        summed, rows, is_of_all, nodes = 1, 1, False, [(loss, 1.0, 1.0)]
        for _ in range(MAX_NODES):
            if not nodes:
                break
            node, factor, times = nodes.pop()
            inputs = [one for one, _ in getattr(node, "next_functions", ())]
            number = _number(node, inputs)
            if number is not None:
                factor, times = min(1.0, factor * number), times * number
                nodes += [(one, factor, times) for one in inputs if one is not None]
                continue
            reduction = getattr(node, "_saved_reduction", None)  # of torch's losses; 2 is a sum
            shape = tuple(getattr(node, "_saved_self_sym_sizes", ()))
            if reduction is not None:
                shape = tuple(node._saved_self.shape)
            count = shape[0] if shape and shape not in self._weights else 1
            is_sum = reduction == 2 or type(node).__name__.startswith("SumBackward")
            rows = max(rows, count)
            summed = max(summed, count if is_sum and factor > 0.5 else 1)
            is_mean = count > 1 and not is_sum
            is_of_all |= is_mean and times > 1 and math.isclose(times, self._ess, rel_tol=1e-6)
        return summed, rows, is_of_all


def _number(node: Any, inputs: list) -> float | None:
    """The size of the number by which a node multiplies what has a gradient; None of another."""
    kind = type(node).__name__
    if kind.startswith(("AddBackward", "SubBackward", "NegBackward")):
        return 1.0
    if not kind.startswith(("MulBackward", "DivBackward")) or sum(map(bool, inputs)) != 1:
        return None
    is_first = inputs[0] is not None
    value = node._saved_other if is_first else getattr(node, "_saved_self", None)
    value = value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
    if isinstance(value, Tensor) or not value or (kind.startswith("Div") and not is_first):
        return None
    return 1 / abs(float(value)) if kind.startswith("Div") else abs(float(value))
