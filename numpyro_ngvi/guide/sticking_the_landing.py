"""ELBOs that are linear in ``log q``; see :mod:`ngvi.guide.sticking_the_landing`."""

from __future__ import annotations

from numpyro.infer import ELBO, Trace_ELBO, TraceEnum_ELBO, TraceGraph_ELBO, TraceMeanField_ELBO

from ngvi.guide.sticking_the_landing import caller_of_type

#: Exact types: a subclass may weight its draws.
LINEAR_ELBOS = (Trace_ELBO, TraceEnum_ELBO, TraceGraph_ELBO, TraceMeanField_ELBO)


def calling_elbo() -> ELBO | None:
    """Return the innermost ELBO on the call stack."""
    return caller_of_type(ELBO)
