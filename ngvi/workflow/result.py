"""The result of ``fit``."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from ngvi._lock import Cached
from ngvi.errors import check_count, check_flag
from ngvi.inference.arguments import AUTO, GAUSSIAN, WHO, check_predictive, check_word
from ngvi.inference.draws import drawn
from ngvi.inference.draws.nuts import NutsRequest, NutsResult, WhitenedDensity
from ngvi.inference.hooks import GROUPS, NUTS, PREDICTIVE, SAMPLE
from ngvi.inference.new_groups import Asked, guide_for_groups
from ngvi.inference.prices import say_price
from ngvi.inference.problem import Problem
from ngvi.inference.tells import alone, door_with_options_of, unhandled
from ngvi.workflow import chains
from ngvi.workflow.arviz import Labels
from ngvi.workflow.evidence import LogEvidence
from ngvi.workflow.leave_out import WithRows
from ngvi.workflow.streaming import ChangedObjective
from ngvi.workflow.summary import summary_table

if TYPE_CHECKING:
    import pandas


@dataclasses.dataclass(kw_only=True, repr=False, eq=False)
class FitResult(WithRows):
    """A fitted posterior, how the fit went, and whether to trust it.

    ``print(result)`` is a report. :meth:`sample`, :meth:`predictive`, :meth:`summary` and
    :meth:`to_arviz` use the same draws; :attr:`diagnostics` says which method made them, and how
    accurate they are.

    >>> print(result)
    FitResult: certified; draws accurate...
    """

    #: The method that makes the draws, as ``draws=`` of ``fit``.
    _draws: str = AUTO
    _chains_for_arviz = chains.chains_for_arviz

    @chains.was_corrected
    @door_with_options_of("_ppl.key")
    @unhandled
    def sample(self, num_samples: int = 1000, **options: Any) -> dict[str, Any]:
        """Draw every latent site, on the constrained scale.

        The draws are taken from the 4,000 or more that the result holds, in an order that depends
        on the random key; if more are requested, all are repeated equally often. If the Gaussian
        is accurate, or was asked for, they are fresh draws from it.

        >>> len(result.sample(500)["mean"])
        500

        :param num_samples: the number of draws.
        :param options: in NumPyro ``rng_key``, by default one of the fit's, the same every time.
        :return: by site, an axis of draws followed by the site's shape.
        """
        num_samples = check_count(num_samples, "num_samples")
        key = self._ppl.key(self, SAMPLE, **options)
        latents, ppl = self._latents(num_samples, key), self._ppl
        return ppl.draws(self, num_samples, key) if latents is None else ppl.at(self, latents)

    def _latents(self, count: int, key: Any) -> np.ndarray | None:
        """Return this many of the stored latent vectors; None if the Gaussian makes the draws."""
        held = None if self._draws == GAUSSIAN else self.diagnostics.latents
        if held is None:
            return None
        return held[drawn.chosen(len(held), count, np.random.default_rng(self._ppl.seed_of(key)))]

    @unhandled
    def with_draws(self, draws: str = AUTO) -> Self:
        """Return the same fit with draws by another method.

        >>> result.with_draws("gaussian").diagnostics.accuracy.is_accurate
        True

        :param draws: as in ``fit``: ``"auto"``, ``"gaussian"``, ``"corrected"`` or ``"nuts"``.
        :return: a result with these draws, whose :attr:`cost` includes theirs.
        :raises ValueError: as :meth:`nuts`, also for draws that cannot be corrected.
        """
        new = self._with_fields(_draws=check_word(draws, "draws", WHO))
        _ = new.diagnostics
        return new

    @unhandled
    def predictive(
        self, *args: Any, num_samples: int = 1000, new_groups: Asked = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Draw from the posterior predictive distribution.

        The latents are draws as in :meth:`sample`.

        >>> tuple(result.predictive(num_samples=100)["y"].shape)
        (100, 3)

        Those of unseen groups are drawn from the prior given the others::

            result.predictive(child=0, n=1, new_groups="children")  # whoever comes next
            result.predictive(child=50, n=51, new_groups={"children": [50]})  # beside the fit's 50

        :param args: arguments of the model; without any, those of the fit, whose observed sites are
            then drawn again.
        :param num_samples: the number of draws.
        :param new_groups: names of plates whose elements are all new; or a dictionary from names to
            the indices of new elements, the others being the fit's in order. These plates contain
            latents.
        :param kwargs: keyword arguments of the model; in NumPyro ``rng_key`` as in :meth:`sample`.
        :return: by site, an axis of draws followed by the site's shape, including the latents of
            new groups.
        :raises ValueError: without ``new_groups``, for a plate of another size than in the fit, or
            an index beyond its elements; the error names plate and latents.
        """
        num_samples, key = check_count(num_samples, "num_samples"), self._key(PREDICTIVE, kwargs)
        check_predictive(self.predictive, self.model, args, kwargs, self.args)
        run = (args, kwargs) if args or kwargs else None
        of_run = self._ppl.seconds_of_run(self, run if new_groups is None else None)
        say_price(self, "predictive", num_samples, of_run=of_run)
        chains.warn_if_other(self)
        found = self._ppl.predictions(self, new_groups, run, num_samples, key)
        return {name: value for name, value in found.items() if np.prod(value.shape[1:])}

    @unhandled
    def sample_groups(self, *args: Any, num_samples: int = 1000, **kwargs: Any) -> dict[str, Any]:
        """Draw latents of unseen groups, given their own data.

        The new data do not change the globals; the locals get a Gaussian at their conditional mode.
        The PPL's ``Predictive`` takes the draws as posterior samples.

        >>> def groups(y):
        ...     centre = sample("centre", dist.Normal(0.0, 10.0))
        ...     with plate("groups", len(y)):
        ...         level = sample("level", dist.Normal(centre, 1.0))
        ...         sample("y", dist.Normal(level, 1.0), obs=y)
        >>> draws = fit(groups, y, progress_bar=False).sample_groups(y[:1] + 3)
        >>> f"{draws['level'].mean():.1f}"
        '3.0'

        :param args: arguments of the model, with the data of the new groups, numbered from zero.
        :param num_samples: the number of draws.
        :param kwargs: keyword arguments of the model; in NumPyro ``rng_key`` as in :meth:`sample`.
        :return: by site, an axis of draws followed by the site's shape.
        :raises ValueError: if the fit has no locals at conditional modes, the new groups' locals
            have no modes, or the model has other globals with these data.
        """
        num_samples, key = check_count(num_samples, "num_samples"), self._key(GROUPS, kwargs)
        check_predictive(self.sample_groups, self.model, args, kwargs, self.args)
        guide = guide_for_groups(self)
        say_price(self, "sample_groups", num_samples)
        return self._ppl.group_draws(self, guide, num_samples, (args, kwargs), key)

    def _key(self, purpose: int, kwargs: dict[str, Any]) -> Any:
        """Take the options of a random key out of the model's keyword arguments."""
        given = [name for name in self._ppl.key_options if name in kwargs]
        return self._ppl.key(self, purpose, **{name: kwargs.pop(name) for name in given})

    @door_with_options_of("_ppl.key")
    @unhandled
    def nuts(
        self,
        num_samples: int | None = None,
        *,
        num_warmup: int | None = None,
        num_chains: int = 32,
        target_accept_prob: float | None = None,
        progress_bar: bool = True,
        **options: Any,
    ) -> NutsResult:
        """Continue with NUTS, in the coordinates of the fitted Gaussian, until draws are accurate.

        There the Gaussian is ``N(0, I)``. Locals that the fit centres at conditional modes are the
        model's own, unless these form a funnel. Chains start from corrected draws, divided among
        the optima in proportion to their evidence. With up to 1,000 latents, chains jump between
        several optima: a draw of their Gaussians is proposed in a Metropolis-Hastings step, for one
        more gradient per transition. All chains are evaluated at once, so many cost little more
        than a few. If the Gaussian is good, the warm-up takes ten transitions. The model's
        parameters stay as fitted, and enumerated latents are summed out.

        >>> nuts = result.nuts(progress_bar=False)
        >>> nuts.accuracy.is_accurate, len(nuts.draws["mean"])  # of shape (chains, draws, ...)
        (True, 32)

        :param num_samples: draws per chain; by default as many as make every mean accurate to
            0.1 standard deviations, and every standard deviation to 10 %: 25 to 800.
        :param num_warmup: the most warm-up transitions; by default 400.
        :param num_chains: the number of chains.
        :param target_accept_prob: as in the PPL's ``NUTS``: larger values give shorter steps. By
            default 0.8, and up to 0.95 if transitions of the warm-up diverge.
        :param progress_bar: whether to show the gradients so far.
        :param options: in NumPyro ``rng_key``, by default one of the fit's, the same every time.
        :return: the draws and their accuracy; it warns if that is ``"doubtful"``.
        :raises ValueError: if the model's density is not available, as with minibatches, or the
            guide is a list.
        """
        asked = num_samples, num_warmup, num_chains, target_accept_prob, progress_bar
        request = NutsRequest(*asked).checked()
        return chains.by_nuts(self, request, self._ppl.key(self, NUTS, **options))

    @alone
    def whitened_density(self) -> WhitenedDensity:
        """Return the density where the fitted Gaussian is ``N(0, I)``, for other samplers.

        It has two pure functions of ``z``: ``log_density(z)``, with the Jacobian, and
        ``constrain(z)``, the model's sites. Draws of ``N(0, I)`` are draws of the Gaussian.

        >>> result.whitened_density().dim
        1

        :raises ValueError: as :meth:`nuts`.
        """
        return chains.whitened(self)

    @Cached
    @unhandled
    def diagnostics(self) -> drawn.Diagnostics:
        """Describe the draws: their method, their accuracy, k-hat, and the chains of NUTS.

        It is computed with the draws, in ``fit`` or at their first use. Importance weights are
        for 4,000 draws of the Gaussian, each with one value of the log density; for a slow model
        fewer, at least 200, within a fifth of the fit's time.
        """
        return drawn.made(self, self._draws)

    @property
    def log_evidence(self) -> LogEvidence:
        """The log evidence, for Bayes factors: its value, error, and whether it is reliable."""
        return LogEvidence.of(self)

    @door_with_options_of("sample", "_ppl.key")
    @unhandled
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
        """Return the draws of :meth:`sample`, log likelihoods, predictions and data, for ArviZ.

        Axes of plates are named after the plates. The groups are ``posterior``,
        ``log_likelihood`` (of each observation, for ``arviz.loo`` and ``arviz.compare``),
        ``posterior_predictive`` (replicated observed sites at the same draws), ``prior`` and
        ``prior_predictive``, ``observed_data``, and ``constant_data`` (the model's other
        arguments). Unavailable groups are left out, and the attribute ``left_out`` of
        ``posterior`` says why: a log likelihood if the model draws discrete sites or
        minibatches, an improper prior.

        >>> data = result.to_arviz(coords={"rows": ["first", "second", "third"]})
        >>> "log_likelihood" in data, "posterior_predictive" in data
        (True, True)

        :param num_samples: the number of draws; they form one chain.
        :param log_likelihood: whether to include it, for one more run of the model per draw.
        :param predictive: the same for ``posterior_predictive``.
        :param prior: the same for ``prior`` and ``prior_predictive``.
        :param coords: labels of the elements, by the name of the axis.
        :param dims: names of all axes, by the name of the site or argument.
        :param options: as for :meth:`sample`.
        :return: an ``arviz.InferenceData``, or an ``xarray.DataTree`` from ArviZ 1 on.
        :raises ModuleNotFoundError: without ArviZ.
        :raises ValueError: for labels or names that match no axis.
        """
        wanted = {"log_likelihood": log_likelihood, "predictive": predictive, "prior": prior}
        wanted = {name: check_flag(value, name) for name, value in wanted.items()}
        num_samples = check_count(num_samples, "num_samples")
        of_run, programs = self._ppl.seconds_of_run(self), 1 + sum(wanted.values())
        say_price(self, "to_arviz", num_samples * (programs - 1), programs=programs, of_run=of_run)
        labels = Labels(coords or {}, dims or {})
        return chains.for_arviz(self, self.sample(num_samples, **options), wanted, labels)

    @alone
    def summary(
        self,
        var_names: str | Sequence[str] | None = None,
        *,
        prob: float = 0.9,
        coords: Mapping[str, Sequence] | None = None,
        dims: Mapping[str, Sequence[str]] | None = None,
    ) -> pandas.DataFrame:
        """Return a table of all latent sites, one number per row, with limits of their errors.

        It summarises the draws that the result holds, or 4,000 of the Gaussian.

        >>> list(result.summary("mean").columns)
        ['mean', 'sd', '5%', '95%', 'mean_error', 'sd_error']

        :param var_names: names of the sites, all by default.
        :param prob: the probability of the equal-tailed interval.
        :param coords: labels of the elements, by the name of the axis, as in :meth:`to_arviz`.
        :param dims: names of all axes, by the name of the site.
        :return: a ``pandas.DataFrame`` with the columns ``mean``, ``sd``, the ends of the interval
            (``5%`` and ``95%``), and two upper 95 % limits of errors: ``mean_error`` (in sd) and
            ``sd_error`` (relative to the sd). Both are at most 0.1 if draws are accurate, and NaN
            if unknown; ``attrs["note"]`` says what is wrong.
        :raises ValueError: for names that are not latent sites, and labels that match no axis.
        :raises ModuleNotFoundError: without pandas.
        """
        return summary_table(self, var_names, prob, Labels(coords or {}, dims or {}))

    @contextlib.contextmanager
    def _at_model(self) -> Iterator[tuple[Problem, Any]]:
        """Make the model's problem again, and the state that the result has; for use within."""
        with self._ppl.running(self):
            problem, state = self._ppl.problem(self)
            problem.objective.cost.prices = self.cost.prices
            chains.warn_if_stale(self, problem, state)
            yield problem, state

    @contextlib.contextmanager
    def _at_end(self) -> Iterator[tuple[Problem, Any]]:
        """Do as :meth:`_at_model`, with the density to which rows were added, or left out."""
        with self._at_model() as (problem, state):
            if self.change is not None:
                rows = self._ppl.rows(self, problem, state)
                changed = ChangedObjective(problem.objective, rows, self.change)
                problem = problem.replace(objective=changed)
            yield problem, state
