"""Files and processes under attack: kills, Ctrl-C, flipped bits, damage, other data.

    python -m benchmarks attacks --ppl pyro --kills 500 --interrupts 500 --flips 5000 --changes 200
    python -m benchmarks attacks --ppl numpyro --kills 20 --flips 500

Each attack ends in the same bits as without it, in one clear error (``DamagedFileError``, or a
``ValueError`` that names what differs), or it is a fault, which is printed; any fault is an exit
status of one.

- *Kills*: ``kill -9``, or SIGTERM, of a process at a random moment of a fit with a checkpoint,
  again and again until one comes to its end; and of one that saves a result, again and again.
- *Interrupts*: Ctrl-C at a random moment of a fit with a checkpoint, which ends there and then. The
  next fit in the same process, and the one that goes on from the checkpoint, know nothing of it.
- *Flips* of one random bit: nine of ten in result files, which are loaded, the others in
  checkpoints, from which a fit goes on.
- *Damage*: twenty kinds, of both files.
- *Changes* of one number of the data, to the next one that there is, in both precisions.

Processes are forked: in NumPyro before JAX has run, as it asks for, so that those that are killed
compile anew, but for what JAX keeps on the disk.

Time: an hour in Pyro, two in NumPyro. Data: none.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import io
import os
import pickle
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

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
            options = {"effort": "quick", "progress_bar": False, **options}
            return self._fitted(data, options)

    def prepare(self, folder: Path) -> None:
        """Before processes are forked that fit."""

    def bits(self, result: Any) -> str:
        """Of all numbers of a result that a fit decides."""
        numbers = [value.tobytes() for value in result._files.flat(result.params).values()]
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

    def prepare(self, folder: Path) -> None:
        self.fit()  # what is imported then

    def state(self) -> str:
        """What a fit leaves as it was."""
        stack, is_grad = self.lib.poutine.runtime._PYRO_STACK, self.torch.is_grad_enabled()
        return repr((warnings.filters, stack, is_grad, self.lib.settings.get()))


class NumPyro(Package):
    """With double precision where the data are in it."""

    def __init__(self) -> None:
        super().__init__("numpyro")
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # of programs from the disk
        import jax
        import numpyro

        from numpyro_ngvi import FitResult, fit

        numpyro.enable_x64()
        self.lib, self.jax, self.run, self.result_type = numpyro, jax, fit, FitResult

    def array(self, values: np.ndarray) -> Any:
        return self.jax.numpy.asarray(values)

    def _fitted(self, data: Any, options: dict[str, Any]) -> Any:
        return self.run(self.model, data, **options)

    def prepare(self, folder: Path) -> None:
        self.jax.config.update("jax_compilation_cache_dir", str(folder / "compiled"))
        self.jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)

    def state(self) -> str:
        """What a fit leaves as it was."""
        stack, number = self.lib.primitives._PYRO_STACK, self.jax.typeof(1.0)
        return repr((warnings.filters, stack, number, self.jax.config.values))


def package(name: str) -> Package:
    return Pyro() if name == "pyro" else NumPyro()


# -- processes ----------------------------------------------------------------------------


def begun(ppl: Package, work: Callable, *args: Any) -> Callable[[float, int], bool]:
    """A process that does some work; what is returned waits, kills it, and says if it was over."""
    child = os.fork()
    if not child:
        try:
            work(ppl, *args)
        finally:
            os._exit(0)

    def ended(seconds: float = 600.0, signal_: int = signal.SIGKILL) -> bool:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if os.waitpid(child, os.WNOHANG)[0]:
                return True
            time.sleep(0.001)
        os.kill(child, signal_)
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
    out.write_text(ppl.bits(result))
    while True:
        result.save(path)


def killed_fits(ppl: Package, count: int, rng: np.random.Generator, folder: Path) -> Counts:
    """Of ends of fits that were killed on their way."""
    found: Counts = Counts()
    path, out = folder / "fit", folder / "out"
    ppl.prepare(folder)
    for _ in range(2):  # of which the first compiles
        path.unlink(missing_ok=True)
        began = time.monotonic()
        begun(ppl, fit_once, path, out)()
        longest, expected = time.monotonic() - began, out.read_text()
    while found["kills"] < count:
        path.unlink(missing_ok=True)
        out.unlink(missing_ok=True)
        for _ in range(20):
            by = signal.SIGTERM if rng.random() < 0.2 else signal.SIGKILL
            if begun(ppl, fit_once, path, out)(rng.uniform(0.0, longest), by):
                break
            found["kills"] += 1
        if not out.exists():
            begun(ppl, fit_once, path, out)()
        text = out.read_text() if out.exists() else "nothing"
        found["ends: " + (SAME if text == expected else f"FAULT {text[:200]}")] += 1
    return found


def killed_saves(ppl: Package, count: int, rng: np.random.Generator, folder: Path) -> Counts:
    """Of files after a kill in the midst of a save."""
    found: Counts = Counts()
    path, out = folder / "result", folder / "out"
    ppl.prepare(folder)
    for _ in range(count):
        out.unlink(missing_ok=True)
        ended = begun(ppl, save_again_and_again, path, out)
        while not (out.exists() and (expected := out.read_text())):
            time.sleep(0.001)
        ended(rng.uniform(0.0, 1.0))
        if path.exists():
            begun(ppl, load_once, path, expected, out)()
            found[out.read_text()] += 1
        else:
            found["no file yet"] += 1
    begun(ppl, lambda ppl: ppl.fit().save(path))()
    found["files left beside it: FAULT"] += sum(name.suffix == ".part" for name in folder.iterdir())
    return +found


def load_once(ppl: Package, path: Path, expected: str, out: Path) -> None:
    out.write_text(loaded(ppl, path, expected))


def interrupted(ppl: Package, count: int, rng: np.random.Generator, folder: Path) -> Counts:
    """Of fits after one that Ctrl-C has ended, in the same process."""
    found: Counts = Counts()
    path, expected = folder / "fit", ppl.bits(ppl.fit())
    began = time.monotonic()
    ppl.fit(checkpoint=path)
    longest = time.monotonic() - began
    before = ppl.state()
    for _ in range(count):
        path.unlink(missing_ok=True)
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        try:
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.001, longest))
            said = ppl.fit(checkpoint=path).reason.partition(":")[0]
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            found["ends: interrupted" if "interrupt" in said else "ends: whole"] += 1
        except KeyboardInterrupt:
            found["ends: KeyboardInterrupt"] += 1
        except Exception as error:  # noqa: BLE001  it is judged
            found[f"ends: FAULT {error!r}"[:200]] += 1
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        found[f"gone on: {resumed(ppl, path, expected)}"] += 1
        if (left := ppl.state()) != before:
            found[f"FAULT left {left}"[:1000]] += 1
            before = left
    return found


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ppl", choices=("pyro", "numpyro"), default="pyro")
    for name in ("kills", "interrupts", "flips", "changes"):
        parser.add_argument(f"--{name}", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    ppl, rng, is_fault = package(options.ppl), np.random.default_rng(options.seed), False
    attacks: dict[str, tuple[int, Callable[[Path], Counts]]] = {
        "kills of fits": (
            options.kills,
            lambda folder: killed_fits(ppl, options.kills, rng, folder),
        ),
        "kills of saves": (
            options.kills,
            lambda folder: killed_saves(ppl, options.kills // 5, rng, folder),
        ),
        "interrupts": (
            options.interrupts,
            lambda folder: interrupted(ppl, options.interrupts, rng, folder),
        ),
        "flips of a bit": (options.flips, lambda folder: flips(ppl, options.flips, rng, folder)),
        "kinds of damage": (options.flips, lambda folder: damaged(ppl, rng, folder)),
        "changes of a number": (
            options.changes,
            lambda folder: changes(ppl, options.changes, rng, folder),
        ),
    }
    for name, (count, attack) in attacks.items():
        if count:
            with tempfile.TemporaryDirectory() as folder:
                found = attack(Path(folder))
            words = ", ".join(f"{count} {what}" for what, count in sorted(found.items()))
            print(f"{options.ppl}, {name}: {words}", flush=True)
            is_fault |= "FAULT" in words
    print(describe())
    sys.exit(is_fault)


if __name__ == "__main__":
    main()
