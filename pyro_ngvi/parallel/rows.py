"""Which part of the data's plates a worker sees, and its share in the mean over workers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample

HINT = (
    "Every worker says how many rows there are in all, and which are its own: "
    "pyro.plate('{plate}', num_rows_of_all, subsample=own_rows), where own_rows is anything that "
    "has as many elements, such as the responses."
)


class Part(NamedTuple):
    """Rows of a plate."""

    visited: int
    size: int  #: of the plate

    @property
    def fraction(self) -> float:
        """Between zero and one."""
        return self.visited / self.size


class SeesRows:
    """A model that notes what it sees of its plates.

    :ivar parts: of all plates, in the last runs.
    """

    def __init__(self, model: Callable) -> None:
        self.model, self.parts = model, dict[str, Part]()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with _Plates(self.parts):
            return self.model(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)


class _Plates(Messenger):
    def __init__(self, parts: dict[str, Part]) -> None:
        super().__init__()
        self.parts = parts

    def _pyro_post_sample(self, msg: Any) -> None:
        if site_is_subsample(msg):
            self.parts[msg["name"]] = Part(len(msg["value"]), int(msg["fn"].size))


def shared_plates(parts: list[dict[str, Part]]) -> list[str]:
    """The plates whose rows workers share.

    :param parts: of each worker.
    :raises ValueError: if there are none, or others for other workers.
    """
    sizes = [
        {name: part.size for name, part in sorted(one.items()) if part.visited < part.size}
        for one in parts
    ]
    for rank, own in enumerate(sizes if len(parts) > 1 else ()):
        if not own:
            whole = ", ".join(f"'{name}' ({part.size})" for name, part in parts[rank].items())
            raise ValueError(
                f"Worker {rank} sees all rows of its plates, {whole or 'and has none'}, and there "
                f"are {len(parts)} workers. {HINT.format(plate=next(iter(parts[rank]), 'data'))}"
            )
        if own != sizes[0]:
            raise ValueError(
                f"Worker {rank} sees a part of plates of sizes {own}, and worker 0 of {sizes[0]}: "
                f"they must be the same. {HINT.format(plate=next(iter(own)))}"
            )
    return list(sizes[0])


def visited_elements(guide_trace: Any) -> dict[str, list[int]]:
    """Which elements a worker visits of the plates around latents; empty if it visits all.

    :param guide_trace: a trace of the guide.
    """
    nodes = guide_trace.nodes.values()
    if not any(node["infer"].get("is_minibatch") for node in nodes if node["type"] == "sample"):
        return {}
    return {
        node["name"]: torch.as_tensor(node["value"]).tolist()
        for node in nodes
        if node["type"] == "sample" and site_is_subsample(node)
    }


def check_disjoint(visited: list[dict[str, list[int]]]) -> None:
    """Refuse workers that visit elements together.

    :param visited: of each worker.
    :raises ValueError: naming the plate, and an element.
    """
    for plate in sorted(set().union(*visited)):
        found = Counter(element for own in visited for element in own.get(plate, ()))
        for element, count in found.items():
            if count > 1:
                raise ValueError(
                    f"Element {element} of plate '{plate}', in which there are latents, is visited "
                    f"{count} times: each belongs to one worker."
                )


def check_covered(plates: list[str], fractions: np.ndarray) -> None:
    """Refuse minibatches of elements that have latents of their own.

    :param fractions: as for :func:`shares`.
    :raises ValueError: naming the plate.
    """
    for plate, covered in zip(plates, fractions.sum(0), strict=True):
        if not math.isclose(covered, 1.0):
            raise ValueError(
                f"The workers see {100 * covered:.4g}% of plate '{plate}' together, in which there "
                "are latents: in every step each of them visits all elements that are its own."
            )


def shares(plates: list[str], fractions: np.ndarray) -> np.ndarray:
    """The weights of the workers' bounds, which sum to one.

    :param fractions: of the plates that each worker sees, shape ``(workers, plates)``.
    :raises ValueError: if two plates give others.
    """
    if not plates:
        return np.full(len(fractions), 1.0 / len(fractions))
    weights = fractions / fractions.sum(0)
    for plate, other in zip(plates[1:], weights.T[1:], strict=True):
        if not np.allclose(other, weights[:, 0]):
            raise ValueError(
                f"The workers see {_percent(fractions[:, 0])} of the plate '{plates[0]}', and "
                f"{_percent(fractions[:, plates.index(plate)])} of '{plate}': with several plates "
                "the rows of all must be shared alike, for instance equally."
            )
    return weights[:, 0]


def _percent(fractions: np.ndarray) -> str:
    return ", ".join(f"{100 * fraction:.3g}%" for fraction in fractions)
