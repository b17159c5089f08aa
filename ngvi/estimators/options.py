"""The numbers by which estimators are chosen, sized and checked."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class EstimatorOptions:
    """Each number with its reason. What only says how much is in memory at once is where it is."""

    # -- what "auto" takes
    #: A step can afford this many gradients in orthogonal directions, or Hessian-vector products.
    #: Structured families go on to quadrature with this many latents: their points along a forest
    #: cost less before.
    max_directions: int = 2000
    #: With this many latents quadrature costs no more than groups of points, which leave out much.
    min_quadrature_dim: int = 100
    #: Hessians of structured families are cheap if they have this many times more latents than
    #: products.
    cheap_hessian: int = 8

    # -- what an estimate is made from
    #: Gradients for each Hessian, as nearly all of its noise is averaged out by its products and a
    #: gradient's is not; and draws in a group of ``fit`` that has gradients only.
    num_gradients: int = 10
    #: The most that these gradients may add to the cost of the Hessians.
    max_added_cost: float = 0.25
    #: Two Hessians have two gradients and ``2 d`` products, a group ``2 d + 1`` gradients.
    particles_per_group: int = 2
    #: Fewest Hessians in a group of ``fit``: two antithetic pairs, which show their noise.
    min_hessians: int = 4
    #: Most Hessians in a group of ``fit``, beyond which the groups' own noise is small.
    max_hessians: int = 64

    # -- when a step of ``NaturalELBO`` takes another batch of groups
    #: Least noise, a squared Fisher norm of which a whole step loses half: a quarter of a nat.
    noisy: float = 0.5
    #: Noise below this part of the step's own squared norm is hidden by it.
    noisy_part: float = 1e-3
    #: Most batches of one step.
    max_batches: int = 6
    #: Noise of a batch, far out in a tail, that the others could not average out.
    hopeless: float = 30.0

    # -- quadrature
    #: Distances of nodes in standard deviations, by the number of predictors.
    node_distances: tuple[float, float] = (0.28, 0.75)
    #: Nodes farther out would count for less than 1e-18 of the first.
    farthest_node: float = 9.2
    #: Nats that the nodes may miss of a term, or their distance is halved.
    max_missed: float = 1e-3
    #: Most halvings of that distance: nodes 256 times as dense.
    max_halvings: int = 8
    #: Random latents at which terms are compared with the log density, for it may branch.
    num_compared: int = 3
    #: Values and slopes that differ by less than this part are the same: rounding is less.
    same: float = 1e-3

    # -- kinks of a term
    #: Standard deviations from the mean within which they are looked for.
    line_width: float = 8.0
    #: Parts of the line, in each of which the steepest place is looked for.
    line_parts: int = 4
    #: Halvings of each part, to the last bit of single precision. The last third of them leaves
    #: little of the change of a smooth function.
    line_halvings: int = 30

    # -- curvature that a Hessian misses
    #: Half of a segment, in standard deviations: long enough to meet the kinks of a likelihood.
    half_segment: float = 0.5
    #: Gauss-Legendre nodes on it, or on each panel of it.
    segment_nodes: int = 5
    #: Panels with which a suspicion is checked again: of a smooth function it goes away.
    segment_panels: int = 16
    #: Part of a function's change that is no smooth one's, if it is at one place, or if the
    #: derivative misses it.
    jump: float = 0.3


DEFAULTS = EstimatorOptions()
