"""Rows of a result: leave some out, add others, rank them, by natural gradients."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Self

from ngvi.inference.arguments import ModelCall
from ngvi.inference.result import Fitted
from ngvi.inference.tells import alone, unhandled
from ngvi.workflow.influence import Influence, influence
from ngvi.workflow.loo_steps import Clock
from ngvi.workflow.rows_result import elpd_of, left_out, of_rows, updated
from ngvi.workflow.sites import Sites

if TYPE_CHECKING:
    import arviz


class WithRows(Fitted):
    """Leave rows out of a result, add others, and rank them."""

    @alone
    def sites(self, plate: str | None = None) -> Sites:
        """Return the natural gradient of each row's expected log likelihood.

        At the optimum, the prior's and the rows' add up to the posterior's natural parameters (Khan
        and Rue, 2023, section 5, equations 15 to 17). They cost a few values of each row if rows
        depend on one or two affine functions of the latents, as in regressions, and otherwise
        ``8 d`` gradients of each row.

        >>> len(result.sites())
        3

        :param plate: the plate whose elements are rows; by default all plates of observed sites.
        :raises ValueError: for a model without rows: a likelihood outside plates or in a
            factor, enumerated latents, minibatches, missing data; or more than 2,000 latents.
        """
        with of_rows(self, plate, "sites") as (known, units):
            return Sites.of(known.target, known.q, units)

    @alone
    def loo(
        self,
        plate: str | None = None,
        *,
        time_limit: float | None = None,
        progress_bar: bool = True,
    ) -> arviz.ELPDData:
        """Return leave-one-out predictive densities, by subtracting each row's site.

        For rows that depend on one or two affine functions of the latents, the density is an
        integral over these. Others use importance weights of 2,000 draws (PSIS-LOO), or from k-hat
        0.7 on draws and steps of their own. ``pareto_k`` says how reliable each is, on that scale;
        a row that is far from what the others say of it has more than 0.7.

        >>> by_row = result.loo("rows").loo_i  # for groups, a whole group at a time
        >>> by_row.values.round(1).tolist()
        [-1.9, -1.1, -1.9]

        ``arviz.compare({"one": one.loo(), "other": other.loo()})`` compares models.

        :param plate: the plate whose elements are left out one at a time; by default all plates of
            observed sites.
        :param time_limit: seconds after which no more rows get their own draws or steps. By
            default these take half of the fit's gradients.
        :param progress_bar: whether to show a bar after two seconds of steps.
        :return: pointwise ``ELPDData`` of ArviZ. Coordinates of ``loo_i`` are ``how``,
            ``leverage``, ``psis`` and ``psis_k``; ``attrs["note"]`` says what is unreliable. The
            density is NaN for a row whose removal makes the posterior improper, 0 under a mask.
        :raises ValueError: as :meth:`sites`.
        """
        most = math.inf if time_limit is not None else self.cost.total / 2.0
        clock = Clock.of(time_limit, most, progress_bar)
        return elpd_of(self, plate, clock)

    @alone
    def influence(self, plate: str | None = None) -> Influence:
        """Return how far each row moves the posterior, the most influential first.

        >>> len(result.influence().rows)
        3

        :param plate: as for :meth:`loo`.
        :raises ValueError: as :meth:`sites`.
        """
        with of_rows(self, plate, "influence") as (known, units):
            return influence(known.target, known.optimum, units, known.latents)

    @unhandled
    def update(self, *args: Any, **kwargs: Any) -> Self:
        """Return the posterior with new rows, for which the old posterior is the prior.

        It takes natural-gradient steps on the new rows alone, at a cost that does not depend on the
        number of earlier rows. It is exact for conjugate models. Otherwise earlier rows keep their
        Gaussian sites, and ``change.drift`` accumulates the cost in nats: half of the variance of
        ``log w`` at each update. If twice that exceeds the tolerance, the verdict is
        ``"approximate"``, with a warning: the optimum of all rows may be elsewhere. Otherwise it is
        ``"local"``, as no other optima are looked for. ``bound`` estimates the bound of all rows,
        and ``bound_error`` includes these variances. Repeated rows cause a warning. The original
        result does not change.

        >>> f"{result.update(y + 3.5).posterior.mean[0]:.1f}"
        '3.7'

        :param args: arguments of the model, with the new rows alone.
        :param kwargs: keyword arguments of the model.
        :return: a result with these arguments, whose bound is for all rows so far.
        :raises TypeError: for arguments that the model does not take.
        :raises ValueError: if the model does not run with these rows, or indexes beyond the end of
            an array; for new groups, whose latents are new; for data that are NaN or outside their
            support; and as :meth:`sites`.
        """
        ModelCall(self.update, self.model, args, kwargs, "no seed").check()
        return updated(self, args, kwargs)

    @alone
    def without(self, rows: Any, plate: str | None = None) -> Self:
        """Return the posterior without some rows, by subtraction and natural-gradient steps.

        >>> f"{result.without(0).posterior.mean[0]:.1f}"
        '2.5'

        :param rows: the index of a row, or several.
        :param plate: the plate of the rows; as for :meth:`loo`.
        :return: a result with the same arguments, in which these rows do not count.
        :raises ValueError: for rows that do not exist, or whose removal makes the posterior
            improper; and as :meth:`sites`.
        """
        return left_out(self, rows, plate)
