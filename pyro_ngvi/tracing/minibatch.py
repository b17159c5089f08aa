"""The minibatch that all runs of a log density share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyro
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from pyro_ngvi.tracing.sites import is_subsampled


class UnknownMinibatch(Exception):  # noqa: N818
    """A plate is subsampled of which no minibatch is known."""


class MinibatchMessenger(Messenger):
    """Records the indices of subsampled plates in one run, and pins them in the others.

    :ivar indices: of the elements that are visited, by plate.
    :ivar sizes: of these plates.
    """

    def __init__(self) -> None:
        super().__init__()
        self.indices: dict[str, Tensor] = {}
        self.sizes: dict[str, int] = {}
        self._recording = False
        self._drawn_from: dict[str, Any] = {}

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Let the run draw a minibatch that later runs repeat."""
        self._recording = True
        try:
            with self:
                yield
        finally:
            self._recording = False

    @property
    def drawn_from(self) -> dict[str, Any] | None:
        """Return what indices were drawn from, by plate and in order; None if some were given."""
        is_all = self._drawn_from.keys() == self.indices.keys()
        return dict(self._drawn_from) if is_all else None

    def draw_again(self, drawn_from: dict[str, Any]) -> None:
        """Inside :meth:`recording`, draw as a run did, without running anything.

        :param drawn_from: by the plates of that run. A run whose plates are of other sizes after
            all raises :class:`UnknownMinibatch`.
        """
        for name, fn in drawn_from.items():
            if name not in self.indices:
                pyro.sample(name, fn)

    def _fits(self, msg: dict[str, Any]) -> bool:
        """Tell whether the indices that are there are those of such a plate."""
        fn, indices = msg["fn"], self.indices[msg["name"]]
        return fn.size == self.sizes[msg["name"]] and fn.subsample_size == len(indices)

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        if not site_is_subsample(msg) or msg["value"] is not None:
            return
        if msg["name"] in self.indices and self._fits(msg):
            msg["value"], msg["done"] = self.indices[msg["name"]], True
        elif self._recording and is_subsampled(msg):
            self._drawn_from[msg["name"]] = msg["fn"]
        elif not self._recording and is_subsampled(msg):
            raise UnknownMinibatch(
                f"The subsampled plate '{msg['name']}' was not in the run before: give it the same "
                "name in every run of the model."
            )

    def _pyro_post_sample(self, msg: dict[str, Any]) -> None:
        if self._recording and site_is_subsample(msg) and is_subsampled(msg):
            self.indices[msg["name"]] = msg["value"]
            self.sizes[msg["name"]] = int(msg["fn"].size)
