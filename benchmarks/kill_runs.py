"""kill -9 at random moments over a run of 40 cells, again and again: is anything lost?

Each run is the one of tests/bench/kill_bench.py: a mock server and the benchmark's client in
processes of their own, killed (the client, the server, or both) at random moments that follow from
the run's number, started again each time, and let finish. It must then hold the cells, counts,
token ids and grades of a run that nobody killed, and every line of the request log that was whole
at a kill.

    python benchmarks/kill_runs.py --out benchmarks/results/HARDWARE/kill_runs.json
"""

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from common import progress, write

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "bench"))
from kill_bench import KINDS, Killer, Outcome, undisturbed


def main() -> None:
    """Run, write, and exit 1 when a run came to something else."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--out", type=Path, required=True, help="result file (JSON)")
    options.add_argument("--runs", type=int, default=10)
    options.add_argument("--kills", type=int, default=8, help="in each run")
    options.set_defaults(device="cpu")
    args = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        whole = undisturbed(Path(folder))
    runs = [one(number, args.kills, whole) for number in range(args.runs)]
    faults = [run for run in runs if run["fault"] is not None]
    kills = {kind: sum(run["kills"].count(kind) for run in runs) for kind in KINDS}
    result = {"cells": len(whole.cells), "requests": len(whole.outputs), "kills": kills}
    write(args, {"passed": not faults, **result, "runs": runs})
    if faults:
        sys.exit(1)


def one(number: int, kills: int, whole: Outcome) -> dict[str, object]:
    """One run, killed so many times."""
    draw, start = random.Random(number), time.monotonic()
    kinds = [draw.choice(KINDS) for _ in range(kills)]
    fault = None
    with tempfile.TemporaryDirectory() as folder:
        killer = Killer(Path(folder), seed=number)
        try:
            if killer.run(kinds) != whole:
                fault = "it came to something else than a run that nobody killed"
        except AssertionError as error:
            fault = str(error)
    progress(f"run {number}: {', '.join(killer.done)}: {fault or 'as undisturbed'}")
    seconds = round(time.monotonic() - start, 1)
    return {"number": number, "kills": killer.done, "seconds": seconds, "fault": fault}


if __name__ == "__main__":
    main()
