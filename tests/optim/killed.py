"""A run of ``SVI`` in a process that may be killed: saved after every step, it goes on from the
last save that is whole, a hundredth of a second a step at least.

    python -m tests.optim.killed PPL OPTIMISER FOLDER

prints a line for every step, and the parameters at the end.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path

from tests.models import Y
from tests.optim.resumable import run_of
from tests.ppl import load

STEPS = 60


def main(ppl_name: str, optimiser: str, folder: Path) -> None:
    ppl = load(ppl_name)
    with ppl.float64():
        y = ppl.array(Y)
        run = run_of(ppl, optimiser, "by default")
        saves = sorted(folder.glob("after-*"))
        if saves:
            run.load(saves[-1], y)
        for step in range(int(saves[-1].name.partition("-")[2]) if saves else 0, STEPS):
            (loss,) = run.run(1, y)
            shutil.rmtree(folder / "part", ignore_errors=True)
            (folder / "part").mkdir(parents=True)
            run.save(folder / "part")
            os.replace(folder / "part", folder / f"after-{step + 1:03d}")
            print("step", step, loss.hex(), flush=True)
            time.sleep(0.01)
        print("result", *(n.tobytes().hex() for n in run.numbers()), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
