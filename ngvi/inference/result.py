"""What a fit returns, as far as it needs no tensor."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from os import PathLike
from typing import Any, ClassVar, Self

import numpy as np

from ngvi.errors import check_count, check_flag, check_model
from ngvi.inference import arviz, serialize
from ngvi.inference.outcome import NOT_CONVERGED, FoundOptimum, Restart
from ngvi.inference.problem import Cost, Problem, State
from ngvi.inference.psis import Diagnostics, diagnose, undefined
from ngvi.inference.report import final_bound, plot, report
from ngvi.inference.resampling import corrected
from ngvi.inference.serialize import Saved
from ngvi.inference.trace import Trace
from ngvi.inference.validation import Validation


@dataclasses.dataclass(kw_only=True, repr=False, eq=False)
class Result:
    """A package's ``FitResult`` but for its draws."""

    #: The package that has made it.
    library: ClassVar[str]

    #: The model, and its arguments as given to ``fit``.
    model: Callable
    args: tuple = ()
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    #: The guide, which is set up.
    guide: Any
    #: All parameters of model and guide, by their names.
    params: dict[str, Any]
    #: What each step looked like.
    trace: Trace
    #: ``"certified"``: the bound is within the tolerance of this optimum, and no better one is
    #: likely; ``"local"``: others have not been ruled out; or ``"not converged"``.
    verdict: str
    #: Why the fit stopped and, if it has not converged, what to try.
    reason: str
    #: Gradients, Hessian-vector products and values of the log density.
    cost: Cost
    #: What independent draws said of the posterior at the end.
    validation: Validation | None = None
    #: Where the starts have led, the one that is kept first.
    restarts: tuple[Restart, ...] = ()
    #: All optima that were found, the best first.
    optima: tuple[FoundOptimum, ...] = ()
    #: Wall-clock time of the fit.
    seconds: float

    # -- what a package adds ----------------------------------------------------------

    def sample(
        self, num_samples: int = 1000, *, corrected: bool = False, **options: Any
    ) -> dict[str, Any]:
        """Draws of every latent site, constrained.

        :param num_samples: how many.
        :param corrected: draw from the model's posterior and not from the Gaussian, by Pareto
            smoothed importance resampling from 20,000 draws, or ``num_samples`` if these are more,
            and up to 8,000 before them; each is a value of the log density. The Gaussian's spread
            is too small where the posterior is skew. A draw may come more than once. It warns where
            k-hat is above 0.7. All draws are in memory, in double precision and several times
            over: about a gigabyte with 2,000 latents.
        :return: by site, an axis of draws followed by the site's shape.
        :raises ValueError: for ``corrected=True`` if the weights are undefined, as for a model that
            sees minibatches, or the guide is a list.
        """
        raise NotImplementedError

    def predictive(self, *args: Any, num_samples: int = 1000, **kwargs: Any) -> dict[str, Any]:
        """Draws from the posterior predictive distribution.

        :param args: arguments of the model. If there are none at all, they are those of the
            fit, and the observed sites are drawn as if they had not been observed.
        :param num_samples: how many draws.
        :param kwargs: keyword arguments of the model.
        :return: by site, an axis of draws followed by the site's shape.
        """
        raise NotImplementedError

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

    def diagnose(self, num_draws: int = 4000) -> Diagnostics:
        """:attr:`diagnostics` from other draws, or more of them.

        :param num_draws: how many; each is an evaluation of the log density.
        :raises ValueError: if the guide has no ``NaturalGaussianGuide`` in it.
        """
        raise NotImplementedError

    def _gaussians(self) -> list[Any]:
        """The ``NaturalGaussianGuide`` in the guide."""
        raise NotImplementedError

    def _observed(self, latents: dict[str, Any]) -> dict[str, np.ndarray]:
        """The observed data, from a run of the model with these latents."""
        raise NotImplementedError

    def _distribution(self, params: dict[str, Any]) -> Any:
        """The Gaussian of these parameters, as a distribution of the PPL."""
        raise NotImplementedError

    def _at_end(self) -> AbstractContextManager[tuple[Problem, State]]:
        """The problem, made again, and the state that the result has; to be asked within."""
        raise NotImplementedError

    def _without_weights(self, problem: Problem) -> str:
        """Why draws have no importance weights, in words, or nothing."""
        return ""

    @staticmethod
    def _flat(params: dict[str, Any]) -> dict[str, np.ndarray]:
        """The numbers of parameters, by flat names."""
        raise NotImplementedError

    def _others(self) -> dict[str, Any]:
        """What a file has to know besides, for JSON."""
        raise NotImplementedError

    @staticmethod
    def _as_array(value: Any) -> np.ndarray | None:
        """The numbers of one of the PPL's arrays, or None for anything else."""
        raise NotImplementedError

    @staticmethod
    def _own(array: np.ndarray) -> Any:
        """An array of the PPL."""
        raise NotImplementedError

    @staticmethod
    def _at_a_third(support: Any, shape: tuple[int, ...], like: Any) -> float:
        """The sum of the value into which a support takes unconstrained thirds, of this shape and
        of the kind of an array.
        """
        raise NotImplementedError

    @classmethod
    def _rebuilt(
        cls, saved: Saved, model: Callable, args: tuple, kwargs: dict[str, Any], guide: Any
    ) -> dict[str, Any]:
        """Model, guide, parameters, optima, and fields of the package."""
        raise NotImplementedError

    # -- files ------------------------------------------------------------------------

    def save(self, path: str | PathLike, *, data: bool = True) -> None:
        """Save the result, in a format without pickle: JSON and the arrays of an ``.npz``.

        The file takes its place when it is whole: whatever happens, an earlier one is there until
        then. :attr:`diagnostics` are not in it; they are computed again when they are asked for.

        :param path: of the file.
        :param data: whether the model's arguments are saved as well.
        :raises TypeError: for an argument that is not made of arrays, numbers and texts.
        """
        arguments = (self.args, self.kwargs) if check_flag(data, "data") else None
        serialize.write_result(path, self, arguments, self._others())

    @classmethod
    def load(
        cls, path: str | PathLike, model: Callable, *args: Any, guide: Any = None, **kwargs: Any
    ) -> Self:
        """A result that :meth:`save` has saved.

        It runs the model a few times to set up the guide, and is then what it was: parameters,
        words, and draws from the same random numbers are the same.

        >>> result.save("result.ngvi")
        >>> again = FitResult.load("result.ngvi", model)
        >>> again.bound == result.bound and again.reason == result.reason
        True

        :param path: of the file.
        :param model: the model, which must be the one of the fit: code is not in the file.
        :param args: its arguments. If there are none at all, they are those in the file.
        :param guide: as given to ``fit``, for one of a kind that the file does not hold: several
            guides in one, a family of the user's own, or ``create_plates=``.
        :param kwargs: keyword arguments of the model.
        :raises ValueError: for another model, another guide or another precision, or a file of
            something else.
        """
        check_model(model)
        file = serialize.read_result(path, cls.library)
        if not args and not kwargs:
            args, kwargs = file.arguments(cls._own)
        rebuilt = cls._rebuilt(file, model, args, kwargs, guide)
        return cls(args=args, kwargs=kwargs, **rebuilt, **file.fields())

    # -- how it went ------------------------------------------------------------------

    @property
    def converged(self) -> bool:
        """Whether the upper 95 % limit of what is left to this optimum is at most the tolerance."""
        return self.verdict != NOT_CONVERGED

    @property
    def num_steps(self) -> int:
        """Steps that led to the optimum."""
        return len(self.trace)

    @property
    def losses(self) -> np.ndarray:
        """Minus the bound in nats, as estimated at each step; shape ``(num_steps,)``."""
        return np.asarray(self.trace.losses, float)

    @property
    def bound(self) -> float:
        """The bound on the log evidence in nats, from independent draws at the end.

        Where ``curvature="quadrature"`` integrates it, these have to confirm the integral. Of a
        model that sees minibatches it is the average over the last tenth of the steps.
        """
        return self._final_bound()[0]

    @property
    def bound_error(self) -> float:
        """The standard error of :attr:`bound`, in nats, if the steps' errors are independent."""
        return self._final_bound()[1]

    def _final_bound(self) -> tuple[float, float]:
        if self.validation is None:
            return final_bound(self.trace)
        return self.validation.bound, self.validation.error

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
        """
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
        """Pareto k-hat, importance-weighted bound and marginals, from 4000 draws."""
        return self.diagnose()

    def _by_modes(self) -> Any:
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

    def _diagnosed(self, num_draws: int, seed: int | list[int]) -> Diagnostics:
        """See :meth:`diagnose`."""
        num_draws = check_count(num_draws, "num_draws")
        known = vars(self).get("diagnostics")
        if known is not None and not known.num_draws:
            return known  # of rows of which the result holds a part only
        with self._at_end() as (problem, state):
            if why := self._without_weights(problem):
                return undefined(why)
            return diagnose(problem, state, num_draws, seed)

    def _corrected(self, num_samples: int, seed: int | list[int]) -> np.ndarray:
        """Latent vectors of the model's posterior; see :meth:`sample`."""
        is_alone = [part is self.guide for part in self._gaussians()] == [True]
        if not is_alone or not self.diagnostics.num_draws:
            why = f"the guide ({type(self.guide).__name__}) is no NaturalGaussianGuide"
            why = self.diagnostics.verdict.removeprefix("undefined: ") if is_alone else why
            raise ValueError(
                "corrected=True needs the importance weights of a NaturalGaussianGuide, and here "
                f"{why}. Leave it out."
            )
        with self._at_end() as (problem, state):
            return corrected(problem, state, num_samples, np.random.default_rng(seed))

    # -- draws ------------------------------------------------------------------------

    def plot(self) -> Any:
        """Bound, step sizes, importance weights and worst marginals as a matplotlib figure.

        :raises ModuleNotFoundError: without matplotlib.
        """
        return plot(self)

    def to_arviz(self, num_samples: int = 1000, **options: Any) -> Any:
        """Draws of :meth:`sample` and the observed data, for ArviZ.

        :param num_samples: how many draws; they are one chain.
        :param options: as for :meth:`sample`.
        :return: an ``arviz.InferenceData``, or an ``xarray.DataTree`` from ArviZ 1 on.
        :raises ModuleNotFoundError: without ArviZ.
        """
        draws = self.sample(num_samples, **options)
        first = {name: value[0] for name, value in draws.items()}
        # On a GPU a tensor has to be fetched.
        posterior = {
            name: np.asarray(value.cpu() if hasattr(value, "cpu") else value)
            for name, value in draws.items()
        }
        sites = [site for part in self._gaussians() for site in part.sites]
        return arviz.inference_data(
            posterior,
            self._observed(first),
            arviz.plate_dims(sites, posterior),
            {"inference_library": self.library, "bound": self.bound, "reason": self.reason},
        )

    # -- words ------------------------------------------------------------------------

    def __str__(self) -> str:
        return report(self, complete=True)

    def __repr__(self) -> str:
        return report(self, complete="diagnostics" in vars(self))
