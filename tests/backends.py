"""One vocabulary for both packages, so that one claim is tested on both."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

BACKENDS = ("numpyro", "pyro")


def load(name: str) -> Any:
    """The adapter of one package; the test is skipped without its PPL."""
    pytest.importorskip(name)
    return NumPyroBackend() if name == "numpyro" else PyroBackend()


class Backend:
    """What the tests need of a package beyond its own names."""

    name: str

    @property
    def package(self) -> Any:
        return importlib.import_module(f"{self.name}_ngvi")

    @property
    def families(self) -> Any:
        return self.package.families

    def module(self, path: str) -> Any:
        """A submodule such as ``"families.base"``."""
        return importlib.import_module(f"{self.name}_ngvi.{path}")

    def family_class(self, family: str) -> type:
        return {
            "covariance_cholesky": self.families.CovarianceCholesky,
            "precision_cholesky": self.families.PrecisionCholesky,
            "precision": self.families.Precision,
            "covariance": self.families.Covariance,
            "diagonal": self.families.Diagonal,
        }[family]

    def family(self, family: str, loc: Any, scale: Any, dtype: str = "float64") -> Any:
        """A family with these coordinates."""
        return self.family_class(family)(self.array(loc, dtype), self.array(scale, dtype))

    def coordinates(self, family: Any) -> tuple[np.ndarray, np.ndarray]:
        """``(loc, scale)`` of a family as numpy arrays."""
        loc, scale = family.coordinates().values()
        return self.numpy(loc), self.numpy(scale)

    def float64(self) -> contextlib.AbstractContextManager:
        """Float64 where nobody says otherwise."""
        raise NotImplementedError

    def array(self, value: Any, dtype: str = "float64") -> Any:
        raise NotImplementedError

    def numpy(self, value: Any) -> np.ndarray:
        raise NotImplementedError

    def dtype(self, value: Any) -> str:
        raise NotImplementedError

    def grad(self, function: Callable, *args: Any) -> Any:
        """Reverse-mode gradient of a scalar function with respect to its first argument,
        a family or an array; the gradient has the type of the argument."""
        raise NotImplementedError

    def jvp(self, function: Callable, family: Any, tangent: Any) -> Any:
        """Forward-mode derivative of ``function(family)`` in the direction ``tangent``."""
        raise NotImplementedError


class NumPyroBackend(Backend):
    name = "numpyro"

    def float64(self) -> contextlib.AbstractContextManager:
        import jax

        if hasattr(jax, "enable_x64"):
            return jax.enable_x64(True)
        from jax.experimental import enable_x64  # before jax 0.8

        return enable_x64()

    def array(self, value: Any, dtype: str = "float64") -> Any:
        import jax.numpy as jnp

        return jnp.asarray(value, dtype)

    def numpy(self, value: Any) -> np.ndarray:
        return np.asarray(value)

    def dtype(self, value: Any) -> str:
        return str(value.dtype)

    def grad(self, function: Callable, *args: Any) -> Any:
        import jax

        return jax.jit(jax.grad(function))(*args)

    def jvp(self, function: Callable, family: Any, tangent: Any) -> Any:
        import jax

        return jax.jit(lambda f, t: jax.jvp(function, (f,), (t,))[1])(family, tangent)


class PyroBackend(Backend):
    name = "pyro"

    @contextlib.contextmanager
    def float64(self) -> Iterator[None]:
        import torch

        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(before)

    def array(self, value: Any, dtype: str = "float64") -> Any:
        import torch

        return torch.as_tensor(np.asarray(value), dtype=getattr(torch, dtype)).clone()

    def numpy(self, value: Any) -> np.ndarray:
        return value.detach().numpy()

    def dtype(self, value: Any) -> str:
        return str(value.dtype).removeprefix("torch.")

    def grad(self, function: Callable, *args: Any) -> Any:
        import torch

        first, *rest = args
        if isinstance(first, torch.Tensor):
            leaf = first.detach().clone().requires_grad_()
            return torch.autograd.grad(function(leaf, *rest), leaf)[0]
        leaves = [c.detach().clone().requires_grad_() for c in first.coordinates().values()]
        value = function(type(first)(*leaves), *rest)
        gradients = torch.autograd.grad(value, leaves, allow_unused=True)
        return type(first)(
            *(
                torch.zeros_like(x) if g is None else g
                for g, x in zip(gradients, leaves, strict=True)
            )
        )

    def jvp(self, function: Callable, family: Any, tangent: Any) -> Any:
        import torch

        primals = tuple(c.detach() for c in family.coordinates().values())
        tangents = tuple(tangent.coordinates().values())
        return torch.func.jvp(lambda *c: function(type(family)(*c)), primals, tangents)[1]
