"""What a fit returns, as far as it needs no tensor."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from os import PathLike
from typing import Any, ClassVar, Self

import numpy as np

from ngvi._door import TellsWhatItHas, door
from ngvi.errors import check_flag, check_model
from ngvi.inference import serialize
from ngvi.inference.arguments import check_path, check_takes
from ngvi.inference.change import Change
from ngvi.inference.continued import ContinuedPosterior
from ngvi.inference.outcome import NOT_CONVERGED, FoundOptimum, Restart
from ngvi.inference.posterior import Parameters
from ngvi.inference.problem import Cost
from ngvi.inference.report import final_bound, plot, report
from ngvi.inference.request import check_guide
from ngvi.inference.serialize import Saved
from ngvi.inference.trace import Trace
from ngvi.inference.validation import Validation

#: What results of other libraries have, by what there is here.
ELSEWHERE = {
    "result.sample(1000)": "get_samples samples draws posterior_samples rvs",
    "result.summary()": "mean means sd std stddev median quantiles hdi print_summary stats coef",
    "result.bound": "elbo evidence log_evidence logz lower_bound",
    "result.losses": "loss history elbos",
    "result.restarts": "starts",
    "result.validation": "audit",
    "result.cost": "num_evaluations nfev njev",
    "result.converged": "success is_converged certified",
    "result.diagnostics": "khat pareto_k k_hat",
    "result.predictive(...)": "predict posterior_predictive sample_posterior_predictive",
    "result.loo()": "waic psis_loo elpd loo_pit",
    "arviz.plot_posterior(result.to_arviz()), say": (
        "plot_posterior plot_trace plot_forest plot_pair plot_ppc plot_loss"
    ),
    "result.to_arviz()": "to_inference_data to_idata idata inference_data",
}


@dataclasses.dataclass(kw_only=True, repr=False, eq=False)
class Result(TellsWhatItHas, ContinuedPosterior):
    """A package's ``FitResult`` but for its draws."""

    #: The package that has made it, its families by name, and the classes of guides that a file
    #: holds.
    library: ClassVar[str]
    _names_elsewhere = ELSEWHERE
    _families: ClassVar[dict[str, type]]
    _guides: ClassVar[tuple[type, ...]]

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
    #: What the posterior is of, if rows were added to a fit, or left out.
    change: Change | None = None
    #: Wall-clock time of the fit.
    seconds: float

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        if args:
            raise TypeError(
                f"{cls.__name__} is what fit(model, ...) returns; one from a file is "
                f"{cls.__name__}.load(path, model)."
            )
        return super().__new__(cls)

    def __post_init__(self) -> None:
        self.params = Parameters(self.params)

    # -- what a package adds ----------------------------------------------------------

    @staticmethod
    def _flat(params: dict[str, Any]) -> dict[str, np.ndarray]:
        """The numbers of parameters, by flat names."""
        raise NotImplementedError

    def _others(self) -> dict[str, Any]:
        """What a file has to know besides, for JSON."""
        return serialize.guide_options(self.guide, self._families, self._guides)

    @staticmethod
    def _as_array(value: Any) -> np.ndarray | None:
        """The numbers of one of the PPL's arrays, or None for anything else."""
        raise NotImplementedError

    @staticmethod
    def _place(value: Any) -> str:
        """The name of the device where one of the PPL's own arrays is."""
        raise NotImplementedError

    @staticmethod
    def _own(array: np.ndarray, place: Any = "") -> Any:
        """An array of the PPL.

        :param place: the user's, or a name of :meth:`_place`, for where the PPL has it by itself if
            there is no such device.
        """
        raise NotImplementedError

    @staticmethod
    def _at_a_third(support: Any, shape: tuple[int, ...], like: Any) -> float:
        """The sum of the value into which a support takes unconstrained thirds, of this shape and
        of the kind of an array.
        """
        raise NotImplementedError

    @classmethod
    def _rebuilt(
        cls,
        saved: Saved,
        model: Callable,
        args: tuple,
        kwargs: dict[str, Any],
        guide: Any,
        make_guide: Any,
    ) -> dict[str, Any]:
        """Model, guide, parameters, optima, and fields of the package.

        :param guide: the user's, or None.
        :param make_guide: makes another, if there is none.
        """
        raise NotImplementedError

    def _optima(self) -> tuple[FoundOptimum, ...]:
        return self.optima

    # -- files ------------------------------------------------------------------------

    @door
    def save(self, path: str | PathLike, *, data: bool = True) -> None:
        """Save the result, in a format without pickle: JSON and the arrays of an ``.npz``, which
        ``numpy.load`` reads by itself.

        The file takes its place when it is whole: whatever happens, an earlier one is there until
        then. It keeps the mode of an earlier one, and is written where a link points to.
        :attr:`diagnostics` are not in it; they are computed again when they are asked for.

        :param path: of the file.
        :param data: whether the model's arguments are saved as well.
        :raises TypeError: for an argument that is not made of arrays, numbers and texts.
        :raises ValueError: for a device, a pipe or a socket, which is not replaced.
        :raises OSError: if the file cannot be written; an earlier one is as it was.
        """
        check_path(path, "path", is_needed=True)
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
        :param args: its arguments. If there are none at all, they are those in the file, on the
            device where they were if there is one.
        :param guide: as given to ``fit``, for one of a kind that the file does not hold: several
            guides in one, a family of the user's own, or ``create_plates=``.
        :param kwargs: keyword arguments of the model.
        :raises ngvi.DamagedFileError: for a file of something else, or one that is not what was
            written, to the last bit; or whose parameters are not finite though the fit had
            converged.
        :raises ValueError: for another model, another guide or another precision.
        """
        return cls._loaded(path, model, args, kwargs, guide, None)

    @classmethod
    def _loaded(
        cls,
        path: str | PathLike,
        model: Callable,
        args: tuple,
        kwargs: dict[str, Any],
        guide: Any,
        place: Any,
    ) -> Self:
        """As :meth:`load`.

        :param place: the user's, for arguments in the file, or None.
        """
        check_path(path, "path", is_needed=True)
        check_model(model)
        check_guide(guide)
        file = serialize.read_result(path, cls.library)
        if not args and not kwargs:
            args, kwargs = file.arguments(
                lambda array, saved: cls._own(array, saved if place is None else place)
            )
        check_takes(model, args, kwargs)
        make_guide = None if guide is not None else file.make_guide(cls._families, cls._guides)
        fields = file.fields()
        rebuilt = cls._rebuilt(file, model, args, kwargs, guide, make_guide)
        return cls(args=args, kwargs=kwargs, **rebuilt, **fields)

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

    # -- pictures and words -----------------------------------------------------------

    @door
    def plot(self) -> Any:
        """Bound, step sizes, importance weights and worst marginals as a matplotlib figure.

        :raises ModuleNotFoundError: without matplotlib.
        """
        return plot(self)

    def __getitem__(self, name: str) -> Any:
        raise TypeError(f"A FitResult has no items: write result.sample(1000)[{name!r}].")

    def __str__(self) -> str:
        return report(self, complete=True)

    def __repr__(self) -> str:
        return report(self, complete="diagnostics" in vars(self))
