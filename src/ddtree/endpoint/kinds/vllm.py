"""vLLM: completions with token ids on request; drafts counted by request or by /metrics.

Written for 0.20 and later. `return_token_ids` and usage by chunk are asked for and used where they
come. The development routes (cache reset, resolved configuration) need VLLM_SERVER_DEV_MODE=1.
"""

from collections.abc import Sequence
from typing import Any

from ddtree.endpoint.calls import CompletionRequest, ScoredPosition
from ddtree.endpoint.kinds.accounts import account
from ddtree.endpoint.kinds.base import Call, Kind
from ddtree.endpoint.kinds.completions import (
    CompletionsReader,
    every_field,
    stream_body,
    stream_path,
)
from ddtree.endpoint.kinds.logprobs import from_log_probabilities, require_raw
from ddtree.endpoint.stream import StreamState
from ddtree.records.sampling import Sampling

_TOP = 5


class VLLMDialect:
    """`vllm serve`; an arm is a launch."""

    kind: Kind = "vllm"
    can_tokenize = True
    cache_reset: str | None = "/reset_prefix_cache"
    has_prefix_cache = True
    info_path = "/server_info?config_format=json"

    def completion(self, request: CompletionRequest) -> Call:
        """The streaming call for a request."""
        body = stream_body(request) | {
            **every_field(request.sampling),
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            "return_token_ids": True,
            "ignore_eos": request.ignore_eos,
        }
        return Call(stream_path(request), body)

    def reader(self, request: CompletionRequest) -> "_VLLMReader":
        """Reads ids where they come, and drafts where they are counted by request."""
        return _VLLMReader(request)

    def scoring(
        self, token_ids: Sequence[int], score_from: int, rows: int, sampling: Sampling | None
    ) -> Call:
        """Log-probabilities from the prompt's own pass, whatever `rows` asks for."""
        require_raw(self.kind, sampling)
        body = {"prompt": list(token_ids), "max_tokens": 1, "prompt_logprobs": _TOP}
        return Call("/v1/completions", body | {"temperature": 0.0})

    def scores(
        self, answer: dict[str, Any], token_ids: Sequence[int], score_from: int, *, sampled: bool
    ) -> list[ScoredPosition]:
        """One mapping per position: token id to log-probability."""
        choice = answer["choices"][0]
        told = choice.get("prompt_logprobs") or answer["prompt_logprobs"]
        found = []
        for i in range(score_from, len(token_ids)):
            entry = {int(token): float(value["logprob"]) for token, value in told[i].items()}
            found.append(from_log_probabilities(token_ids[i], entry[token_ids[i]], entry))
        return found

    def describe(self, info: dict[str, Any]) -> dict[str, Any]:
        """From the resolved configuration."""
        config = info.get("vllm_config") or {}
        model = config.get("model_config") or {}
        draft = config.get("speculative_config") or {}
        dtype = model.get("dtype")
        return {
            "model": model.get("model"),
            "drafter": draft.get("model"),
            "dtype": None if dtype is None else str(dtype).removeprefix("torch."),
            "max_context": model.get("max_model_len"),
            "slots": (config.get("scheduler_config") or {}).get("max_num_seqs"),
            "version": (info.get("system_env") or {}).get("vllm_version"),
            "reported": info,
        }


class _VLLMReader(CompletionsReader):
    def __init__(self, request: CompletionRequest) -> None:
        super().__init__(request)
        self._drafts: dict[str, Any] | None = None

    def read(self, payload: dict[str, Any], at_s: float, state: StreamState) -> None:
        metrics = payload.get("metrics")
        found = metrics.get("speculative_decoding") if isinstance(metrics, dict) else None
        self._drafts = found if isinstance(found, dict) else self._drafts
        super().read(payload, at_s, state)

    def account(self, tokens: int, state: StreamState) -> None:
        if self._drafts is None:
            super().account(tokens, state)
            return
        try:
            state.stats = account(
                tokens,
                int(self._drafts["num_spec_steps"]),
                int(self._drafts["num_accepted_draft_tokens"]),
                "server",
                histogram=self._drafts.get("acceptance_histogram"),
                tree_nodes=self._drafts.get("num_draft_tokens"),
            )
        except (KeyError, TypeError, ValueError) as error:
            state.fail("protocol", f"metrics.speculative_decoding is unusable ({error!r})")
