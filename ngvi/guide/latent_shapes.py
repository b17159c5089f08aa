"""The latents that a guide was set up with, and those of a later run of its model."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, ClassVar


class LatentShapes:
    """The unconstrained shapes of a model's latents, checked once for every new kind of arguments.

    A guide holds one coordinate per latent. A model whose latents follow the data would be
    replayed with values of the wrong size, and fail far from the cause.

    :param expected: the shapes that the guide was set up with, by site.
    :param signature: what tells the arguments of its set-up from others, hashable.
    """

    #: Kinds of arguments that are looked at, as numbers may differ in every step.
    max_signatures: ClassVar[int] = 20

    def __init__(self, expected: dict[str, tuple[int, ...]], signature: Any) -> None:
        self._expected, self._seen = expected, {signature}

    def compare(
        self,
        signature: Any,
        shapes: Callable[[], dict[str, tuple[int, ...]]],
        is_trained: Callable[[], bool],
    ) -> None:
        """Look at the shapes for arguments with a new signature.

        :param shapes: finds them; empty if the model does not run with these arguments.
        :param is_trained: whether a loss is being computed. For a prediction, a model may have
            other sites.
        :raises ValueError: naming the site whose size has changed, or that is new or gone.
        """
        if signature in self._seen or len(self._seen) > self.max_signatures:
            return
        found = shapes()
        for name in {**found, **self._expected} if found else ():
            shape, expected = found.get(name), self._expected.get(name)
            if shape == expected or (None in (shape, expected) and not is_trained()):
                continue
            has = "is missing" if shape is None else f"has unconstrained shape {shape}"
            had = "out it" if expected is None else f" {expected}"
            raise ValueError(
                f"Latent site '{name}' {has} for these arguments, but the guide was set up "
                f"with{had}. A guide's latents are fixed by its first call: make a new "
                "NaturalGaussianGuide for these arguments."
            )
        self._seen.add(signature)

    def require(self, found: dict[str, tuple[int, ...]]) -> None:
        """Refuse another model than the guide's.

        :param found: the shapes of its latents; empty if they are not known.
        :raises ValueError: naming a site.
        """
        for name, expected in self._expected.items() if found else ():
            if found.get(name) != expected:
                raise ValueError(
                    f"guide= is the guide of another model: its latent site '{name}', of "
                    f"unconstrained shape {expected}, is {found.get(name, 'missing')} in this one."
                )

    def require_sites(self, found: Collection[str]) -> None:
        """Refuse a model without a latent of the guide's.

        :param found: the names of the model's sample sites.
        :raises ValueError: naming the latents that it lacks, and what it has instead.
        """
        missing = [name for name in self._expected if name not in found]
        if missing:
            raise ValueError(
                f"The guide is that of another model: its latents {', '.join(map(repr, missing))} "
                f"are missing in this one, which samples {', '.join(map(repr, sorted(found)))}. "
                "Make the guide of the model that SVI is given."
            )
