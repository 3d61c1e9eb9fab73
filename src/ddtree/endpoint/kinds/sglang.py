"""SGLang's native /generate: true token ids, and the rounds of each request in `meta_info`.

Written for 0.5.15 to 0.5.23. `output_ids` are all ids so far, or with
`--incremental-streaming-output` those of the chunk: `meta_info.completion_tokens` tells which.
"""

from collections.abc import Sequence
from typing import Any

from ddtree.endpoint.calls import Chat, CompletionRequest, Prompt, ScoredPosition
from ddtree.endpoint.kinds.accounts import account, plain_account, round_paths
from ddtree.endpoint.kinds.base import Call, Kind
from ddtree.endpoint.kinds.completions import (
    CompletionsReader,
    every_field,
    stream_body,
    stream_path,
)
from ddtree.endpoint.kinds.logprobs import from_log_probabilities, require_raw
from ddtree.endpoint.stream import Reader, StreamState, are_ids
from ddtree.records.sampling import Sampling

_TOP = 5
_HISTOGRAMS = ("spec_correct_drafts_histogram", "spec_accept_histogram")
_ACCEPTED = ("spec_num_correct_drafts", "spec_accepted_drafts")
_PROPOSED = ("spec_num_proposed_drafts", "spec_proposed_drafts")
_PLACES = {"ddtree_ranks": "accepted_ranks", "ddtree_nodes": "accepted_nodes"}
_WINDOWS = ("speculative_draft_window_size", "speculative_dflash_draft_window_size")


class SGLangDialect:
    """`python -m sglang.launch_server`; an arm is a launch."""

    kind: Kind = "sglang"
    can_tokenize = True
    cache_reset: str | None = "/flush_cache"
    has_prefix_cache = True
    info_path = "/server_info"

    def completion(self, request: CompletionRequest) -> Call:
        """The streaming call for a request; the native route knows no conversations."""
        if isinstance(request.prompt, Chat):
            return self._chat(request)
        sampling = _sampling(request.sampling) | {
            "max_new_tokens": request.max_tokens,
            "ignore_eos": request.ignore_eos,
            **({"stop": list(request.stop)} if request.stop else {}),
        }
        body = _prompt(request.prompt) | {"sampling_params": sampling, "stream": True}
        return Call("/generate", body, named=False)

    def reader(self, request: CompletionRequest) -> Reader:
        """Reads ids or, where none come, counts; of a conversation text and usage alone."""
        chat = isinstance(request.prompt, Chat)
        return CompletionsReader(request) if chat else _SGLangReader(request)

    def _chat(self, request: CompletionRequest) -> Call:
        body = stream_body(request) | _sampling(request.sampling)
        if "sampling_seed" in body:
            body["seed"] = body.pop("sampling_seed")
        body["ignore_eos"] = request.ignore_eos
        body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
        return Call(stream_path(request), body)

    def scoring(
        self, token_ids: Sequence[int], score_from: int, rows: int, sampling: Sampling | None
    ) -> Call:
        """Log-probabilities from the prompt's own pass, whatever `rows` asks for."""
        require_raw(self.kind, sampling)
        body = _prompt(tuple(token_ids)) | {
            "sampling_params": {"temperature": 0.0, "max_new_tokens": 1},
            "return_logprob": True,
            # The first entry of the answer is the token here, which has no score.
            "logprob_start_len": score_from - 1,
            "top_logprobs_num": _TOP,
        }
        return Call("/generate", body, named=False)

    def scores(
        self, answer: dict[str, Any], token_ids: Sequence[int], score_from: int, *, sampled: bool
    ) -> list[ScoredPosition]:
        """Entries are (log-probability, token id, text)."""
        own = answer["meta_info"]["input_token_logprobs"][1:]
        best = answer["meta_info"]["input_top_logprobs"][1:]
        wanted = token_ids[score_from:]
        if [int(entry[1]) for entry in own] != list(wanted):
            raise ValueError("the scored tokens are not those that were sent")
        return [
            from_log_probabilities(token, float(mine[0]), {int(t): float(z) for z, t, *_ in tops})
            for token, mine, tops in zip(wanted, own, best, strict=True)
        ]

    def describe(self, info: dict[str, Any]) -> dict[str, Any]:
        """From the resolved arguments."""
        dtype = info.get("dtype")
        windows = [info[name] for name in _WINDOWS if info.get(name) is not None]
        return {
            "model": info.get("model_path"),
            "drafter": info.get("speculative_draft_model_path"),
            "dtype": None if dtype in (None, "auto") else str(dtype).removeprefix("torch."),
            "max_context": info.get("context_length"),
            "slots": info.get("max_running_requests"),
            "draft_window": windows[0] if windows else None,
            "version": info.get("version"),
            "reported": info,
        }


def _prompt(prompt: Prompt) -> dict[str, Any]:
    if isinstance(prompt, Chat):
        raise TypeError("the native route takes no conversation")
    return {"text": prompt} if isinstance(prompt, str) else {"input_ids": list(prompt)}


def _sampling(sampling: Sampling) -> dict[str, Any]:
    fields: dict[str, Any] = every_field(sampling)
    if fields["top_k"] == 0:
        fields["top_k"] = -1
    if "seed" in fields:
        fields["sampling_seed"] = fields.pop("seed")
    return fields


class _SGLangReader:
    def __init__(self, request: CompletionRequest) -> None:
        self._method = None if request.arm is None else request.arm.method
        self._budget = None if request.arm is None else request.arm.budget
        self._keep_text = request.keep_text
        self._seen = 0
        self._text = ""
        self._meta: dict[str, Any] = {}
        self._places: dict[str, list[int]] = {}

    def read(self, payload: dict[str, Any], at_s: float, state: StreamState) -> None:
        meta = payload.get("meta_info")
        total = meta.get("completion_tokens") if isinstance(meta, dict) else None
        if not isinstance(meta, dict) or type(total) is not int:
            state.fail("protocol", f"no meta_info with completion_tokens: {str(payload)[:80]}")
            return
        if total < self._seen:
            state.fail("protocol", f"completion_tokens fell from {self._seen} to {total}")
            return
        piece = self._fresh(str(payload.get("text") or ""))
        if self._keep_text:
            state.keep_text(piece, "")
        if payload.get("output_ids") is None:
            if total > self._seen:
                state.add_text(piece, total - self._seen, at_s)
        else:
            self._take_ids(payload["output_ids"], total, at_s, state)
        self._take_places(meta, total)
        self._seen, self._meta = total, meta
        state.usage = {"prompt_tokens": meta.get("prompt_tokens"), "completion_tokens": total}
        if type(meta.get("cached_tokens")) is int:
            state.cached_tokens = meta["cached_tokens"]
        self._end(meta.get("finish_reason"), state)

    def close(self, state: StreamState) -> None:
        if state.texts:
            state.counted = "usage"
        if "spec_verify_ct" in self._meta:
            self._account(state)
        elif self._method in (None, "ar"):
            state.stats = plain_account(self._seen)
        else:
            state.fail(
                "no_stats",
                f"a {self._method} request, and meta_info has no spec_verify_ct: the server "
                "doesn't speculate, or is too old to tell",
            )

    def _take_ids(self, ids: object, total: int, at_s: float, state: StreamState) -> None:
        if not are_ids(ids):
            state.fail("protocol", f"output_ids is not a list of integers: {str(ids)[:80]}")
        elif self._seen and self._seen + len(ids) == total:
            state.add_ids(ids, at_s)
        elif len(ids) == total and ids[: self._seen] == state.ids:
            state.add_ids(ids[self._seen :], at_s)
        else:
            state.fail(
                "count_mismatch",
                f"{len(ids)} output_ids after {self._seen}, completion_tokens is {total}: neither "
                "all ids so far nor the chunk's own",
            )

    def _take_places(self, meta: dict[str, Any], total: int) -> None:
        """What a DDTREE server with DDTREE_RANKS=1 says of each token: of all, or the chunk's."""
        for name in _PLACES:
            values = meta.get(name)
            if are_ids(values):
                known = [] if len(values) == total else self._places.get(name, [])
                self._places[name] = known + values

    def _fresh(self, text: str) -> str:
        """What of a chunk's text did not come before, whether it has all of it or its own."""
        piece = text.removeprefix(self._text)
        self._text = text if text.startswith(self._text) else self._text + text
        return piece

    def _end(self, reason: object, state: StreamState) -> None:
        if isinstance(reason, dict):
            if reason.get("type") == "abort":
                state.fail("in_band", f"aborted: {reason.get('message', 'no message')}")
            state.finish(reason.get("type"), reason.get("matched"))
        elif reason is not None:
            state.finish(reason)

    def _account(self, state: StreamState) -> None:
        meta = self._meta
        if self._method == "ar" and meta["spec_verify_ct"]:
            state.fail("protocol", "the baseline's server drafts: spec_verify_ct is not 0")
            return
        histogram = _first(meta, _HISTOGRAMS)
        try:
            rounds = int(meta["spec_verify_ct"])
            accepted = _first(meta, _ACCEPTED)
            if accepted is None and histogram is not None:
                accepted = sum(a * n for a, n in enumerate(histogram))
            # SGLang counts the wider of the tree and the drafter's block.
            proposed = _first(meta, _PROPOSED) if self._budget is None else rounds * self._budget
            state.stats = account(
                self._seen,
                rounds,
                int(accepted),
                "server",
                histogram=histogram,
                tree_nodes=proposed,
            )
        except (TypeError, ValueError) as error:
            state.fail("protocol", f"meta_info's spec fields are unusable ({error})")
            return
        if self._places:
            self._account_for_places(rounds, state)
        # A retracted request is prefilled again, which gives a token without a round.
        if state.stats["cut_tokens"] < -int(meta.get("num_retractions") or 0):
            state.fail(
                "count_mismatch",
                f"{self._seen} tokens are more than 1 + {accepted} accepted + {rounds} rounds",
            )

    def _account_for_places(self, rounds: int, state: StreamState) -> None:
        """Paths of rounds, unless a second prompt pass hides where they begin."""
        if self._meta.get("num_retractions"):
            return
        paths = {name: round_paths(values) for name, values in self._places.items()}
        if len(paths) != len(_PLACES) or any(len(found) != rounds for found in paths.values()):
            told = {name: len(found) for name, found in paths.items()}
            state.fail("count_mismatch", f"{rounds} rounds, and places of tokens make {told}")
            return
        assert state.stats is not None
        state.stats |= {key: paths[name] for name, key in _PLACES.items()}


def _first(meta: dict[str, Any], names: Sequence[str]) -> Any:
    return next((meta[name] for name in names if meta.get(name) is not None), None)
