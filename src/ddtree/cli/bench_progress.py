"""How far a benchmark is, on standard error: a live bar on a terminal, plain lines elsewhere."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn


class BenchProgress:
    """The runner's `Progress`. Use as a context manager."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TextColumn("{task.fields[left]}"),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task: TaskID | None = None
        self._total = 0.0
        self._done = 0.0
        self._on_file = 0.0
        self._started = time.monotonic()

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def total(self, work: float) -> None:
        """All the work from here on, 0 while unknown; the clock starts here."""
        self._total, self._done, self._on_file = work, 0.0, 0.0
        self._started = time.monotonic()
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task("bench", total=work or None, left="")

    def advance(self, label: str, work: float, tokens_per_s: float | None) -> None:
        """A part is done; one without a speed was on file already."""
        if tokens_per_s is None:
            self._on_file += work
        else:
            self._done += work
        speed = "" if tokens_per_s is None else f"  {tokens_per_s:.1f} tok/s"
        left = self._left()
        if self._task is not None:
            self._bar.update(self._task, advance=work, description=label + speed, left=left)
        if not self._console.is_terminal:
            self._line(f"{self._share()}  {label}{speed}  {left}".rstrip())

    def note(self, text: str) -> None:
        """A line above the bar."""
        self._line(text)

    def _line(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)

    def _share(self) -> str:
        if not self._total:
            return "   -"
        return f"{min(1.0, (self._done + self._on_file) / self._total):4.0%}"

    def _left(self) -> str:
        """Time left at the pace so far; work on file took no time."""
        rest = self._total - self._done - self._on_file
        if self._done <= 0 or rest <= 0:
            return ""
        seconds = (time.monotonic() - self._started) * rest / self._done
        return f"about {seconds / 60:.0f} min left" if seconds > 90 else f"{seconds:.0f} s left"
