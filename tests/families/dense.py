"""Every family beside dense matrices: its covariance as a function of its coordinates, in torch.

The rest of a :class:`Dense` Gaussian follows by automatic differentiation: the Jacobian of the
covariance, the Fisher information, and gradients of functions of the moments.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ngvi.latents.forest import forest_from_indices
from tests import reference
from tests.families import arrows
from tests.tan.families import named


@dataclasses.dataclass(frozen=True)
class Case:
    """A family of one size.

    :param name: of the class, here or in the packages.
    :param random: arrays of the coordinates, of a random generator.
    :param covariance: of tensors of all coordinates but the mean; it reads their free parts only.
    :param options: of the specification.
    :param free: which entries of the precision, or of the covariance, the family has.
    :param carries: ``M`` of the arrays but the mean's, where ``M_new^-T M^T`` carries the mean's
        part of a retraction.
    """

    name: str
    random: Callable[[np.random.Generator], list[np.ndarray]]
    covariance: Callable[..., torch.Tensor]
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    free: Any = True
    carries: Callable[..., np.ndarray] | None = None

    def specification(self, ppl: Any) -> Any:
        cls = sphere(ppl) if self.name == "Sphere" else named(ppl.name, self.name)
        return cls(**self.options)

    def family(self, ppl: Any, values: list[np.ndarray], dtype: str = "float64") -> Any:
        family = self.specification(ppl).initial(ppl.array(np.ones(len(values[0])), dtype), 1.0)
        arrays = (ppl.array(value, dtype) for value in values)
        return dataclasses.replace(family, **dict(zip(family.coordinates(), arrays, strict=True)))

    def instance(self, ppl: Any, rng: np.random.Generator) -> tuple[Dense, Any]:
        """A random Gaussian, dense and of the family."""
        values = self.random(rng)
        return Dense(self, values), self.family(ppl, values)


@dataclasses.dataclass
class Dense:
    """A Gaussian by the arrays of a family's coordinates."""

    case: Case
    values: list[np.ndarray]

    @property
    def loc(self) -> np.ndarray:
        return self.values[0]

    @property
    def dim(self) -> int:
        return len(self.loc)

    @cached_property
    def covariance(self) -> np.ndarray:
        return self.case.covariance(*map(torch.as_tensor, self.values[1:])).numpy()

    @cached_property
    def precision(self) -> np.ndarray:
        return np.linalg.inv(self.covariance)

    @cached_property
    def jacobian(self) -> np.ndarray:
        """Of the covariance in all entries of the arrays, shape ``(d^2, n)``."""
        tensors = tuple(map(torch.as_tensor, self.values[1:]))
        parts = torch.func.jacrev(self.case.covariance, tuple(range(len(tensors))))(*tensors)
        return np.concatenate([part.numpy().reshape(self.dim**2, -1) for part in parts], 1)

    @cached_property
    def fisher(self) -> np.ndarray:
        """In all entries of the arrays but the mean's."""
        shape = self.dim, self.dim, -1
        turned = np.einsum(
            "ia,abn,bj->ijn",
            self.precision,
            self.jacobian.reshape(shape),
            self.precision,
            optimize=True,
        )
        return 0.5 * self.jacobian.T @ turned.reshape(self.dim**2, -1)

    def slope(self, of_loc: np.ndarray, of_sigma: np.ndarray) -> list[np.ndarray]:
        """The gradient of a function of the moments, in the arrays."""
        return [of_loc, *self.split(self.jacobian.T @ of_sigma.ravel())]

    def random_slope(self, rng: np.random.Generator) -> list[np.ndarray]:
        return self.slope(rng.normal(size=self.dim), symmetric(self.dim, rng))

    def split(self, vector: np.ndarray) -> list[np.ndarray]:
        ends = np.cumsum([value.size for value in self.values[1:]])[:-1]
        parts = np.split(vector, ends)
        return [p.reshape(v.shape) for p, v in zip(parts, self.values[1:], strict=True)]

    def without_effect(self, rng: np.random.Generator) -> list[np.ndarray]:
        """A gradient that no function of the Gaussian has: it must not be felt."""
        if self.case.name == "Precision":
            part = rng.normal(size=(self.dim, self.dim))
            return [np.zeros(self.dim), part - part.T]
        noise = rng.normal(size=self.jacobian.shape[1])
        return [np.zeros(self.dim), *self.split(noise * ~np.any(self.jacobian, 0))]

    def hessian(self, ppl: Any, family: Any, matrix: np.ndarray) -> Any:
        """The family's part of a Hessian, by as many products as it asks for."""
        probes = family.hessian_probes()
        products = np.stack([matrix @ (probes == c) for c in range(probes.max() + 1)])
        return ppl.compiled(family.assemble_hessian)(ppl.array(products))


def flat(values: list[np.ndarray]) -> np.ndarray:
    """All coordinates but the mean's as one vector."""
    return np.concatenate([value.ravel() for value in values[1:]])


def arrays(ppl: Any, family: Any) -> list[np.ndarray]:
    return [ppl.numpy(value) for value in family.coordinates().values()]


def symmetric(dim: int, rng: np.random.Generator) -> np.ndarray:
    matrix = rng.normal(size=(dim, dim))
    return matrix + matrix.T


# -- the families ---------------------------------------------------------------------


def _of_one_array(name: str, dim: int) -> Case:
    def covariance(scale):
        if name == "diagonal":
            return torch.diag(scale**2)
        if name in reference.SYMMETRIC:
            square = 0.5 * (scale + scale.T)
        else:
            square = scale.tril() @ scale.tril().T
        return torch.linalg.inv(square) if name.startswith("precision") else square

    return Case(
        "".join(word.title() for word in name.split("_")),
        lambda rng: list(reference.random_gaussian(name, dim, rng)),
        covariance,
        free=np.eye(dim, dtype=bool) if name == "diagonal" else True,
        carries=(lambda scale: scale) if name.startswith("precision") else None,
    )


def _of_a_forest(name: str, blocks: list[np.ndarray], parents: list) -> Case:
    free = arrows.pattern(blocks, parents)
    rows, columns = arrows.positions(blocks, parents).T
    kept = torch.as_tensor(free[rows, columns])
    index = tuple(map(torch.as_tensor, (rows, columns)))

    def covariance(packed):
        empty = torch.zeros(free.shape, dtype=packed.dtype)
        factor = empty.index_put(index, torch.where(kept, packed, 0.0))
        square = factor @ factor.T
        return torch.linalg.inv(square) if name == "SparsePrecision" else square

    def random(rng):
        loc, tril = arrows.random_factor(blocks, parents, rng)
        return [loc, arrows.packed(blocks, parents, tril)]

    return Case(
        name,
        random,
        covariance,
        {"structure": forest_from_indices(blocks, parents)},
        free | free.T,
        partial(arrows.dense, blocks, parents) if name == "SparsePrecision" else None,
    )


def _low_rank(dim: int, rank: int) -> Case:
    def random(rng):
        return [rng.normal(size=dim), rng.normal(size=(dim, rank)), rng.uniform(0.5, 2.0, dim)]

    return Case(
        "LowRankPrecision",
        random,
        lambda factor, diagonal: torch.linalg.inv(factor @ factor.T + torch.diag(diagonal)),
        {"rank": rank},
    )


def _matrix_normal(dim: int, matrices: tuple) -> Case:
    inside = np.concatenate([np.arange(s, s + m * n) for s, m, n in matrices])
    outside = np.setdiff1d(np.arange(dim), inside)

    def triangle(size, rng):
        return np.tril(0.3 * rng.normal(size=(size, size)), -1) + np.diag(
            rng.uniform(0.5, 1.5, size)
        )

    def random(rng):
        packed = [
            np.concatenate([triangle(sides[which], rng).ravel() for _, *sides in matrices])
            for which in (0, 1)
        ]
        return [rng.normal(size=dim), *packed, rng.uniform(0.5, 2.0, outside.size)]

    def covariance(rows, columns, scale):
        parts, sizes = [], ([m * m for _, m, _ in matrices], [n * n for _, _, n in matrices])
        sides = zip(rows.split(sizes[0]), columns.split(sizes[1]), matrices, strict=True)
        for a, b, (_, m, n) in sides:
            root = torch.kron(a.reshape(m, m).tril(), b.reshape(n, n).tril())
            parts.append(root @ root.T)
        order = np.argsort(np.concatenate([inside, outside]))
        return torch.block_diag(*parts, torch.diag(scale**2))[order][:, order]

    return Case("MatrixNormal", random, covariance, {"matrices": matrices})


PAGE = Path(__file__).parents[2] / "docs" / "tutorials" / "from_the_papers.md"


def sphere(ppl: Any) -> type:
    """``N(mu, exp(2 a) I)``, by exactly what the page on the papers prints."""
    return _sphere(ppl.name)


@functools.cache
def _sphere(name: str) -> type:
    text = PAGE.read_text(encoding="utf-8").partition("This one is `N(mu, s^2 I)`")[2]
    recipe, registered, *_ = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    if name == "pyro":
        recipe, registered = recipe.replace("jax.numpy", "torch").replace("numpyro", "pyro"), ""
    names: dict = {"__name__": __name__}
    exec(compile(recipe + registered, str(PAGE), "exec", dont_inherit=True), names)  # noqa: S102
    return names["Sphere"]


def _sphere_of(dim: int) -> Case:
    def covariance(log_scale):
        return torch.exp(2 * log_scale) * torch.eye(dim, dtype=log_scale.dtype)

    return Case(
        "Sphere", lambda rng: [rng.normal(size=dim), np.array(0.5 * rng.normal())], covariance
    )


BLOCKS = {
    "blocks": [np.arange(6).reshape(2, 3).T, np.arange(6, 9)[None]],
    "shuffled blocks": [np.array([[5, 0], [2, 3]]), np.array([[1, 4, 6]])],
    "large blocks": [np.arange(14).reshape(2, 7).T],
}

CASES: dict[str, Case] = {
    **{name: _of_one_array(name, 5) for name in reference.ALL_FAMILIES},
    **{f"{name}-1": _of_one_array(name, 1) for name in reference.FAMILIES},
    **{
        name: _of_a_forest("BlockDiagonal", blocks, [None] * len(blocks))
        for name, blocks in BLOCKS.items()
    },
    **{name: _of_a_forest("SparsePrecision", *case) for name, case in arrows.CASES.items()},
    "sphere": _sphere_of(3),
    "matrices": _matrix_normal(17, ((1, 3, 2), (8, 2, 4))),
    "one matrix": _matrix_normal(12, ((0, 3, 4),)),
    **{f"rank {rank}": _low_rank(dim, rank) for dim, rank in ((4, 1), (6, 3))},
}

#: What JAX compiles in the fast tests.
FAST = (
    "covariance_cholesky",
    "precision_cholesky",
    "diagonal",
    "shuffled blocks",
    "globals first",
    "matrices",
)
