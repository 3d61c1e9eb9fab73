"""What extraction costs on long answers: 80,000 lines of thinking must take less than 50 ms.

python benchmarks/extract_cost.py --out benchmarks/results/HARDWARE/extract_cost.json
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

from common import progress, write

from ddtree.evals.extract.extract import extract
from ddtree.evals.tasks import AssertTests, Task

LIMIT_S = 0.050
TASK = Task("even", "", "total", AssertTests(""))
ANSWER = "```python\ndef total(xs):\n    return sum(x for x in xs if x % 2 == 0)\n```\n"
LINES = {
    "prose": "So x < y, and then the sum of all even numbers must be at least that.",
    "code": "    result = [x for x in values if x % 2 == 0 and x < limit]",
    "drafts": "```python\ndef total(xs):\n    return -1\n```",
    "quoted tags": "I close with '</think>' when I am done.\n" + "\n".join(["Now x < y."] * 9),
}


def main() -> None:
    """Measure, write, and exit 1 above the limit."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--out", type=Path, required=True, help="result file (JSON)")
    options.add_argument("--lines", type=int, default=80_000)
    options.add_argument("--repeats", type=int, default=9)
    options.set_defaults(device="cpu")
    args = options.parse_args()
    seconds = {name: measure(line, args.lines, args.repeats) for name, line in LINES.items()}
    passed = max(seconds.values()) < LIMIT_S
    write(args, {"limit_s": LIMIT_S, "lines": args.lines, "seconds": seconds, "passed": passed})
    if not passed:
        sys.exit(1)


def measure(line: str, lines: int, repeats: int) -> float:
    """Median seconds for a thinking of so many lines, and a short answer."""
    unit = f"{line}\n"
    text = f"<think>\n{unit * (lines // unit.count(chr(10)))}</think>\n{ANSWER}"
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        found = extract(text, TASK)
        times.append(time.perf_counter() - start)
        assert found.program is not None
        assert found.block == 0
    progress(f"{line[:30]!r}: {1e3 * statistics.median(times):.1f} ms")
    return statistics.median(times)


if __name__ == "__main__":
    main()
