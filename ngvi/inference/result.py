"""Results of fits: what they know without another run of the model."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable
from os import PathLike
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from ngvi._door import door
from ngvi._lock import serialised
from ngvi.errors import check_flag, check_model, shown
from ngvi.inference.arguments import check_path
from ngvi.inference.change import Change
from ngvi.inference.hooks import Hooks
from ngvi.inference.posterior import Parameters
from ngvi.inference.problem import Cost
from ngvi.inference.report import WIDTH, final_bound, plot, report
from ngvi.inference.request import check_guide
from ngvi.inference.saved import serialize
from ngvi.inference.saved.file_hooks import FileHooks
from ngvi.inference.set_up import Given
from ngvi.inference.tells import TellsWhatItHas
from ngvi.inference.trace import Trace
from ngvi.inference.verdict.outcome import CERTIFIED, LOCAL, FoundOptimum, Restart, Verdict
from ngvi.inference.verdict.validation import Validation
from ngvi.latents import html

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Attributes that neither copies nor pickles of a result have: what it has found out of its rows,
#: and what a package has found out of model, guide and arguments.
KEPT, PLAN = "_known_rows", "_known_plan"


@dataclasses.dataclass(kw_only=True, repr=False, eq=False)
class Fitted(TellsWhatItHas):
    """A fitted Gaussian and the account of its fit: what a result knows without another run."""

    _ppl: ClassVar[Hooks]
    _files: ClassVar[FileHooks]

    #: The model, and its arguments as given to ``fit``.
    model: Callable
    args: tuple = ()
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    #: The guide, already set up.
    guide: Any
    #: All parameters of model and guide, by their names.
    params: dict[str, Any]
    #: A record of each step.
    trace: Trace
    #: ``"certified"``: the bound is within the tolerance of this optimum, and a better one is
    #: unlikely; ``"local"``: others have not been ruled out; ``"not converged"``; or, after
    #: ``update``, ``"approximate"``: earlier rows count as Gaussians, and the optimum of all rows
    #: may be elsewhere.
    verdict: Verdict
    #: Why the fit stopped and, if it has not converged, what to try.
    reason: str
    #: Gradients, Hessian-vector products and values of the log density.
    cost: Cost
    #: Checks of the final posterior by independent draws.
    validation: Validation | None = None
    #: Where the starts ended, the best first.
    restarts: tuple[Restart, ...] = ()
    #: All optima that were found, the best first.
    optima: tuple[FoundOptimum, ...] = ()
    #: Rows added to, or removed from, the data of a fitted result.
    change: Change | None = None
    #: Wall-clock time of the fit, including its draws once they are made.
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
        self._ppl.begin(self)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in (KEPT, PLAN)}

    def _with_fields(self, **fields: Any) -> Self:
        """Return a copy, which makes its draws anew."""
        new = copy.copy(self)
        vars(new).pop("diagnostics", None)
        if PLAN in vars(self):
            vars(new)[PLAN] = vars(self)[PLAN]
        vars(new).update(fields)
        if "params" in fields:
            new.__post_init__()
        if fields.keys() & {"params", "args", "kwargs"} and new.validation is not None:
            new.validation = dataclasses.replace(new.validation, height=math.nan)
        return new

    # -- the Gaussian -----------------------------------------------------------------

    @property
    def posterior(self) -> Any:
        """The Gaussian over the unconstrained latent vector, as a distribution of the PPL.

        If :attr:`guide` is a ``ReparametrizedGaussianGuide``, locals are standardised.
        """
        return self._gaussian()._distribution(self.family)

    def posterior_of(self, optimum: FoundOptimum) -> Any:
        """Return the :attr:`posterior` at another optimum.

        >>> len(result.posterior_of(result.optima[0]).mean)
        1

        :param optimum: one of :attr:`optima`.
        :raises TypeError: for anything else.
        """
        if not isinstance(optimum, FoundOptimum):
            raise TypeError(f"optimum must be one of result.optima, got {shown(optimum)}.")
        gaussian = self._gaussian()
        return gaussian._distribution(gaussian._family_of(optimum.params))

    @property
    def family(self) -> Any:
        """The Gaussian over the unconstrained latent vector, in its own coordinates."""
        return self._gaussian()._family_of(self.params)

    @property
    def dim(self) -> int:
        """The number of unconstrained latents that are Gaussian."""
        return sum(part.latent_dim for part in self._gaussians())

    def _gaussians(self) -> list[Any]:
        """Return the ``NaturalGaussianGuide`` in the guide."""
        return self._ppl.gaussians(self.guide)

    def _gaussian(self) -> Any:
        parts = self._gaussians()
        if len(parts) != 1:
            raise ValueError(
                f"The guide ({type(self.guide).__name__}) has {len(parts)} NaturalGaussianGuides "
                "in it, not one: ask its parts."
            )
        return parts[0]

    # -- files ------------------------------------------------------------------------

    @door
    def save(self, path: str | PathLike, *, data: bool = True) -> None:
        """Save the result without pickle, as JSON and arrays in an ``.npz``.

        ``numpy.load`` can read the file. An earlier file is replaced only once the new one is
        complete; its mode is kept, and links are followed. The file contains the result's draws,
        with their chains and diagnostics.

        >>> result.save("result.ngvi", data=False)
        >>> FitResult.load("result.ngvi", model, y).verdict
        'certified'

        :param path: the path of the file.
        :param data: whether to save the model's arguments as well.
        :raises TypeError: for an argument that is not made of arrays, numbers and strings.
        :raises ValueError: for a device, a pipe or a socket, which is not replaced.
        :raises OSError: if the file cannot be written; an earlier one is unchanged.
        """
        check_path(path, "path", is_needed=True)
        arguments = (self.args, self.kwargs) if check_flag(data, "data") else None
        serialize.write_result(path, self, arguments, self._files.others(self))

    @classmethod
    def load(
        cls, path: str | PathLike, model: Callable, *args: Any, guide: Any = None, **kwargs: Any
    ) -> Self:
        """Load a result saved by :meth:`save`.

        It runs the model a few times to set up the guide. Parameters, report, and draws from the
        same random numbers are then those of the saved result.

        >>> result.save("result.ngvi")
        >>> again = FitResult.load("result.ngvi", model)
        >>> again.bound == result.bound and again.reason == result.reason
        True

        :param path: the path of the file.
        :param model: the model of the fit, because the file contains no code.
        :param args: the model's arguments; without any, those in the file, on their old device if
            it exists.
        :param guide: the guide given to ``fit``, if it is of a kind that files do not hold: several
            guides in one, a custom family, or ``create_plates=``.
        :param kwargs: keyword arguments of the model. Arguments in the file are loaded to their old
            device, or to that of ``map_location=`` in Pyro (``"cpu"``, ``"cuda:1"``) or
            ``device=`` in NumPyro (``"gpu:1"``, a ``jax.Device`` or a sharding). Parameters are
            on the device where the model has them.
        :raises ngvi.DamagedFileError: for a damaged file, or one that is not a result.
        :raises ValueError: for another model, another guide or another precision.
        """
        files, place = cls._files, kwargs.pop(cls._files.device_option, None)
        place = None if place is None else files.device(place)
        check_path(path, "path", is_needed=True)
        check_model(model)
        check_guide(guide)
        file = serialize.read_result(path, cls._ppl.library)
        passed = (Exception,) if args or kwargs else (ValueError,)
        if not args and not kwargs:
            args, kwargs = file.arguments(
                lambda array, saved: files.own(array, saved if place is None else place)
            )
        with file.whole("or of another model: it does not run with the arguments", *passed):
            return files.result(cls, file, Given(model, args, kwargs, guide, None))

    # -- how it went ------------------------------------------------------------------

    @property
    def converged(self) -> bool:
        """True if, by an upper 95 % limit, the bound is within the tolerance of this optimum."""
        return self.verdict in (CERTIFIED, LOCAL)

    @property
    def losses(self) -> np.ndarray:
        """Minus the bound in nats, as estimated at each step; shape ``(len(trace),)``."""
        return np.asarray(self.trace.losses, float)

    @property
    def bound(self) -> float:
        """The bound on the log evidence in nats, from independent draws at the end.

        With ``curvature="quadrature"``, these must confirm the integral. For a model with
        minibatches, it is the average over the last tenth of the steps.
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
    @serialised
    def plot(self) -> Figure:
        """Bound, step sizes, importance weights and worst marginals as a matplotlib figure.

        >>> result.plot().savefig("fit.png")

        :raises ModuleNotFoundError: without matplotlib.
        """
        return plot(self)

    def __getitem__(self, name: str) -> Any:
        raise TypeError(f"A FitResult has no items: write result.sample(1000)[{name!r}].")

    def __str__(self) -> str:
        return report(self, complete=True)

    def __repr__(self) -> str:
        return report(self, complete="diagnostics" in vars(self))

    def _repr_html_(self) -> str:
        """Return the report, for notebooks."""
        head, *lines = repr(self).splitlines()
        end = WIDTH + 2
        return html.table(head, [(line[:end].strip(), line[end:].strip()) for line in lines])
