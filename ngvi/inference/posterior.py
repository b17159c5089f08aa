"""Parameters of a result, and arrays of either library as numpy's."""

from __future__ import annotations

from typing import Any

import numpy as np


class Parameters(dict[str, Any]):
    """The parameters of guide and model by their names, which says what else is meant."""

    def __missing__(self, name: str) -> Any:
        known = ", ".join(map(repr, self)) or "nothing"
        raise KeyError(
            f"no parameter {name!r}: params has those of guide and model, {known}. Draws of a "
            "latent are result.sample(1000)['name of its site'], its moments result.summary()"
        )


def to_numpy(value: Any) -> np.ndarray:
    """Return an array of torch or JAX as numpy's; on a GPU it has to be fetched."""
    value = value.detach() if hasattr(value, "detach") else value
    return np.asarray(value.cpu() if hasattr(value, "cpu") else value)


def family_names(result: Any) -> str:
    """Return the name of the family; of each, if the guide is a list with several Gaussians."""
    return " + ".join(part.family.name for part in result._gaussians()) or "no Gaussian"
