"""Posteriors of another temperature than one."""

from __future__ import annotations

from typing import Any, NamedTuple


class Tempering(NamedTuple):
    """A model whose posterior has the temperature ``T``: ``p(z) p(x | z)^(1 / T)``, up to a factor.

    Observed sites and ``factor`` statements count ``1 / T`` times. Priors stay, and so do latents
    of which the data say nothing. It is a model like any other, for ``SVI``, ``fit``, MCMC. A
    *cold* posterior, of ``T < 1``, is what networks often predict better with (Wenzel et al., 2020,
    *How good is the Bayes posterior in deep neural networks really?*). The best mean field over
    their weights, at ``T = 1``, is too unsure of its predictions. One of ``T > 1`` trusts a model
    less that does not fit its data (Bissiri, Holmes and Walker, 2016, *A general framework for
    updating belief distributions*). A bound is that of the tempered model; ask for that of
    ``model`` itself with the same guide.

    ``ngvi.torch.IVON`` and ``ngvi.optax.ivon`` have ``ess / T`` and ``weight_decay * T``.

    :param model: any model. Data that a handler conditions on are to be conditioned on inside.
    :param temperature: ``T``, positive.
    :raises ValueError: if it is not positive and finite.
    """

    temperature: float

    def scale(self, scale: Any) -> Any:
        """Return the weight of a site.

        :param scale: how many times it does at a temperature of one; None for once.
        """
        return (1.0 if scale is None else scale) / self.temperature
