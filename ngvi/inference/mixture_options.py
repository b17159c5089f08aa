"""The numbers that decide on the components of a mixture."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class MixtureOptions:
    """Components, and the search for them; for ``FitOptions(mixture=...)``."""

    #: Most components, found or asked for, since each is compared with all others: of five
    #: exchangeable labels there are 120 modes. As many points are placed on the other side of the
    #: prior's mean, where the modes so far have least density.
    max_components: int = 16
    #: Points of a round that looks for other modes where there are several: ten of them meet a mode
    #: whose basin has a hundredth. A new component is placed among as many draws.
    num_points: int = 1000
    #: Width of a Gaussian for half of the points, in that of the modes so far.
    spread: float = 2.0
    #: Smallest part of the points that must be nearest to each mode: if fewer are, there may be
    #: modes that none is nearest to.
    least_share: float = 0.01
    #: Ascents to other modes at once.
    ascents_at_once: int = 2
    #: Beside one mode ascents end before they take more gradients than this part of those that led
    #: to it: a posterior of one mode is not to cost a third more.
    part_of_search: float = 0.25
    #: Smallest gain of the bound, in nats, for which a component stays: about its weight.
    least_gain: float = 0.01
    #: Draws of each component that decide on that.
    num_draws: int = 200
    #: Most rounds of the weights.
    num_rounds: int = 20
    #: Width of a new component, in standard deviations of the one that it is drawn from; means
    #: whose sorted numbers differ by less are one another's in another order.
    width: float = 0.5
