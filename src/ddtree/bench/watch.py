"""Was the machine ours while a block ran? CPU taken by others, and the baseline's own pace."""

import os
import re
import statistics
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import psutil

from ddtree.records.metrics import chunk_gaps_s, stage_seconds_per_round
from ddtree.records.requests import RequestRecord

T = TypeVar("T")

_STAT = Path("/proc/stat")
_CPU_LINE = re.compile(r"^cpu(\d+) ", re.MULTILINE)

OTHERS_LIMIT = 0.05
STEP_LIMIT = 1.5
# The kernel counts CPU time in ticks of 10 ms, and by sampling: two per core are noise.
_NOISE_S_PER_CORE = 0.02


@dataclass(frozen=True)
class CpuReading:
    """Seconds since boot: wall clock, busy over our cores, and busy in our own processes."""

    at_s: float
    busy_s: float
    own_s: float
    cores: int


Reader = Callable[[], CpuReading]


@dataclass(frozen=True)
class CpuShare:
    """Between two readings: what other processes took, over what the server could have used."""

    seconds: float
    others: float


def share_between(before: CpuReading, after: CpuReading, threads: int | None = None) -> CpuShare:
    """What others took, as a share of the cores, or of the server's `threads` if they are fewer.

    Within the counters' noise it is 0. On more cores than threads it can exceed 1.
    """
    seconds = after.at_s - before.at_s
    others_s = (after.busy_s - before.busy_s) - (after.own_s - before.own_s)
    others_s = max(0.0, others_s - _NOISE_S_PER_CORE * after.cores)
    capacity = seconds * min(after.cores, threads or after.cores)
    return CpuShare(seconds, others_s / capacity if capacity > 0 else 0.0)


def cpu_reader(server_pids: Callable[[], Iterable[int]]) -> Reader:
    """A reader of this machine: our own are this process, the servers, and all their children.

    Busy is every core this process may run on, whoever used it, time stolen by a hypervisor
    included: it slows us no less.
    """

    def read() -> CpuReading:
        busy = [_busy(times) for times in ours(_per_core(), _cores())]
        own = sum(_tree_seconds(pid) for pid in {os.getpid(), *server_pids()})
        return CpuReading(time.monotonic(), sum(busy), own, len(busy))

    return read


def ours(per_core: Mapping[int, T], cores: Collection[int]) -> tuple[T, ...]:
    """What belongs to `cores`, of counters by CPU id; all of it where an id is unknown there.

    A container may see its own CPUs alone, numbered anew, while its affinity keeps the host's ids.
    """
    if per_core.keys() >= set(cores):
        return tuple(per_core[core] for core in cores)
    return tuple(per_core.values())


def others_reason(share: CpuShare) -> str | None:
    """Why a block is invalid by its CPU share; None if it isn't."""
    if share.others <= OTHERS_LIMIT:
        return None
    return (
        f"other processes took {share.others:.1%} CPU (limit {OTHERS_LIMIT:.0%}); "
        "stop them, or use a quieter machine"
    )


def step_s(records: Sequence[RequestRecord]) -> float | None:
    """Seconds a step of these requests took by the server's own clock, a mean over their rounds.

    Where the server reports no stages it is the median gap between chunks, which other requests'
    prefill lengthens. None where neither is known.
    """
    stages = stage_seconds_per_round(records)
    return median_step_s(records) if stages is None else sum(stages.values())


def median_step_s(records: Sequence[RequestRecord]) -> float | None:
    """Median gap between chunks over these requests; None without a gap."""
    gaps = [gap for record in records for gap in chunk_gaps_s(record)]
    return statistics.median(gaps) if gaps else None


def step_reason(step_s: float | None, calibration_s: float | None) -> str | None:
    """Why a block is invalid by its baseline's pace; None if it isn't or can't be told."""
    # A server that sends chunks faster than they are read shows gaps of none: nothing to go by.
    if step_s is None or not calibration_s or step_s <= STEP_LIMIT * calibration_s:
        return None
    return (
        f"the ar step took {step_s * 1e3:.1f} ms, {step_s / calibration_s:.1f} times its "
        f"calibration of {calibration_s * 1e3:.1f} ms (limit {STEP_LIMIT:g}): a busy neighbour "
        "slows one-row steps most and flatters every other arm"
    )


def _per_core() -> dict[int, object]:
    """Counters by CPU id: psutil lists CPUs that are online, in the kernel's order, without ids."""
    times = psutil.cpu_times(percpu=True)
    ids: Sequence[int] = range(len(times))
    if _STAT.exists():
        found = [int(number) for number in _CPU_LINE.findall(_STAT.read_text())]
        ids = found if len(found) == len(times) else ids
    return dict(zip(ids, times, strict=True))


def _cores() -> list[int]:
    affinity = getattr(os, "sched_getaffinity", None)
    if affinity is None:
        return list(range(psutil.cpu_count() or 1))
    return sorted(affinity(0))


def _busy(times: object) -> float:
    names = ("user", "nice", "system", "irq", "softirq", "steal")
    return sum(float(getattr(times, name, 0.0)) for name in names)


def _tree_seconds(pid: int) -> float:
    """CPU seconds of a process, its living descendants, and the dead ones it has waited for."""
    try:
        root = psutil.Process(pid)
        members = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0.0
    return sum(_process_seconds(member) for member in members)


def _process_seconds(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0.0
    return float(times.user + times.system + times.children_user + times.children_system)
