"""What every Gaussian family offers.

A family is an immutable set of coordinates of ``q = N(mu, Sigma)``. Without tensors
(``CovarianceCholesky()``) it is a specification; :meth:`Family.initial` gives it tensors.
Families know nothing of the PPL: they are usable with plain PyTorch or JAX. What needs no tensor
library is here and in :mod:`ngvi.families`; the packages' ``families`` add the derivatives.

A *gradient* of a function of ``q`` has the same type as ``q``: one tensor per coordinate.
Writing ``F`` for the Fisher information of ``q`` in its coordinates, each family has

==================================  ==========================================================
:meth:`~Family.natural_gradient`    ``F^-1 g``, analytically (Tan, Theorem 1)
:meth:`~Family.euclidean_gradient`  ``F n``, its inverse
:meth:`~Family.precondition`        the identity, whose derivative is ``F^-1``
:meth:`~Family.draw`                a draw, differentiated through ``precondition``
:meth:`~Family.retract`             the coordinates after a step, still a Gaussian
==================================  ==========================================================

Second order, from ``E[grad l]`` and the family's part of ``E[hess l]`` (dense, diagonal, by
blocks), they have :meth:`~Family.bonnet_price`, the natural gradient of the bound, and
:meth:`~Family.natural_step`, the step of the Bayesian learning rule.

By subject: :mod:`~ngvi.families.gaussian` (moments, density, natural gradient),
:mod:`~ngvi.families.draws`, :mod:`~ngvi.families.for_estimators` and
:mod:`~ngvi.families.for_rules`.

**A new family** writes ``initial``, ``num_parameters``, ``stddev``, ``sample``, ``whiten``,
``log_det_scale``, ``natural_gradient``, ``euclidean_gradient``, ``bonnet_price``, ``retract``, and
``natural_step`` or ``along``. What else it has follows from these, for a dense Gaussian at the cost
of a few O(d^3) products. A family writes itself what it can do cheaper, and one that is not dense
``hessian_probes``, ``assemble_hessian`` and ``outer_products``, what its bonnet_price needs of a
Hessian. ``tests/families/test_contract.py`` has one in thirty lines.
"""

from __future__ import annotations

from typing import ClassVar

from ngvi.families.draws import NaturalDraws
from ngvi.families.for_estimators import ForEstimators
from ngvi.families.for_rules import ForRules
from ngvi.families.gaussian import Array as Array


class Family(NaturalDraws, ForEstimators, ForRules):
    """A Gaussian in some coordinates. See the module for the contract."""

    #: The string by which ``NaturalGaussianGuide(family=...)`` knows the family.
    name: ClassVar[str]
