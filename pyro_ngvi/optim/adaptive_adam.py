"""Adam whose rate adapts, as a torch optimiser; see :mod:`ngvi.optim.adaptive_adam`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from ngvi.optim.adaptive_adam import AdamState, AdaptiveAdamRule
from pyro_ngvi.optim.algebra import algebra


class AdaptiveAdam(torch.optim.Optimizer):
    """A torch optimiser without an option, each of whose tensors has a rate of its own.

    :param params: tensors, or groups of them.
    """

    rule = AdaptiveAdamRule()

    def __init__(self, params: Iterable[Any]) -> None:
        super().__init__(params, {})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Return one step, on the gradients that the parameters have."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for param in self._params():
            if param.grad is not None:
                own = self.state[param]
                state = AdamState(**own["adam"]) if own else self.rule.start(param)
                own["count"] = own.get("count", 0) + 1
                state = self.rule.advance(algebra, param.grad, param, state, own["count"])
                own["adam"] = state._asdict()
                param.add_(self.rule.change(state, own["count"]))
        return loss

    @torch.no_grad()
    def recover(self) -> None:
        """Take the last step back, and go on with a tenth of the rates."""
        for param in self._params():
            if own := self.state[param]:
                state = AdamState(**own["adam"])
                param.sub_(self.rule.change(state, own["count"]))
                own["adam"] = self.rule.shortened(state)._asdict()

    def _params(self) -> list[torch.Tensor]:
        return [param for group in self.param_groups for param in group["params"]]
