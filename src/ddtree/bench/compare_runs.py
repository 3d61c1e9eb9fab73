"""Two runs as they lie on disk, and whether they may be compared at all."""

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ddtree.bench.pairing import CellData
from ddtree.bench.summarise import LEDGER_FILE, read_run, summarise
from ddtree.errors import ConfigError
from ddtree.records.arms import Arm
from ddtree.records.ledger import Ledger
from ddtree.records.settings import Setting
from ddtree.records.summary import CellSummary, RunSummary
from ddtree.records.summary_json import read_summary

Place = tuple[Arm, Setting]

ALLOWED = ("hardware", "drafter", "endpoint", "versions", "server")
"""What `--allow` lets differ: each is something whose effect a comparison may be made for."""

# What a different value of makes other work of the same cell.
_SAME_SPEC = ("max_tokens", "ignore_eos", "workload", "top_p", "top_k", "min_p")
_HARDWARE = ("cpu", "physical_cores", "logical_cores", "usable_cpus", "memory_bytes")
_SERVER = ("threads", "device", "rounds", "omp_wait_policy", "coupled_drafting", "max_stall_s")


@dataclass(frozen=True)
class ComparedRun:
    """One side. `cells` and `identities` are empty for a `summary.json` alone, which has no
    requests.
    """

    name: str
    summary: RunSummary
    cells: Mapping[Place, CellData]
    identities: Mapping[str, Mapping[str, Any]]

    @cached_property
    def places(self) -> Mapping[Place, CellSummary]:
        """The cells that may rank."""
        return {(cell.arm, cell.setting): cell for cell in self.summary.cells}

    @property
    def seed(self) -> int:
        """Of the run's own intervals."""
        return int(self.summary.spec.get("seed", 0))

    @property
    def server(self) -> Mapping[str, Any]:
        """What the server said of itself."""
        return self.summary.provenance.get("server") or {}


def read_side(path: Path) -> ComparedRun:
    """A run folder, or a `summary.json`; ConfigError where it is neither."""
    if path.is_dir():
        run = read_run(path)
        cells = {(cell.row.arm, cell.row.setting): cell for cell in run.arms}
        with Ledger.read(path / LEDGER_FILE) as ledger:
            identities = ledger.identities()
        return ComparedRun(str(path), summarise(path), cells, identities)
    return ComparedRun(str(path), load_summary(path), {}, {})


def load_summary(path: Path) -> RunSummary:
    """A `summary.json`; ConfigError where it is none, or of another schema."""
    try:
        return read_summary(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: neither a run folder nor a summary ({error})") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}: not a summary.json ({error!r})") from None


def check_comparable(a: ComparedRun, b: ComparedRun, allow: Collection[str]) -> tuple[str, ...]:
    """What differs and was allowed to; ConfigError names everything else that differs."""
    unknown = sorted(set(allow) - set(ALLOWED))
    if unknown:
        raise ConfigError(f"--allow: got {unknown[0]!r}, expected one of {', '.join(ALLOWED)}")
    refused = list(_always(a, b))
    permitted = []
    if not (a.cells and b.cells):
        permitted.append("metric version and checkpoint: not known of a summary without its folder")
    for kind, text in _sometimes(a, b):
        if kind in allow:
            permitted.append(text)
        else:
            refused.append(f"{text} (--allow {kind} compares all the same)")
    if refused:
        raise ConfigError(f"{a.name} and {b.name} can't be compared: " + "; ".join(refused))
    return tuple(permitted)


def _always(a: ComparedRun, b: ComparedRun) -> Iterator[str]:
    """Differences that leave nothing to compare."""
    yield from _differ("dtype", a.summary.dtype, b.summary.dtype)
    for name in _SAME_SPEC:
        yield from _differ(name, a.summary.spec.get(name), b.summary.spec.get(name))
    if a.cells and b.cells:
        # The same checkpoint may lie elsewhere on another machine.
        for name in ("metric_version", "model_sha256"):
            yield from _differ(name, _of_cells(a, name), _of_cells(b, name))
    else:
        yield from _differ("model", a.summary.model, b.summary.model)


def _sometimes(a: ComparedRun, b: ComparedRun) -> Iterator[tuple[str, str]]:
    """(what `--allow` calls it, difference)."""
    known = (a.summary.provenance, b.summary.provenance)
    for name in _HARDWARE:
        for text in _differ(name, known[0].get(name), known[1].get(name)):
            yield "hardware", text
    for text in _differ("endpoint", a.summary.endpoint, b.summary.endpoint):
        yield "endpoint", text
    drafters = [_of_cells(run, "drafter_sha256") for run in (a, b)]
    if a.cells and b.cells:
        for text in _differ("drafter", *drafters):
            yield "drafter", text
    for name in _SERVER:
        for text in _differ(name, a.server.get(name), b.server.get(name)):
            yield "server", text
    versions = [side.get("versions") or {} for side in known]
    for name in sorted((versions[0].keys() | versions[1].keys()) - {"ddtree"}):
        for text in _differ(name, versions[0].get(name), versions[1].get(name)):
            yield "versions", text


def _differ(name: str, a: object, b: object) -> Iterator[str]:
    if a != b:
        yield f"{name}: {_short(a)} against {_short(b)}"


def _short(value: object) -> str:
    return repr(value[:12]) if isinstance(value, str) and len(value) == 64 else repr(value)


def _of_cells(run: ComparedRun, name: str) -> object:
    """The value that all cells in use have; several are a list. None for a summary alone."""
    used = {cell.row.key for cell in run.cells.values()}
    found = {json.dumps(run.identities[key].get(name)) for key in used if key in run.identities}
    values = [json.loads(text) for text in sorted(found)]
    return values[0] if len(values) == 1 else values or None
