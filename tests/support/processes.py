"""What a test leaves running."""

from collections.abc import Iterator
from contextlib import contextmanager

import psutil


@contextmanager
def nothing_left_running() -> Iterator[None]:
    """Fails when this process has a child or grandchild afterwards that it didn't have before."""
    # Servers of other tests may live on in this process.
    before = set(psutil.Process().children(recursive=True))
    yield
    assert not set(psutil.Process().children(recursive=True)) - before
