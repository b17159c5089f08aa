"""Posteriors at a temperature other than one; see :mod:`ngvi.tempering`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyro.poutine.messenger import Messenger

from ngvi._docs import shared_doc
from ngvi.errors import check_finite, check_model
from ngvi.tempering import Tempering


class Tempered(Messenger):
    """A model at a temperature."""

    def __init__(self, tempering: Tempering) -> None:
        super().__init__()
        self.tempering = tempering

    def _pyro_sample(self, site: dict[str, Any]) -> None:
        if site["is_observed"]:
            site["scale"] = self.tempering.scale(site["scale"])


@shared_doc(Tempering)
def tempered(model: Callable, temperature: float) -> Callable:
    """Use it as in ``SVI(tempered(model, 0.25), guide, IVON(), NaturalELBO(1, "stein"))``."""
    check_model(model)
    return Tempered(Tempering(check_finite(temperature, "temperature")))(model)
