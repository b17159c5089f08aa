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
    """The posterior of :attr:`params`, whatever becomes of the parameter store.

    Guides of one class share their parameters' names, so that the guide of another fit changes what
    this one's returns.
    """

    _ppl, _files = Hooks(), FileHooks()
