"""How each number is defined, where the run comes from, and the specification it followed."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from ddtree.report.numbers import DASH

METRICS: tuple[tuple[str, str], ...] = (
    (
        "Speed-up",
        "Against the named baseline, same prompts, same blocks. Concurrency 1: geometric mean of "
        "per-prompt decode ratios. Above 1: ratio of system throughputs. Answers that fit in one "
        "chunk are left out and counted, and so are blocks in which a request failed.",
    ),
    (
        "Interval",
        "Two-sided confidence interval of a paired bootstrap over blocks, then prompts. A win has "
        "all of it above 1; with fewer than three blocks there is none (n too small), and no win.",
    ),
    (
        "End-to-end speed-up",
        "The same comparison from request sent to last token, so the prompt's processing, which "
        "no draft shortens, is in it.",
    ),
    ("Time to first token", "Request sent to first token, on the client's clock."),
    (
        "Time per output token",
        "(Last chunk's time − first chunk's time) / (output tokens − tokens in the first chunk).",
    ),
    ("Decode tokens per second", "1 / time per output token, of one request: what one user sees."),
    (
        "System tokens per second",
        "Tokens inside the window in which all concurrent slots are busy / its length. A slot is "
        "busy from a request's first token to its last, so the prompt's own work is outside.",
    ),
    (
        "Acceptance length",
        "1 + sum(accepted draft tokens) / rounds, counted before any cut by a stop or a limit; the "
        "1 is the bonus token.",
    ),
    ("Acceptance by depth", "Share of rounds that accepted at least d draft tokens."),
    ("Round", "One draft, verify, accept, commit; its time is the sum of its stages."),
    (
        "Round cost, acceptance gain",
        "Seconds of a round over those of a step of the baseline; tokens per round over the "
        "baseline's 1. Their quotient is the speed-up but for what lies outside rounds.",
    ),
    (
        "Rescued, node use, rank",
        "Share of rounds whose accepted path left the drafter's top-1 chain; accepted over "
        "verified nodes; a node's place among the drafter's candidates at its depth, from 0.",
    ),
    (
        "Quantile",
        "An order statistic over requests, given only where so many can bound it: 59 for p95, 299 "
        "for p99.",
    ),
    (
        "Prediction",
        "Acceptance length replayed over the baseline's outputs over the measured or interpolated "
        "time of a round. Its error is predicted over measured speed-up, minus 1.",
    ),
    (
        "Screened, sentinel",
        "Cells that only served to choose arms, and the baseline at one setting, repeated to see "
        "whether the machine drifts. Neither ranks.",
    ),
    ("Budget, topk", "Draft nodes verified per round, root not counted; candidates per depth."),
    (
        "Temperature",
        "0 is greedy. Above 0 every request has a seed, the same for each arm, so that each arm "
        "has to give the baseline's very tokens.",
    ),
    ("Draft window", "Committed context tokens that the drafter sees; positions stay absolute."),
    (
        "Control of speed",
        "Decode speed of ar on a server with the drafter loaded / on a server without one, and how "
        "many of their outputs are identical.",
    ),
    (
        "Losslessness",
        "Every output against the baseline's, token by token; a sampled one against that of the "
        "same seed. Exact: identical. Near-ties: differs only where the baseline's own scores lie "
        "within rounding. Not lossless: a suspect "
        "(a gap larger than the control explains, or more near-ties per token than the control's "
        "flips per position allow at 99.9 %) or a bug (beyond that).",
    ),
    (
        "Gap in ULPs",
        "Difference of the baseline's scores for the two tokens (logits; sampled, with temperature "
        "times the seed's noise), in units in the last place of "
        "bf16 at the size of the top logit.",
    ),
    (
        "Control of rounding",
        "The baseline's own prefixes scored without a drafter, one row against as many rows as a "
        "verification takes: flips of the top token and the largest gap.",
    ),
)


@dataclass(frozen=True)
class Fact:
    """One line of provenance; `name` is the path of keys to it."""

    name: str
    value: str


def facts(provenance: dict[str, Any]) -> tuple[Fact, ...]:
    """Provenance flattened, in its own order: `versions.torch`, `2.13.0`."""
    return tuple(_flatten("", provenance))


def _flatten(path: str, value: Any) -> Iterator[Fact]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _flatten(f"{path}.{key}" if path else str(key), inner)
    elif isinstance(value, list | tuple) and not any(isinstance(v, dict | list) for v in value):
        yield Fact(path, ", ".join(str(item) for item in value) or DASH)
    elif path:
        yield Fact(path, DASH if value in (None, "", {}) else str(value))


def spec_text(spec: dict[str, Any]) -> str:
    """The specification as YAML, keys in their own order; empty for an empty one."""
    if not spec:
        return ""
    plain = json.loads(json.dumps(spec, default=str))
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=88).rstrip()
