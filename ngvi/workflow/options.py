"""Every number that decides in the workflow, each with one line of why."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class WorkflowOptions:
    """Summaries, sites, leave-one-out, updates."""

    #: Draws of a summary: the error of a mean is then 0.016 standard deviations.
    num_draws: int = 4000

    # -- quadrature over predictors
    #: Between the first nodes, in standard deviations, by the number of predictors: a third of the
    #: nodes of a fit, and as exact for a regression whose predictors' scales are a few.
    first_distances: tuple[float, float] = (0.6, 0.95)
    #: Nodes farther out would count for less than 1e-10 of the first.
    first_farthest: float = 7.0
    #: Nats that they may miss of all elements, or those of a fit are taken, and denser ones.
    first_missed: float = 1e-4
    #: Nodes 256 times as dense as the first are enough for a step under a wide prior.
    max_halvings: int = 8
    #: Numbers of all nodes and elements together: a quarter of a gigabyte is looked at.
    max_node_numbers: int = 2**25
    #: Numbers of nodes and elements in memory at once.
    numbers_at_once: int = 2**20
    #: Numbers that NumPyro's program of weighted sums works on in the place of a program of their
    #: own: they take it as long as that one's compilation.
    numbers_by_sums: int = 2**21
    #: Rounding of a log likelihood, in units of the precision.
    rounding_units: float = 64.0
    #: Nats by which twice the nodes may change a predictive density: far below any use of it.
    same_log_mean: float = 1e-7

    # -- sites
    #: Latents, whose covariance is dense here: 32 megabytes.
    max_dim: int = 2000
    #: Numbers of the Jacobians, or of all sites' curvatures: half a gigabyte.
    max_numbers: int = 2**26
    #: Numbers of what is kept between two questions about rows: 32 megabytes of each result.
    max_kept_numbers: int = 2**22
    #: Groups of orthogonal points for what no quadrature does: noise of odd degrees has halved.
    num_groups: int = 4
    #: Least number of points, as few latents have few a group.
    min_points: int = 64
    #: A gradient is affine if at all points so little, of its own size, is left.
    affine: float = 1e-6

    # -- leaving out
    #: Most steps from a fit to its optimum.
    polish_steps: int = 100
    #: Nats left at that optimum: two fits then give the same numbers.
    polish_left: float = 1e-13
    #: From this leverage on a subtraction is followed by natural-gradient steps.
    max_leverage: float = 0.2
    #: Shift of the mean, in standard deviations, from which on it is too.
    max_shift: float = 0.5
    #: Steps of a leave-one-out at most: few take so many, and these are where PSIS says nothing.
    num_steps: int = 20
    #: Nats that steps may leave.
    left: float = 1e-5
    #: Nats that steps may leave where expectations are averages over points.
    left_by_points: float = 1e-3
    #: Precision that is left of the posterior's in any direction: less is none but for rounding.
    least_precision: float = 1e-8
    #: Steps that the next one is accelerated by: more tell nothing new, and cost memory.
    num_remembered: int = 6
    #: Ridge of their least squares, as a part of their size.
    ridge: float = 1e-12
    #: Part of the bound by which it may seem to fall: it is rounded.
    rounded_bound: float = 1e-9
    #: How often a step is halved at most, before nothing is gained.
    num_halvings: int = 12
    #: Rows that get steps of their own at most, the most influential ones.
    max_refits: int = 400
    #: Draws for joint predictive densities, and for PSIS-LOO.
    num_joint: int = 2000
    #: Most numbers of those draws in memory.
    max_joint_numbers: int = 2**24
    #: Fewest draws: the tails of fewer would say nothing.
    min_joint: int = 400

    # -- new rows, and fewer
    #: Natural-gradient steps of an update: far more than are taken.
    num_update_steps: int = 50
    #: Nats that they may leave: those of ``fit``.
    tolerance: float = 0.05
    #: Nats left at which an update ends.
    update_left: float = 1e-6
    #: Draws of the bound after them.
    num_validated: int = 1000
    #: Standard errors by which draws and integral may differ.
    agrees: float = 5.0
    #: Nats of drift that are said: with so many ten batches of a GLM end within 0.05 nats.
    max_drift: float = 0.025

    #: k-hat up to which ArviZ says nothing (Vehtari et al., 2024).
    good_k: float = 0.7

    # -- words and pictures
    #: Names in a sentence or a legend.
    num_named: int = 5
    #: Rows of a printed table.
    num_shown: int = 10


DEFAULTS = WorkflowOptions()
