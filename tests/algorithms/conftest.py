import math

import pytest


@pytest.fixture(params=[math.nan, math.inf, -1e30, 12.5], ids=str)
def junk(request: pytest.FixtureRequest) -> float:
    """Something an observation token might hold."""
    return request.param
