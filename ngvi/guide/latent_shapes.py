"""The latents that a guide was set up with, and those of a later run of its model."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, ClassVar

from ngvi._warn import warn
from ngvi.guide.sticking_the_landing import is_evaluated


class LatentShapes:
    """The unconstrained shapes of a model's latents, checked once for every new kind of arguments.

    A guide holds one coordinate per latent. A model whose latents follow the data would be
    replayed with values of the wrong size, and its error would not say why.

    :param trace: of the model, with which the guide was set up.
    :param plates: sizes of its plates, whole and visited.
    :param args: of that run.
    :param subsampled: whether the guide holds all elements of subsampled plates.
    """

    # What a package adds, as static methods.
    signature: ClassVar[Callable]  #: Return what tells kinds of arguments apart.
    #: Return the shapes by site of a trace, maybe with all elements of subsampled plates.
    shapes_of: ClassVar[Callable[..., dict[str, tuple[int, ...]]]]
    #: Return the shapes of a run of the model; empty if these arguments do not suit it.
    found: Callable[[Callable, tuple, dict], dict[str, tuple[int, ...]]]
    calling_elbo: ClassVar[Callable]  #: Return the loss that is being computed, or None.
    plate_sizes: ClassVar[Callable]  #: Return the sizes of a trace's plates, whole and visited.

    #: Most kinds of arguments that are looked at: numbers may differ in every step.
    max_signatures: ClassVar[int] = 20

    def __init__(
        self, trace: Any, plates: dict, args: tuple, kwargs: dict, subsampled: bool = False
    ) -> None:
        self._subsampled, self._seen = subsampled, {self.signature((args, kwargs))}
        self._expected = self.shapes_of(trace, subsampled)
        self._plates = plates
        self._found_plates: dict[str, tuple[int, int]] = {}

    def check(self, model: Callable, args: tuple, kwargs: dict) -> None:
        """Run the model for arguments of a new kind.

        For a prediction, where no loss is being computed, a model may have other sites.

        :raises ValueError: naming the site whose size has changed, or that is new or gone.
        """
        signature = self.signature((args, kwargs))
        if signature in self._seen or len(self._seen) > self.max_signatures:
            return
        found, is_trained = self.found(model, args, kwargs), self.calling_elbo() is not None
        for name in {**found, **self._expected} if found else ():
            shape, expected = found.get(name), self._expected.get(name)
            if shape == expected or (None in (shape, expected) and not is_trained):
                continue
            has = "is missing" if shape is None else f"has unconstrained shape {shape}"
            had = "out it" if expected is None else f" {expected}"
            raise ValueError(
                f"Latent site '{name}' {has} for these arguments, but the guide was set up "
                f"with{had}: make a new NaturalGaussianGuide for these arguments."
            )
        self._seen.add(signature)
        if is_trained and not is_evaluated():
            self._warn_of_plates()

    def _warn_of_plates(self) -> None:
        """Warn of a plate that has all its elements, and had another number of them."""
        for name, (size, visited) in self._found_plates.items():
            before, was_visited = self._plates.get(name, (size, visited))
            if size != before and (size, before) == (visited, was_visited):
                self._plates = {}  # once is enough
                warn(
                    f"Plate '{name}' has {size} rows and had {before}, and each call treats its "
                    "rows as all the data: the posterior is that of a minibatch. Write "
                    f"plate('{name}', number of all rows, subsample_size=len(x))."
                )

    def require_sites(self, found: Collection[str]) -> None:
        """Refuse a model without a latent of the guide's.

        :param found: the names of the model's sample sites, or none if it does not run.
        :raises ValueError: naming the latents that it lacks, and what it has instead.
        """
        missing = [name for name in self._expected if found and name not in found]
        if missing:
            raise ValueError(
                f"The guide is that of another model: its latents {', '.join(map(repr, missing))} "
                f"are missing in this one, which samples {', '.join(map(repr, sorted(found)))}."
            )
