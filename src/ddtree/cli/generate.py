"""`ddtree generate`: decode one prompt in this process."""

import dataclasses
import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddtree.cli.options import (
    DEFAULT_MODEL,
    DeviceOption,
    DraftCausalOption,
    DrafterOption,
    DtypeOption,
    ModelOption,
    ThreadsOption,
    WindowKindOption,
    WindowOption,
    expand,
    parse_window,
)
from ddtree.errors import ConfigError

if TYPE_CHECKING:
    from ddtree.engine import LoadedEngine, Request


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
    window_kind: WindowKindOption = None,
    draft_causal: DraftCausalOption = None,
    max_tokens: Annotated[int, typer.Option(help="Generated tokens at most.")] = 128,
    temperature: Annotated[
        float, typer.Option(help="Above 0 samples from the target's distribution; 0 is greedy.")
    ] = 0.0,
    top_p: Annotated[
        float | None, typer.Option(help="Keep the fewest tokens that hold this much probability.")
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Keep this many tokens.")] = None,
    min_p: Annotated[
        float | None, typer.Option(help="Keep tokens of at least this share of the best one's.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Gives the same tokens with every method. Default: drawn.")
    ] = None,
    repetition_penalty: Annotated[
        float, typer.Option(help="Above 1 makes tokens of prompt and output less likely.")
    ] = 1.0,
    presence_penalty: Annotated[
        float, typer.Option(help="Taken once from the logit of each token of the output.")
    ] = 0.0,
    frequency_penalty: Annotated[
        float, typer.Option(help="Taken from a logit for each time the output holds the token.")
    ] = 0.0,
    logprobs: Annotated[
        int | None,
        typer.Option(help="With --json: raw log-probabilities, beside this many best tokens'."),
    ] = None,
    dtype: DtypeOption = "bfloat16",
    device: DeviceOption = "cpu",
    threads: ThreadsOption = None,
    chat: Annotated[bool, typer.Option("--chat", help="Apply the chat template.")] = False,
    show_tree: Annotated[
        bool, typer.Option("--show-tree", help="Draw each round's tree and the accepted path.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Continue a prompt and say how the drafts fared."""
    shaping = {"top_p": top_p, "top_k": top_k, "min_p": min_p, "seed": seed}
    given = _given(temperature, shaping)
    if show_tree and as_json:
        raise ConfigError("--show-tree and --json exclude each other")
    if logprobs is not None and not as_json:
        raise ConfigError("--logprobs: is printed with --json only; give both")
    from ddtree.engine import SamplingParams, Speculation

    sampling = SamplingParams(
        max_tokens=max_tokens,
        temperature=temperature,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        logprobs=logprobs,
        **given,
    )
    speculation = None
    if (method, budget, topk, draft_window) != (None, None, None, None):
        window = parse_window(draft_window)
        speculation = Speculation(method or "ddtree", budget, topk, window)  # type: ignore[arg-type]
    text = _read_prompt(prompt)
    loaded = _load(
        ModelChoice(model, expand(drafter), dtype, device, threads, window_kind, draft_causal),
        {
            "slots": 1,
            "max_budget": max(budget or 0, 64),
            "max_topk": max(topk or 0, 16),
            "draft_window": parse_window(draft_window),
        },
        show_tree,
    )
    ids = _encode(loaded.tokenizer, text, chat)
    request = loaded.engine.submit(ids, sampling, speculation)
    whole = _decode(loaded, request, stream=not (as_json or show_tree))
    result = {"text": whole, "finish_reason": request.finish_reason, **request.summary()}
    if logprobs is not None:
        result["logprobs"] = [dataclasses.asdict(entry) for entry in request.logprobs]
    if show_tree:
        typer.echo(whole)
    typer.echo(json.dumps(result) if as_json else _account(result), err=not as_json)


@dataclass(frozen=True)
class ModelChoice:
    """Which model, and how to run it."""

    model: str
    drafter: str | None
    dtype: str
    device: str
    threads: int | None
    window_kind: str | None = None
    draft_causal: bool | None = None


def _given(temperature: float, shaping: dict[str, Any]) -> dict[str, Any]:
    """Options that were given; ConfigError for those that greedy decoding would ignore."""
    given = {name: value for name, value in shaping.items() if value is not None}
    if given and temperature == 0:
        option = "--" + next(iter(given)).replace("_", "-")
        raise ConfigError(f"{option}: has no effect at temperature 0; give --temperature")
    return given


def _read_prompt(prompt: str | None) -> str:
    if prompt is None and sys.stdin.isatty():
        raise ConfigError("no prompt: give one as an argument or on standard input")
    text = sys.stdin.read() if prompt is None else prompt
    if not text:
        raise ConfigError("the prompt is empty; at least one token is needed")
    return text


def _load(choice: ModelChoice, sizes: dict[str, Any], show_tree: bool) -> "LoadedEngine":
    import torch

    from ddtree.cli.loading import drafter_overrides, resolve_model
    from ddtree.cli.tree_view import TreePrinter
    from ddtree.engine import EngineConfig, load_engine

    if choice.threads is not None:
        torch.set_num_threads(choice.threads)
    printer = TreePrinter() if show_tree else None
    loaded = load_engine(
        resolve_model(choice.model, choice.drafter),
        dtype=choice.dtype,
        device=choice.device,
        config=EngineConfig(**sizes),
        observer=printer,
        overrides=drafter_overrides(choice.window_kind, choice.draft_causal),
    )
    if printer is not None:
        printer.tokenizer = loaded.tokenizer
    return loaded


def _encode(tokenizer: Any, text: str, chat: bool) -> list[int]:
    from ddtree.models.text import encode_chat

    if chat:
        return encode_chat(tokenizer, [{"role": "user", "content": text}])
    ids: list[int] = tokenizer(text).input_ids
    return ids


def _decode(loaded: "LoadedEngine", request: "Request", *, stream: bool) -> str:
    """Run to the end; the text, printed as it comes if `stream`."""
    from ddtree.models.text import TextStream

    pieces, decoder = [], TextStream(loaded.tokenizer, request.prompt)
    while not loaded.engine.is_idle:
        for progress in loaded.engine.step():
            pieces.append(decoder.push(request.visible(progress.tokens)))
            if progress.finished:
                pieces.append(decoder.finish())
            if stream:
                typer.echo("".join(pieces[-2:]) if progress.finished else pieces[-1], nl=False)
    if request.failure is not None:
        raise request.failure
    if stream:
        typer.echo()
    return "".join(pieces)


def _account(result: dict[str, Any]) -> str:
    """One line for people."""
    length, speed = result["acceptance_length"], result["decode_tokens_per_s"]
    # With the seed a sampled output can be had again.
    seed = "" if result["seed"] is None else f", seed {result['seed']}"
    return (
        f"[{result['method']}] {result['completion_tokens']} tokens, {result['rounds']} rounds, "
        f"acceptance length {'-' if length is None else f'{length:.2f}'}, "
        f"{'-' if speed is None else f'{speed:.1f}'} tok/s, {result['finish_reason']}{seed}"
    )
