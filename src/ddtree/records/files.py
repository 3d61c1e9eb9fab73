"""Files that stay whole when the process is killed: replaced at once, or appended line by line."""

import os
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from ddtree.errors import ConfigError
from ddtree.records.requests import RequestRecord


def write_atomic(path: Path, content: str | bytes) -> None:
    """Replace `path` by `content` (text as UTF-8): after a kill it holds the old or the new, whole.

    The folder is made if need be. OSError as from any write; no partial file is left then.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fd, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes files private; this one is for whoever may read the folder.
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    sync_path(path.parent)


class RequestLog:
    """`requests.jsonl`, opened to append. A torn last line is cut off on opening.

    One log per file; its threads may append at the same time.
    """

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._file = path.open("ab", buffering=0)
        try:
            _mend(path)
            sync_path(path.parent)
        except BaseException:
            self._file.close()
            raise

    def append(self, records: Iterable[RequestRecord]) -> None:
        """Write a batch and wait until the disk has it (one fsync for the batch).

        When the write fails (disk full), the batch is taken back whole and OSError goes on.
        """
        data = memoryview("".join(record.to_json() + "\n" for record in records).encode())
        with self._lock:
            before = self._file.seek(0, os.SEEK_END)
            try:
                while data:
                    data = data[self._file.write(data) :]
                os.fsync(self._file.fileno())
            except OSError:
                self._file.truncate(before)
                raise

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()


def read_requests(path: Path) -> tuple[RequestRecord, ...]:
    """All finished lines in the order written; a last line without its end is left out.

    ConfigError names a line that can't be read: a kill tears only the last one.
    """
    if not path.exists():
        return ()
    lines = path.read_bytes().split(b"\n")
    records = []
    for number, line in enumerate(lines[:-1], start=1):
        try:
            records.append(RequestRecord.from_json(line.decode()))
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigError(f"{path}, line {number}: not a request record ({error})") from None
    return tuple(records)


def _mend(path: Path) -> None:
    data = path.read_bytes()
    end = data.rfind(b"\n") + 1
    if end != len(data):
        os.truncate(path, end)


def sync_path(path: Path) -> None:
    """Force a file's or a folder's content to the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
