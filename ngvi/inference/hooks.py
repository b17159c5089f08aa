"""The PPL's part in a result."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Protocol

import numpy as np

from ngvi.inference.around import Around
from ngvi.inference.draws.nuts import WhitenedDensity
from ngvi.inference.first_look import Seen
from ngvi.inference.problem import Problem

#: Arguments of a model, by place and by name.
Run = tuple[tuple, dict[str, Any]]
#: Purposes of a result's random numbers; NumPyro has a key for each.
DIAGNOSTICS, SAMPLE, PREDICTIVE, GROUPS_OF_ARVIZ, GROUPS, NUTS = range(6)


class Hooks(Protocol):
    """Run the model of a result, draw from its guide, and name its random numbers.

    Each package has one object of a subclass. It holds nothing: ``result`` is the ``FitResult``.
    """

    #: The package.
    library: ClassVar[str]
    #: Keywords of the methods that draw, which :meth:`key` takes.
    key_options: ClassVar[tuple[str, ...]] = ()
    around: ClassVar[Around]  #: The handlers around a call.

    def begin(self, result: Any) -> None:
        """Keep what the PPL needs beside the parameters, for a new result."""
        return

    def key(self, result: Any, purpose: int) -> Any:
        """Return the random key of a purpose, where the PPL has keys."""
        return None

    def seed_of(self, key: Any) -> int | list[int]:
        """Return a seed for numpy."""

    def seed_of_diagnostics(self, result: Any) -> int | list[int]:
        """Return the seed of the draws of a result."""
        return 0

    # -- the guide --------------------------------------------------------------------

    def gaussians(self, guide: Any) -> list[Any]:
        """Return the ``NaturalGaussianGuide`` in a guide."""

    def draws(self, result: Any, num_samples: int, key: Any) -> dict[str, Any]:
        """Draw all latent sites from the guide."""

    def in_models(self, result: Any, latents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the model's own latents at vectors ``(N, d)`` of a guide by conditional modes.

        :return: beside them the log density of these vectors, shape ``(N,)``.
        """

    def at(self, result: Any, latents: np.ndarray) -> dict[str, Any]:
        """Return the latent sites at vectors ``(N, d)`` of the model's own latents."""

    def group_draws(
        self, result: Any, guide: Any, num_samples: int, run: Run, key: Any
    ) -> dict[str, Any]:
        """Draw globals from the fit, and locals from a guide of other groups, not set up yet."""

    # -- the model --------------------------------------------------------------------

    look: Callable[[Callable, tuple, dict[str, Any]], Seen | None]
    log_densities: Callable[[Callable, tuple, dict[str, Any]], dict[str, Any]]
    #: Mean and factor of a family.
    mean_and_factor: Callable[[Any], tuple[Any, Any]]

    def running(self, result: Any) -> AbstractContextManager:
        """Surround all runs of the model."""
        return contextlib.nullcontext()

    def problem(self, result: Any) -> tuple[Problem, Any]:
        """Return the problem at the result's arguments, and the state that the result has."""

    def problem_in_models(self, result: Any) -> Problem:
        """Return the problem of the model's own latents."""

    def state_of(self, problem: Problem, params: dict[str, Any]) -> Any:
        """Return the state of these parameters."""

    def rows(self, result: Any, problem: Problem, state: Any) -> Any:
        """Return the log likelihoods of single rows (:class:`~ngvi.workflow.rows.ObservedRows`)."""

    def predictions(
        self, result: Any, asked: Any, run: Run | None, num_samples: int, key: Any
    ) -> dict[str, Any]:
        """Run the model at draws of its latents; see ``predictive``.

        :param asked: which groups are new.
        :param run: the arguments; None for those of the fit, to draw the observed sites anew.
        """

    def groups(
        self, result: Any, draws: dict[str, Any], wanted: dict[str, bool]
    ) -> tuple[Any, dict[str, str]]:
        """Return groups for ArviZ, without constant data, and why which of them are missing.

        :param wanted: ``"log_likelihood"``, ``"predictive"`` and ``"prior"``.
        """

    def seconds_of_run(self, result: Any, run: Run | None = None) -> float:
        """Return the seconds of a run of the model for each draw, zero if not known.

        :param run: its arguments; None for those of the fit.
        """

    def out_of_bounds(self, result: Any) -> str:
        """Say which indices go beyond an array's end without an error, if any do."""
        return ""

    # -- NUTS -------------------------------------------------------------------------

    def whitened_density(self, result: Any) -> WhitenedDensity:
        """Return the density where the Gaussian is ``N(0, I)``."""
