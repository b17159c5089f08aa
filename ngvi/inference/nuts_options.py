"""The numbers that decide on chains of NUTS that go on from a fit."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class NutsOptions:
    """Chains of NUTS that go on from a fit; users have the arguments of ``result.nuts``."""

    #: Draws of each optimum that chains begin at, by their weights; a value each.
    num_draws: int = 1000
    #: The Gaussian is good if weighted standard deviations of whitened latents are in this range:
    #: a metric that chains adapt would not be better.
    good_stddevs: tuple[float, float] = (0.7, 1.4)
    #: Least part of the evidence that the best optimum of a good Gaussian has.
    one_optimum: float = 0.99
    #: Nats below the best bound from which an optimum gets no chain.
    far_below: float = 10.0
    #: Latents up to which chains jump between optima: of each it takes a dense factor.
    max_jump_dim: int = 500
    #: Transitions of a warm-up for the step size alone, whose chains begin where they belong, and
    #: for a metric as in Stan.
    num_warmup: tuple[int, int] = (150, 500)
    #: Acceptance without a metric, as in Stan, and with one, where curvature changes more.
    accept_prob: tuple[float, float] = (0.8, 0.9)
    #: Largest part of the transitions that may diverge.
    divergent_part: float = 2e-3
    #: Largest R-hat, whose noise over hundreds of latents is as large.
    r_hat: float = 1.03
    #: Fewest effective draws of a latent (Vehtari et al., 2021).
    effective_draws: float = 400.0
    #: Smallest E-BFMI of a chain (Betancourt, 2016).
    energy_information: float = 0.3
    #: Largest relative standard error of a standard deviation: twice as much is a tenth of it.
    error_of_stddev: float = 0.05
