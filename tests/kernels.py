"""Numerical tests with the kernels of other processors: none depends on the last bits.

``python tests/kernels.py [ARGUMENTS OF PYTEST]`` runs a selection of the suite for each row of
:data:`KERNELS` that this processor can run.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

#: By OpenBLAS's name of a kernel: what ATen and XLA may use besides.
KERNELS = {
    "Haswell": ("avx2", "AVX2"),
    "SkylakeX": ("avx512", "AVX512"),
    "Prescott": ("default", "SSE4_2"),
}

#: What rounds, and is quick: families and their steps, rules, estimators, searches.
SUITES = (
    "tests/families/test_every_family.py",
    "tests/families/test_mixture.py",
    "tests/families/test_path.py",
    "tests/families/test_steps.py",
    "tests/optim/test_blr.py",
    "tests/optim/test_quasi_newton.py",
    "tests/optim/test_trust_region.py",
    "tests/estimators/test_draws.py",
    "tests/estimators/test_spherical.py",
    "tests/inference/test_certificate.py",
    "tests/inference/test_local_search.py",
    "tests/inference/test_multistart.py",
    "tests/inference/test_runaway.py",
    "tests/inference/test_stochastic.py",
    "tests/inference/test_validation.py",
)

#: Names the features that numpy can do without, beyond its baseline.
NUMPY_FEATURES = """
from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__
print(*(name for name in __cpu_dispatch__ if __cpu_features__[name]))
"""

#: Fails where the processor lacks a kernel's instructions.
TRIAL = "import numpy as np; a = np.eye(64); np.linalg.cholesky(a @ a); np.linalg.eigh(a)"


def environment(kernel: str) -> dict[str, str]:
    """Variables that make all libraries use a kernel."""
    aten, xla = KERNELS[kernel]
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_max_isa={xla}"
    known = {"OPENBLAS_CORETYPE": kernel, "ATEN_CPU_CAPABILITY": aten, "XLA_FLAGS": flags}
    if kernel == "Prescott":
        known["NPY_DISABLE_CPU_FEATURES"] = python("-c", NUMPY_FEATURES, capture_output=True).stdout
    return {**os.environ, **known}


def python(*arguments: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, text=True, **options)


def main(arguments: list[str]) -> int:
    """The largest exit status of pytest."""
    statuses = []
    for kernel in KERNELS:
        variables = environment(kernel)
        if python("-c", TRIAL, env=variables, stderr=subprocess.DEVNULL).returncode:
            print(f"ngvi: {kernel} is skipped: this processor lacks its instructions", flush=True)
            continue
        print(f"ngvi: {kernel}", flush=True)
        command = "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", *SUITES
        statuses.append(python(*command, *arguments, env=variables).returncode)
    return max(statuses, default=1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
