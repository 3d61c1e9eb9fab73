"""Asks our own server what other arms would have accepted of an answer that is known."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ddtree.endpoint.client import ServerClient
from ddtree.errors import EndpointError
from ddtree.records.arms import Arm
from ddtree.records.sampling import Sampling

PATH = "/v1/replay"


@dataclass(frozen=True)
class ReplayedArm:
    """Counts of the rounds that a request with `arm` would have had, as in its stats.

    `accepted_ranks` and `accepted_nodes` have an entry per round. `truncated_rounds`, 0 or 1, is
    the last round if it went beyond the output: what it accepted there is counted, like everywhere.
    """

    arm: Arm
    rounds: int
    accepted_histogram: tuple[int, ...]
    tree_nodes: int
    accepted_ranks: tuple[tuple[int, ...], ...]
    accepted_nodes: tuple[tuple[int, ...], ...]
    truncated_rounds: int

    @property
    def acceptance_length(self) -> float | None:
        """1 + accepted draft tokens by rounds; None without any, as of an output of one token."""
        accepted = sum(a * n for a, n in enumerate(self.accepted_histogram))
        return 1 + accepted / self.rounds if self.rounds else None


async def replay(
    client: ServerClient,
    prompt: Sequence[int],
    output: Sequence[int],
    finish_reason: str,
    arms: Sequence[Arm],
    sampling: Sampling,
) -> list[ReplayedArm]:
    """Replay the `output` that a request with `sampling` had for `prompt` and that ended with
    `finish_reason` ("stop" or "length"); arms in order.

    EndpointError where the server can't: not ours, no drafter, an arm beyond its limits.
    """
    body: dict[str, Any] = {
        "prompt": list(prompt),
        "output": list(output),
        "finish_reason": finish_reason,
        "arms": [arm.to_request() for arm in arms],
        **sampling.to_request(),
    }
    if client.model is not None:
        body["model"] = client.model
    data = await client.call("POST", PATH, body)
    try:
        return [_replayed(arm, told) for arm, told in zip(arms, data["arms"], strict=True)]
    except (KeyError, TypeError, ValueError) as error:
        raise EndpointError(
            f"{client.url}{PATH}: the answer lacks what was asked ({type(error).__name__}: {error})"
        ) from None


def _replayed(arm: Arm, told: dict[str, Any]) -> ReplayedArm:
    return ReplayedArm(
        arm,
        rounds=int(told["rounds"]),
        accepted_histogram=tuple(map(int, told["accepted_histogram"])),
        tree_nodes=int(told["tree_nodes"]),
        accepted_ranks=tuple(tuple(map(int, path)) for path in told["accepted_ranks"]),
        accepted_nodes=tuple(tuple(map(int, path)) for path in told["accepted_nodes"]),
        truncated_rounds=int(told["truncated_rounds"]),
    )
