"""The best bounds known of Gaussians, by the gauntlet's search, which shares no code with `fit`.

``python -m benchmarks.unseen_models.bounds`` takes the models one after another, the cheapest
first, each in a process of its own that is ended after ``--seconds``; what ``best.json`` has
already is left out.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from .registry import UNSEEN, UnseenEntry

FILE = Path(__file__).parent / "best.json"


class _Jumping(UnseenEntry):
    """An entry whose gradients the search does not use."""

    @property
    def group(self) -> str:
        return "jumps"


def one(name: str, seed: int) -> dict:
    """Search for one model, in this process."""
    import jax

    from benchmarks.gauntlet_models.search import best
    from benchmarks.gauntlet_models.target import Target

    jax.config.update("jax_enable_x64", True)
    entry = UNSEEN[name]
    if entry.kind == "jumps":
        entry = _Jumping(**{f: getattr(entry, f) for f in UnseenEntry.__dataclass_fields__})
    bound, by, _ = best(Target(entry), (), seed)
    return {"bound": round(bound.value, 4), "error": round(bound.error, 4), "by": by}


def cost(entry: UnseenEntry) -> int:
    return sum(np.size(value) for value in entry.data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="*", help="a pattern of names")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--here", action="store_true", help="one model, printed")
    args = parser.parse_args()
    if args.here:
        print(json.dumps(one(args.only, args.seed)))
        return
    found = json.loads(FILE.read_text()) if FILE.exists() else {}
    for name in sorted(UNSEEN, key=lambda n: cost(UNSEEN[n])):
        if name in found or not fnmatch.fnmatch(name, args.only):
            continue
        command = [sys.executable, "-m", __package__ + ".bounds", "--here", "--only", name]
        command += ["--seed", str(args.seed)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=args.seconds, check=True
            )
        except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
            print(name, type(error).__name__, flush=True)
            continue
        found[name] = json.loads(done.stdout.splitlines()[-1])
        print(name, found[name], flush=True)
        lines = [f"  {json.dumps(n)}: {json.dumps(found[n])}" for n in sorted(found)]
        FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
