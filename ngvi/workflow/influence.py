"""The influence of each row on the posterior."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ngvi.latents import html
from ngvi.latents.layout import Site
from ngvi.workflow.cavities import Cavities, cavity_of
from ngvi.workflow.expected import PredictorSites
from ngvi.workflow.gaussian import DenseGaussian
from ngvi.workflow.options import DEFAULTS
from ngvi.workflow.target import Target
from ngvi.workflow.units import Units

if TYPE_CHECKING:
    import pandas


@dataclasses.dataclass(frozen=True, eq=False)
class Influence(Sequence):
    """Effects on the posterior of leaving out each row, or group, the most influential first.

    :ivar labels: names of the rows, in that order.
    :ivar rows: their indices, in the same order, shape ``(R,)``.
    :ivar divergence: ``KL(posterior without || posterior)`` in nats; infinite if the posterior
        without the row is not a Gaussian.
    :ivar shifts: by latent site, the largest change of a mean, in standard deviations.
    """

    labels: list[str]
    rows: np.ndarray
    divergence: np.ndarray
    shifts: dict[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        moved = {name: float(values[index]) for name, values in self.shifts.items()}
        return {"row": self.labels[index], "kl": float(self.divergence[index]), **moved}

    def table(self) -> pandas.DataFrame:
        """Return a ``pandas.DataFrame``.

        :raises ModuleNotFoundError: without pandas.
        """
        import pandas

        columns = {"row": self.rows, "kl": self.divergence, **self.shifts}
        return pandas.DataFrame(columns, index=self.labels)

    def __repr__(self) -> str:
        lines = [f"Influence of {len(self)} rows, the most influential first:"]
        lines += [" ".join(row) for row in self._rows()]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return html.table("Influence", self._rows(), ("row", "KL in nats", *self.shifts))

    def _rows(self) -> list[tuple[str, ...]]:
        found = []
        for one in self[: DEFAULTS.num_shown]:
            row, divergence, *moved = one.values()
            found.append((row, f"{divergence:.3g}", *(f"{value:+.2f}" for value in moved)))
        return found


def influence(target: Target, q: DenseGaussian, units: Units, latents: Sequence[Site]) -> Influence:
    """Return the influence of all units, by subtraction of their sites.

    :param latents: whose means are looked at.
    """
    sites = target.sites(q)
    if units.are_single and isinstance(sites, PredictorSites):
        cavity, by_unit = Cavities.of(sites, q, target.weights), np.argsort(units.of_element)
        noise = -np.einsum("pmd,mdp->md", sites.spreads, cavity.pull[:, cavity.labels])
        divergence = np.where(cavity.is_proper, cavity.divergence, np.inf)[by_unit]
        steps = np.where(cavity.is_proper[:, None], noise @ q.factor.T, np.nan)[by_unit]
    else:
        divergence, steps = np.full(units.count, np.inf), np.full((units.count, q.dim), np.nan)
        for unit in range(units.count):
            one = cavity_of(target, q, sites, units.elements(unit))
            if one is not None:
                divergence[unit] = one.kl_divergence(q)
                steps[unit] = one.mean - q.mean
    scaled = steps / q.stddev
    order = np.argsort(-divergence, kind="stable")
    shifts = {}
    for site in latents:
        own_steps = scaled[:, site.start : site.start + site.size]
        if own_steps.shape[1]:
            largest = np.abs(np.nan_to_num(own_steps)).argmax(1)
            shifts[site.name] = np.take_along_axis(own_steps, largest[:, None], 1)[order, 0]
    labels = [units.label(int(unit)) for unit in order]
    return Influence(labels, order, divergence[order], shifts)
