"""Sticking the landing: gradients without the score of ``q``.

The gradient of one draw's ``log p - log q`` has a part, the score of ``q``, whose mean is
zero. Leaving it out (Roeder, Wu and Duvenaud, 2017; ``grad h`` in Tan's algorithm 1N) makes
the noise of the gradient vanish where ``q`` is exact, and with it the bias of a normalised
step. It is right for an ELBO that
is linear in ``log q``, and wrong for one that weights its draws by ``q``, as ``RenyiELBO``
does. An ELBO calls the guide without its name: it is looked for on the call stack.
"""

from __future__ import annotations

import sys
from typing import Any


def check_sticking_the_landing(value: bool | str) -> bool | str:
    """``value``, if it is True, False or ``"auto"``.

    :raises ValueError: if it is not.
    """
    if getattr(value, "ndim", 0) or value not in (True, False, "auto"):
        raise ValueError(f"sticking_the_landing must be True, False or 'auto', got {value!r}.")
    return value


def is_evaluated() -> bool:
    """Return whether an ``SVI`` on the call stack evaluates its loss, without a step."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_name not in ("evaluate", "evaluate_loss"):
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None


def caller_of_type(kind: type) -> Any:
    """Return the innermost object of a type with a method on the call stack, or None."""
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if "self" in code.co_varnames or "self" in code.co_freevars:
            caller = frame.f_locals.get("self")
            if isinstance(caller, kind):
                return caller
        frame = frame.f_back  # type: ignore[assignment]
    return None
