"""What the figures of examples and benchmarks were measured on."""

from __future__ import annotations

import importlib.metadata
import os
import platform

PACKAGES = ("torch", "pyro-ppl", "jax", "numpyro", "optax")


def describe() -> str:
    """One line: processor, cores, Python and the packages that matter."""
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)
    cores = os.cpu_count() or 1
    used = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores
    ours = f", {used} of them used" if used < cores else ""
    return f"{_processor()}, {cores} cores{ours}, Python {platform.python_version()}, {versions}"


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
