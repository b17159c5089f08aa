"""What knows nothing of the PPL is the same text in both packages."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["search", "stochastic", "start", "outcome"])
def test_the_search_is_the_same_in_both_packages(name):
    numpyro, pyro = (
        (ROOT / package / "fit" / f"{name}.py").read_text()
        for package in ("numpyro_ngvi", "pyro_ngvi")
    )
    assert pyro == numpyro.replace("numpyro_ngvi", "pyro_ngvi")
