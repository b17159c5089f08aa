"""The part of the data's plates that a worker sees, and its weight in the mean over workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from pyro import poutine
from pyro.poutine.util import site_is_subsample

from pyro_ngvi.tracing.sites import family_of


class SeesRows:
    """A model that notes what it sees of its plates.

    :ivar parts: by plate, in the last runs: the rows that are seen, and the size of the plate.
    """

    def __init__(self, model: Callable) -> None:
        self.model, self.parts = model, dict[str, tuple[int, int]]()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with poutine.trace() as run:
            result = self.model(*args, **kwargs)
        sites: dict[str, Any] = run.trace.nodes
        for name, site in sites.items():
            if site_is_subsample(site):
                self.parts[name] = len(site["value"]), int(site["fn"].size)
        return result

    def fraction(self, plate: str) -> float:
        """Return the fraction of the plate's rows that are seen."""
        visited, size = self.parts[plate]
        return visited / size

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)


def shared_plates(parts: list[dict[str, tuple[int, int]]]) -> list[str]:
    """Return the plates whose rows workers share.

    :param parts: of each worker.
    :raises ValueError: if there are none, or others for other workers.
    """
    sizes = [
        {name: size for name, (visited, size) in sorted(one.items()) if visited < size}
        for one in parts
    ]
    for rank, own in enumerate(sizes if len(parts) > 1 else ()):
        if not own or own != sizes[0]:
            raise ValueError(
                f"Worker {rank} has subsampled plates of sizes {own}, and worker 0 of {sizes[0]}: "
                "in every worker, a plate needs the number of all rows, and the worker's own, "
                "pyro.plate('data', num_rows_of_all, subsample=own_rows)."
            )
    return list(sizes[0])


def check_linear(guide_trace: Any) -> None:
    """Refuse guides whose natural gradients are no sum over the rows of workers.

    :param guide_trace: a trace of the guide.
    :raises ValueError: naming the way out.
    """
    for node in guide_trace.nodes.values():
        if node["type"] == "sample":
            if node["infer"].get("is_minibatch"):
                raise ValueError(
                    "DataParallel distributes rows, not the latents of a subsampled plate: "
                    "leave create_plates= out, so that every worker has all elements."
                )
            if getattr(family_of(node), "name", None) == "low_rank":
                raise ValueError(
                    "DataParallel adds gradients, and those of family='low_rank' are not sums "
                    "over rows: use 'full', 'diagonal' or 'sparse_precision'."
                )


def shares(plates: list[str], fractions: np.ndarray) -> np.ndarray:
    """Return the weights of the workers' bounds, which sum to one.

    :param fractions: of the plates that each worker sees, shape ``(workers, plates)``.
    :raises ValueError: if two plates give others.
    """
    if not plates:
        return np.full(len(fractions), 1.0 / len(fractions))
    weights = fractions / fractions.sum(0)
    if not np.allclose(weights, weights[:, :1]):
        raise ValueError(
            f"The workers have different fractions of the rows of plates {', '.join(plates)}: "
            "distribute the rows of all plates in the same way, for instance equally."
        )
    return weights[:, 0]
