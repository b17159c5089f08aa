"""The numbers that decide on the components of a mixture."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class MixtureOptions:
    """Components, and the search for them; for ``FitOptions(mixture=...)``."""

    #: Components at most, that are found or asked for: each is compared with all others, and of
    #: five exchangeable labels there are 120 modes.
    max_components: int = 16
    #: Points of a round that looks for other modes where there are several: a mode whose basin has
    #: a hundredth of them is met by ten.
    num_points: int = 1000
    #: ... in a Gaussian so many times as wide as the modes so far, half of them.
    spread: float = 2.0
    #: ... and so many on the other side of the prior's mean, where the modes so far have least
    #: density: of many latents on one scale a narrow mode may be seen there beside a wide one.
    num_far: int = 16
    #: If a mode that is known is the nearest of a smaller part of the points, there may be others
    #: that are the nearest of none.
    least_share: float = 0.01
    #: A point may lead to another mode if its importance weight is above one by so many nats.
    surplus: float = 2.0
    #: Ascents to other modes at once; beside one mode they end before they take more gradients than
    #: this part of those that led to it: a posterior of one mode is not to cost a third more. But
    #: small models can afford eight of forty gradients.
    ascents_at_once: int = 2
    part_of_search: float = 0.25
    least_for_modes: int = 320
    #: A component stays that adds so many nats to the bound: about its weight, where it is apart.
    least_gain: float = 0.01
    #: Draws that tell a mixture's bound from a Gaussian's, at most.
    most_draws: int = 16_000
    #: Draws of each component that decide on that, and rounds of the weights for each.
    num_draws: int = 200
    num_rounds: int = 20
    #: Draws of the mixture among which a new component is placed, and its width, in standard
    #: deviations of the one that it is drawn from.
    num_candidates: int = 1000
    width: float = 0.5
    #: Two means are each other's in another order if their sorted numbers differ by so many
    #: standard deviations.
    same_order: float = 0.5
