"""What a server is asked for beyond SGLang's own flags, and the shape that comes of it."""

from collections.abc import Mapping, Set
from dataclasses import asdict, dataclass
from typing import Any

from ddtree.errors import ConfigError
from ddtree.sglang_plugin.rounds import TreeShape

NAME = "DDTREE"
CPU_BACKEND = "ddtree_torch"
# Their kernels read a mask of ancestors; all others would attend as if trees were chains.
TREE_BACKENDS = frozenset(("triton", CPU_BACKEND))
# Sampling parameters that depend on the tokens before each row of a tree, by their neutral value.
PATH_DEPENDENT: Mapping[str, float] = {
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
    "min_new_tokens": 0,
}
DEFAULT_BUDGET = 16
DEFAULT_TOPK = 4
_TRUTH = {"0": False, "1": True}


@dataclass(frozen=True)
class Wishes:
    """Out of the environment: topk, and whether answers carry the ranks of accepted tokens."""

    topk: int
    ranks: bool


def read_wishes(environment: Mapping[str, str]) -> Wishes:
    """DDTREE_TOPK and DDTREE_RANKS; ConfigError for what they can't be, and for other names that
    start with DDTREE_, which would be mistyped."""
    known = {"DDTREE_TOPK", "DDTREE_RANKS"}
    # DDTREE_LAUNCH marks the servers that our benchmark starts.
    ours = {*known, "DDTREE_LAUNCH"}
    strange = sorted(n for n in environment if n.startswith("DDTREE_") and n not in ours)
    if strange:
        raise ConfigError(f"{strange[0]}: unknown; known are {', '.join(sorted(known))}")
    topk = environment.get("DDTREE_TOPK", str(DEFAULT_TOPK))
    if not topk.isdecimal() or int(topk) < 1:
        raise ConfigError(f"DDTREE_TOPK: got {topk!r}, expected an integer of at least 1")
    ranks = environment.get("DDTREE_RANKS", "0")
    if ranks not in _TRUTH:
        raise ConfigError(f"DDTREE_RANKS: got {ranks!r}, expected 0 or 1")
    return Wishes(int(topk), _TRUTH[ranks])


@dataclass(frozen=True)
class Resolved:
    """What a server runs with; `/server_info` shows it under `ddtree` of its internal states."""

    shape: TreeShape
    ranks: bool

    def as_json(self) -> dict[str, Any]:
        """Plain values, as SGLang's arguments hold them."""
        return {**asdict(self.shape), "ranks": self.ranks}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Resolved":
        """The inverse of `as_json`."""
        shape = {name: value for name, value in values.items() if name != "ranks"}
        return cls(TreeShape(**shape), values["ranks"])


def resolve(rows: int | None, block: int, window: int | None, wishes: Wishes) -> Resolved:
    """The shape of `rows` verified rows (the budget and the root) and a block of `block`."""
    rows = DEFAULT_BUDGET + 1 if rows is None else rows
    if rows < 2:
        raise ConfigError(
            f"--speculative-num-draft-tokens: got {rows}, expected at least 2: the budget of draft"
            " nodes and the root"
        )
    if block < 2:
        raise ConfigError(
            f"--speculative-dflash-block-size: got {block}, expected at least 2: the anchor and"
            " one drafted position"
        )
    if window is not None and window < block:
        raise ConfigError(
            f"--speculative-draft-window-size: got {window}, expected at least the drafter's block"
            f" of {block}"
        )
    return Resolved(TreeShape(block, rows - 1, wishes.topk, window), wishes.ranks)


def row_headroom(plain: int, draft_tokens: int) -> int:
    """Columns of a request's row of KV slots beyond the context, where SGLang makes `plain`.

    It reserves two rounds of `draft_tokens` slots ahead of what is committed and makes room for
    one: near the context's end it would write into the next request's row.
    """
    return max(plain, 4 + 2 * draft_tokens)


@dataclass(frozen=True)
class Flags:
    """A server's arguments that DDTREE may not be able to run with, after SGLang's defaults."""

    drafter: str | None
    backends: Set[str]
    page_size: int | None
    pp_size: int
    dp_attention: bool
    logit_processors: bool
    thresholds: tuple[float, float]
    adaptive: bool


def require_supported(flags: Flags) -> None:
    """ConfigError naming the flag, why, and what to say instead."""
    strange = ", ".join(sorted(flags.backends - TREE_BACKENDS))
    refusals = (
        (
            flags.drafter is None,
            "--speculative-draft-model-path: missing, expected a DFlash drafter",
        ),
        (
            strange,
            f"--attention-backend: got {strange}, expected triton, the one whose verifying kernel"
            " reads a tree's mask",
        ),
        (
            flags.page_size not in (None, 1),
            f"--page-size: got {flags.page_size}, expected 1: accepted tokens move one by one",
        ),
        (flags.pp_size != 1, f"--pp-size: got {flags.pp_size}, expected 1"),
        (flags.dp_attention, "--enable-dp-attention: not supported, leave it out"),
        (
            flags.logit_processors,
            "--enable-custom-logit-processor: not supported, processors see one row a request",
        ),
        (
            flags.thresholds != (1.0, 1.0),
            "--speculative-accept-threshold-single, -acc: below 1 outputs would not be the target's"
            " own; leave them out",
        ),
        (flags.adaptive, "--speculative-adaptive: not supported, leave it out"),
    )
    for refused, reason in refusals:
        if refused:
            raise ConfigError(f"{NAME}: {reason}")


def path_problem(fields: Mapping[str, float]) -> str | None:
    """Why a request with these PATH_DEPENDENT values can't be served, or None."""
    for name, neutral in PATH_DEPENDENT.items():
        if fields[name] != neutral:
            return (
                f"{NAME}: {name}: got {fields[name]}, expected {neutral}: it depends on the tokens"
                " before each row of a tree, which this version does not follow"
            )
    return None
