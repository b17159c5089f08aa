"""Cholesky factors of matrices that have none, as NaN.

``torch.linalg.cholesky`` raises if one matrix of a batch is not positive definite, by rounding at
one draw, say. A draw without a density is no reason to give up the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_FACTORISATIONS = {torch.linalg.cholesky, torch.cholesky, Tensor.cholesky}


class NanCholesky(TorchFunctionMode):
    """Inside, the factor of a matrix that is not positive definite is NaN."""

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _FACTORISATIONS and "out" not in kwargs:
            upper = kwargs.pop("upper", False)
            factor, info = torch.linalg.cholesky_ex(*args, **kwargs)
            factor = torch.where((info == 0)[..., None, None], factor, torch.nan)
            return factor.mT if upper else factor
        return func(*args, **kwargs)
