import pytest

from tests.fit.results import Ppl


@pytest.fixture
def ppl(backend):
    """Either package, in float64, with the results of :mod:`tests.fit.results`."""
    return Ppl(backend)
