"""Files and processes under attack: kills, flipped bits, damage, other data, many fits.

    python -m benchmarks attacks --ppl pyro --kills 500 --flips 5000 --changes 200 --fits 2000
    python -m benchmarks attacks --ppl numpyro --kills 20 --flips 500 --changes 200 --fits 200

Each attack ends in the same bits as without it, in one clear error (``DamagedFileError``, or a
``ValueError`` that names what differs), or it is a fault, which is printed; any fault is an exit
status of one.

- *Kills*: ``kill -9`` of a process at a random moment of a fit with a checkpoint, again and again
  until one comes to its end; and of one that saves a result, again and again.
- *Flips* of one random bit: of result files, which are loaded, and for each tenth of checkpoints,
  from which a fit goes on.
- *Damage*: twenty kinds, of both files.
- *Changes* of one number of the data, to the next one that there is, in both precisions.
- *Fits* in one process: what memory each takes for good, after the first hundred.

Pyro's processes are forked, NumPyro's are new ones, as JAX asks for, and take seconds to begin.

Time: an hour in Pyro; ten seconds for each kill in NumPyro. Data: none.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import io
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.soak import resident
from examples.machine import describe
from ngvi import DamagedFileError

Counts = collections.Counter
SAME, CLEAR = "the same bits", "a clear error"


class Package:
    """What the attacks need of one; a fit of a robust mean and scale."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.y = np.array([0.3, -0.8, 1.9, 0.4, 2.2, 7.0, -0.1, 0.9])

    def model(self, y: Any) -> None:
        dist, sample = self.lib.distributions, self.lib.sample
        mean = sample("mean", dist.Normal(0.0, 10.0))
        scale = sample("scale", dist.LogNormal(0.0, 1.0))
        with self.lib.plate("rows", len(y)):
            sample("y", dist.StudentT(3.0, mean, scale), obs=y)

    def fit(self, y: Any = None, **options: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            data = self.array(self.y if y is None else y)
            options = {"exploration": 0.2, "progress_bar": False, **options}
            return self._fitted(data, options)

    def bits(self, result: Any) -> str:
        """Of all numbers of a result that a fit decides."""
        numbers = [value.tobytes() for value in result._flat(result.params).values()]
        spent = [getattr(result.cost, name) for name in ("gradients", "products", "values")]
        text = repr((result.losses.tolist(), spent, result.reason)).encode()
        return hashlib.sha256(b"".join([*numbers, text])).hexdigest()


class Pyro(Package):
    """In float64 where nobody says otherwise."""

    def __init__(self) -> None:
        super().__init__("pyro")
        import pyro
        import torch

        from pyro_ngvi import FitResult, fit

        self.lib, self.torch, self.run, self.result_type = pyro, torch, fit, FitResult
        torch.set_num_threads(1)

    def array(self, values: np.ndarray) -> Any:
        return self.torch.tensor(values)

    def _fitted(self, data: Any, options: dict[str, Any]) -> Any:
        self.lib.clear_param_store()
        self.lib.set_rng_seed(0)
        self.torch.set_default_dtype(data.dtype)
        return self.run(self.model, data, **options)


class NumPyro(Package):
    """With double precision where the data are in it."""

    def __init__(self) -> None:
        super().__init__("numpyro")
        import jax
        import numpyro

        from numpyro_ngvi import FitResult, fit

        numpyro.enable_x64()
        self.lib, self.jax, self.run, self.result_type = numpyro, jax, fit, FitResult

    def array(self, values: np.ndarray) -> Any:
        return self.jax.numpy.asarray(values)

    def _fitted(self, data: Any, options: dict[str, Any]) -> Any:
        return self.run(self.model, data, **options)


def package(name: str) -> Package:
    return Pyro() if name == "pyro" else NumPyro()


# -- processes ----------------------------------------------------------------------------


def begun(ppl: Package, work: str, path: Path, out: Path) -> Callable[[float | None], bool]:
    """A process that does some work; what is returned waits, kills it, and says if it was over.

    :param out: where it writes what has come of it.
    """
    if ppl.name == "pyro":
        child = os.fork()
        if not child:
            try:
                WORK[work](ppl, path, out)
            finally:
                os._exit(0)
    else:
        command = [sys.executable, "-m", "benchmarks.attacks", "--work", work, str(path), str(out)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        child = process.pid

    def ended(seconds: float | None) -> bool:
        deadline = time.monotonic() + (600.0 if seconds is None else seconds)
        while time.monotonic() < deadline:
            if os.waitpid(child, os.WNOHANG)[0]:
                return True
            time.sleep(0.001)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return False

    return ended


def fit_once(ppl: Package, path: Path, out: Path) -> None:
    try:
        text = ppl.bits(ppl.fit(checkpoint=path))
    except Exception as error:  # noqa: BLE001  it is what has come of it
        text = repr(error)
    out.write_text(text)


def save_again_and_again(ppl: Package, path: Path, out: Path) -> None:
    result = ppl.fit()
    out.write_text("saving")
    while True:
        result.save(path)


WORK = {"fit": fit_once, "save": save_again_and_again}


def killed_fits(ppl: Package, count: int, rng: np.random.Generator, folder: Path) -> Counts:
    """Of ends of fits that were killed on their way."""
    found: Counts = Counts()
    path, out = folder / "fit", folder / "out"
    began = time.monotonic()
    begun(ppl, "fit", path, out)(None)
    longest, expected = time.monotonic() - began, out.read_text()
    while found["kills"] < count:
        path.unlink(missing_ok=True)
        out.unlink()
        for _ in range(20):
            if begun(ppl, "fit", path, out)(rng.uniform(0.0, longest)):
                break
            found["kills"] += 1
        if not out.exists():
            begun(ppl, "fit", path, out)(None)
        text = out.read_text() if out.exists() else "nothing"
        found["ends: " + (SAME if text == expected else f"FAULT {text[:200]}")] += 1
    return found


def killed_saves(ppl: Package, count: int, rng: np.random.Generator, folder: Path) -> Counts:
    """Of files after a kill in the midst of a save."""
    found: Counts = Counts()
    path, out = folder / "result", folder / "out"
    expected = ppl.bits(ppl.fit())
    for _ in range(count):
        out.unlink(missing_ok=True)
        ended = begun(ppl, "save", path, out)
        while not out.exists():
            time.sleep(0.001)
        ended(rng.uniform(0.0, 0.05))
        if path.exists():
            found[loaded(ppl, path, expected)] += 1
        else:
            found["no file yet"] += 1
    ppl.fit().save(path)
    found["files left beside it: FAULT"] += sum(name.suffix == ".part" for name in folder.iterdir())
    return +found


# -- files --------------------------------------------------------------------------------


def judged(act: Callable[[], str], expected: str) -> str:
    try:
        text = act()
    except DamagedFileError:
        return CLEAR
    except Exception as error:  # noqa: BLE001  it is judged
        return f"FAULT {error!r}"[:200]
    return SAME if text == expected else "FAULT other bits"


def loaded(ppl: Package, path: Path, expected: str) -> str:
    return judged(lambda: ppl.bits(ppl.result_type.load(path, ppl.model)), expected)


def resumed(ppl: Package, path: Path, expected: str) -> str:
    return judged(lambda: ppl.bits(ppl.fit(checkpoint=path)), expected)


def contents(ppl: Package, folder: Path) -> Iterator[tuple[str, bytes, Callable, str]]:
    """Both kinds of files: their content, what reads them, and the bits that it should give."""
    result = ppl.fit(checkpoint=folder / "fit")
    result.save(folder / "result")
    expected = ppl.bits(result)
    yield "result", (folder / "result").read_bytes(), loaded, expected
    yield "checkpoint", (folder / "fit").read_bytes(), resumed, expected


def flips(ppl: Package, count: int, rng: np.random.Generator, folder: Path) -> Counts:
    found: Counts = Counts()
    for kind, content, read, expected in contents(ppl, folder):
        for _ in range(count * 9 // 10 if kind == "result" else count // 10):
            changed, bit = bytearray(content), int(rng.integers(8 * len(content)))
            changed[bit // 8] ^= 1 << bit % 8
            (folder / "flipped").write_bytes(changed)
            found[f"{kind}: {read(ppl, folder / 'flipped', expected)}"] += 1
    return found


def damages(content: bytes, rng: np.random.Generator) -> dict[str, bytes]:
    """Twenty kinds."""
    size, half, noise = len(content), len(content) // 2, rng.bytes(4096)
    archive = io.BytesIO()
    np.savez(archive, x=np.arange(3))
    return {
        "a byte": content[:1],
        "half": content[:half],
        "all but a byte": content[:-1],
        "all but the first byte": content[1:],
        "zeros": bytes(size),
        "a half of zeros": content[:half] + bytes(size - half),
        "zeros behind it": content + bytes(4096),
        "zeros before it": bytes(512) + content,
        "noise": rng.bytes(size),
        "noise behind it": content + noise,
        "a page of noise": content[:half] + noise[: size - half] + content[half + 4096 :],
        "a hole": content[:half] + bytes(min(512, size - half)) + content[half + 512 :],
        "twice": content + content,
        "halves exchanged": content[half:] + content[:half],
        "backwards": content[::-1],
        "a byte more": content[:half] + b"x" + content[half:],
        "ends of lines": content.replace(b"\n", b"\r\n") + b"\r\n",
        "text": b"my thesis\n" * 100,
        "another archive": archive.getvalue(),
        "a pickle": pickle.dumps({"params": [1.0]}),
    }


def damaged(ppl: Package, rng: np.random.Generator, folder: Path) -> Counts:
    found: Counts = Counts()
    for kind, content, read, expected in contents(ppl, folder):
        for name, changed in damages(content, rng).items():
            (folder / "damaged").write_bytes(changed)
            said = read(ppl, folder / "damaged", expected)
            found[f"{kind}: {said}" + f" ({name})" * ("FAULT" in said)] += 1
    return found


def changes(ppl: Package, count: int, rng: np.random.Generator, folder: Path) -> Counts:
    found: Counts = Counts()
    for dtype in ("float32", "float64"):
        y, path = ppl.y.astype(dtype), folder / dtype
        ppl.fit(y, checkpoint=path)
        for _ in range(count):
            other, place = y.copy(), int(rng.integers(len(y)))
            toward = y.dtype.type(rng.choice([-np.inf, np.inf]))
            other[place] = np.nextafter(other[place], toward)
            try:
                ppl.fit(other, checkpoint=path)
                said = "FAULT taken for the same"
            except ValueError as error:
                said = "refused by name" if "argument 'y' has other values" in str(error) else ""
                said = said or f"FAULT {error}"[:200]
            found[f"{dtype}: {said}"] += 1
    return found


def fits(ppl: Package, count: int) -> str:
    """How memory grows with fits in one process."""
    memory = []
    for index in range(count):
        ppl.fit(ppl.y + 0.01 * (index % 7))
        memory.append(resident())
    first = min(100, count // 2)
    slope = np.polyfit(np.arange(first, count), memory[first:], 1)[0]
    return (
        f"{count} fits: {memory[0]:.0f} MB after the first, {memory[first]:.0f} after "
        f"{first + 1}, {memory[-1]:.0f} at the end, {slope:.4f} MB a fit after the first {first}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ppl", choices=("pyro", "numpyro"), default="pyro")
    for name in ("kills", "flips", "changes", "fits"):
        parser.add_argument(f"--{name}", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        name, path, out = options.work
        WORK[name](NumPyro(), Path(path), Path(out))
        return
    ppl, rng, is_fault = package(options.ppl), np.random.default_rng(options.seed), False
    attacks: dict[str, Callable[[Path], Counts]] = {
        "kills of fits": lambda folder: killed_fits(ppl, options.kills, rng, folder),
        "kills of saves": lambda folder: killed_saves(ppl, options.kills // 5, rng, folder),
        "flips of a bit": lambda folder: flips(ppl, options.flips, rng, folder),
        "kinds of damage": lambda folder: damaged(ppl, rng, folder),
        "changes of a number": lambda folder: changes(ppl, options.changes, rng, folder),
    }
    asked = dict(zip(attacks, (options.kills,) * 2 + (options.flips,) * 2, strict=False))
    for name, attack in attacks.items():
        if asked.get(name, options.changes):
            with tempfile.TemporaryDirectory() as folder:
                found = attack(Path(folder))
            words = ", ".join(f"{count} {what}" for what, count in sorted(found.items()))
            print(f"{options.ppl}, {name}: {words}", flush=True)
            is_fault |= "FAULT" in words
    if options.fits:
        print(f"{options.ppl}, {fits(ppl, options.fits)}", flush=True)
    print(describe())
    sys.exit(is_fault)


if __name__ == "__main__":
    main()
