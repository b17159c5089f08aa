"""The Bayesian learning rule (Khan and Rue, 2023), with steps that need no tuning."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import torch
from torch import Tensor

from pyro_ngvi.optim import quasi_newton, trust_region
from pyro_ngvi.optim.joint import (
    Families,
    JointOptim,
    JointOptimizer,
    check_momentum,
    check_rho,
    check_step_size,
)
from pyro_ngvi.optim.quasi_newton import Memory
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

    @classmethod
    def check_values(cls, options: dict[str, Any]) -> None:
        lr, max_kl = options["lr"], options["max_kl"]
        if isinstance(lr, str) and lr != "auto":
            raise ValueError(f"lr must be 'auto', a number or a schedule, got {lr!r}.")
        if options["precision_lr"] is not None:
            check_rho(options["precision_lr"], "precision_lr")
        if lr != "auto":
            # A mean with a step size of its own may move as it likes.
            check = check_rho if options["precision_lr"] is None else check_step_size
            check(lr, "lr")
        check_momentum(options["momentum"], "momentum")
        if isinstance(max_kl, str):
            if max_kl != "auto":
                raise ValueError(f"max_kl must be 'auto', a number or None, got {max_kl!r}.")
        elif max_kl is not None and not max_kl > 0:
            raise ValueError(f"max_kl must be positive, got {max_kl}.")

    def initial_state(self, param: Tensor) -> dict[str, Any]:
        return {"change": torch.zeros_like(param)}

    def move(self, gradients: Families, families: Families) -> Families:
        directions = [gradient.map(Tensor.neg) for gradient in gradients]
        here = [family.detach() for family in families]
        progress = self._progress(families)
        changes = [family.map(lambda param: self.state[param]["change"]) for family in families]
        progress = trust_region.judge(progress, here, directions, changes)
        memory = self._memory(families)
        if memory is not None:
            change = _join([step.loc for step in changes])
            memory = quasi_newton.remember(memory, change, _euclidean_mean(here, directions))
        steered = self._with_momentum(directions, here, families)
        of_mean, rho = self._step_sizes(progress, memory)
        ratio = of_mean / rho

        def advance(rho: float) -> Families:
            moved = [
                family.natural_step(dataclasses.replace(step, loc=ratio * step.loc), rho)
                for family, step in zip(here, steered, strict=True)
            ]
            if memory is None:
                return moved
            change = quasi_newton.direction(
                memory, memory.gradient, lambda g: _join(_natural_mean(moved, g))
            )
            return [
                dataclasses.replace(new, loc=old.loc + rho * ratio * part)
                for new, old, part in zip(moved, here, _split(change, here), strict=True)
            ]

        radius = self._radius(progress)
        if radius is None:
            moved, length = advance(rho), progress.length
        else:
            moved, length = trust_region.advance_within(radius, here, advance, rho)
        changes = [new.map(torch.sub, old) for new, old in zip(moved, here, strict=True)]
        slope = trust_region.slope_along(here, directions, changes)
        self._remember(families, progress._replace(slope=slope, length=length), changes, memory)
        return moved

    def recover(self, families: Families) -> Families:
        """Back to where the last step began, with a tenth of its radius."""
        progress = self._progress(families)
        earlier = [
            family.map(lambda param: param - self.state[param]["change"]) for family in families
        ]
        stay = [family.map(torch.zeros_like) for family in families]
        length = progress.length if progress.length > 0 else progress.radius
        radius = max(0.1 * length, trust_region.smallest_radius(families))
        progress = progress._replace(radius=radius, slope=0.0, length=0.0)
        self._remember(families, progress, stay, self._memory(families))
        return earlier

    # -- state ------------------------------------------------------------------------
    # What is common to all families is kept with the mean of the first.

    def _progress(self, families: Families) -> Progress:
        return Progress(*self.state[families[0].loc].get("progress", Progress()))

    def _memory(self, families: Families) -> Memory | None:
        accelerates = (
            self.option("lr") == "auto"
            and not self._momentum()
            and any(family.leaves_out_correlations for family in families)
        )
        if not accelerates:
            return None
        state = self.state[families[0].loc]
        if "steps" not in state:
            return quasi_newton.empty(_join([family.loc.detach() for family in families]))
        return Memory(state["steps"], state["falls"], state["gradient"])

    def _remember(
        self, families: Families, progress: Progress, changes: Families, memory: Memory | None
    ) -> None:
        for family, change in zip(families, changes, strict=True):
            for name, param in family.coordinates().items():
                self.state[param]["change"] = getattr(change, name)
        state = self.state[families[0].loc]
        state["progress"] = tuple(progress)
        if memory is not None:
            state.update(memory._asdict())

    def _with_momentum(self, directions: Families, here: Families, families: Families) -> Families:
        beta = self._momentum()
        if not beta:
            return directions
        steered = []
        for direction, family, params in zip(directions, here, families, strict=True):
            state = self.state[params.loc]
            old = state.get("momentum", torch.zeros_like(family.loc))
            state["momentum"] = beta * old + (1 - beta) * _euclidean_mean([family], [direction])
            corrected = state["momentum"] / (1 - beta ** (self.count(families) + 1))
            (mean,) = _natural_mean([family], corrected)
            steered.append(dataclasses.replace(direction, loc=mean))
        return steered

    # -- options ----------------------------------------------------------------------

    def _momentum(self) -> float:
        return self.option("momentum")

    def _precision_step_size(self) -> float | None:
        return self.option("precision_lr")

    def _step_sizes(self, progress: Progress, memory: Memory | None) -> tuple[float, float]:
        """``rho`` of the mean and of the precision."""
        of_mean = self.option("lr")
        if of_mean == "auto":
            decrease = trust_region.DECREASE if memory is None else DECREASE_WITH_MEMORY
            of_mean = trust_region.step_size(progress, decrease)
        of_precision = self._precision_step_size()
        return of_mean, of_mean if of_precision is None else of_precision

    def _radius(self, progress: Progress) -> float | None:
        max_kl = self.option("max_kl")
        if max_kl == "auto":
            return progress.radius if self.option("lr") == "auto" else None
        return max_kl


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


def _euclidean_mean(families: Families, directions: Families) -> Tensor:
    """``E[grad log p]`` of all families, from their natural gradients."""
    return _join(
        [
            family.euclidean_gradient(direction).loc
            for family, direction in zip(families, directions, strict=True)
        ]
    )


def _natural_mean(families: Families, gradient: Tensor) -> list[Tensor]:
    """``Sigma g`` of each family, by its own means."""
    results = []
    for family, part in zip(families, _split(gradient, families), strict=True):
        zeros = family.map(torch.zeros_like)
        results.append(family.natural_gradient(dataclasses.replace(zeros, loc=part)).loc)
    return results


def _join(parts: list[Tensor]) -> Tensor:
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def _split(joined: Tensor, families: Families) -> list[Tensor]:
    return list(joined.split([family.dim for family in families]))
