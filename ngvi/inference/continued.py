"""A posterior that goes on from its Gaussian by NUTS, as far as it needs no tensor."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ngvi.inference import nuts
from ngvi.inference.estimate import State
from ngvi.inference.nuts import Chains, NutsPlan, NutsRequest, NutsResult, WhitenedDensity
from ngvi.inference.posterior import FittedPosterior, to_numpy
from ngvi.inference.problem import Problem


@dataclasses.dataclass(kw_only=True, repr=False, eq=False)
class ContinuedPosterior(FittedPosterior):
    """A Gaussian, and the posterior itself by NUTS that begins there."""

    def nuts(
        self,
        num_samples: int = 1000,
        *,
        num_warmup: int | None = None,
        num_chains: int = 4,
        target_accept_prob: float | None = None,
        progress_bar: bool = True,
    ) -> NutsResult:
        """Go on with the PPL's own NUTS, in the coordinates of the fitted Gaussian.

        For a posterior that is no Gaussian. There the Gaussian is ``N(0, I)``, locals stand by
        their modes where the fit has them so, and chains begin at draws that importance weights
        have corrected, at each optimum as many as its evidence earns. Between several optima they
        jump, by draws of their Gaussians that a Metropolis-Hastings step takes or refuses, with up
        to 500 latents and a gradient more for each transition. Where the Gaussian is good,
        an effective draw costs a few gradients. The warm-up adapts the step size, and the metric as
        well unless those weights say that the Gaussian is good. Parameters of the model's own stay
        as fitted, and enumerated latents are summed out::

            nuts = result.nuts()
            print(nuts)
            nuts.mcmc.get_samples()

        :param num_samples: draws of each chain.
        :param num_warmup: transitions before them; by default 150, or 500 with the metric.
        :param num_chains: how many.
        :param target_accept_prob: as of the PPL's ``NUTS``: more of it takes shorter steps. By
            default 0.8, or 0.9 with the metric.
        :param progress_bar: whether to show the PPL's.
        :return: the draws, the PPL's ``MCMC``, and a verdict; it warns if that is not
            ``"trusted"``.
        :raises ValueError: if the model's density is not at hand, as of minibatches, or the guide
            is a list.
        """
        raise NotImplementedError

    def whitened_density(self) -> WhitenedDensity:
        """The posterior's density where the fitted Gaussian is ``N(0, I)``, for other samplers.

        Pure functions of ``z``: ``log_density(z)``, with the Jacobian, and ``constrain(z)``, which
        gives the model's sites. A draw of ``N(0, I)`` is one of the Gaussian::

            density = result.whitened_density()
            density.constrain(z), density.log_density(z)

        :raises ValueError: as :meth:`nuts`.
        """
        raise NotImplementedError

    def _by_nuts(
        self,
        request: NutsRequest,
        seed: int | list[int],
        run: Callable[[WhitenedDensity, np.ndarray, NutsPlan, int], Chains],
    ) -> NutsResult:
        """See :meth:`nuts`.

        :param run: from the density, starts in its coordinates, the plan and the warm-up's length
            to chains of the PPL's NUTS.
        """
        density = self.whitened_density()
        with self._at_end() as (problem, state):
            rng = np.random.default_rng(seed)
            states = self._states(problem, state)
            plan = nuts.plan(problem, states, self._whitened, request.num_chains, rng)
            spent = problem.objective.cost
        starts = self._whitened(plan.starts)
        chains = run(density, starts, plan, plan.num_warmup(request.num_warmup))
        total = chains.num_gradients + math.ceil(spent.total)

        def gaussian() -> dict[str, np.ndarray]:
            draws = self.sample(nuts.OPTIONS.num_beside, corrected=False)
            return {name: to_numpy(value) for name, value in draws.items()}

        return nuts.judged(chains._replace(num_gradients=total), plan, gaussian, self._of_chains)

    def _states(self, problem: Problem, state: State) -> list[State]:
        """The fit's own, and those of other optima that may have a share of the posterior."""
        options, optima = nuts.OPTIONS, self._optima()
        if problem.space.has_model_parameters:
            return [state]  # others are optima with other parameters of the model
        others = [
            optimum
            for optimum in optima[1 : options.max_optima]
            if optimum.bound > optima[0].bound - options.far_below
        ]
        return [state, *(self._state_of(problem, optimum.params) for optimum in others)]

    def _state_of(self, problem: Problem, params: dict[str, Any]) -> State:
        """The state with these parameters."""
        raise NotImplementedError

    def _whitened(self, latents: np.ndarray) -> np.ndarray:
        """Latent vectors ``(N, d)`` where the Gaussian is ``N(0, I)``."""
        raise NotImplementedError

    def _of_chains(self, found: NutsResult, **options: Any) -> Any:
        """See :meth:`~ngvi.inference.nuts.NutsResult.to_arviz`."""
        raise NotImplementedError
