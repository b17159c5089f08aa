"""Whether the models are sound, without a fit: one density in both PPLs, finite, with gradients.

``python -m benchmarks.unseen_models.check [PATTERN]`` writes a line a model.
"""

from __future__ import annotations

import fnmatch
import sys
import time
from typing import Any

import jax
import numpy as np

from .interface import Entry, Ppl, Target, log_densities
from .registry import UNSEEN

#: Of two values or of two gradients; the libraries' log gamma functions agree to eight digits.
TOLERANCE = 1e-7


def points(dim: int) -> list[np.ndarray]:
    """Unconstrained: zero, and near and farther points."""
    rng = np.random.default_rng(0)
    return [np.zeros(dim), 0.3 * rng.normal(size=dim), rng.uniform(-1.5, 1.5, dim)]


def of_pyro(entry: Entry, shapes: dict[str, tuple], flats: list[np.ndarray]) -> list[tuple]:
    """Values and gradients of Pyro's log density."""
    import pyro
    import torch
    from pyro.infer.mcmc.util import initialize_model

    ppl = Ppl("pyro")
    pyro.clear_param_store()
    model, args = entry.model(ppl, full=True), entry.args(ppl)
    options = {"max_plate_nesting": 1} if entry.enumerated else {}
    potential = initialize_model(model, args, skip_jit_warnings=True, **options)[1]
    found = []
    for flat in flats:
        x = torch.tensor(flat, requires_grad=True)
        values, start = {}, 0
        for name, shape in shapes.items():
            size = int(np.prod(shape))
            values[name] = x[start : start + size].reshape(shape)
            start += size
        value = -potential(values)
        value.backward()
        found.append((float(value), x.grad.numpy()))
    return found


def gap(one: Any, two: Any) -> float:
    """The largest difference."""
    return float(np.max(np.abs(np.subtract(one, two))) / (1 + np.max(np.abs(one))))


def check(entry: Entry) -> tuple[bool, str]:
    """Whether all holds, and what was found."""
    target = Target(entry)
    flats = points(target.dim)
    both = jax.jit(jax.value_and_grad(lambda x: target.log_prob(x, target.params)))
    ours = [both(flat) for flat in flats]
    theirs = of_pyro(entry, target.shapes, flats)
    finite = [bool(np.isfinite(v) and np.isfinite(g).all()) for v, g in ours]
    # Far out a raw scale may overflow, which the libraries need not do at the same point.
    kept = [k for k in range(3) if finite[k]]
    values = max(gap(ours[k][0], theirs[k][0]) for k in kept)
    # Not at zero, where the two libraries may take either side of a clip in a distribution.
    slopes = max(gap(ours[k][1], theirs[k][1]) for k in kept if k)
    prior = [gap(*log_densities(entry, seed)) for seed in (1, 2)]
    start = time.perf_counter()
    for _ in range(50):
        both(flats[1])[0].block_until_ready()
    each = 1e3 * (time.perf_counter() - start) / 50
    good = values < TOLERANCE and slopes < TOLERANCE and all(finite[:2])
    good = good and bool(np.nanmax([0.0, *prior]) < TOLERANCE)
    line = (
        f"{entry.name:28s} d={target.dim:3d} {entry.kind:9s} {'held' if entry.held_out else '':4s}"
    )
    line += f" values {values:.0e} slopes {slopes:.0e} finite {finite} {each:.2f} ms"
    return good, line + f" at prior draws {prior[0]:.0e} {prior[1]:.0e}"


def main(pattern: str = "*") -> None:
    import torch

    jax.config.update("jax_enable_x64", True)
    torch.set_default_dtype(torch.float64)
    for entry in UNSEEN.values():
        if not fnmatch.fnmatch(entry.name, pattern):
            continue
        try:
            good, line = check(entry)
        except Exception as error:  # noqa: BLE001  the others are still to be checked
            good, line = False, f"{entry.name} {type(error).__name__}: {str(error)[:300]}"
        print("ok  " if good else "BAD ", line, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
