"""The numbers by which estimators are chosen, sized and checked."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class EstimatorOptions:
    """Each number with its reason. What only says how much is in memory at once is where it is."""

    # -- what "auto" takes
    #: Up to so many latents a step can afford ``2 d + 1`` gradients, of the least noise.
    max_spherical_dim: int = 2000
    #: From so many on quadrature costs no more, and groups of points leave out too much.
    min_quadrature_dim: int = 100
    #: Of structured families, whose points along a forest cost less until locals are thousands.
    min_structured_quadrature_dim: int = 2000
    #: Numbers in the Jacobians of all terms: half a gigabyte in double precision.
    max_jacobian_numbers: int = 2**26
    #: Hessians of structured families are cheap if ``d`` is so many times their products, ...
    cheap_hessian: int = 8
    #: ... and at most so many, each of which costs a gradient or two.
    max_products: int = 2000

    # -- what an estimate is made from
    #: Nearly all of a Hessian's noise is averaged out by its products, and a gradient's is not.
    gradients_per_hessian: int = 10
    #: The most that these gradients may add to the cost of the Hessians.
    max_added_cost: float = 0.25
    #: Two Hessians have two gradients and ``2 d`` products, a group ``2 d + 1`` gradients.
    particles_per_group: int = 2
    #: Hessians in a group of ``fit``: two antithetic pairs, which tell their noise, at least.
    min_hessians: int = 4
    #: And at most, beyond which the groups' own noise is small.
    max_hessians: int = 64
    #: Random draws in a group of ``fit`` with gradients only.
    num_stein: int = 10
    #: Random draws in a group of ``fit`` with values only, whose noise is far larger.

    # -- when a step of ``NaturalELBO`` takes another batch of groups
    #: Its noise is a squared Fisher norm, of which a whole step loses half: a quarter of a nat.
    noisy: float = 0.5
    #: Noise below this part of the step's own squared norm is hidden by it.
    noisy_part: float = 1e-3
    #: Batches of one step.
    max_batches: int = 6
    #: Far out in a tail a batch has more noise than the others could average out.
    hopeless: float = 30.0

    # -- draws that are evaluated at once
    #: More do not keep a processor busier.
    max_draws_at_once: int = 512
    #: Times the numbers of the largest argument: they shall fit in memory.
    max_numbers_at_once: int = 2**25

    # -- quadrature
    #: Between nodes, in standard deviations, by the number of predictors.
    node_distances: tuple[float, float] = (0.28, 0.75)
    #: Nodes farther out would count for less than 1e-18 of the first.
    farthest_node: float = 9.2
    #: Nats that the nodes may miss of a term, or their distance is halved.
    max_missed: float = 1e-3
    #: What they seem to miss of so many units in the last place is rounding.
    rounding_units: float = 64.0
    #: How often distances are halved: nodes 256 times as dense.
    max_halvings: int = 8
    #: Numbers of a term at all nodes: what one row needs, many shall not pay for.
    max_node_numbers: int = 2**22
    #: A term sees one local if stretching all of them leaves less than this part of its slopes.
    same_local: float = 1e-3
    #: Random latents at which terms are compared with the log density, for it may branch.
    num_compared: int = 3
    #: Up to this part, or so many nats, they are the same: rounding is less.
    same_value: float = 1e-2
    #: How far an affine function is followed along a direction, in units of it: what it is at the
    #: start is rounded to so much less than its change.
    far: float = 2.0**30

    # -- kinks of a term
    #: They are looked for within so many standard deviations, ...
    line_width: float = 8.0
    #: ... in so many parts of a line, ...
    line_parts: int = 4
    #: ... each halved so often: to the last bit of single precision.
    line_halvings: int = 30
    #: Of these the last so many leave little of the change of a smooth function, ...
    last_halvings: int = 10
    #: ... and this part of a jump, at least, ...
    jump_left: float = 0.3
    #: ... which is more than rounding, as a part of the function's size.
    jump_size: float = 1e-3
    #: All parts are followed together if a term has at most so many numbers there.
    line_numbers: int = 2**17

    # -- curvature that a Hessian misses
    #: Half of a segment, in standard deviations: long enough to meet the kinks of a likelihood.
    half_segment: float = 0.5
    #: Gauss-Legendre nodes on it, or on each panel of it.
    segment_nodes: int = 5
    #: A suspicion is checked again with so many panels: of a smooth function it goes away.
    segment_panels: int = 16
    #: A Hessian that misses more than this part of the gradient's change is no curvature.
    max_defect: float = 0.3


DEFAULTS = EstimatorOptions()
