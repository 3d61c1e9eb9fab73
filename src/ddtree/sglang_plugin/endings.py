"""Where an answer ends inside an accepted run.

SGLang looks at the token limit before it looks for stops, which is right for one token a step. A
run that reaches past both would end at the limit, with the stop and what follows it in the answer.
"""

from collections.abc import Callable
from typing import Any

Update = Callable[[Any, int], None]


def stops_before_limit(
    serving: Callable[[], bool], original: Update, req: Any, new_accepted_len: int = 1
) -> None:
    """Hook: ask `original` about the tokens within the limit, as if it were further on, first.

    serving: whether this process belongs to a DDTREE server; others are left alone.
    """
    limit = req.sampling_params.max_new_tokens
    whole = req.output_ids
    within = new_accepted_len - max(len(whole) - limit, 0)
    reached = len(whole) >= limit and within > 0
    if serving() and reached and not req.finished() and req.to_finish is None:
        req.output_ids, req.sampling_params.max_new_tokens = whole[:limit], limit + 1
        try:
            original(req, within)
        finally:
            req.output_ids, req.sampling_params.max_new_tokens = whole, limit
    original(req, new_accepted_len)
