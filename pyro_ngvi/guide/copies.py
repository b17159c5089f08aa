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
    #: What :meth:`load_state_dict` was given before the first call.
    _stored: dict[str, Any] | None = None

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        if self.prototype_trace is not None:
            super()._load_from_state_dict(state_dict, prefix, *rest)
            return
        self._stored = {k[len(prefix) :]: v for k, v in state_dict.items() if k.startswith(prefix)}

    def _load_stored(self) -> None:
        """Take what was given before the first call, at its end.

        :raises RuntimeError: if these are parameters of other latents.
        """
        if self._stored is None:
            return
        try:
            self.load_state_dict(self._stored)
        except RuntimeError as error:
            self.prototype_trace = None
            raise RuntimeError(
                "The guide was given parameters before its first call, by load_state_dict, and "
                "they are not those of the latents that this call has: of another model, or the "
                "call has no data. Call it once with data of these shapes, of which zeros will do, "
                f"guide(X, y). {error}"
            ) from error
        self._stored = None

    @property
    def _needs_model(self) -> bool:
        """Whether nothing can be drawn without it."""
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
