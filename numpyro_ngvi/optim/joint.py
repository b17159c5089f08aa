"""Joint update of all natural parameters, with an ordinary optimiser for the rest.

Every natural-gradient optimiser here is an optax transformation: a
:class:`~ngvi.optim.rule.Rule` says how the families of the parameter pytree move, and
:func:`joint` supplies what they share:

- parameters that are not a family go to ``other``;
- families move by their own maps (``retract``, ``natural_step``), and stay Gaussians;
- a step with a gradient or a result that is not finite is not taken. Parameters and state
  stay as they are (or return to an earlier point, if the rule can
  ``recover``; it gives such a result to take a step back), and
  ``num_skipped`` counts it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ngvi.optim.rule import Rule

if TYPE_CHECKING:
    import optax

#: What the docstrings of all of them end with.
FIELDS = """
:param other: optimiser of parameters that are not natural (an optax transformation or a
    NumPyro optimiser); by default Adam whose rates adapt (:mod:`ngvi.optim.adaptive_adam`).
:return: an optax transformation, which NumPyro's ``SVI`` takes as it is.
:raises ValueError: for an argument outside its range; on ``init``, if there are no natural
    parameters.
"""


def joint(
    rule: Rule, other: Any, name: str, curvature: str | None = None
) -> optax.GradientTransformation:
    """Return an optax transformation from a rule.

    :param rule: how families move.
    :param other: an optax transformation, or a NumPyro optimiser, for all other parameters; by
        default Adam with adaptive rates.
    :param name: what error messages call the optimiser.
    :param curvature: the ``curvature`` of ``NaturalELBO`` that it is for, if it is for one.
    """
    # Importing optax takes a third of the time of importing this package.
    from numpyro_ngvi.optim.transformation import transformation

    return transformation(rule, other, name, curvature)
