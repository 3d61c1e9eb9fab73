"""`ddtree generate`: decode one prompt in this process."""

import json
import sys
from typing import Annotated, Any

import typer

from ddtree.cli.options import (
    DEFAULT_MODEL,
    DeviceOption,
    DrafterOption,
    DtypeOption,
    ModelOption,
    ThreadsOption,
    WindowOption,
    expand,
    parse_window,
)
from ddtree.errors import ConfigError


def generate(
    prompt: Annotated[
        str | None, typer.Argument(help="Text to continue; read from standard input if absent.")
    ] = None,
    model: ModelOption = DEFAULT_MODEL,
    drafter: DrafterOption = None,
    method: Annotated[
        str | None,
        typer.Option(help="ar, chain or ddtree. Default: ddtree, or ar with no drafter."),
    ] = None,
    budget: Annotated[
        int | None, typer.Option(help="ddtree: draft nodes a round, the root not counted.")
    ] = None,
    topk: Annotated[int | None, typer.Option(help="ddtree: candidates kept at each depth.")] = None,
    draft_window: WindowOption = None,
    max_tokens: Annotated[int, typer.Option(help="Generated tokens at most.")] = 128,
    temperature: Annotated[float, typer.Option(help="0 is greedy; nothing else exists yet.")] = 0.0,
    top_p: Annotated[float | None, typer.Option(help="Not implemented yet.")] = None,
    seed: Annotated[int | None, typer.Option(help="Not implemented yet.")] = None,
    dtype: DtypeOption = "bfloat16",
    device: DeviceOption = "cpu",
    threads: ThreadsOption = None,
    chat: Annotated[bool, typer.Option("--chat", help="Apply the chat template.")] = False,
    show_tree: Annotated[
        bool, typer.Option("--show-tree", help="Draw each round's tree and the accepted path.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Continue a prompt, greedily, and say how the drafts fared."""
    from ddtree.engine import SamplingParams, Speculation

    _refuse_sampling(top_p, seed)
    sampling = SamplingParams(max_tokens=max_tokens, temperature=temperature)
    speculation = None
    if (method, budget, topk, draft_window) != (None, None, None, None):
        window = parse_window(draft_window)
        speculation = Speculation(method or "ddtree", budget, topk, window)  # type: ignore[arg-type]
    if show_tree and as_json:
        raise ConfigError("--show-tree and --json exclude each other")
    text = _read_prompt(prompt)
    session = _Session(
        model, expand(drafter), dtype, device, threads, _sizes(budget, topk, draft_window)
    )
    if show_tree:
        session.draw_trees()
    result = session.run(text, chat, sampling, speculation, stream=not (as_json or show_tree))
    typer.echo(json.dumps(result) if as_json else _account(result), err=not as_json)
    if show_tree:
        typer.echo(result["text"])


def _refuse_sampling(top_p: float | None, seed: int | None) -> None:
    for name, value in (("--top-p", top_p), ("--seed", seed)):
        if value is not None:
            raise ConfigError(f"{name}: sampling is not implemented yet; leave it out")


def _read_prompt(prompt: str | None) -> str:
    if prompt is None and sys.stdin.isatty():
        raise ConfigError("no prompt: give one as an argument or on standard input")
    text = sys.stdin.read() if prompt is None else prompt
    if not text:
        raise ConfigError("the prompt is empty; at least one token is needed")
    return text


def _sizes(budget: int | None, topk: int | None, draft_window: str | None) -> dict[str, Any]:
    """Engine maxima that admit the one request to come."""
    return {
        "slots": 1,
        "max_budget": max(budget or 0, 64),
        "max_topk": max(topk or 0, 16),
        "draft_window": parse_window(draft_window),
    }


class _Session:
    """A loaded engine for one request."""

    def __init__(
        self,
        model: str,
        drafter: str | None,
        dtype: str,
        device: str,
        threads: int | None,
        sizes: dict[str, Any],
    ) -> None:
        import torch

        from ddtree.cli.loading import resolve_model
        from ddtree.engine import EngineConfig, RoundResult, load_engine

        if threads is not None:
            torch.set_num_threads(threads)
        self._draw: Any = None

        def observe(result: RoundResult) -> None:
            if self._draw is not None:
                self._draw(result)

        loaded = load_engine(
            resolve_model(model, drafter),
            dtype=dtype,
            device=device,
            config=EngineConfig(**sizes),
            observer=observe,
        )
        self.engine, self.tokenizer = loaded.engine, loaded.tokenizer

    def draw_trees(self) -> None:
        """Print each round's tree from now on."""
        from ddtree.cli.tree_view import TreePrinter

        self._draw = TreePrinter(self.tokenizer)

    def run(
        self, text: str, chat: bool, sampling: Any, speculation: Any, *, stream: bool
    ) -> dict[str, Any]:
        """Decode to the end; the result as `--json` prints it."""
        from ddtree.models.text import TextStream, encode_chat

        if chat:
            ids = encode_chat(self.tokenizer, [{"role": "user", "content": text}])
        else:
            ids = self.tokenizer(text).input_ids
        request = self.engine.submit(ids, sampling, speculation)
        pieces, decoder = [], TextStream(self.tokenizer)
        while not self.engine.is_idle:
            for progress in self.engine.step():
                shown = [t for t in progress.tokens if t not in request.stop_ids]
                piece = decoder.push(shown)
                if progress.finished:
                    piece += decoder.finish()
                pieces.append(piece)
                if stream:
                    typer.echo(piece, nl=progress.finished)
        return _result(request, "".join(pieces))


def _result(request: Any, text: str) -> dict[str, Any]:
    if request.error is not None:
        raise ConfigError(request.error)
    stats = request.stats
    return {
        "text": text,
        "token_ids": request.output,
        "prompt_tokens": stats.prompt_tokens,
        "completion_tokens": stats.completion_tokens,
        "finish_reason": request.finish_reason,
        "method": request.speculation.method,
        "budget": request.drafting.budget,
        "topk": request.drafting.topk,
        "draft_window": request.drafting.window if request.speculates else None,
        "rounds": stats.rounds,
        "acceptance_length": stats.acceptance_length,
        "accepted_histogram": stats.accepted_histogram,
        "stage_seconds": stats.stage_seconds,
        "decode_tokens_per_s": request.decode_tokens_per_s,
    }


def _account(result: dict[str, Any]) -> str:
    """One line for people."""
    length, speed = result["acceptance_length"], result["decode_tokens_per_s"]
    return (
        f"[{result['method']}] {result['completion_tokens']} tokens, {result['rounds']} rounds, "
        f"acceptance length {'-' if length is None else f'{length:.2f}'}, "
        f"{'-' if speed is None else f'{speed:.1f}'} tok/s, {result['finish_reason']}"
    )
