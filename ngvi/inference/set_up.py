"""Set-up of guide and problem, wherever the model has a start."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from ngvi._foreign import in_arguments
from ngvi._warn import warn
from ngvi.errors import NO_LATENTS, DiscreteLatentError, InvalidStartError, NoLatentsError
from ngvi.inference.first_look import nan_in
from ngvi.inference.options import StartOptions
from ngvi.inference.problem import Problem
from ngvi.latents.local_blocks import NoLocalsError

#: More latents than fit is for, if they are no locals.
MANY, OF_LOCALS = 10_000, ("sparse_precision", "block_diagonal")
CHEAP_STEPS = (
    "learn by many cheap steps, on minibatches: SVI with NaturalGaussianGuide(model, 'diagonal', "
    "init_scale=0.01), IVON() and NaturalELBO(1, 'stein')"
)
#: Why a guide cannot be fitted.
NO_GAUSSIAN = (
    "fit and diagnostics need a NaturalGaussianGuide, alone or in an AutoGuideList, and there is "
    "none in the guide ({guide}). {library}.infer.importance has psis_diagnostic for guides of any "
    "kind."
)
#: A problem and the guide of its latents.
Made = tuple[Problem, Any]
#: Scale of a guide that ``fit`` makes.
INIT_SCALE = StartOptions().scales[0]


def check_size(parts: Sequence[Any], family: Any, guide: Any, init: Any) -> None:
    """Refuse, before the first step, a network that nobody insists to fit.

    :param parts: the ``NaturalGaussianGuide`` in the guide, set up.
    :param family: the user's, as guide and earlier result: with one of them it is a warning.
    :raises ValueError: saying what to write instead.
    """
    # Families of locals couple few latents.
    dim = sum(part.latent_dim for part in parts if part.family.name not in OF_LOCALS)
    if dim <= MANY:
        return
    problem = (
        f"The model has {dim:,} latents without locals, a network's say, and fit would take hours: "
        f"{CHEAP_STEPS}."
    )
    if isinstance(family, str) and family == "auto" and guide is None and init is None:
        raise ValueError(f"{problem} To fit them all the same, name a family, family='diagonal'.")
    warn(f"{problem} time_limit= and Ctrl-C keep the best result so far.")


class Given(NamedTuple):
    """Everything of which guide and problem are set up."""

    model: Callable
    args: tuple
    kwargs: dict[str, Any]
    guide: Any  #: The user's, or None.
    make_guide: Any  #: Makes another for a model and a strategy, if there is none.


class Ready(NamedTuple):
    """Guide and problem, set up."""

    problem: Any  #: The package's ``Problem``.
    guide: Any
    model: Callable  #: The model, enumerated or with a latent if it must be.
    error: Exception | None  #: Error of the first start that failed.
    has_start: bool  #: True if the density is finite anywhere.


class SetUp(NamedTuple):
    """A package's part in a set-up."""

    #: The model with its discrete latents marked for enumeration.
    enumerated: Callable[[Callable], Callable]
    #: A standard normal latent of this name, drawn.
    draw: Callable[[str], Any]
    #: The sites of a run, each with its type.
    sites: Callable[[], dict[str, Any]]
    #: The model with log densities of zero, so that a guide can be set up.
    without_densities: Callable[[Callable], Callable]
    #: The model's arguments, with numpy's arrays.
    arguments: Callable[[], tuple[tuple, dict[str, Any]]]


def ready(
    given: Given, starts: Sequence[Any], at: Callable[[Callable, Any], Made], parts: SetUp
) -> Ready:
    """Set up guide and problem at the first start that will do.

    A model without a bound gets what it needs, unasked.

    :param at: sets up problem and guide for a model and one of these.
    :raises DiscreteLatentError: if marking discrete latents does not help, or is not fit's to do.
    :raises NoLatentsError: if there is nothing to learn.
    """

    def nan_arguments() -> str:
        return ", ".join(in_arguments(nan_in, *parts.arguments()))

    model, tried = given.model, set[type]()
    while True:
        try:
            made, error = _first_that_starts(partial(at, model), starts, nan_arguments)
            break
        except (DiscreteLatentError, NoLatentsError) as raised:
            if given.guide is not None or type(raised) in tried:
                raise
            changed = _with_what_it_needs(model, raised, parts)
            if changed is None:
                raise
            tried.add(type(raised))
            model = changed
    try:
        problem, own = made or at(parts.without_densities(model), starts[0])
    except Exception:
        if error is None:
            raise
        raise error from None  # there is no result to put it into
    return Ready(problem, own, model, error, made is not None)


def _with_what_it_needs(model: Callable, error: Exception, parts: SetUp) -> Callable | None:
    """Return the model with its discrete latents marked, or with a continuous one, or None."""
    if isinstance(error, DiscreteLatentError):
        return parts.enumerated(model)  # as NUTS does

    def with_a_latent(*args: Any, **kwargs: Any) -> Any:
        parts.draw(NO_LATENTS)  # a standard normal, on which nothing depends
        return model(*args, **kwargs)

    has_parameters = any(site["type"] == "param" for site in parts.sites().values())
    return with_a_latent if has_parameters else None


def _first_that_starts(
    set_up: Callable[[Any], Any], starts: Iterable[Any], nan_arguments: Callable[[], str]
) -> tuple[Any, Exception | None]:
    """Return the first set-up that succeeds.

    :param set_up: sets up guide and problem for one of the starts.
    :param nan_arguments: which of the model's arguments hold NaN, in words.
    :return: what was set up, or None; and the error of the first start that failed.
    :raises ValueError: if the model cannot run, whatever its start.
    """
    error: ValueError | None = None
    refused: ValueError | None = None
    for start in starts:
        try:
            return set_up(start), error
        except (DiscreteLatentError, NoLocalsError):
            raise
        except InvalidStartError as raised:
            error = error or raised
        except ValueError as raised:
            # Both PPLs refuse the parameters of a distribution that are NaN at this start.
            where = nan_arguments()
            if not where:
                error, refused = error or raised, raised
                continue
            hint = f"(Its {where} holds NaN, which is the cause if the model does not expect it.)"
            raise ValueError(f"The model cannot run: {raised}\n{hint}") from raised
    if refused is not None and not isinstance(error, InvalidStartError):
        raise refused  # the last one, as the first start's own may be none of the others'
    return None, error


def check_coordinates(
    name: str, old: dict[str, tuple] | None, new: dict[str, tuple], dim: int
) -> None:
    """Raise a ``ValueError`` if ``init=`` holds a Gaussian of another kind.

    :param name: of the guide's part.
    :param old: the shapes of the earlier result's coordinates, or None if it has none of the name.
    :param new: the shapes of the model's.
    :param dim: the number of the model's latents.
    """
    if old != new:
        count = "no" if not old or "loc" not in old else old["loc"][0]
        raise ValueError(
            f"init= holds {count} latents for '{name}', and the model has {dim}: it must be the "
            "result of a model with the same latents, and of the same family."
        )
