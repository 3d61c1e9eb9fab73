"""What other ways of drafting would have accepted of an output that is known.

A round's outcome depends on the drafts and on the target's tokens, and the tokens are given. So one
pass of the target over prompt and output, for the features that drafts are made from, serves any
number of arms: each makes its rounds with the engine's own drafts, trees and acceptance, and only
verifying is left out. Arms that stand at the same token with the same window share a draft.

An output's last round may accept more than the output holds. The engine counts what it accepted
before it cuts, so the target's own continuation is decoded for a block behind the output's end, as
far as a draft can reach.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ddtree.core import Candidates, DraftTree, accept, empty_tree, layout_tree
from ddtree.core.walk import UNVISITED
from ddtree.engine.choosing import make_edits
from ddtree.engine.drafting import Drafting
from ddtree.engine.job import Job
from ddtree.engine.loop import RoundLoop, accepted_paths
from ddtree.engine.making import RequestMaker
from ddtree.engine.params import Speculation
from ddtree.engine.request import Request
from ddtree.engine.sampling_params import SamplingParams
from ddtree.errors import EngineError, RequestError
from ddtree.records.rounds import GenerationStats

_NO_NUMBERS = "the {}'s logits hold NaN or infinity; a replay would mean nothing"


@dataclass(eq=False)
class ReplayJob(Job):
    """Replays `output` for each of `arms`, requests that are never scheduled: when the job is over
    their stats, ranks and nodes are those of a request that was.

    `reader` holds the target's context; its output is the given one and what the target goes on
    with. `positions` counts the tokens of the output behind which something was drafted.
    """

    reader: Request
    arms: tuple[Request, ...]
    output: tuple[int, ...]
    slot: int = -1
    base: int = -1
    room: int = 0
    positions: int = 0
    finished: bool = False
    error: str | None = None
    _features: list[Tensor] = field(default_factory=list)  # of the output's tokens, each [n, F]
    _last: Tensor | None = None  # hidden states [1, E] of the last token read
    _fed: int = 0  # tokens of the output that the drafter has been fed

    @property
    def most_tokens(self) -> int:
        """Prompt and output; the continuation is no longer than a round."""
        return len(self.reader.prompt) + len(self.output)

    def advance(self, loop: RoundLoop, allowance: int) -> None:
        """A pass over the prompt's next tokens, the output's next, one token behind its end, or the
        rounds of all arms that stand at the first token where one does."""
        reader = self.reader
        reader.slot, reader.base, reader.room = self.slot, self.base, self.room
        if reader.remaining:
            chunk = reader.prompt[reader.length :][:allowance]
            if not all(loop.prefill([(reader, chunk)]).sound):
                raise EngineError(_NO_NUMBERS.format("target"))
        elif reader.length < self.most_tokens:
            self._read(loop, allowance)
        elif len(reader.output) < len(self.output) + self._beyond(loop.drafting):
            self._continue(loop)
        else:
            self._round(loop)
        self.finished = not self._open()

    def _beyond(self, drafting: Drafting | None) -> int:
        """Tokens behind the output that a draft can hold. The last root is the last but one token,
        and which token comes behind the deepest node is of no interest: it would be cut."""
        drafts = self.reader.resolved.budget > 0
        return drafting.block - 2 if drafting is not None and drafts else 0

    def _open(self) -> list[Request]:
        return [arm for arm in self.arms if arm.finish_reason is None]

    def _read(self, loop: RoundLoop, allowance: int) -> None:
        """The output's next tokens. Their features wait: a ring fed with all of them would have
        lost what rounds at the first ones see."""
        reader = self.reader
        ids = self.output[reader.length - len(reader.prompt) :][:allowance]
        wanted = reader.resolved.budget > 0
        hidden, features = loop.read(reader, ids, features=wanted)
        if not bool(hidden.isfinite().all()):
            raise EngineError(_NO_NUMBERS.format("target"))
        if features is not None:
            self._features.append(features[0])
        if reader.length == self.most_tokens:
            self._last = hidden[:, -1]
            if reader.sampling.has_edits:
                vocabulary = loop.target.shape.vocab_size
                edits = make_edits(reader.sampling, reader.prompt, reader.stop_ids, vocabulary)
                reader.edits = edits.to(hidden.device)
            reader.take(list(self.output))

    def _continue(self, loop: RoundLoop) -> None:
        """One more token of the target's own."""
        if self._last is None:
            self._last = loop.extend(self.reader, self.reader.output[-1:])[:, -1]
        first = loop.first_tokens([self.reader], self._last)[0]
        if first.fault is not None:
            raise EngineError(_NO_NUMBERS.format("target"))
        self.reader.take([first.token])
        self._last = None

    @torch.inference_mode()
    def _round(self, loop: RoundLoop) -> None:
        """The round of each arm at the first root that any has."""
        loop.pulse.beat()  # which only the target's layers do
        root = min(len(arm.output) for arm in self._open()) - 1
        arms = [arm for arm in self._open() if len(arm.output) - 1 == root]
        tree = self._trees(loop, arms, root)
        device = tree.tokens.device
        here = torch.full((len(arms),), self.output[root], device=device)
        rows = layout_tree(tree, here, here)
        # The target's token at a row whose path is the output's depends on the depth alone; other
        # rows are never reached.
        ahead = self.reader.output[root + 1 :][: tree.max_depth + 1]
        ahead += [UNVISITED] * (tree.max_depth + 1 - len(ahead))
        depths = torch.nn.functional.pad(tree.depths, (1, 0))
        accepted = accept(tree, rows, torch.tensor(ahead, device=device)[depths])
        counts = accepted.num_accepted.tolist()
        ranks, nodes = accepted_paths(tree, accepted, counts)
        tokens, sizes = accepted.tokens.tolist(), tree.counts.tolist()
        for row, (arm, count) in enumerate(zip(arms, counts, strict=True)):
            arm.add_round(ranks[row], nodes[row], sizes[row], {})
            arm.length += count + 1
            arm.take(tokens[row][: count + 1])

    def _trees(self, loop: RoundLoop, arms: Sequence[Request], root: int) -> DraftTree:
        """Each arm's tree behind token `root` of the output."""
        asking = [arm for arm in arms if arm.speculates]
        if loop.drafting is None or not asking:
            return empty_tree(len(arms), loop.target.device)
        lead, windows = asking[0], sorted({arm.resolved.window for arm in asking})
        lead.slot = self.slot
        if self._fed < root:
            lead.pending = torch.cat(self._features)[self._fed : root]
            self._fed = root
        logits = loop.drafting.draft_windows(lead, windows)
        topk = max(arm.resolved.topk for arm in asking)
        found = loop.candidates([lead] * len(windows), logits, topk)
        if bool(found.invalid.any()):
            raise EngineError(_NO_NUMBERS.format("drafter"))
        self.positions += 1
        rows = [windows.index(arm.resolved.window) for arm in asking]
        own = Candidates(found.tokens[rows], found.log_probs[rows], found.invalid[rows])
        return loop.trees(arms, own)


def make_replay(
    maker: RequestMaker,
    prompt: Sequence[int],
    output: Sequence[int],
    arms: Sequence[Speculation],
    sampling: SamplingParams | None = None,
) -> ReplayJob:
    """A replay of an answer that has ended, whatever ended it; any thread may call it.

    `sampling` is the request's, its `seed` the one in use; limits and stops are not looked at.
    RequestError names what can't be replayed, arm i as arms.i.
    """
    sampling = sampling or SamplingParams()
    if not output:
        raise RequestError("output", "is empty; at least one token is needed")
    if not arms:
        raise RequestError("arms", "is empty; name at least one")
    if sampling.temperature > 0 and sampling.seed is None:
        raise RequestError("seed", "is needed above temperature 0: drafts look at its noise")
    maker.check_ids("output", output)
    sampling = replace(sampling, max_tokens=len(output), min_tokens=0, stop=(), logprobs=None)
    plain = maker.make_request(prompt, sampling, Speculation("ar"))
    if plain.limit < len(output):
        raise RequestError(
            "output",
            f"has {len(output)} tokens, the context has room for {plain.limit} behind this prompt",
        )
    plain.stop_ids = frozenset()
    made = [_arm(maker, plain, speculation, place) for place, speculation in enumerate(arms)]
    for arm in made:
        arm.take([output[0]])
    reader = max(made, key=lambda arm: arm.resolved.budget)
    # Never ended by its limit: it goes on behind the output.
    reader = _fresh(reader, length=0, limit=2 * plain.most_tokens)
    return ReplayJob(reader, tuple(made), tuple(output))


@contextlib.contextmanager
def naming_arm(place: int) -> Iterator[None]:
    """RequestErrors of a speculation inside are those of arm `place` of a list."""
    try:
        yield
    except RequestError as error:
        name = error.field.removeprefix("speculation.")
        message = str(error).removeprefix(f"{error.field}: ")
        raise RequestError(f"arms.{place}.{name}", message) from None


def _arm(maker: RequestMaker, plain: Request, speculation: Speculation, place: int) -> Request:
    with naming_arm(place):
        resolved = maker.resolve(speculation)
    arm = _fresh(plain, length=len(plain.prompt), limit=plain.limit)
    arm.speculation, arm.resolved = speculation, resolved
    return arm


def _fresh(request: Request, length: int, limit: int) -> Request:
    """The same with nothing generated yet, `length` tokens of it in the caches."""
    stats = GenerationStats(len(request.prompt))
    lists: dict[str, list[object]] = {name: [] for name in ("output", "logprobs", "ranks", "nodes")}
    return replace(request, length=length, limit=limit, stats=stats, finish_reason=None, **lists)  # type: ignore[arg-type]
