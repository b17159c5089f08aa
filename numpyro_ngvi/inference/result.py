"""Results of ``fit``."""

from __future__ import annotations

import dataclasses

import jax

from ngvi._docs import shared_doc
from ngvi.workflow import result as shared
from numpyro_ngvi.inference.file_hooks import FileHooks
from numpyro_ngvi.inference.hooks import Hooks


@shared_doc(shared.FitResult)
@dataclasses.dataclass(kw_only=True, repr=False, eq=False)
class FitResult(shared.FitResult):
    """Draws are the same every time, unless ``rng_key`` is given."""

    _ppl, _files = Hooks(), FileHooks()

    #: The JAX random key for diagnostics, and for draws without a key of their own.
    _rng_key: jax.Array
