"""Pyro's or NumPyro's own tests from a clone of theirs, with our guide inserted; see README.md.

python tests/upstream/run.py ../numpyro ../pyro [-- arguments of pytest]
python tests/upstream/run.py upstream.tar.gz    (an archive of both)
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

#: All the files that mention a guide which is replaced.
FILES = {
    "numpyro": (
        "test/infer/test_autoguide.py",
        "test/infer/test_reparam.py",
        "test/test_compile.py",
        "test/test_pickle.py",
        "test/contrib/stochastic_support/test_sdvi.py",
        "test/contrib/einstein/test_steinvi.py",
    ),
    "pyro": (
        "tests/infer/test_autoguide.py",
        "tests/infer/autoguide/test_inference.py",
        "tests/infer/test_predictive.py",
        "tests/nn/test_module.py",
        "tests/poutine/test_counterfactual.py",
        "tests/infer/reparam",
    ),
}


def run(checkout: Path, arguments: list[str]) -> int:
    """The exit status of pytest.

    :raises SystemExit: if the folder is no clone of either.
    """
    own = [ppl for ppl in FILES if (checkout / ppl / "infer").is_dir()]
    if not own:
        sys.exit(f"{checkout} is a clone of neither Pyro nor NumPyro.")
    (ppl,) = own
    here = Path(__file__).resolve().parent
    paths = [str(here), str(here.parents[1]), os.environ.get("PYTHONPATH")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    plugin = ["-p", f"{ppl}_plugin", "-p", "no:cacheprovider", "--only-inserted"]
    # Both suites make warnings errors.
    warnings = ["-W", "default::ngvi.UsageWarning"]
    command = [sys.executable, "-m", "pytest", *plugin, *warnings, *FILES[ppl], *arguments]
    return subprocess.call(command, cwd=checkout, env=environment)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkouts", nargs="+", type=Path)
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    options = parser.parse_args(sys.argv[1:end])
    with tempfile.TemporaryDirectory(prefix="ngvi-upstream-") as folder:
        checkouts = []
        for path in options.checkouts:
            if path.is_file():
                with tarfile.open(path) as archive:
                    archive.extractall(folder, filter="data")
                checkouts += [Path(folder, ppl) for ppl in FILES]
            else:
                checkouts.append(path)
        sys.exit(max(run(checkout, sys.argv[end + 1 :]) for checkout in checkouts))


if __name__ == "__main__":
    main()
