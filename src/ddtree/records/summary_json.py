"""Summaries, and a tuning's decisions, back from JSON."""

import json
from collections.abc import Callable
from typing import Any

from ddtree.errors import ConfigError
from ddtree.records.arms import Arm
from ddtree.records.settings import Setting
from ddtree.records.summary import (
    SCHEMA_VERSION,
    CellSummary,
    Choice,
    Control,
    Interval,
    Losslessness,
    Prediction,
    Rung,
    RunSummary,
    Sentinel,
    Skip,
    Spread,
    TreeUse,
    Verdict,
)


def read_summary(text: str) -> RunSummary:
    """What `RunSummary.to_json` wrote; ConfigError on another schema version."""
    data = json.loads(text)
    if data.get("schema_version") != SCHEMA_VERSION:
        raise ConfigError(
            f"summary: schema_version {data.get('schema_version')!r}, expected "
            f"{SCHEMA_VERSION}; make the report again with the version that wrote the run"
        )
    data["verdict"] = _verdict(data["verdict"])
    for name, read in _LISTS.items():
        data[name] = tuple(read(item) for item in data[name])
    return RunSummary(**data)


def _interval(data: dict[str, Any] | None) -> Interval | None:
    return None if data is None else Interval(**data)


def _spread(data: dict[str, Any] | None) -> Spread | None:
    return None if data is None else Spread(**data)


def _tree(data: dict[str, Any] | None) -> TreeUse | None:
    if data is None:
        return None
    lists = {name: tuple(data[name]) for name in ("accepted_ranks", "gain_by_node")}
    return TreeUse(**{**data, **lists})


def _cell(data: dict[str, Any]) -> CellSummary:
    intervals = (
        "speedup_interval",
        "speedup_vs_chain_interval",
        "end_to_end_interval",
        "acceptance_interval",
    )
    return CellSummary(
        **{
            **data,
            **{name: _interval(data[name]) for name in intervals},
            **{name: _spread(data[name]) for name in ("ttft", "tpot", "end_to_end")},
            **{name: tuple(data[name]) for name in ("accepted_by_depth", "ratio_deciles", "flags")},
            "arm": Arm(**data["arm"]),
            "tree": _tree(data["tree"]),
            "losslessness": Losslessness(**data["losslessness"]),
        }
    )


def _control(data: dict[str, Any]) -> Control:
    return Control(**{**data, "ratio_interval": _interval(data["ratio_interval"])})


def _prediction(data: dict[str, Any]) -> Prediction:
    return Prediction(**{**data, "arm": Arm(**data["arm"]), "setting": Setting(**data["setting"])})


def _skip(data: dict[str, Any]) -> Skip:
    same = data["same_as"]
    return Skip(
        Arm(**data["arm"]),
        Setting(**data["setting"]),
        data["reason"],
        None if same is None else Arm(**same),
    )


def _rung(data: dict[str, Any]) -> Rung:
    return Rung(
        **{
            **data,
            "setting": Setting(**data["setting"]),
            "arms": tuple(Arm(**arm) for arm in data["arms"]),
            "speedups": tuple(data["speedups"]),
            "kept": tuple(Arm(**arm) for arm in data["kept"]),
        }
    )


def _sentinel(data: dict[str, Any]) -> Sentinel:
    return Sentinel(**data)


_LISTS: dict[str, Callable[[dict[str, Any]], object]] = {
    "cells": _cell,
    "controls": _control,
    "screened": _cell,
    "predictions": _prediction,
    "rungs": _rung,
    "skips": _skip,
    "sentinels": _sentinel,
}


def read_tuning(
    data: dict[str, Any],
) -> tuple[tuple[Skip, ...], tuple[Prediction, ...], tuple[Rung, ...]]:
    """Skips, predictions and rungs of a run folder's `tuning.json`; what is missing is empty."""
    return (
        tuple(map(_skip, data.get("skips", ()))),
        tuple(map(_prediction, data.get("predictions", ()))),
        tuple(map(_rung, data.get("rungs", ()))),
    )


def _verdict(data: dict[str, Any]) -> Verdict:
    return Verdict(
        **{
            **data,
            "arm": None if data["arm"] is None else Arm(**data["arm"]),
            "choices": tuple(Choice(**{**c, "arm": Arm(**c["arm"])}) for c in data["choices"]),
            "warnings": tuple(data["warnings"]),
        }
    )
