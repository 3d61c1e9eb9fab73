import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def recursion_limit() -> Iterator[None]:
    """Programs that are run in this process may raise it; other tests count on it."""
    before = sys.getrecursionlimit()
    yield
    sys.setrecursionlimit(before)
