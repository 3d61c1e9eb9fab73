"""A request's life inside the engine."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from ddtree.core import LogitEdits
from ddtree.engine.params import Speculation
from ddtree.engine.sampling_params import SamplingParams
from ddtree.errors import DDTreeError, EngineError, RequestError
from ddtree.models.text import TextStream
from ddtree.records.rounds import GenerationStats

State = Literal["waiting", "prefilling", "decoding", "finished"]
FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True)
class ResolvedSpeculation:
    """A request's speculation, resolved against the engine: budget 0 drafts nothing.

    `last_root`: the last position of a root behind which a block still fits the drafter's own
    limit; beyond it the request goes on without drafts.
    """

    budget: int
    topk: int
    window: int
    last_root: int


@dataclass(frozen=True)
class TokenLogprob:
    """A generated token's raw log-probability under the target, and the best tokens' with theirs,
    best first: before temperature, filters, penalties and bans."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(eq=False)
class Request:
    """Mutable state, owned by the engine; callers read it.

    `slot` is its ring in the drafter's cache; in the target's it has `room` cells from `base` on;
    slot -1 holds neither. `length` counts tokens whose keys are in the pool; the root (the last
    generated token) is not among them. `pending` holds target features of committed tokens that
    the drafter has not been fed yet, for positions `length - len(pending)` and on: [n, F]. `seed`
    is the one in use, drawn where the request named none. `text` follows the output where stop
    strings end it. `edits` are those for the next token, None where logits are used as they are.
    `logprobs` has one entry per output token if they were asked for, `ranks` one per round: the
    accepted nodes' ranks among their depth's candidates; `nodes` likewise, their places in the
    tree's best-first order.
    """

    number: int
    prompt: tuple[int, ...]
    sampling: SamplingParams
    speculation: Speculation
    resolved: ResolvedSpeculation
    seed: int
    stop_ids: frozenset[int]
    limit: int  # generated tokens at most, the context's end included
    stats: GenerationStats
    text: TextStream | None = None
    slot: int = -1
    base: int = -1
    room: int = 0
    length: int = 0
    output: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    ranks: list[tuple[int, ...]] = field(default_factory=list)
    nodes: list[tuple[int, ...]] = field(default_factory=list)
    pending: Tensor | None = None
    edits: LogitEdits | None = None
    finish_reason: FinishReason | None = None
    error: str | None = None
    error_field: str | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None

    @property
    def decode_tokens_per_s(self) -> float | None:
        """Tokens after the first over the seconds they took; None for a single token."""
        if self.first_token_s is None or self.last_token_s is None or len(self.output) < 2:
            return None
        return (len(self.output) - 1) / (self.last_token_s - self.first_token_s)

    def summary(self) -> dict[str, Any]:
        """What was asked for, resolved, and how it went: for JSON."""
        stats = self.stats
        return {
            "method": self.speculation.method,
            "budget": self.resolved.budget,
            "topk": self.resolved.topk,
            "draft_window": self.resolved.window if self.speculates else None,
            "temperature": self.sampling.temperature,
            "seed": self.seed if self.sampling.temperature > 0 else None,
            "prompt_tokens": stats.prompt_tokens,
            "completion_tokens": stats.completion_tokens,
            "rounds": stats.rounds,
            "undrafted_rounds": stats.undrafted_rounds,
            "acceptance_length": stats.acceptance_length,
            "accepted_histogram": stats.accepted_histogram,
            "accepted_ranks": self.ranks,
            "accepted_nodes": self.nodes,
            "tree_nodes": stats.tree_nodes,
            "cut_tokens": stats.cut_tokens,
            "stage_seconds": stats.stage_seconds,
            "decode_tokens_per_s": self.decode_tokens_per_s,
            "token_ids": self.output,
        }

    @property
    def root(self) -> int:
        """The last committed token, next to be decoded."""
        return self.output[-1]

    @property
    def failure(self) -> DDTreeError | None:
        """What ended it, as an error: the request's own field, or the engine's models."""
        if self.error is None:
            return None
        if self.error_field is None:
            return EngineError(self.error)
        return RequestError(self.error_field, self.error)

    @property
    def root_position(self) -> int:
        """Absolute position of the last token, after which the next is chosen; a prompt's last
        token before the first round."""
        return len(self.prompt) + len(self.output) - 1

    @property
    def state(self) -> State:
        """Where it is in its life."""
        if self.finish_reason is not None:
            return "finished"
        if self.slot < 0:
            return "waiting"
        return "prefilling" if self.remaining else "decoding"

    @property
    def most_tokens(self) -> int:
        """Prompt and output tokens at most."""
        return len(self.prompt) + self.limit

    @property
    def remaining(self) -> int:
        """Prompt tokens whose keys are not in the pool yet."""
        return max(0, len(self.prompt) - self.length)

    @property
    def speculates(self) -> bool:
        """Whether this request feeds and asks the drafter."""
        return self.resolved.budget > 0 and self.root_position <= self.resolved.last_root

    def add_round(
        self, ranks: Sequence[int], nodes: Sequence[int], num_nodes: int, seconds: dict[str, float]
    ) -> None:
        """Count a round of `num_nodes` draft nodes that accepted those of these ranks and places;
        its tokens are still to be taken."""
        self.ranks.append(tuple(ranks))
        self.nodes.append(tuple(nodes))
        self.stats.add_round(len(ranks), num_nodes, seconds)
        if self.resolved.budget and not self.speculates:
            self.stats.undrafted_rounds += 1

    def visible(self, tokens: Sequence[int]) -> list[int]:
        """Of generated tokens, those whose text is shown: a stop token's is not."""
        return [token for token in tokens if token not in self.stop_ids]

    def take(self, tokens: list[int]) -> list[int]:
        """Append generated tokens up to a stop or the limit; finish if one is reached.

        Returns what was appended; the rest is counted as cut.
        """
        kept: list[int] = []
        for token in tokens:
            kept.append(token)
            if token in self.stop_ids or self._completes_a_stop(token):
                self.finish_reason = "stop"
                break
            if len(self.output) + len(kept) >= self.limit:
                self.finish_reason = "length"
                break
        self.last_token_s = time.perf_counter()
        if not self.output:
            self.first_token_s = self.last_token_s
        self.output.extend(kept)
        if self.edits is not None:
            for token in kept:
                self.edits = self.edits.advance(
                    torch.tensor([token], device=self.edits.bias.device)
                )
        self.stats.completion_tokens += len(kept)
        self.stats.cut_tokens += len(tokens) - len(kept)
        return kept

    def _completes_a_stop(self, token: int) -> bool:
        if self.text is None:
            return False
        self.text.push([token])
        return self.text.stopped
