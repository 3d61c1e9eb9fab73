"""From the bytes of a suite's file to its tasks."""

from collections import Counter
from collections.abc import Callable, Mapping

from ddtree.errors import ConfigError
from ddtree.evals.suites.evalplus import read_humaneval_plus, read_mbpp_plus
from ddtree.evals.suites.humaneval import read_humaneval
from ddtree.evals.suites.livecodebench import Window, read_livecodebench
from ddtree.evals.suites.mbpp import read_mbpp
from ddtree.evals.suites.private import read_private
from ddtree.evals.suites.sources import FILE_PREFIX, source_of
from ddtree.evals.tasks import Task

Reader = Callable[[bytes, str], tuple[Task, ...]]

DATED = "livecodebench"
"""Suites whose names start so are dated, and take a window."""

_READERS: Mapping[str, Reader] = {
    "humaneval": read_humaneval,
    "humaneval+": read_humaneval_plus,
    "mbpp": read_mbpp,
    "mbpp+": read_mbpp_plus,
}


def read_suite(name: str, data: bytes, window: Window | None = None) -> tuple[Task, ...]:
    """The tasks of a named suite, or of `file:PATH`, in the file's order.

    `window` belongs to dated suites alone. ConfigError where the file is not as expected (it names
    the place), holds another number of tasks than the suite has, none, or one id twice.
    """
    dated = name.startswith(DATED)
    if window is not None and not dated:
        raise ConfigError(f"suite {name}: its tasks have no dates; leave the window out")
    tasks = _tasks(name, data, window)
    if not tasks:
        raise ConfigError(f"suite {name}: no tasks{' in that window' if window else ''}")
    twice = [task for task, count in Counter(task.id for task in tasks).items() if count > 1]
    if twice:
        raise ConfigError(f"suite {name}: task {twice[0]!r} comes more than once")
    return tasks


def _tasks(name: str, data: bytes, window: Window | None) -> tuple[Task, ...]:
    if name.startswith(FILE_PREFIX):
        return read_private(data, name.removeprefix(FILE_PREFIX))
    source = source_of(name)
    reader = _READERS.get(name)
    tasks = reader(data, name) if reader else read_livecodebench(data, name, window)
    if window is None and len(tasks) != source.tasks:
        raise ConfigError(
            f"suite {name}: the file holds {len(tasks)} tasks, expected {source.tasks}; it must be "
            f"{source.member} of {source.origin}, {source.revision}"
        )
    return tasks
