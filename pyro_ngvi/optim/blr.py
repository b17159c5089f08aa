"""The Bayesian learning rule (Khan and Rue, 2023), with steps that need no tuning."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from ngvi.checks import check_learning_rule
from ngvi.optim.rule import Rule
from ngvi.path import JointPath
from pyro_ngvi.families import direction
from pyro_ngvi.families.direction import Families
from pyro_ngvi.optim import quasi_newton, trust_region
from pyro_ngvi.optim.pyro_optim import JointOptim
from pyro_ngvi.optim.quasi_newton import Memory
from pyro_ngvi.optim.torch_optimizer import JointOptimizer
from pyro_ngvi.optim.trust_region import Progress

#: A quasi-Newton memory overshoots now and then before noise does: its turns count for less.
DECREASE_WITH_MEMORY = 0.2


class BLROptimizer(JointOptimizer):
    """The torch optimiser of :class:`BLR`, with its options."""

    default_options: ClassVar[dict[str, Any]] = {
        "lr": "auto",
        "precision_lr": None,
        "momentum": 0.0,
        "max_kl": "auto",
    }
    #: A step of the precision moves the mean as well: they have one length.
    per_coordinate: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def check_values(cls, options: dict[str, Any]) -> None:
        names = ("lr", "precision_lr", "momentum", "max_kl")
        check_learning_rule(*(options[name] for name in names), names=names[:2])

    @classmethod
    def make_rule(
        cls,
        lr: float | str,
        precision_lr: float | None = None,
        momentum: float = 0.0,
        max_kl: float | str | None = "auto",
    ) -> Rule:
        if max_kl == "auto" and lr != "auto":
            max_kl = None
        return BlrRule(lr, precision_lr, momentum, max_kl)


class BLR(JointOptim):
    """Natural-gradient ascent in the natural parameters of the Gaussian.

    With ``g = E[grad log p]`` and ``A = -E[hess log p]`` (Khan, eq. 29 in full covariance)::

        S <- (1 - rho) S + rho A,        mu <- mu + rho S_new^-1 g,        S = Sigma^-1

    kept positive definite for any ``A`` (:mod:`~pyro_ngvi.linalg.definite`). One step of
    ``rho = 1`` is exact for a conjugate model; with ``NaturalELBO(curvature="mean")`` it is
    Newton's method, whose fixed point is the Laplace approximation. The natural gradient may come
    from ``NaturalELBO`` or from any stock ELBO.

    By default nothing needs tuning: steps are whole, never longer than a radius in
    Kullback-Leibler divergence that adapts, and decrease once noise takes over
    (:mod:`~pyro_ngvi.optim.trust_region`); a mean field's mean is helped by a quasi-Newton
    memory (:mod:`~pyro_ngvi.optim.quasi_newton`).

    :param optim_args: ``lr`` (``rho``, in (0, 1]: ``"auto"``, the default, a number, or a schedule
        from the number of steps taken), ``precision_lr`` (``rho`` for the precision, if it
        differs from that of the mean), ``momentum`` (of ``g``, in [0, 1), default 0, with bias
        correction; Tan, S5.1) and ``max_kl`` (no step moves ``q`` by more than this
        ``KL(q_new || q_old)``, in nats: ``"auto"`` adapts, from 1, if ``lr`` is ``"auto"``, and
        else does not limit; None does not limit); or a callable from a parameter's name to these.
    :param clip_args: ``clip_norm`` of the joint natural gradient and ``clip_value``, as in
        ``PyroOptim``; or a callable from module name and parameter name to these.
    :param other: a ``PyroOptim`` for parameters that are not natural; by default
        ``pyro.optim.Adam({"lr": 1e-3})``.
    :param scheduler: makes a ``torch.optim.lr_scheduler`` from the torch optimiser, for a
        numeric ``lr``; ``svi.optim.step()`` advances it.
    :raises ValueError: for options unknown or outside their range; on the first step, if
        there are no natural parameters or the first gradient is not finite.
    """

    torch_optimizer = BLROptimizer


class BlrState(NamedTuple):
    """State of the Bayesian learning rule."""

    progress: Progress  #: of the trust region
    change: Families  #: the last step, in coordinates
    gradient: Tensor | None  #: momentum of ``g``, all families together
    memory: Memory | None  #: of a quasi-Newton method


class BlrRule(NamedTuple):
    """Directions are those of the bound: the loss falls along them."""

    lr: float | str
    precision_lr: float | None
    momentum: float
    max_kl: float | str | None

    def init(self, families: Families) -> BlrState:
        loc = _join(families)
        return BlrState(
            Progress(),
            direction.zeros(families),
            torch.zeros_like(loc) if self.momentum else None,
            quasi_newton.empty(loc) if self._accelerates(families) else None,
        )

    def step(
        self, gradients: Families, state: BlrState, families: Families, count: int
    ) -> tuple[Families, BlrState]:
        directions = direction.negate(gradients)
        duals = direction.dual(families, directions)
        progress = trust_region.judge(state.progress, families, duals, state.change)
        euclidean = _join(duals)
        memory, gradient, means = state.memory, state.gradient, directions
        if memory is not None:
            memory = quasi_newton.remember(memory, _join(state.change), euclidean)
        if gradient is not None:
            gradient = self.momentum * gradient + (1 - self.momentum) * euclidean
            means = _natural(families, gradient / (1 - self.momentum ** (count + 1)))
        of_mean, rho = self._step_sizes(progress, memory)
        ratio = of_mean / rho
        steered = direction.with_means(directions, [ratio * one.loc for one in means])
        path = JointPath(families, steered)
        if memory is not None:
            path = AcceleratedPath(families, path, memory, ratio)
        radius = progress.radius if self.max_kl == "auto" else self.max_kl
        if radius is None:
            attempt, length = path.at(rho), progress.length
        else:
            attempt, length, _ = trust_region.longest_within(radius, path, rho)
        moved = path.end(attempt)
        change = direction.subtract(moved, families)
        slope = float(direction.dot(duals, change))
        progress = progress._replace(slope=slope, length=length)
        return moved, BlrState(progress, change, gradient, memory)

    def recover(self, state: BlrState, families: Families) -> tuple[Families, BlrState]:
        """Back to where the last step began, with a tenth of its radius."""
        progress = state.progress
        earlier = direction.subtract(families, state.change)
        length = progress.length if progress.length > 0 else progress.radius
        radius = max(0.1 * length, trust_region.smallest_radius(families))
        progress = progress._replace(radius=radius, slope=0.0, length=0.0)
        return earlier, state._replace(progress=progress, change=direction.zeros(families))

    def _accelerates(self, families: Families) -> bool:
        return (
            self.lr == "auto"
            and not self.momentum
            and any(family.leaves_out_correlations for family in families)
        )

    def _step_sizes(self, progress: Progress, memory: Memory | None) -> tuple[float, float]:
        """``rho`` of the mean and of the precision."""
        of_mean = of_precision = self.lr
        if self.lr == "auto":
            decrease = trust_region.DECREASE if memory is None else DECREASE_WITH_MEMORY
            of_mean = trust_region.step_size(progress.mean_turns, decrease)
            of_precision = trust_region.step_size(progress.scale_turns, decrease)
        return of_mean, of_precision if self.precision_lr is None else self.precision_lr


class AcceleratedPath(NamedTuple):
    """The steps of a path whose mean a quasi-Newton memory corrects, with the new precision."""

    families: Families
    path: JointPath
    memory: Memory
    ratio: float  #: by what a step of the mean is longer than that of the precision

    def at(self, rho: float) -> Families:
        """See :class:`~ngvi.path.Path`."""
        moved = self.path.end(self.path.at(rho))
        change = quasi_newton.corrected(
            self.memory, self.memory.gradient, lambda gradient: _join(_natural(moved, gradient))
        )
        parts = zip(self.families, _split(change, self.families), strict=True)
        means = [old.loc + rho * self.ratio * part for old, part in parts]
        return direction.with_means(moved, means)

    def kl(self, moved: Families) -> Tensor:
        """See :class:`~ngvi.path.Path`."""
        return sum(new.kl_divergence(old) for new, old in zip(moved, self.families, strict=True))

    def end(self, moved: Families) -> Families:
        """See :class:`~ngvi.path.Path`."""
        return moved


def _natural(families: Families, gradient: Tensor) -> Families:
    """``Sigma g``, in families whose other coordinates are zero."""
    still = direction.zeros(families)
    return direction.natural(families, direction.with_means(still, _split(gradient, families)))


def _join(families: Families) -> Tensor:
    """The means of all families, one after another."""
    parts = [family.loc for family in families]
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def _split(joined: Tensor, families: Families) -> list[Tensor]:
    return list(joined.split([family.dim for family in families]))
