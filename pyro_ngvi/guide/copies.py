"""Copies of guides: by pickle, cloudpickle, ``torch.save`` and ``copy.deepcopy``."""

from __future__ import annotations

from typing import Any

from pyro.infer.autoguide import AutoGuide


class Copied(AutoGuide):
    """A guide that leaves its copies what they need of the model, and itself as it is.

    Pyro's guides leave the model out of a copy, and lose it themselves. Once it is set up a guide
    seldom needs one; where it does, what holds the model is copied, too: by pickle a function of a
    module, by cloudpickle any.
    """

    _model_as_given: tuple | None

    @property
    def _needs_model(self) -> bool:
        """Need of the model for draws."""
        return self.prototype_trace is None

    def __getstate__(self) -> dict[str, Any]:
        own = {name: vars(self)[name] for name in ("_model", "master")}
        given = vars(self).get("_model_as_given")
        try:
            state = dict(super().__getstate__())
        finally:
            vars(self).update(own)
        has_model = self._needs_model
        state["_model"] = own["_model"] if has_model else None
        if "_model_as_given" in state:
            state["_model_as_given"] = given if has_model else None
        return state
