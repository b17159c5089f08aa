"""ELBOs that are linear in ``log q``; see :mod:`ngvi.guide.sticking_the_landing`."""

from __future__ import annotations

from pyro import infer

from ngvi.guide.sticking_the_landing import caller_of_type

#: Exact types: a subclass may weight its draws.
LINEAR_ELBOS = (
    *(infer.Trace_ELBO, infer.TraceEnum_ELBO, infer.TraceGraph_ELBO, infer.TraceMeanField_ELBO),
    *(infer.JitTrace_ELBO, infer.JitTraceEnum_ELBO, infer.JitTraceGraph_ELBO),
    infer.JitTraceMeanField_ELBO,
)


def calling_elbo() -> infer.ELBO | None:
    """Return the innermost ELBO on the call stack."""
    return caller_of_type(infer.ELBO)
