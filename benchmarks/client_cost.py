"""What the streaming client costs: its CPU share at 64 streams and 2,500 events a second.

A case of the self-test (`ddtree bench selftest`): 64 streams of one token each 25.6 ms, out of a
server process of its own, through the benchmark's client, loop, request log and lag probe. The
share is the client process's CPU time over wall clock time, scaled from the events a second that
came to 2,500. `stream` has one long answer a slot and `batch` sends every slot's token at the same
moment, as servers that batch do; in `steady` an answer has 100 tokens, so starting requests and
writing their records weighs in. Below 0.1 the client stays out of the
server's way on a core that they share.

    python benchmarks/client_cost.py --out benchmarks/results/HARDWARE/client_cost.json
"""

import argparse
import statistics
import sys
from dataclasses import asdict
from pathlib import Path

from common import progress, write

from ddtree.bench.selftest import run_selftest
from ddtree.endpoint.loop import run

EVENTS_PER_S = 2500.0
LIMIT = 0.10


def main() -> None:
    """Measure, write, and exit 1 above the limit."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--out", type=Path, required=True, help="result file (JSON)")
    options.add_argument("--concurrency", type=int, default=64)
    options.add_argument("--seconds", type=float, default=20.0)
    options.add_argument("--repeats", type=int, default=3)
    options.set_defaults(device="cpu")
    args = options.parse_args()
    runs = {
        case: [measure(case, args.concurrency, args.seconds) for _ in range(args.repeats)]
        for case in ("stream", "batch", "steady")
    }
    shares = {
        case: statistics.median(run["share"] for run in found) for case, found in runs.items()
    }
    passed = shares["stream"] < LIMIT
    write(args, {"limit": LIMIT, "shares": shares, "passed": passed, "runs": runs})
    if not passed:
        sys.exit(1)


def measure(case: str, concurrency: int, seconds: float) -> dict[str, float | dict[str, object]]:
    """One run of one case."""
    (result,) = run(run_selftest(concurrency, seconds, [case]))
    events = next(row.measured for row in result.rows if row.metric == "chunks")
    cost = result.client_cpu * result.seconds / events
    progress(f"{case}: {1e6 * cost:.1f} us an event, {EVENTS_PER_S * cost:.1%} of a core")
    return {
        "events": events,
        "events_per_s": events / result.seconds,
        "us_per_event": 1e6 * cost,
        "share": EVENTS_PER_S * cost,
        "case": asdict(result),
    }


if __name__ == "__main__":
    main()
