"""The mock's answers to scoring, as each kind of server spells them."""

from typing import Any

from aiohttp import web

from ddtree.endpoint.mock_script import scores
from ddtree.records.sampling import Sampling


def echo_scores(
    ids: tuple[int, ...], score_from: int, eos_every: int, sampling: Sampling | None
) -> web.Response:
    """Our server's: logits, and what sampling makes of them."""
    if sampling is not None and sampling.temperature > 0 and sampling.seed is None:
        message = "seed: is needed above temperature 0"
        return web.json_response({"error": {"message": message}}, status=400)
    logprobs = scores(ids, score_from, eos_every, sampling)
    choice = {"index": 0, "text": "", "logprobs": logprobs, "finish_reason": None}
    return web.json_response({"choices": [choice]})


def prompt_logprobs(ids: tuple[int, ...], eos_every: int) -> dict[str, Any]:
    """vLLM's scores of a prompt: none for its first token."""
    found = scores(ids, 1, eos_every, None)
    entries: list[dict[str, Any] | None] = [None]
    for i in range(1, len(ids)):
        best = {str(t): z - found["top_logits"][i][0] for t, z in _best(found, i)}
        best[str(ids[i])] = found["token_logprobs"][i]
        entries.append({token: {"logprob": value} for token, value in best.items()})
    return {"choices": [{"index": 0, "text": "", "prompt_logprobs": entries}]}


def input_logprobs(ids: tuple[int, ...], start: int, eos_every: int) -> dict[str, Any]:
    """SGLang's scores from `start` on, whose own entry has none."""
    found = scores(ids, start + 1, eos_every, None)
    own: list[Any] = [[None, ids[start], None]]
    best: list[Any] = [None]
    for i in range(start + 1, len(ids)):
        own.append([found["token_logprobs"][i], ids[i], None])
        best.append([[z - found["top_logits"][i][0], t, None] for t, z in _best(found, i)])
    return {"meta_info": {"input_token_logprobs": own, "input_top_logprobs": best}}


def _best(found: dict[str, list[Any]], i: int) -> list[tuple[int, float]]:
    return list(zip(found["top_ids"][i], found["top_logits"][i], strict=True))
