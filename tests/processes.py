"""Work for other processes; a module of its own, so that they can import it."""

from __future__ import annotations

import numpy as np

from tests import models
from tests.ppl import load


def fitted(name: str, shift: float) -> tuple[float, float]:
    """The mean of a fit to shifted data, and what is exact."""
    ppl = load(name)
    with ppl.float64():
        y = ppl.array(models.Y + shift)
        if not ppl.is_numpyro:
            ppl.lib.clear_param_store()
        result = ppl.fit(models.location(ppl), y, family="full", effort="quick")
        exact = models.LOCATION_VARIANCE * (models.Y + shift).sum()
        return float(ppl.numpy(result.posterior.mean)[0]), float(exact)


def check(found: list[tuple[float, float]]) -> None:
    np.testing.assert_allclose(*np.transpose(found), atol=1e-3)
