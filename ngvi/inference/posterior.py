"""The posterior of a fit, as far as it needs no tensor."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from ngvi._warn import warn
from ngvi.errors import check_count, check_flag, is_auto, shown
from ngvi.inference.estimate import State
from ngvi.inference.new_groups import Asked
from ngvi.inference.options import DrawOptions
from ngvi.inference.outcome import FoundOptimum
from ngvi.inference.problem import Problem
from ngvi.inference.psis import Diagnostics, diagnose, of_minibatches, undefined
from ngvi.inference.resampling import corrected, with_heavier_tails
from ngvi.inference.validation import Validation
from ngvi.inference.weights_verdict import OPTIONS as VERDICT

DRAWS = DrawOptions()


def check_corrected(corrected: bool | str) -> bool | None:
    """The argument of ``sample``; None for ``"auto"``.

    :raises ValueError: for anything else.
    """
    return (
        None
        if is_auto(corrected, "corrected", "True or False")
        else check_flag(corrected, "corrected")
    )


class Parameters(dict[str, Any]):
    """The parameters of guide and model by their names, which says what else is meant."""

    def __missing__(self, name: str) -> Any:
        known = ", ".join(map(repr, self)) or "nothing"
        raise KeyError(
            f"no parameter {name!r}: params has those of guide and model, {known}. Draws of a "
            "latent are result.sample(1000)['name of its site'], its moments result.summary()"
        )


@dataclasses.dataclass(kw_only=True, repr=False, eq=False)
class FittedPosterior:
    """A Gaussian, what can be drawn from it, and whether to believe it."""

    #: The model, and its arguments as given to ``fit``.
    model: Callable
    args: tuple = ()
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    #: The guide, which is set up.
    guide: Any
    #: All parameters of model and guide, by their names.
    params: dict[str, Any]

    # -- what a package adds ----------------------------------------------------------

    def sample(
        self, num_samples: int = 1000, *, corrected: bool | str = "auto", **options: Any
    ) -> dict[str, Any]:
        """Draws of every latent site, constrained.

        :param num_samples: how many.
        :param corrected: whether to draw from the model's posterior and not from the Gaussian, by
            Pareto smoothed importance resampling from 5,000 to 20,000 draws, or ``num_samples`` if
            these are more, and up to 8,000 before them. Each is a value of the log density, and up
            to 2,000 gradients tell whether they are as wide as the posterior. The Gaussian's spread
            is too small where the posterior is skew. A draw may come more than once. It warns where
            the draws cannot be believed. All draws are in memory, in double precision and several
            times over: about a gigabyte with 2,000 latents. ``"auto"`` corrects where the fit's own
            check says that there is something to correct, with up to 2,000 latents; where corrected
            draws are worth fewer than 400 it warns, and the draws are the Gaussian's. What other
            optima hold is in no draw, and is warned of.
        :return: by site, an axis of draws followed by the site's shape.
        :raises ValueError: for ``corrected=True`` if the weights are undefined, as for a model that
            sees minibatches, or the guide is a list.
        """
        raise NotImplementedError

    def predictive(
        self, *args: Any, num_samples: int = 1000, new_groups: Asked = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Draws from the posterior predictive distribution.

        The latents are the Gaussian's, also where :meth:`sample` corrects its draws;
        :meth:`to_arviz` has predictions at the draws of :meth:`sample`.

        Of groups that the fit has not seen the latents come from the prior given the others::

            result.predictive(child=0, n=1, new_groups="children")  # whoever comes next
            result.predictive(child=50, n=51, new_groups={"children": [50]})  # beside the fit's 50

        :param args: arguments of the model. If there are none at all, they are those of the
            fit, and the observed sites are drawn as if they had not been observed.
        :param num_samples: how many draws.
        :param new_groups: the plates, by name, of which all elements are new; or by name the
            indices of those that are, where the others are the fit's in their order; or True for
            whatever a plate has beyond the fit's. The plates are around latents.
        :param kwargs: keyword arguments of the model.
        :return: by site, an axis of draws followed by the site's shape; of new groups the latents
            are among them.
        :raises ValueError: for a plate of another size than in the fit, or an index beyond its
            elements, without ``new_groups``; naming plate and latents.
        """
        raise NotImplementedError

    def _latent_names(self) -> set[str]:
        """The latents that have a posterior of their own."""
        own = {site.name for part in self._gaussians() for site in part.sites}
        return own | {*getattr(self.guide, "conjugate", ())}

    def sample_groups(self, *args: Any, num_samples: int = 1000, **kwargs: Any) -> dict[str, Any]:
        """Draws for groups that the fit has not seen, from their own data.

        The globals are those of the fit, which learn nothing from these groups, and locals have the
        Gaussian at their mode given globals and data: no parameters have to be fitted. The draws
        are posterior samples for the PPL's ``Predictive``. With a model of 17 drivers, and data of
        another::

            draws = result.sample_groups(index_0, days, reaction)

        :param args: arguments of the model, with the data of the other groups, numbered from zero.
        :param num_samples: how many draws.
        :param kwargs: keyword arguments of the model.
        :return: by site, an axis of draws followed by the site's shape.
        :raises ValueError: if the fit has no locals by their modes, the other groups' locals have
            none, or the model has other globals with their data.
        """
        raise NotImplementedError

    def diagnose(self, num_draws: int | None = None) -> Diagnostics:
        """:attr:`diagnostics` from other draws, or more of them.

        :param num_draws: how many; each is a value of the log density. By default 4000, or 16,000
            where these do not decide whether the weights can be trusted.
        :raises ValueError: if the guide has no ``NaturalGaussianGuide`` in it.
        """
        raise NotImplementedError

    def _gaussians(self) -> list[Any]:
        """The ``NaturalGaussianGuide`` in the guide."""
        raise NotImplementedError

    def _distribution(self, params: dict[str, Any]) -> Any:
        """The Gaussian of these parameters, as a distribution of the PPL."""
        raise NotImplementedError

    def _at_end(self) -> AbstractContextManager[tuple[Problem, State]]:
        """The problem, made again, and the state that the result has; to be asked within."""
        raise NotImplementedError

    def _without_weights(self, problem: Problem) -> str:
        """Why draws have no importance weights, in words, or nothing."""
        if getattr(problem.objective, "guide_is_enumerated", False):  # in Pyro
            return "the guide has enumerated sites, whose draws have no single weight"
        return ""

    # -- the posterior ----------------------------------------------------------------

    @property
    def posterior(self) -> Any:
        """The Gaussian over the unconstrained latent vector, as a distribution of the PPL.

        Where :attr:`guide` is a ``ReparametrizedGaussianGuide`` locals are standardised in it.
        """
        return self._distribution(self.params)

    def posterior_of(self, optimum: FoundOptimum) -> Any:
        """As :attr:`posterior`, at another optimum.

        :param optimum: one of :attr:`optima`.
        :raises TypeError: for anything else.
        """
        if not isinstance(optimum, FoundOptimum):
            raise TypeError(f"optimum must be one of result.optima, got {shown(optimum)}.")
        return self._distribution(optimum.params)

    @property
    def family(self) -> Any:
        """The Gaussian over the unconstrained latent vector, in its own coordinates."""
        return self._gaussian()._family_of(self.params)

    @property
    def family_name(self) -> str:
        """The name of the family; of each, if the guide is a list with several Gaussians."""
        return " + ".join(part.family.name for part in self._gaussians()) or "no Gaussian"

    @property
    def dim(self) -> int:
        """The number of unconstrained latents that are Gaussian."""
        return sum(part.latent_dim for part in self._gaussians())

    def _gaussian(self) -> Any:
        parts = self._gaussians()
        if len(parts) != 1:
            raise ValueError(
                f"The guide ({type(self.guide).__name__}) has {len(parts)} NaturalGaussianGuides "
                "in it, not one: ask its parts."
            )
        return parts[0]

    # -- did it work ------------------------------------------------------------------

    @functools.cached_property
    def diagnostics(self) -> Diagnostics:
        """Pareto k-hat, importance-weighted bound and marginals, from 4000 draws or 16,000."""
        return self.diagnose()

    def _mode_centred_guide(self) -> Any:
        """The guide, which has locals by their modes.

        :raises ValueError: if it is another.
        """
        guide = self._gaussian()
        if not hasattr(guide, "for_groups"):
            raise ValueError(
                "sample_groups needs locals by their modes given their data, and in this fit "
                "each has parameters of its own: fit(..., "
                "guide=ReparametrizedGaussianGuide(model))."
            )
        return guide

    def _diagnosed(self, num_draws: int | None, seed: int | list[int]) -> Diagnostics:
        """See :meth:`diagnose`."""
        num_draws = num_draws if num_draws is None else check_count(num_draws, "num_draws")
        known = vars(self).get("diagnostics")
        if known is not None and not known.num_draws:
            return known  # of rows of which the result holds a part only
        with self._at_end() as (problem, state):
            if why := self._without_weights(problem):
                return undefined(why)
            found, elsewhere = diagnose(problem, state, num_draws, seed), self._elsewhere()
            is_small = self.dim <= DRAWS.max_dim
            if is_small and not elsewhere and not self._without_density(problem):
                found = with_heavier_tails(problem, state, found, seed)
        if not elsewhere:
            return found
        word = found.verdict.partition(":")[0]
        words = f"partial: {elsewhere}, and weights see none of it; of its own optimum q is {word}"
        return dataclasses.replace(found, verdict=words, are_trusted=False)

    def _corrected(
        self, num_samples: int, seed: int | list[int], is_asked: bool = True
    ) -> np.ndarray | None:
        """Latent vectors of the model's posterior; see :meth:`sample`.

        :param is_asked: whether the user insists; if not, None where they are worth too few.
        """
        with self._at_end() as (problem, state):
            if is_asked:
                self._check_density(problem, "corrected=True", "Leave it out.")
            elif self._without_density(problem):
                return None
            found = corrected(problem, state, num_samples, np.random.default_rng(seed))
        if found.fault and not (is_asked or found.are_many):
            warn(
                "The draws are the Gaussian's, and the posterior is another: corrected, "
                f"{found.fault}. result.nuts() goes on by NUTS; corrected=False is the Gaussian in "
                "silence."
            )
            return None
        if fault := "; ".join(filter(None, [found.fault, self._elsewhere()])):
            warn(f"Corrected draws may be wrong: {fault}. result.nuts() goes on by NUTS.")
        return found.latents

    def _elsewhere(self) -> str:
        """Whether other optima hold a part of the posterior, in words, or nothing."""
        bounds = [one.bound for one in self._optima()]
        weights = np.exp(np.array(bounds[1:]) - bounds[0]) if bounds else np.zeros(0)
        share = float(weights.sum() / (1.0 + weights.sum()))
        if share < DRAWS.notable_share:
            return ""
        return f"other optima hold about {100 * share:.0f} % of the posterior, by their bounds"

    def _optima(self) -> tuple[FoundOptimum, ...]:
        """All that the fit has found, the best first."""
        return ()

    def _is_worth_correcting(self) -> bool:
        """Whether the Gaussian's own draws will not do, as far as the fit knows, and it costs
        little.
        """
        known: Validation | None = getattr(self, "validation", None)
        if known is None or not math.isfinite(known.spread) or self.dim > DRAWS.max_dim:
            return False
        if self._elsewhere():
            return True
        # The chi-square divergence of nearly equal weights is the variance of their logarithms.
        return known.is_heavy_tailed or known.spread**2 > 1.0 / VERDICT.alike - 1.0

    def _without_density(self, problem: Problem) -> str:
        """Why the density of all data is not at hand, in words, or nothing."""
        if [part is self.guide for part in self._gaussians()] != [True]:
            return f"the guide ({type(self.guide).__name__}) is no NaturalGaussianGuide"
        return self._why_undefined(problem)

    def _why_undefined(self, problem: Problem) -> str:
        """Why draws have no importance weights of all data, in words, or nothing."""
        known = vars(self).get("diagnostics")
        if known is not None and not known.num_draws:  # of rows of which it holds a part only
            return known.verdict.removeprefix("undefined: ")
        return self._without_weights(problem) or of_minibatches(problem.objective)

    def _check_density(self, problem: Problem, who: str, way_out: str) -> None:
        """Refuse a posterior without importance weights.

        :param who: needs them, in words.
        """
        if why := self._without_density(problem):
            raise ValueError(
                f"{who} needs the importance weights of a NaturalGaussianGuide, and here {why}. "
                f"{way_out}"
            )


def to_numpy(value: Any) -> np.ndarray:
    """An array of torch or JAX as numpy's; on a GPU it has to be fetched."""
    value = value.detach() if hasattr(value, "detach") else value
    return np.asarray(value.cpu() if hasattr(value, "cpu") else value)
