"""The result of ``fit``."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from ngvi._lock import Cached
from ngvi.errors import check_count, check_flag
from ngvi.inference.arguments import AUTO, GAUSSIAN, WHO, ModelCall, check_predictive, check_word
from ngvi.inference.draws import drawn
from ngvi.inference.draws.nuts import NutsRequest, NutsResult, WhitenedDensity
from ngvi.inference.hooks import GROUPS, NUTS, PREDICTIVE, SAMPLE
from ngvi.inference.new_groups import Asked, guide_for_groups
from ngvi.inference.prices import say_price
from ngvi.inference.problem import Problem
from ngvi.inference.result import Fitted
from ngvi.inference.tells import alone, door_with_options_of, unhandled
from ngvi.workflow import chains
from ngvi.workflow.evidence import LogEvidence
from ngvi.workflow.influence import Influence, influence
from ngvi.workflow.loo_steps import Clock
from ngvi.workflow.rows_result import elpd_of, left_out, of_rows, updated
from ngvi.workflow.sites import Sites
from ngvi.workflow.streaming import ChangedObjective
from ngvi.workflow.summary import summary_table

if TYPE_CHECKING:
    import arviz
    import pandas


@dataclasses.dataclass(kw_only=True, repr=False, eq=False)
class FitResult(Fitted):
    """A fitted posterior, how the fit went, and whether to believe it.

    ``print(result)`` is a report. One set of draws stands behind :meth:`sample`,
    :meth:`predictive`, :meth:`summary` and :meth:`to_arviz`; :attr:`diagnostics` says which method
    has made them, and how accurate they are.
    """

    #: Who may make the draws, as ``draws=`` of ``fit``.
    _draws: str = AUTO
    _chains_for_arviz = chains.chains_for_arviz

    @chains.was_corrected
    @door_with_options_of("_ppl.key")
    @unhandled
    def sample(self, num_samples: int = 1000, **options: Any) -> dict[str, Any]:
        """Draw every latent site, constrained.

        The draws are those that the result holds: some of 4,000 or so, in another order for
        another random key, each as often as the others if more are asked for. Where the Gaussian
        is accurate, or nothing else is wanted, they are drawn from it anew.

        :param num_samples: how many.
        :param options: in NumPyro ``rng_key``, by default one of the fit's, the same every time.
        :return: by site, an axis of draws followed by the site's shape.
        """
        num_samples = check_count(num_samples, "num_samples")
        key = self._ppl.key(self, SAMPLE, **options)
        latents, ppl = self._latents(num_samples, key), self._ppl
        return ppl.draws(self, num_samples, key) if latents is None else ppl.at(self, latents)

    def _latents(self, count: int, key: Any) -> np.ndarray | None:
        """Return as many of the latent vectors that are held; None of the Gaussian's."""
        held = None if self._draws == GAUSSIAN else self.diagnostics.latents
        if held is None:
            return None
        return held[drawn.chosen(len(held), count, np.random.default_rng(self._ppl.seed_of(key)))]

    @unhandled
    def with_draws(self, draws: str = AUTO) -> Self:
        """Return the same fit with draws by another method.

        :param draws: as in ``fit``: ``"auto"``, ``"gaussian"``, ``"corrected"`` or ``"nuts"``.
        :return: a result that holds them, and whose :attr:`cost` has what they cost besides.
        :raises ValueError: as :meth:`nuts`, and for draws that cannot be corrected likewise.
        """
        new = self._with_fields(_draws=check_word(draws, "draws", WHO))
        _ = new.diagnostics
        return new

    @unhandled
    def predictive(
        self, *args: Any, num_samples: int = 1000, new_groups: Asked = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Draw from the posterior predictive distribution.

        The latents are draws as of :meth:`sample`; of groups that the fit has not seen they come
        from the prior given the others::

            result.predictive(child=0, n=1, new_groups="children")  # whoever comes next
            result.predictive(child=50, n=51, new_groups={"children": [50]})  # beside the fit's 50

        :param args: arguments of the model. If there are none at all, they are those of the
            fit, and the observed sites are drawn as if they had not been observed.
        :param num_samples: how many draws.
        :param new_groups: the plates, by name, of which all elements are new; or by name the
            indices of those that are, where the others are the fit's in their order; or True for
            whatever a plate has beyond the fit's. The plates are around latents.
        :param kwargs: keyword arguments of the model; in NumPyro ``rng_key`` as in :meth:`sample`.
        :return: by site, an axis of draws followed by the site's shape; of new groups the latents
            are among them.
        :raises ValueError: for a plate of another size than in the fit, or an index beyond its
            elements, without ``new_groups``; naming plate and latents.
        """
        num_samples, key = check_count(num_samples, "num_samples"), self._key(PREDICTIVE, kwargs)
        check_predictive(self.predictive, self.model, args, kwargs, self.args)
        say_price(self, "predictive", num_samples)
        of_fit = self.args, self.kwargs
        run = (args, kwargs) if args or kwargs else of_fit
        chains.warn_if_other(self)
        found = self._ppl.predictions(self, new_groups, of_fit, run, num_samples, key)
        return {name: value for name, value in found.items() if np.prod(value.shape[1:])}

    @unhandled
    def sample_groups(self, *args: Any, num_samples: int = 1000, **kwargs: Any) -> dict[str, Any]:
        """Draw latents of groups that the fit has not seen, from their own data.

        The globals are those of the fit, which learn nothing from these groups, and locals have the
        Gaussian at their mode given globals and data. The draws are posterior samples for the
        PPL's ``Predictive``. With a model of 17 drivers, and data of another::

            draws = result.sample_groups(index_0, days, reaction)

        :param args: arguments of the model, with the data of the other groups, numbered from zero.
        :param num_samples: how many draws.
        :param kwargs: keyword arguments of the model; in NumPyro ``rng_key`` as in :meth:`sample`.
        :return: by site, an axis of draws followed by the site's shape.
        :raises ValueError: if the fit has no locals by their modes, the other groups' locals have
            none, or the model has other globals with their data.
        """
        num_samples, key = check_count(num_samples, "num_samples"), self._key(GROUPS, kwargs)
        check_predictive(self.sample_groups, self.model, args, kwargs, self.args)
        return self._ppl.group_draws(self, guide_for_groups(self), num_samples, (args, kwargs), key)

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
        """Go on with NUTS, in the coordinates of the fitted Gaussian, until draws are accurate.

        There the Gaussian is ``N(0, I)``, locals stand by their modes where the fit has them so,
        and chains begin at draws that importance weights have corrected, at each optimum as many as
        its evidence earns. Between several optima they jump, by draws of their Gaussians that a
        Metropolis-Hastings step takes or refuses, with up to 1,000 latents and a gradient more for
        each transition. A pass evaluates a point of each chain, so that many chains cost little
        more than a few. Where the Gaussian is good, ten transitions are all the warm-up, and an
        effective draw costs a few gradients. Parameters of the model's own stay as fitted, and
        enumerated latents are summed out::

            nuts = result.nuts()
            nuts.draws["mu"]  # of shape (chains, draws, ...)

        :param num_samples: draws of each chain; by default as many as make every mean accurate to
            0.1 standard deviations, and every standard deviation to 10 %: 25 to 800.
        :param num_warmup: the most transitions before them; by default 400.
        :param num_chains: how many.
        :param target_accept_prob: as of the PPL's ``NUTS``: more of it takes shorter steps. By
            default 0.8, and up to 0.95 where transitions of the warm-up diverge.
        :param progress_bar: whether to show the gradients so far.
        :param options: in NumPyro ``rng_key``, by default one of the fit's, the same every time.
        :return: the draws and their accuracy; it warns if that is ``"doubtful"``.
        :raises ValueError: if the model's density is not at hand, as of minibatches, or the guide
            is a list.
        """
        asked = num_samples, num_warmup, num_chains, target_accept_prob, progress_bar
        request = NutsRequest(*asked).checked()
        return chains.by_nuts(self, request, self._ppl.key(self, NUTS, **options))

    @alone
    def whitened_density(self) -> WhitenedDensity:
        """Return the density where the fitted Gaussian is ``N(0, I)``, for other samplers.

        Pure functions of ``z``: ``log_density(z)``, with the Jacobian, and ``constrain(z)``, which
        gives the model's sites. A draw of ``N(0, I)`` is one of the Gaussian::

            density = result.whitened_density()
            density.constrain(z), density.log_density(z)

        :raises ValueError: as :meth:`nuts`.
        """
        return chains.whitened(self)

    @Cached
    @unhandled
    def diagnostics(self) -> drawn.Diagnostics:
        """Account for the draws: which method, how accurate, k-hat, and the chains of NUTS.

        It is made with the draws, in ``fit`` or at their first use. The weights are those of 4,000
        draws of the Gaussian, each a value of the log density; of a model whose values take long
        of fewer, which take a fifth of the fit's time: 200 or more.
        """
        return drawn.made(self, self._draws)

    @property
    def log_evidence(self) -> LogEvidence:
        """The log evidence, for Bayes factors: its value, error, and whether to believe it."""
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
        """Return draws of :meth:`sample`, what the model says at them, and the data, for ArviZ.

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
        wanted = {name: check_flag(value, name) for name, value in wanted.items()}
        num_samples = check_count(num_samples, "num_samples")
        say_price(self, "to_arviz", num_samples * sum(wanted.values()))
        return chains.for_arviz(self, self.sample(num_samples, **options), wanted, coords, dims)

    @alone
    def summary(
        self,
        var_names: str | Sequence[str] | None = None,
        *,
        prob: float = 0.9,
        coords: Mapping[str, Sequence] | None = None,
        dims: Mapping[str, Sequence[str]] | None = None,
    ) -> pandas.DataFrame:
        """Return a table of all latent sites, one number a row, and whether to believe it.

        It is one of the draws that the result holds, or of 4,000 of the Gaussian.

        :param var_names: of the sites, all by default.
        :param prob: between the two ends of the interval, whose tails are equal.
        :param coords: labels of the elements, by the name of the axis, as of :meth:`to_arviz`.
        :param dims: names of all axes, by the name of the site.
        :return: a ``pandas.DataFrame`` with the columns ``mean``, ``sd``, the ends of the interval
            (``5%`` and ``95%``), and two upper 95 % limits: ``mean_error`` (of the mean, in sd) and
            ``sd_error`` (of the sd, as a part of it). Both are at most 0.1 where draws are
            accurate, and NaN where nothing is known; ``attrs["note"]`` says what is wrong.
        :raises ValueError: for names that are not latent sites, and labels that fit no axis.
        :raises ModuleNotFoundError: without pandas.
        """
        return summary_table(self, var_names, prob, coords or {}, dims or {})

    @alone
    def sites(self, plate: str | None = None) -> Sites:
        """Return the natural gradient of each row's expected log likelihood.

        At the optimum they and the prior's add up to the posterior's natural parameters (Khan and
        Rue, 2023, section 5, equations 15 to 17). They cost some values of each row where rows see
        one or two affine functions of the latents, as in regressions, and else ``8 d`` of each
        row's gradients.

        :param plate: whose elements are rows; by default all plates of the observed sites together.
        :raises ValueError: for a model that has no rows: a likelihood outside of plates or in a
            factor, enumerated latents, minibatches, missing data; or more than 2,000 latents.
        """
        with of_rows(self, plate, "sites") as (known, units):
            return Sites.of(known.target, known.q, units)

    @alone
    def loo(
        self,
        plate: str | None = None,
        *,
        time_limit: float | None = None,
        progress_bar: bool = True,
    ) -> arviz.ELPDData:
        """Return leave-one-out predictive densities, by subtracting each row's site.

        Rows that see one or two affine functions of the latents get an integral over these. Others
        get importance weights of 2,000 draws (PSIS-LOO), or draws and steps of their own from k-hat
        0.7 on, on whose scale ``pareto_k`` says how far to believe each::

            arviz.compare({"one": one.loo(), "other": other.loo()})
            result.loo("schools").loo_i  # a whole school at a time

        :param plate: whose elements are left out one at a time; by default all around sites.
        :param time_limit: seconds, after which no more rows get draws or steps of their own. By
            default they take half of the fit's gradients.
        :param progress_bar: show a bar after two seconds of steps.
        :return: ``ELPDData`` of ArviZ, pointwise. Coordinates of ``loo_i`` are ``how``,
            ``leverage``, ``psis`` and ``psis_k``; ``attrs["note"]`` says what is not reliable. A
            row without which the posterior is improper has the density NaN, one under a mask 0.
        :raises ValueError: as :meth:`sites`.
        """
        most = math.inf if time_limit is not None else self.cost.total / 2.0
        clock = Clock.of(time_limit, most, progress_bar)
        return elpd_of(self, plate, clock)

    @alone
    def influence(self, plate: str | None = None) -> Influence:
        """Return how far each row moves the posterior, the most influential first.

        :param plate: as for :meth:`loo`.
        :raises ValueError: as :meth:`sites`.
        """
        with of_rows(self, plate, "influence") as (known, units):
            return influence(known.target, known.optimum, units, known.latents)

    @unhandled
    def update(self, *args: Any, **kwargs: Any) -> Self:
        """Return the posterior with new rows: the old one is their prior.

        Natural-gradient steps on the new rows alone, whose cost the number of earlier rows does not
        change. It is exact for conjugate models. Otherwise sites of earlier rows stay what they
        were when these came, and ``change.drift`` adds up, in nats, half of the variance that
        ``log w`` had each time: what their being Gaussians costs. Where twice as much is more than
        the tolerance the verdict is ``"approximate"``, and it warns: the optimum of all rows may be
        elsewhere. Else it is ``"local"``, as no other optima are looked for. ``bound`` estimates
        all rows' bound; these variances are in ``bound_error``. Rows that the result has are warned
        of. The fit stays as it is::

            result = result.update(X[1000:2000], y[1000:2000])

        :param args: arguments of the model, with the new rows alone.
        :param kwargs: keyword arguments of the model.
        :return: a result whose arguments are these, and whose bound is about all rows so far.
        :raises TypeError: for what are no arguments of the model.
        :raises ValueError: for rows of another shape, with which the model does not run or indexes
            beyond the end of an array; for new groups, which are new latents; and as :meth:`sites`.
            So do data that ``fit`` refuses, NaN or outside of their support.
        """
        ModelCall(self.update, self.model, args, kwargs, "no seed").check()
        return updated(self, args, kwargs)

    @alone
    def without(self, rows: Any, plate: str | None = None) -> Self:
        """Return the posterior without some rows, by subtraction and natural-gradient steps.

        :param rows: numbers of the rows, one or several.
        :param plate: whose elements they are; as for :meth:`loo`.
        :return: a result with the same arguments, in which these rows do not count.
        :raises ValueError: for rows that are not there, or without which the posterior is improper;
            and as :meth:`sites`.
        """
        return left_out(self, rows, plate)

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
