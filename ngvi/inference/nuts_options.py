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
    #: ... and if it has this part of the evidence at least.
    one_optimum: float = 0.99
    #: Optima whose bound is so many nats lower get no chain, and of the others so many are asked.
    far_below: float = 10.0
    max_optima: int = 8
    #: Latents up to which chains jump between optima: of each it takes a dense factor.
    max_jump_dim: int = 500
    #: Transitions of a warm-up: for the step size of chains that begin where they belong, and for a
    #: metric as in Stan.
    warmup_of_step_size: int = 150
    warmup_of_metric: int = 500
    #: Acceptance: as in Stan, and more where curvature changes too much for one Gaussian.
    accept_prob: float = 0.8
    accept_prob_of_metric: float = 0.9
    #: Refused: divergences, as a part of the transitions; R-hat, whose noise over hundreds of
    #: latents is as large; effective draws (Vehtari et al., 2021); E-BFMI (Betancourt, 2016).
    divergent_part: float = 2e-3
    r_hat: float = 1.03
    effective_draws: float = 400.0
    energy_information: float = 0.3
    #: ... and a standard error of a standard deviation: twice as much is a tenth of it.
    error_of_stddev: float = 0.05
    #: Draws of the Gaussian that are shown beside, and rows of the report.
    num_beside: int = 2000
    num_shown: int = 12
