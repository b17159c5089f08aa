"""What a result offers once it is believed: groups for ArviZ, a summary."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from ngvi._door import door, door_with_options_of
from ngvi.errors import check_count, check_flag
from ngvi.inference.nuts import NutsResult
from ngvi.inference.posterior import to_numpy
from ngvi.inference.report import SIZES
from ngvi.latents import html
from ngvi.workflow import arviz
from ngvi.workflow.options import DEFAULTS
from ngvi.workflow.rows_result import RowsResult
from ngvi.workflow.summary import summary_table


@dataclasses.dataclass(kw_only=True, repr=False, eq=False)
class WorkflowResult(RowsResult):
    """A package's ``FitResult`` but for what runs its model."""

    # -- what a package adds ----------------------------------------------------------

    def _in_supports(self, theta: np.ndarray) -> dict[str, np.ndarray]:
        """Values of every latent site at latent vectors, shape ``(N, d)``."""
        raise NotImplementedError

    # -- ArviZ ------------------------------------------------------------------------

    @door_with_options_of("sample")
    def to_arviz(
        self,
        num_samples: int = 1000,
        *,
        log_likelihood: bool = True,
        predictive: bool = True,
        prior: bool = True,
        coords: Mapping[str, Sequence] | None = None,
        dims: Mapping[str, Sequence[str]] | None = None,
        **options: Any,
    ) -> Any:
        """Draws of :meth:`sample`, what the model says at them, and the data, for ArviZ.

        Axes in plates are called like the plates. The groups are ``posterior``,
        ``log_likelihood`` (of each observation, for ``arviz.loo`` and ``arviz.compare``),
        ``posterior_predictive`` (the observed sites drawn anew at the same draws), ``prior`` and
        ``prior_predictive``, ``observed_data``, and ``constant_data`` (the model's other
        arguments). A group that the model cannot give is left out, and the attribute ``left_out``
        of ``posterior`` says why: a log likelihood where the model draws discrete sites or
        minibatches, a prior that is improper::

            data = result.to_arviz(coords={"schools": names})
            arviz.loo(data), arviz.plot_ppc(data)

        :param num_samples: how many draws; they are one chain.
        :param log_likelihood: whether to run the model once more a draw for it.
        :param predictive: the same of ``posterior_predictive``.
        :param prior: the same of ``prior`` and ``prior_predictive``.
        :param coords: labels of the elements, by the name of the axis.
        :param dims: names of all axes, by the name of the site or argument.
        :param options: as for :meth:`sample`.
        :return: an ``arviz.InferenceData``, or an ``xarray.DataTree`` from ArviZ 1 on.
        :raises ModuleNotFoundError: without ArviZ.
        :raises ValueError: for labels or names that fit no axis.
        """
        wanted = {"log_likelihood": log_likelihood, "predictive": predictive, "prior": prior}
        wanted = {name: check_flag(flag, name) for name, flag in wanted.items()}
        arviz.check_mappings(coords, dims)
        return self._for_arviz(self.sample(num_samples, **options), wanted, coords, dims)

    def _of_chains(  # type: ignore[override]
        self,
        found: NutsResult,
        *,
        log_likelihood: bool = True,
        predictive: bool = True,
        prior: bool = True,
        coords: Mapping[str, Sequence] | None = None,
        dims: Mapping[str, Sequence[str]] | None = None,
    ) -> Any:
        wanted = {"log_likelihood": log_likelihood, "predictive": predictive, "prior": prior}
        wanted = {name: check_flag(flag, name) for name, flag in wanted.items()}
        stats = {name: _joined(value) for name, value in found.sample_stats.items()}
        draws = {name: self._own(_joined(value)) for name, value in found.draws.items()}
        of_nuts = {"nuts": f"{found.verdict}: {found.reason}"}
        own = {"num_chains": len(found.sample_stats["diverging"]), "sample_stats": stats}
        return self._for_arviz(draws, wanted, coords, dims, of_nuts, **own)

    def _for_arviz(
        self,
        draws: dict[str, Any],
        wanted: dict[str, bool],
        coords: Mapping[str, Sequence] | None,
        dims: Mapping[str, Sequence[str]] | None,
        attrs: Mapping[str, Any] = MappingProxyType({}),
        **own: Any,
    ) -> Any:
        """Draws, and what the model says at them.

        :param attrs: of the group ``posterior``, besides.
        :param own: further groups.
        """
        groups, left_out = self._groups(draws, wanted)
        known = arviz.constant_data(self.model, self.args, self.kwargs, groups.observed)
        posterior = {name: to_numpy(value) for name, value in draws.items()}
        constant = {k: v for k, v in known.items() if k not in posterior}
        attrs = {
            "inference_library": self.library,
            "bound": self.bound,
            "reason": self.reason,
            **attrs,
        }
        if left_out:
            attrs["left_out"] = "; ".join(f"{name}: {why}" for name, why in left_out.items())
        sites = [site for part in self._gaussians() for site in part.sites]
        groups = groups._replace(posterior=posterior, constant_data=constant, **own)
        return arviz.inference_data(groups, sites, attrs, coords, dims)

    # -- tables -----------------------------------------------------------------------

    @door
    def summary(
        self,
        var_names: str | Sequence[str] | None = None,
        *,
        prob: float = 0.9,
        num_draws: int = DEFAULTS.num_draws,
    ) -> Any:
        """A table of all latent sites, one number a row, and whether to believe it.

        Mean, sd and interval are the Gaussian's, also where :meth:`sample` corrects its draws.
        There are no chains, and so no R-hat. In its place are columns of Pareto smoothed importance
        sampling (Yao et al., 2018; Vehtari et al., 2024). They say what importance weights of the
        draws would make of each mean and standard deviation, and ``k_hat`` whether to believe that:
        up to 0.7.

        :param var_names: of the sites, all by default.
        :param prob: between the two ends of the interval, whose tails are equal.
        :param num_draws: of the Gaussian, always the same ones; each is a value of the log density.
        :return: a ``pandas.DataFrame`` with the columns ``mean``, ``sd``, the ends of the interval
            (``5%`` and ``95%``), ``mean_shift`` (weighted mean minus mean, in sd), ``sd_ratio``
            (weighted sd over sd) and ``k_hat``. The latter three are NaN where a model has no
            importance weights, and ``attrs["note"]`` says why.
        :raises ValueError: for names that are not latent sites.
        :raises ModuleNotFoundError: without pandas.
        """
        check_count(num_draws, "num_draws", 2)
        with self._at_end() as (problem, state):
            noise = np.random.default_rng(0).standard_normal((num_draws, problem.space.noise_dim))
            theta, log_q = problem.space.draw(state, noise)
            why = self._why_undefined(problem)
            weights = None if why else problem.objective.log_density(state, theta) - log_q
            rounding = problem.rounding(float(np.abs(log_q).max()))
        values = self._in_supports(theta)
        return summary_table(values, weights, var_names, prob, rounding, why)

    def _repr_html_(self) -> str:
        """For notebooks: the report."""
        head, *lines = repr(self).splitlines()
        end = SIZES.width + 2
        return html.table(head, [(line[:end].strip(), line[end:].strip()) for line in lines])


def _joined(chains: np.ndarray) -> np.ndarray:
    """Chains one after another."""
    return chains.reshape(-1, *chains.shape[2:])
