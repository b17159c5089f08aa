"""Results of ``fit``."""

from __future__ import annotations

import dataclasses

from ngvi._docs import shared_doc
from ngvi.workflow import result as shared
from pyro_ngvi.inference.file_hooks import FileHooks
from pyro_ngvi.inference.hooks import Hooks


@shared_doc(shared.FitResult)
@dataclasses.dataclass(kw_only=True, repr=False, eq=False)
class FitResult(shared.FitResult):
    """A result keeps its own :attr:`params`, whatever happens to the parameter store.

    Its guide reads the store, where guides of one class share names: after another fit, it
    returns that fit's draws.
    """

    _ppl, _files = Hooks(), FileHooks()
