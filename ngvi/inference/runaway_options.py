"""The numbers that decide whether a fit is on its way to infinity."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class RunawayOptions:
    """Latents and parameters that run away; for ``FitOptions(runaway=...)``."""

    #: A latent that is so far from its start, unconstrained, is worth a look: of a logarithm that
    #: is a factor of 1e13.
    far: float = 30.0
    #: It is looked for at so many times that distance: tails that can be integrated fall there.
    farther: tuple[float, float] = (4.0, 16.0)
    #: Latents up to which the axis that moves the density least is looked for: two gradients each.
    most_axes: int = 500
    #: Parts of the longest axis that is gone along, of its largest: smaller ones are what data
    #: determine, and move little.
    parts_of_axis: tuple[float, ...] = (0.0, 1e-3, 0.1)
    #: A parameter that has moved so far, unconstrained, is worth a look, ...
    parameter_far: float = 2.0
    #: ... at so many units from where it is, the first of them backwards.
    parameter_moves: tuple[float, ...] = (-1.0, 1.0, 2.0, 4.0)
    #: Draws that see all of it.
    num_draws: int = 64
