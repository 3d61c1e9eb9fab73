"""The ledger of a run folder: which cells and blocks exist, how they ended, how they were graded.

One writer at a time, many readers. The requests themselves are in `requests.jsonl` beside it
(`ddtree.records.files`); a block's row says which of them count: those whose (cell, block,
attempt) is the row's and whose row is `ok`.
"""

import dataclasses
import fcntl
import hashlib
import json
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal, Self

from ddtree.errors import ConfigError
from ddtree.records.arms import Arm
from ddtree.records.metrics import METRIC_VERSION
from ddtree.records.settings import Setting
from ddtree.records.summary import CellState, Control, Interval, Losslessness

SCHEMA_VERSION = 3

Role = Literal["arm", "screen", "sentinel", "control-with-drafter", "control-without-drafter"]
"""`arm` cells may be recommended; `screen` cells only chose which arms became such."""
BlockState = CellState

_SCHEMA = (
    """CREATE TABLE campaign (
        spec_hash TEXT NOT NULL, created REAL NOT NULL, starts INTEGER NOT NULL)""",
    """CREATE TABLE cells (
        id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, role TEXT NOT NULL, arm TEXT NOT NULL,
        context INTEGER NOT NULL, concurrency INTEGER NOT NULL, temperature REAL NOT NULL,
        rate REAL NOT NULL, identity TEXT NOT NULL, state TEXT NOT NULL, reason TEXT,
        used INTEGER NOT NULL)""",
    """CREATE TABLE blocks (
        cell TEXT NOT NULL REFERENCES cells (key), idx INTEGER NOT NULL, attempt INTEGER NOT NULL,
        state TEXT NOT NULL, reason TEXT, started REAL, ended REAL, extra TEXT NOT NULL,
        PRIMARY KEY (cell, idx, attempt))""",
    "CREATE TABLE grades (cell TEXT PRIMARY KEY REFERENCES cells (key), losslessness TEXT)",
    """CREATE TABLE controls (context INTEGER, concurrency INTEGER, control TEXT NOT NULL,
        PRIMARY KEY (context, concurrency))""",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)


@dataclass(frozen=True)
class CellIdentity:
    """Everything that could change a cell's result: change one field and it is another cell.

    `max_tokens` is the spec's limit (the cap by the baseline's length follows from the prompts).
    `drafter_sha256` is None on a server without a drafter. `settings` holds further names and
    values, such as threads and slots, in any order.
    """

    arm: Arm
    context: int
    concurrency: int
    temperature: float
    max_tokens: int
    prompts_sha256: str
    model_sha256: str
    drafter_sha256: str | None
    dtype: str
    server_version: str
    role: Role = "arm"
    settings: tuple[tuple[str, str], ...] = ()
    metric_version: int = METRIC_VERSION
    rate: float = 0.0

    def to_canonical(self) -> str:
        """JSON in which equal identities are equal strings."""
        fields = dataclasses.asdict(self) | {
            "arm": self.arm.to_request(),
            "temperature": float(self.temperature),
            "rate": float(self.rate),
            "settings": dict(self.settings),
        }
        return json.dumps(fields, sort_keys=True, separators=(",", ":"))


def cell_key(identity: CellIdentity) -> str:
    """sha256 of the identity's canonical JSON, in hex."""
    return hashlib.sha256(identity.to_canonical().encode()).hexdigest()


@dataclass(frozen=True)
class CellRow:
    """A cell as the ledger holds it; `reason` says why it is not `ok`."""

    key: str
    role: Role
    arm: Arm
    context: int
    concurrency: int
    temperature: float
    rate: float
    state: CellState
    reason: str | None

    @property
    def setting(self) -> Setting:
        """Where it is measured."""
        return Setting(self.context, self.concurrency, self.temperature, self.rate)

    @property
    def place(self) -> str:
        """`ddtree(8,4) at ` and the setting's name."""
        return f"{self.arm.label} at {self.setting.name}"


@dataclass(frozen=True)
class BlockRow:
    """One attempt at one block of a cell; `started` and `ended` are seconds since the epoch.

    `reason` is why it is `invalid`, or the class of failure of a `failed` one. `extra` keeps
    what was observed meanwhile (CPU share of others, calibration, `crashes`).
    """

    cell: str
    index: int
    attempt: int
    state: BlockState
    reason: str | None
    started: float | None
    ended: float | None
    extra: dict[str, Any]


class Ledger:
    """`ledger.sqlite`. Every method that writes has committed when it returns."""

    def __init__(self, lock: IO[bytes] | None, db: sqlite3.Connection) -> None:
        self._lock = lock
        self._db = db

    @classmethod
    def open(cls, path: Path, spec_hash: str) -> Self:
        """Open for writing, or create. A block left `running` by a crash is `planned` again.

        Its next attempt gets a new number, so requests that the crashed one logged stay on file
        and are not counted twice. ConfigError when another process writes here, when the run was
        started with another spec, or on an unknown schema.
        """
        ledger = cls(_lock(path.with_name(path.name + ".lock")), _connect(str(path), uri=False))
        try:
            ledger._prepare(path, spec_hash)
        except BaseException:
            ledger.close()
            raise
        return ledger

    @classmethod
    def read(cls, path: Path) -> Self:
        """Open for reading only, also while a run is writing. ConfigError if it isn't a ledger."""
        if not path.is_file():
            raise ConfigError(f"{path}: no such file; is this a run folder?")
        db = _connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
        ledger = cls(None, db)
        try:
            ledger._check(path)
        except ConfigError:
            ledger.close()
            raise
        return ledger

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Everything read inside is of one moment, whatever a run writes meanwhile."""
        self._db.execute("BEGIN")
        try:
            yield
        finally:
            self._db.execute("ROLLBACK")

    def close(self) -> None:
        """Close the file and let another writer in."""
        self._db.close()
        if self._lock is not None:
            self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def spec_hash(self) -> str:
        """Hash of the spec that the run was started with."""
        return str(self._db.execute("SELECT spec_hash FROM campaign").fetchone()[0])

    @property
    def created(self) -> float:
        """When the run was started, seconds since the epoch."""
        return float(self._db.execute("SELECT created FROM campaign").fetchone()[0])

    def add_cell(self, identity: CellIdentity) -> str:
        """Plan a cell unless it exists, and note that this start uses it; its key either way."""
        key = cell_key(identity)
        self._db.execute(
            "INSERT INTO cells (key, role, arm, context, concurrency, temperature, rate, identity, "
            "state, used) SELECT ?, ?, ?, ?, ?, ?, ?, ?, 'planned', starts FROM campaign "
            "WHERE true "
            "ON CONFLICT (key) DO UPDATE SET used = excluded.used",
            (
                key,
                identity.role,
                json.dumps(identity.arm.to_request()),
                identity.context,
                identity.concurrency,
                identity.temperature,
                identity.rate,
                identity.to_canonical(),
            ),
        )
        return key

    def set_cell_state(self, key: str, state: CellState, reason: str | None = None) -> None:
        """Record how a cell stands; ConfigError when there is no such cell."""
        changed = self._db.execute(
            "UPDATE cells SET state = ?, reason = ? WHERE key = ?", (state, reason, key)
        )
        if changed.rowcount != 1:
            raise ConfigError(f"cell {key[:12]}: not in the ledger; add_cell comes first")

    def cells(self) -> tuple[CellRow, ...]:
        """All cells: those of earlier starts first, the ones that the newest start uses last."""
        rows = self._db.execute(
            "SELECT key, role, arm, context, concurrency, temperature, rate, state, reason "
            "FROM cells ORDER BY used, id"
        )
        return tuple(CellRow(r[0], r[1], Arm.from_dict(json.loads(r[2])), *r[3:]) for r in rows)

    def identities(self) -> dict[str, dict[str, Any]]:
        """What each cell's key is the hash of, by key."""
        rows = self._db.execute("SELECT key, identity FROM cells")
        return {key: json.loads(text) for key, text in rows}

    def start_block(self, cell: str, index: int) -> int:
        """Mark a block `running`; the attempt number that its request records must carry.

        The first attempt is 0; starting a block whose last attempt is invalid, failed or
        quarantined begins the next one. ConfigError when it is `ok` or already running.
        """
        last = self.last_attempt(cell, index)
        if last is not None and last.state in ("ok", "running"):
            raise ConfigError(
                f"block {index} of cell {cell[:12]} is {last.state}: not to be started"
            )
        attempt, extra = 0, "{}"
        if last is not None:
            again = last.state == "planned"
            attempt = last.attempt if again else last.attempt + 1
            extra = json.dumps(last.extra) if again else extra
        self._db.execute(
            "INSERT OR REPLACE INTO blocks VALUES (?, ?, ?, 'running', NULL, ?, NULL, ?)",
            (cell, index, attempt, time.time(), extra),
        )
        return attempt

    def finish_block(
        self,
        cell: str,
        index: int,
        state: BlockState,
        reason: str | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Record how the last attempt ended; `extra` joins what is there.

        An `ok` block may still become invalid, because one arm's trouble voids the block for all.
        ConfigError when the block is neither running nor ok.
        """
        last = self.last_attempt(cell, index)
        if last is None or last.state not in ("running", "ok"):
            state_now = "not there" if last is None else last.state
            raise ConfigError(f"block {index} of cell {cell[:12]} is {state_now}: can't be {state}")
        joined = json.dumps(last.extra | dict(extra or {}))
        ended = last.ended if last.ended is not None else time.time()
        self._db.execute(
            "UPDATE blocks SET state = ?, reason = ?, ended = ?, extra = ? "
            "WHERE cell = ? AND idx = ? AND attempt = ?",
            (state, reason, ended, joined, cell, index, last.attempt),
        )

    def last_attempt(self, cell: str, index: int) -> BlockRow | None:
        """The newest attempt at a block; None before the first."""
        attempts = self._blocks("WHERE cell = ? AND idx = ?", (cell, index))
        return attempts[-1] if attempts else None

    def blocks(self, cell: str | None = None) -> tuple[BlockRow, ...]:
        """All attempts at all blocks, of one cell if given, by cell, index, attempt."""
        return self._blocks("WHERE cell = ?", (cell,)) if cell else self._blocks("", ())

    def set_grade(self, cell: str, losslessness: Losslessness) -> None:
        """Record or replace a cell's grade."""
        text = json.dumps(dataclasses.asdict(losslessness))
        self._db.execute("INSERT OR REPLACE INTO grades VALUES (?, ?)", (cell, text))

    def grades(self) -> dict[str, Losslessness]:
        """Grades by cell key."""
        rows = self._db.execute("SELECT cell, losslessness FROM grades")
        return {cell: Losslessness(**json.loads(text)) for cell, text in rows}

    def set_control(self, control: Control) -> None:
        """Record or replace the control at its (context, concurrency)."""
        text = json.dumps(dataclasses.asdict(control))
        self._db.execute(
            "INSERT OR REPLACE INTO controls VALUES (?, ?, ?)",
            (control.context, control.concurrency, text),
        )

    def controls(self) -> tuple[Control, ...]:
        """All controls, by context and concurrency."""
        rows = self._db.execute("SELECT control FROM controls ORDER BY context, concurrency")
        found = [json.loads(text) for (text,) in rows]
        for fields in found:
            if fields["ratio_interval"] is not None:
                fields["ratio_interval"] = Interval(**fields["ratio_interval"])
        return tuple(Control(**fields) for fields in found)

    def _blocks(self, where: str, values: tuple[str | int, ...]) -> tuple[BlockRow, ...]:
        rows = self._db.execute(
            "SELECT cell, idx, attempt, state, reason, started, ended, extra FROM blocks "
            f"{where} ORDER BY cell, idx, attempt",
            values,
        )
        return tuple(BlockRow(*[*row[:-1], json.loads(row[-1])]) for row in rows)

    def _prepare(self, path: Path, spec_hash: str) -> None:
        self._check(path, new=spec_hash)
        if self.spec_hash != spec_hash:
            raise ConfigError(
                f"{path}: made by the spec with hash {self.spec_hash[:12]}, this one has "
                f"{spec_hash[:12]}; use another folder for another spec"
            )
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute("UPDATE campaign SET starts = starts + 1")
        self._put_back_crashed()

    def _create(self, spec_hash: str) -> None:
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            for statement in _SCHEMA:
                self._db.execute(statement)
            self._db.execute("INSERT INTO campaign VALUES (?, ?, 0)", (spec_hash, time.time()))

    def _check(self, path: Path, new: str | None = None) -> None:
        """Refuse what isn't a ledger of this version; an empty file becomes one of spec `new`."""
        try:
            if new is not None and not self._db.execute("SELECT 1 FROM sqlite_master").fetchone():
                self._create(new)
            version = self._db.execute("PRAGMA user_version").fetchone()[0]
        except sqlite3.DatabaseError as error:
            raise ConfigError(f"{path}: not a ledger ({error}); use another folder") from None
        if version != SCHEMA_VERSION:
            raise ConfigError(
                f"{path}: ledger schema {version}, this version reads {SCHEMA_VERSION}; "
                "use the ddtree that wrote it, or another folder"
            )

    def _put_back_crashed(self) -> None:
        for row in self._blocks("WHERE state = 'running'", ()):
            extra = row.extra | {"crashes": row.extra.get("crashes", 0) + 1}
            self._db.execute(
                "UPDATE blocks SET state = 'planned', attempt = attempt + 1, started = NULL, "
                "extra = ? WHERE cell = ? AND idx = ? AND attempt = ?",
                (json.dumps(extra), row.cell, row.index, row.attempt),
            )
        self._db.execute("UPDATE cells SET state = 'planned' WHERE state = 'running'")


def _lock(path: Path) -> IO[bytes]:
    """An exclusive lock that the system drops when its process ends, however it ends."""
    handle = path.open("ab")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        handle.close()
        raise ConfigError(f"{path.parent}: another run is writing here; wait or stop it") from None
    return handle


def _connect(target: str, *, uri: bool) -> sqlite3.Connection:
    db = sqlite3.connect(target, uri=uri, isolation_level=None)
    db.execute("PRAGMA foreign_keys = ON")
    return db
