"""POST /v1/replay: what arms would have accepted of an answer that is known."""

from typing import Annotated, Any, Literal

from fastapi import Request
from fastapi.responses import Response
from pydantic import Field

from ddtree.engine import ReplayJob, SamplingParams, make_replay
from ddtree.engine import Request as EngineRequest
from ddtree.engine.replay import naming_arm
from ddtree.errors import EngineError
from ddtree.serve.answers import FinishReason
from ddtree.serve.fields import Ids, SpeculationFields, Strict
from ddtree.serve.generation import answered
from ddtree.serve.schema import DEFAULT_TEMPERATURE, SamplingFields
from ddtree.serve.worker import EngineWorker, Ticket

# All arms that stand at one token are built in one batch.
MAX_ARMS = 512


class ReplayRequest(SamplingFields):
    """POST /v1/replay.

    `output` is what a request with these sampling fields answered to `prompt`, its last token
    included, and has ended. Above temperature 0 `seed` is the one that was in use.
    """

    prompt: Annotated[Ids, Field(min_length=1)]
    output: Annotated[Ids, Field(min_length=1)]
    finish_reason: FinishReason
    arms: Annotated[list[SpeculationFields], Field(min_length=1, max_length=MAX_ARMS)]

    def sampling_params(self) -> SamplingParams:
        """The engine's form."""
        given = {name: getattr(self, name) for name in SamplingFields.model_fields}
        chosen: dict[str, Any] = {"temperature": DEFAULT_TEMPERATURE}
        chosen |= {k: value for k, value in given.items() if k != "model" and value is not None}
        return SamplingParams(**chosen)


class ReplayedArm(Strict):
    """Fields as in the stats of a request with this arm; `truncated_rounds` counts those that
    accepted more than the output holds or ended behind its end."""

    method: Literal["ar", "chain", "ddtree"]
    budget: int
    topk: int
    draft_window: int | None
    rounds: int
    undrafted_rounds: int
    acceptance_length: float | None
    accepted_histogram: list[int]
    accepted_ranks: list[list[int]]
    accepted_nodes: list[list[int]]
    tree_nodes: int
    cut_tokens: int
    truncated_rounds: int


class ReplayAnswer(Strict):
    """`arms` in the order asked for; `positions`: tokens behind which something was drafted."""

    arms: list[ReplayedArm]
    positions: int


class Replaying:
    """Answers replay calls."""

    def __init__(self, worker: EngineWorker) -> None:
        self._worker = worker

    async def answer(self, call: Request, body: ReplayRequest) -> Response:
        """Replay; RequestError for what can't be, before anything is computed."""
        arms = []
        for place, arm in enumerate(body.arms):
            with naming_arm(place):
                arms.append(arm.to_speculation())
        maker = self._worker.engine.maker
        job = make_replay(maker, body.prompt, body.output, arms, body.sampling_params())
        ticket = self._worker.submit(job)
        try:
            return await answered(call, _whole(ticket, job))
        finally:
            self._worker.abort(ticket)


async def _whole(ticket: Ticket, job: ReplayJob) -> dict[str, Any]:
    await ticket.finish()
    if job.error is not None:
        raise EngineError(job.error)
    return {"arms": [_replayed(arm) for arm in job.arms], "positions": job.positions}


def _replayed(arm: EngineRequest) -> dict[str, Any]:
    told = arm.summary() | {"truncated_rounds": int(arm.stats.cut_tokens > 0)}
    return {name: told[name] for name in ReplayedArm.model_fields}
