"""The answer to a scoring request."""

import time
import uuid
from typing import Any

from ddtree.engine import ScoreJob
from ddtree.errors import EngineError
from ddtree.serve.worker import EngineWorker

# Names in the answer, and where a position's score has them.
_RAW = {
    "token_logprobs": "token_logprob",
    "token_logits": "token_logit",
    "top_ids": "top_ids",
    "top_logits": "top_logits",
}
_SAMPLED = {
    "scores": "score",
    "edges": "edge",
    "before": "before",
    "share": "share",
    "best_ids": "top_ids",
    "best_scores": "top_scores",
    "best_edges": "top_edges",
}


async def score_answer(worker: EngineWorker, job: ScoreJob, model: str) -> dict[str, Any]:
    """Scores of a prompt, one entry per prompt position, null where none was asked for; however
    it ends, the job ends with it."""
    ticket = worker.submit(job)
    try:
        async for _ in ticket.stream():
            pass
    finally:
        worker.abort(ticket)
    if job.error is not None:
        raise EngineError(job.error)
    choice = {"index": 0, "text": "", "finish_reason": "length", "logprobs": _logprobs(job)}
    usage = {"prompt_tokens": len(job.ids), "completion_tokens": 0, "total_tokens": len(job.ids)}
    return {
        "id": f"cmpl-{uuid.uuid4().hex}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": model,
        "choices": [choice],
        "usage": usage,
    }


def _logprobs(job: ScoreJob) -> dict[str, list[Any]]:
    blank: list[Any] = [None] * job.first
    found = {"token_ids": list(job.ids)}
    for name, field in _RAW.items():
        found[name] = blank + [getattr(score, field) for score in job.scores]
    if job.sampling is not None:
        for name, field in _SAMPLED.items():
            found[name] = blank + [getattr(score.sampled, field) for score in job.scores]
    return found
