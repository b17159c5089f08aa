"""The best bounds known of Gaussians, by the gauntlet's search, which shares no code with `fit`.

``python -m benchmarks unseen_models.bounds`` takes the models one after another, the cheapest
first, each in a process of its own that is ended after ``--seconds`` of the processor's time; what
``best.json`` has already is left out.

Time: an hour. Data: none.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import multiprocessing
import resource
from multiprocessing.connection import Connection
from pathlib import Path

import jax
import numpy as np

from .interface import Target, best
from .registry import UNSEEN, UnseenEntry

FILE = Path(__file__).parent / "best.json"


class _Jumping(UnseenEntry):
    """An entry whose gradients the search does not use."""

    @property
    def group(self) -> str:
        return "jumps"


def one(name: str, seed: int, seconds: int, answer: Connection) -> None:
    """Search for one model and send what is found."""
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    jax.config.update("jax_enable_x64", True)
    entry = UNSEEN[name]
    if entry.kind == "jumps":
        entry = _Jumping(**{f: getattr(entry, f) for f in UnseenEntry.__dataclass_fields__})
    bound, by, _ = best(Target(entry), (), seed)
    answer.send({"bound": round(bound.value, 4), "error": round(bound.error, 4), "by": by})


def cost(entry: UnseenEntry) -> int:
    return sum(np.size(value) for value in entry.data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="*", help="a pattern of names")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    found = json.loads(FILE.read_text()) if FILE.exists() else {}
    # A fork before JAX has been used has all that was imported.
    context = multiprocessing.get_context("fork")
    for name in sorted(UNSEEN, key=lambda n: cost(UNSEEN[n])):
        if name in found or not fnmatch.fnmatch(name, args.only):
            continue
        receiver, sender = context.Pipe(duplex=False)
        child = context.Process(target=one, args=(name, args.seed, args.seconds, sender))
        child.start()
        sender.close()
        try:
            found[name] = receiver.recv()
        except EOFError:
            print(name, "no bound", flush=True)
            continue
        finally:
            child.join()
        print(name, found[name], flush=True)
        lines = [f"  {json.dumps(n)}: {json.dumps(found[n])}" for n in sorted(found)]
        FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
