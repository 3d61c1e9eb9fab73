"""How long the sandbox takes for all of HumanEval's references, and whether verdicts depend on it.

Each tier, each number of workers: 164 programs, a sandbox each. Below 30 s with 2 workers, every
reference passes, and the verdicts are the same with 1, 2 and 4 workers.

    python benchmarks/reference_grading.py --out benchmarks/results/HARDWARE/reference_grading.json
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from common import progress, write

from ddtree.cli.eval_given import read_tasks
from ddtree.errors import ConfigError
from ddtree.evals.sandbox.job import Job
from ddtree.evals.sandbox.pool import Sandbox
from ddtree.evals.sandbox.probe import choose
from ddtree.evals.selfcheck import limits_of
from ddtree.evals.tasks import Task

LIMIT_S = 30.0
WORKERS = (1, 2, 4)
JUDGED_WORKERS = 2


def main() -> None:
    """Measure, write, and exit 1 where the limit or a verdict is missed."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--out", type=Path, required=True, help="result file (JSON)")
    options.add_argument("--limit", type=int, help="the first tasks only")
    options.add_argument("--humaneval", type=Path, help="HumanEval.jsonl.gz")
    options.set_defaults(device="cpu")
    args = options.parse_args()
    tasks = read_tasks("humaneval", args.humaneval, (None, None), args.limit).tasks
    tiers = {}
    for name in ("bubblewrap", "landlock"):
        try:
            report = choose(only=name)
        except ConfigError as error:
            tiers[name] = {"unavailable": str(error)}
            continue
        runs = {count: grade(report.tier, tasks, count) for count in WORKERS}
        outcomes = [found for _, found in runs.values()]
        tiers[name] = {
            "sandbox": report.line,
            "seconds": {count: seconds for count, (seconds, _) in runs.items()},
            "passed": outcomes[0].count("passed"),
            "same_at_all_workers": all(found == outcomes[0] for found in outcomes),
        }
    passed = all(is_right(tier, len(tasks)) for tier in tiers.values())
    write(args, {"limit_s": LIMIT_S, "tasks": len(tasks), "tiers": tiers, "passed": passed})
    if not passed:
        sys.exit(1)


def grade(tier: object, tasks: Sequence[Task], workers: int) -> tuple[float, list[str]]:
    """Seconds from opening the sandbox to the last verdict, and the outcomes in order."""
    jobs = [Job(task.reference, task.tests, task.entry_point, limits_of(task)) for task in tasks]
    start = time.perf_counter()
    with Sandbox.open(tier, workers) as sandbox:
        outcomes = [verdict.outcome for verdict in sandbox.run(jobs)]
    seconds = time.perf_counter() - start
    progress(f"{tier.name}, {workers} workers: {seconds:.1f} s, {outcomes.count('passed')} pass")
    return seconds, outcomes


def is_right(tier: dict[str, object], tasks: int) -> bool:
    """Whether a tier met what it is held to."""
    if "unavailable" in tier:
        return False
    quick = tier["seconds"][JUDGED_WORKERS] < LIMIT_S
    return quick and tier["passed"] == tasks and tier["same_at_all_workers"]


if __name__ == "__main__":
    main()
