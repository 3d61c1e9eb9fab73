import errno
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ddtree.errors import ConfigError
from ddtree.records.files import RequestLog, read_requests, write_atomic
from ddtree.records.requests import RequestRecord


def record(prompt_id: str) -> RequestRecord:
    return RequestRecord(
        cell="c",
        attempt=0,
        block=0,
        prompt_id=prompt_id,
        sent_s=0.1,
        chunk_times_s=(0.2, 0.3),
        chunk_tokens=(1, 2),
        end_s=0.3,
        prompt_tokens=4,
        completion_tokens=3,
        finish_reason="stop",
        token_ids=(5, 6, 7),
        error=None,
        stats={"rounds": 1},
    )


@pytest.fixture
def log_path(tmp_path: Path) -> Path:
    return tmp_path / "requests.jsonl"


def test_records_come_back_as_written(log_path: Path) -> None:
    assert read_requests(log_path) == ()
    with RequestLog(log_path) as log:
        log.append([record("a"), record("b")])
        log.append([])
        assert read_requests(log_path) == (record("a"), record("b"))
    with RequestLog(log_path) as log:
        log.append([record("c")])
    assert read_requests(log_path) == (record("a"), record("b"), record("c"))


def test_torn_at_any_byte_loses_only_the_unfinished_line(log_path: Path) -> None:
    whole = (record("a").to_json() + "\n" + record("b").to_json() + "\n").encode()
    first = whole.index(b"\n") + 1
    for cut in range(len(whole)):
        log_path.write_bytes(whole[:cut])
        expected = (record("a"),) if cut >= first else ()
        assert read_requests(log_path) == expected
    for cut in (0, 1, first - 1, first, first + 1, len(whole) - 1):
        log_path.write_bytes(whole[:cut])
        with RequestLog(log_path) as log:
            log.append([record("c")])
        assert read_requests(log_path) == (
            (record("a"), record("c")) if cut >= first else (record("c"),)
        )


@pytest.mark.parametrize("line", ["{}", "nonsense", '{"cell": "c"', "[1]", "\ufffd"])
def test_a_broken_line_in_the_middle_is_named(log_path: Path, line: str) -> None:
    log_path.write_text(f"{record('a').to_json()}\n{line}\n{record('b').to_json()}\n")
    with pytest.raises(ConfigError, match="line 2"):
        read_requests(log_path)


class FullDisk:
    """A raw file whose disk fills up in the middle of a write."""

    def __init__(self, path: Path) -> None:
        self._real = path.open("r+b", buffering=0)
        self.room = 10

    def seek(self, *where: int) -> int:
        return self._real.seek(*where)

    def write(self, data: memoryview) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, "no space left on device")
        written = self._real.write(data[: self.room])
        self.room = 0
        return written

    def truncate(self, size: int) -> int:
        return self._real.truncate(size)

    def fileno(self) -> int:
        return self._real.fileno()

    def close(self) -> None:
        self._real.close()


def test_a_failed_append_is_taken_back_whole(log_path: Path) -> None:
    with RequestLog(log_path) as log:
        log.append([record("a")])
    with RequestLog(log_path) as log:
        real, log._file = log._file, FullDisk(log_path)  # type: ignore[assignment]
        real.close()
        with pytest.raises(OSError, match="no space"):
            log.append([record("b"), record("c")])
    assert log_path.read_text() == record("a").to_json() + "\n"


class SlowDisk(FullDisk):
    """A raw file that takes little at once and lets other threads in between."""

    def write(self, data: memoryview) -> int:
        self._real.seek(0, os.SEEK_END)
        written = self._real.write(data[:40])
        time.sleep(1e-4)
        return written


def test_threads_do_not_mix_their_lines(log_path: Path) -> None:
    with RequestLog(log_path) as log:
        real, log._file = log._file, SlowDisk(log_path)  # type: ignore[assignment]
        real.close()
        batches = [[record(f"{n}.0"), record(f"{n}.1")] for n in range(16)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(log.append, batches))
    found = [r.prompt_id for r in read_requests(log_path)]
    assert sorted(found) == sorted(r.prompt_id for batch in batches for r in batch)


WRITER = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_record_files import record
from ddtree.records.files import RequestLog
log = RequestLog(Path(sys.argv[1]))
log.append([record("a"), record("b")])
log._file.write(record("c").to_json().encode()[:40])
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_kill_9_in_mid_write_loses_no_finished_request(log_path: Path) -> None:
    folder = str(Path(__file__).parent)
    command = [sys.executable, "-c", WRITER, str(log_path), folder]
    assert subprocess.run(command, check=False, timeout=60).returncode == -9
    assert not log_path.read_bytes().endswith(b"\n")
    with RequestLog(log_path) as log:
        log.append([record("d")])
    assert read_requests(log_path) == (record("a"), record("b"), record("d"))


def test_write_atomic_replaces_whole_files(tmp_path: Path) -> None:
    path = tmp_path / "new" / "spec.yaml"
    write_atomic(path, "a: 1\n")
    write_atomic(path, "ä: 2\n")
    assert path.read_text(encoding="utf-8") == "ä: 2\n"
    assert path.stat().st_mode & 0o777 == 0o644
    assert [p.name for p in path.parent.iterdir()] == ["spec.yaml"]


def test_write_atomic_leaves_the_old_text_on_failure(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    write_atomic(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomic(path, "x" * 100_000 + "\ud800")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["spec.yaml"]
