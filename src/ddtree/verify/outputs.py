"""Two outputs of one prompt, compared by token ids; lengths that no logits could explain."""

from dataclasses import dataclass, field

from ddtree.errors import ConfigError
from ddtree.records.sampling import Sampling


@dataclass(frozen=True)
class Output:
    """A prompt and what decoding gave for it, end-of-sequence token included.

    `max_tokens` is the limit the request was sent with, `sampling` its sampling, seed included.
    `ranks` has one entry per round: the ranks, among their depth's candidates, of the draft tokens
    it accepted; None where the server doesn't say. With `stop_strings` the request named some: then
    the last token of an output that stopped is no sign of an end elsewhere.
    """

    prompt: tuple[int, ...]
    token_ids: tuple[int, ...]
    finish_reason: str | None
    max_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    ranks: tuple[tuple[int, ...], ...] | None = None
    stop_strings: bool = False


@dataclass(frozen=True)
class Comparison:
    """Token by token: `first_divergence` is an index into both outputs, None when there is none.

    `fault` names an end that no logits could explain: cut short, run past the stop, or the same
    tokens with a finish reason that they don't bear out.
    """

    identical: bool
    first_divergence: int | None
    fault: str | None


def compare(baseline: Output, arm: Output, eos_ids: frozenset[int] = frozenset()) -> Comparison:
    """Compare two outputs of one prompt. ConfigError when prompts or sampling differ.

    `eos_ids` are the ids that end a sequence; leave them out where requests ignore them.
    """
    if baseline.prompt != arm.prompt:
        raise ConfigError("outputs of different prompts can't be compared; pair them by prompt id")
    if baseline.sampling != arm.sampling:
        raise ConfigError("outputs of different sampling or seed can't be compared token by token")
    if baseline.token_ids == arm.token_ids:
        fault = _finish_fault(baseline, arm)
        return Comparison(fault is None, None, fault)
    pairs = zip(baseline.token_ids, arm.token_ids, strict=False)
    first = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    return Comparison(False, first, _length_fault(baseline, arm, first, eos_ids))


def _finish_fault(baseline: Output, arm: Output) -> str | None:
    """An end that the same tokens don't explain.

    Servers differ in what they call a stop token at the limit, so `length` there is no fault.
    """
    if arm.finish_reason == baseline.finish_reason:
        return None
    if arm.finish_reason == "length" and len(arm.token_ids) == arm.max_tokens:
        return None
    return f"finish reason {arm.finish_reason!r} where the baseline has {baseline.finish_reason!r}"


def _length_fault(
    baseline: Output, arm: Output, first: int | None, eos_ids: frozenset[int]
) -> str | None:
    """A length that no choice between two tokens leads to."""
    length, limit = len(arm.token_ids), arm.max_tokens
    if length > limit:
        return f"{length} tokens, over the limit of {limit}"
    # A context that is full ends outputs below the limit, all at the same length.
    full = baseline.finish_reason == "length" and len(baseline.token_ids) == length
    if arm.finish_reason == "length" and length < limit and not full:
        return f"cut at {length} tokens, under the limit of {limit}"
    if arm.finish_reason not in ("stop", "length"):
        return f"finish reason {arm.finish_reason!r}"
    if first is None:
        return f"{length} tokens where the baseline has {len(baseline.token_ids)}, equal until then"
    stops = eos_ids
    if baseline.finish_reason == "stop" and not baseline.stop_strings:
        stops = eos_ids | set(baseline.token_ids[-1:])
    if eos_ids and arm.finish_reason == "stop" and not stops & set(arm.token_ids[-1:]):
        return f"stopped at {length} tokens without a stop token"
    through = next((token for token in arm.token_ids[:-1] if token in stops), None)
    return None if through is None else f"went on after the stop token {through}"
