"""Every number that decides in the workflow, each with one line of why."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class WorkflowOptions:
    """Numbers of summaries, sites, leave-one-out densities and updates."""

    #: Draws of a summary: the error of a mean is then 0.016 standard deviations.
    num_draws: int = 4000
    #: Draws for joint predictive densities, for PSIS-LOO, and for the bound of an update.
    num_joint: int = 2000
    #: Largest number of rows in a printed table, and of names in a sentence.
    num_shown: int = 10

    # -- memory
    #: Largest number of latents, whose covariance is dense here: 32 megabytes.
    max_dim: int = 2000
    #: Largest size of an array of draws, of nodes or of sites: a quarter of a gigabyte.
    max_numbers: int = 2**25
    #: Largest size of what a loop computes at once, and of what a result keeps.
    numbers_at_once: int = 2**20

    # -- expectations
    #: The number of halvings of the nodes' distances that is enough for a step under a wide prior.
    max_halvings: int = 8
    #: The rounding of a log likelihood, in units of the precision.
    rounding_units: float = 64.0
    #: Change of a predictive density, in nats, that twice the nodes may still make.
    same_log_mean: float = 1e-7
    #: Groups of orthogonal points where there is no quadrature: noise of odd degrees has halved.
    num_groups: int = 4
    #: The least number of points, for a group of few latents has few.
    min_points: int = 64
    #: Largest part of a gradient that may remain at the points if the gradient is called affine.
    affine: float = 1e-6

    # -- natural-gradient steps
    #: Largest number of steps: few fits, updates or rows need it.
    num_steps: int = 100
    #: Gain, in nats, at which the steps of an update or of a row that is left out end.
    left: float = 1e-6
    #: Gain, in nats, at which the steps to the optimum of a fit end: two fits then agree.
    polish_left: float = 1e-13
    #: Accuracy, in nats, of expectations by points, and of what steps of a unit leave.
    left_by_points: float = 1e-4
    #: The part of a bound, or of a precision, that is rounding.
    rounding: float = 1e-9
    #: The number of halvings of a step before it is given up.
    num_halvings: int = 12
    #: Gain, in nats, that may remain after an update: the tolerance of ``fit``.
    tolerance: float = 0.05

    # -- leaving out
    #: Leverage from which on steps follow a subtraction.
    max_leverage: float = 0.2
    #: Shift of the mean, in standard deviations, from which on steps follow a subtraction.
    max_shift: float = 0.5
    #: Largest number of rows that get steps of their own, the most influential ones.
    max_refits: int = 400


DEFAULTS = WorkflowOptions()
