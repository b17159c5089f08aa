"""Posteriors at a temperature other than one."""

from __future__ import annotations

from typing import Any, NamedTuple


class Tempering(NamedTuple):
    """A model whose posterior has the temperature ``T``: ``p(z) p(x | z)^(1 / T)``, up to a factor.

    Observed sites and ``factor`` statements count ``1 / T`` times; priors are unchanged, as are
    latents that the data do not inform. It is an ordinary model, for ``SVI``, ``fit`` or MCMC.
    Networks often predict better with a *cold* posterior, ``T < 1`` (Wenzel et al., 2020,
    *How good is the Bayes posterior in deep neural networks really?*): at ``T = 1``, the best mean
    field over their weights is underconfident. With ``T > 1``, the posterior trusts a misspecified
    model less (Bissiri, Holmes and Walker, 2016, *A general framework for updating belief
    distributions*). Bounds are those of the tempered model; for that of ``model``, evaluate the
    same guide with ``model``.

    >>> cold = fit(tempered(model, 0.25), y, progress_bar=False)
    >>> f"{cold.posterior.variance[0] ** 0.5:.2f}"
    '0.29'

    With ``ngvi.torch.IVON`` and ``ngvi.optax.ivon``, use ``ess / T`` and ``weight_decay * T``.

    :param model: any model. A handler that conditions on data must be inside.
    :param temperature: ``T``, positive.
    :raises ValueError: if it is not positive and finite.
    """

    temperature: float

    def scale(self, scale: Any) -> Any:
        """Return the weight of a site.

        :param scale: its weight at temperature one; None for 1.
        """
        return (1.0 if scale is None else scale) / self.temperature
