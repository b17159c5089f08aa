"""Here a claim about families is a claim about every family."""

from __future__ import annotations

import pytest

from tests.reference import ALL_FAMILIES


@pytest.fixture(params=ALL_FAMILIES)
def family_name(request):
    return request.param
