"""What a result offers once it is believed: groups for ArviZ, a summary."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from ngvi.errors import check_count, check_flag
from ngvi.inference.nuts import NutsResult
from ngvi.inference.problem import Problem
from ngvi.inference.report import SIZES
from ngvi.inference.result import Result
from ngvi.latents import html
from ngvi.latents.layout import Site
from ngvi.workflow import arviz
from ngvi.workflow.arviz import ArvizGroups, to_numpy
from ngvi.workflow.elpd import elpd_data, note
from ngvi.workflow.gaussian import DenseGaussian
from ngvi.workflow.influence import Influence, influence
from ngvi.workflow.loo import leave_out
from ngvi.workflow.options import DEFAULTS
from ngvi.workflow.sites import Sites, Target, depends
from ngvi.workflow.summary import summary_table
from ngvi.workflow.units import Units, check_rows, make_units


@dataclasses.dataclass(kw_only=True, repr=False, eq=False)
class WorkflowResult(Result):
    """A package's ``FitResult`` but for what runs its model."""

    # -- what a package adds ----------------------------------------------------------

    def _groups(
        self, draws: dict[str, Any], wanted: dict[str, bool]
    ) -> tuple[ArvizGroups, dict[str, str]]:
        """ArvizGroups for ArviZ, without constant data, and why which of these are missing.

        :param draws: of :meth:`sample`.
        :param wanted: ``"log_likelihood"``, ``"predictive"`` and ``"prior"``.
        """
        raise NotImplementedError

    def _in_supports(self, theta: np.ndarray) -> dict[str, np.ndarray]:
        """Values of every latent site at latent vectors, shape ``(N, d)``."""
        raise NotImplementedError

    def _rows(self, problem: Problem, state: Any) -> Any:
        """The observations' log likelihoods, :class:`~ngvi.workflow.rows.ObservedRows`."""
        raise NotImplementedError

    # -- ArviZ ------------------------------------------------------------------------

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

    def summary(
        self,
        var_names: str | Sequence[str] | None = None,
        *,
        prob: float = 0.9,
        num_draws: int = DEFAULTS.num_draws,
    ) -> Any:
        """A table of all latent sites, one number a row, and whether to believe it.

        There are no chains, and so no R-hat. In its place are columns of Pareto smoothed importance
        sampling (Yao et al., 2018; Vehtari et al., 2024): what importance weights of the draws say
        of each mean and standard deviation, and ``k_hat``, up to 0.7 of which they can be trusted
        to say it.

        :param var_names: of the sites, all by default.
        :param prob: between the two ends of the interval, whose tails are equal.
        :param num_draws: of the Gaussian, always the same ones; each is a value of the log density.
        :return: a ``pandas.DataFrame`` with the columns ``mean``, ``sd``, the ends of the interval
            (``5%`` and ``95%``), ``mean_shift`` (weighted mean minus mean, in sd), ``sd_ratio``
            (weighted sd over sd) and ``k_hat``; the latter three are NaN where a model has no
            importance weights, and ``attrs["note"]`` says why.
        :raises ValueError: for names that are not latent sites.
        :raises ModuleNotFoundError: without pandas.
        """
        check_count(num_draws, "num_draws", 2)
        with self._at_end() as (problem, state):
            noise = np.random.default_rng(0).standard_normal((num_draws, problem.space.dim))
            theta, log_q = problem.space.draw(state, noise)
            why = self._without_weights(problem)
            if problem.objective.is_subsampled:
                why = "the model sees minibatches, whose density is not that of all data"
            weights = None if why else problem.objective.log_density(state, theta) - log_q
            rounding = problem.rounding(float(np.abs(log_q).max()))
        values = self._in_supports(theta)
        return summary_table(values, weights, var_names, prob, rounding, why)

    # -- rows -------------------------------------------------------------------------

    def sites(self, plate: str | None = None) -> Sites:
        """The natural gradient of each row's expected log likelihood.

        At the optimum they and the prior's add up to the posterior's natural parameters (Khan and
        Rue, 2023, section 5, equations 15 to 17). They cost some values of each row where rows see
        one or two affine functions of the latents, as in regressions, and else ``8 d`` of each
        row's gradients.

        :param plate: whose elements are rows; by default all plates of the observed sites together.
        :raises ValueError: for a model that has no rows: a likelihood outside of plates or in a
            factor, enumerated latents, minibatches, missing data; or more than 2,000 latents.
        """
        with self._target(plate, "sites") as (target, q, units, _):
            return Sites.of(target, q, units)

    def loo(self, plate: str | None = None) -> Any:
        """Leave-one-out predictive densities, by subtracting each row's site.

        Where that is a large change, natural-gradient steps without the row follow, and an integral
        over what the row sees is the predictive density: by quadrature where that are one or two
        affine functions, else by importance sampling. ``pareto_k`` says how far to believe each,
        on the scale of k-hat. The coordinates of ``loo_i`` have how it was made (``how``), the
        row's ``leverage``, and PSIS-LOO from draws of the same posterior with its k-hat (``psis``,
        ``psis_k``), which agrees where that k-hat is below 0.7::

            arviz.compare({"one": one.loo(), "other": other.loo()})
            result.loo("schools").loo_i  # a whole school at a time

        :param plate: whose elements are left out one at a time, with all their rows; by default
            those of all plates around the observed sites.
        :return: ``ELPDData`` of ArviZ, pointwise. ``loo_i.attrs["note"]`` says what a reader should
            know. Where without a row the posterior is improper its density is NaN.
        :raises ModuleNotFoundError: without ArviZ.
        :raises ValueError: as :meth:`sites`.
        """
        with self._target(plate, "loo") as (target, q, units, _):
            found = leave_out(target, q, units)
        words = note(found, units)
        return elpd_data(found, units, {"note": words} if words else {})

    def influence(self, plate: str | None = None) -> Influence:
        """How far each row moves the posterior, the most influential first.

        Outliers and mislabelled rows are among the first. It has ``table()``, a pandas frame, and
        ``plot()``.

        :param plate: as for :meth:`loo`.
        :raises ValueError: as :meth:`sites`.
        """
        with self._target(plate, "influence") as (target, q, units, latents):
            return influence(target, q, units, latents)

    @contextlib.contextmanager
    def _target(
        self, plate: str | None, what: str
    ) -> Iterator[tuple[Target, DenseGaussian, Units, tuple[Site, ...]]]:
        """The log density by its rows, the posterior, what is left out together, and the latents.

        :param what: is asked for.
        """
        self._check_whole(what)
        with self._at_end() as (problem, state):
            if problem.objective.is_subsampled:
                raise ValueError(
                    f"{what}() needs the likelihood of each row, and the model sees minibatches: "
                    "give it all rows, without subsample_size=, and fit(..., init=result)."
                )
            objective = problem.objective
            rows = self._rows(problem, state)
            if rows.is_enumerated:
                raise ValueError(
                    f"{what}() needs the likelihood of each row, and the model sums out discrete "
                    "latents over all of them: write the sum as a distribution, "
                    "MixtureSameFamily, or use result.predictive."
                )
            ppl = self.library.removesuffix("_ngvi")
            check_rows(rows, rows.factors, ppl)
            q, latents = self._dense(), problem.space.sites
            _check_finite(rows, q)
            target = Target.of(rows, lambda theta: objective.gradient(state, theta))
            units = make_units(rows, plate, latents, lambda: depends(target, q))
            yield target, q, units, latents

    def _check_whole(self, what: str) -> None:
        guide = self._gaussian()
        if guide is not self.guide:
            raise ValueError(
                f"{what}() needs a NaturalGaussianGuide over all latents, and it is a part of "
                f"{type(self.guide).__name__}."
            )
        if self.dim > DEFAULTS.max_dim:
            raise ValueError(
                f"{what}() takes the posterior's covariance, and {self.dim:,} latents are more "
                f"than the {DEFAULTS.max_dim:,} of which it fits in memory."
            )

    def _dense(self) -> DenseGaussian:
        """The posterior in double precision."""
        family = self.family
        columns = family.centred().sample(family.ops.eye(family.dim, family.loc))
        return DenseGaussian(to_numpy(family.mean).astype(float), to_numpy(columns).astype(float).T)

    def _repr_html_(self) -> str:
        """For notebooks: the report."""
        head, *lines = repr(self).splitlines()
        end = SIZES.width + 2
        return html.table(head, [(line[:end].strip(), line[end:].strip()) for line in lines])


def _joined(chains: np.ndarray) -> np.ndarray:
    """Chains one after another."""
    return chains.reshape(-1, *chains.shape[2:])


def _check_finite(rows: Any, q: DenseGaussian) -> None:
    """Refuse data that are missing.

    :raises ValueError: naming the first.
    """
    values = rows.log_likelihood(q.mean[None])[0]
    start = 0
    for site in rows.sites:
        missing = np.flatnonzero(np.isnan(values[start : start + site.size]))
        if len(missing):
            raise ValueError(
                f"{len(missing)} of {site.size} log likelihoods of '{site.name}' are NaN at the "
                f"posterior's mean, the first at {int(missing[0])}: leave out what is missing, by "
                "a mask or from the data."
            )
        start += site.size
