"""Rendered pages of the samples, each made once."""

import functools
from collections.abc import Callable

from ddtree.records.summary import RunSummary
from ddtree.report.page import render_report


@functools.cache
def page_of(make: Callable[[], RunSummary]) -> str:
    """The page of a sample."""
    return render_report(make())
