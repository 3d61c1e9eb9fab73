"""What a cell's requests say against it: outputs that no grade covers, and flags, which a reader
should know of and which make nothing invalid."""

import dataclasses
import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import chain

from ddtree.bench.pairing import CellData, busy_slots, pairs, speed_ratios, unanswered
from ddtree.records.requests import RequestRecord
from ddtree.records.statistics import OUTLIER_MADS, outliers
from ddtree.records.summary import Losslessness

# Numbers and what stands in brackets tell flags of one kind apart.
_DETAILS = re.compile(r"\([^)]*\)|[0-9.]+")


def losslessness_of(
    cell: CellData, baseline: CellData | None, grade: Losslessness | None
) -> Losslessness:
    """The recorded grade, unless the requests hold what it doesn't cover.

    Outputs that came since, or prompts that the baseline finished and this arm failed, leave the
    cell unclassified; an answer whose counts contradict each other is a bug.
    """
    if cell.row.arm.method == "ar":
        count = len(cell.finished)
        return grade or Losslessness("baseline", outputs=count, identical=count)
    grade = grade or Losslessness("unclassified", outputs=0, identical=0)
    if cell.miscounts:
        return dataclasses.replace(
            grade,
            grade="not-lossless",
            outputs=grade.outputs + cell.miscounts,
            bugs=grade.bugs + cell.miscounts,
        )
    if baseline is None or grade.grade == "not-lossless":
        return grade
    both = [pair for block in pairs(cell.blocks, baseline.blocks) for pair in block]
    differing = sum(_output(mine) != _output(base) for mine, base in both)
    covered = len(both) <= grade.outputs and differing <= grade.outputs - grade.identical
    if not covered or unanswered(cell.blocks, baseline.blocks):
        return dataclasses.replace(grade, grade="unclassified")
    return grade


def _output(record: RequestRecord) -> tuple[tuple[int, ...], str | None]:
    """What was said: ids where they came, else the text."""
    return record.token_ids, None if record.token_ids else record.text


def flags_of(cell: CellData, baseline: CellData | None, speedup: float | None) -> Iterator[str]:
    """What blocks noted, lengths that differ, failures in quantiles, outliers: none is left out of
    any number, so the speed-up is given with and without them."""
    noted: dict[str, list[str]] = defaultdict(list)
    for extra in cell.extras.values():
        for flag in extra.get("flags", ()):
            noted[_DETAILS.sub("", flag)].append(flag)
    for alike in noted.values():
        more = f" (the first of {len(alike)} such flags)" if len(alike) > 1 else ""
        yield alike[0] + more
    mismatches = sum(extra.get("length_mismatches", 0) for extra in cell.extras.values())
    if mismatches:
        yield f"{mismatches} outputs are not as long as the baseline's"
    if cell.failures and cell.finished:
        yield f"quantiles count {cell.failures.total()} failed requests as slower than any other"
    if baseline is None or baseline is cell or speedup is None:
        return
    ratios = speed_ratios(cell.blocks, baseline.blocks, busy_slots(cell.row.setting))
    flat = list(chain.from_iterable(ratios))
    found = outliers(flat)
    if found is not None:
        yield (
            f"{found.count} of {len(flat)} ratios lie over {OUTLIER_MADS:g} median absolute "
            f"deviations from the median: {speedup:.3f}x with them, {found.ratio_without:.3f}x "
            "without"
        )
