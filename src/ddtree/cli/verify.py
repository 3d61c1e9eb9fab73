"""`ddtree verify`: is what trees emit the target's own text?"""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddtree.cli.options import (
    API_KEY_VARIABLE,
    DEFAULT_MODEL,
    DeviceOption,
    DraftCausalOption,
    DrafterOption,
    ModelOption,
    ThreadsOption,
    WindowKindOption,
    WindowOption,
    parse_window,
)
from ddtree.cli.verify_sources import (
    LocalModel,
    Served,
    Wishes,
    refuse_served,
    verify_engine,
    verify_served,
)
from ddtree.cli.verify_table import table
from ddtree.errors import ConfigError
from ddtree.records.arms import Arm
from ddtree.records.sampling import Sampling

if TYPE_CHECKING:
    from ddtree.endpoint.kinds import Kind

_DEFAULT_SAMPLINGS = (Sampling(), Sampling(0.7, top_p=0.95), Sampling(1.0))


def verify(
    model: ModelOption = DEFAULT_MODEL,
    drafter: DrafterOption = None,
    url: Annotated[
        str | None, typer.Option(help="Check a served endpoint instead of a model in this process.")
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar=API_KEY_VARIABLE, help="For --url: the server's key.")
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(help="For --url: ddtree, sglang, vllm or openai. Default: ddtree."),
    ] = None,
    baseline_url: Annotated[
        str | None,
        typer.Option(help="For a --kind other than ddtree: the same model without a drafter."),
    ] = None,
    served_model: Annotated[
        str | None, typer.Option(help="For --url: the name to ask for. Default: the server's only.")
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(help="For --url: a tokenizer.json, or its folder. Default: the server's."),
    ] = None,
    budget: Annotated[
        list[int] | None,
        typer.Option(
            help="ddtree budgets, repeatable. Default: 8 and 16. For a --kind other than ddtree "
            "the one that the server runs with. Default there: a chain."
        ),
    ] = None,
    topk: Annotated[int, typer.Option(help="Candidates kept at each depth.")] = 4,
    draft_window: WindowOption = None,
    window_kind: WindowKindOption = None,
    draft_causal: DraftCausalOption = None,
    temperature: Annotated[
        list[float] | None,
        typer.Option(
            help="Repeatable. Default: 0, 0.7 with top_p 0.95, and 1; 0 for a --kind other than "
            "ddtree, whose arms need not share their noise."
        ),
    ] = None,
    top_p: Annotated[float, typer.Option(help="For --temperature above 0.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="For --temperature above 0; 0 keeps all.")] = 0,
    min_p: Annotated[float, typer.Option(help="For --temperature above 0.")] = 0.0,
    repetition_penalty: Annotated[float, typer.Option(help="For every temperature.")] = 1.0,
    presence_penalty: Annotated[float, typer.Option(help="For every temperature.")] = 0.0,
    frequency_penalty: Annotated[float, typer.Option(help="For every temperature.")] = 0.0,
    logit_bias: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID=X", help="Adds X, from -100 to 100, to a token's logit. Repeatable."
        ),
    ] = None,
    bad_word: Annotated[
        list[str] | None,
        typer.Option(help="Text that must not come out, alone or behind a space. Repeatable."),
    ] = None,
    min_tokens: Annotated[
        int, typer.Option(help="Generated tokens before one may end the text.")
    ] = 0,
    stop_token_id: Annotated[
        list[int] | None, typer.Option(help="Ends the text beside the model's own. Repeatable.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=2, help="Generated tokens per request.")] = 32,
    samples: Annotated[
        int, typer.Option(min=1, help="Seeds per prompt: more make the distribution test sharper.")
    ] = 1,
    concurrency: Annotated[
        list[int] | None, typer.Option(help="Requests at once, repeatable. Default: 1 and 4.")
    ] = None,
    prompts: Annotated[
        Path | None, typer.Option(help="File of one JSON text or {prompt} per line.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Request i samples with seed + i.")] = 0,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="float32, bfloat16 or float64. Default: bfloat16, or what the server says; give "
            "it for one that doesn't say."
        ),
    ] = None,
    device: DeviceOption = "cpu",
    threads: ThreadsOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare every arm's tokens with `ar`'s, greedy and sampled, and judge each difference.

    Exit status: 0 lossless (exact or up to near-ties), 3 not lossless, 4 unclassified.
    """
    from ddtree.verify.prompts import PROMPTS, read_prompts

    local = LocalModel(model, drafter, device, threads, window_kind, draft_causal)
    named = {"kind": kind, "baseline_url": baseline_url, "served_model": served_model}
    served = _served(url, api_key, named | {"tokenizer": tokenizer})
    if served is not None:
        local.refuse()
    filters = {"top_p": top_p, "top_k": top_k, "min_p": min_p}
    edits: dict[str, Any] = {
        "repetition_penalty": repetition_penalty,
        "presence_penalty": presence_penalty,
        "frequency_penalty": frequency_penalty,
        "logit_bias": tuple(map(_bias, logit_bias or ())),
        "bad_words": tuple(bad_word or ()),
        "min_tokens": min_tokens,
        "stop_token_ids": tuple(stop_token_id or ()),
    }
    launched = served is not None and served.kind != "ddtree"
    wishes = Wishes(
        arms=(_launched_arms if launched else _arms)(budget, topk, draft_window),
        samplings=_samplings(temperature, filters, edits, launched=launched),
        texts=PROMPTS if prompts is None else read_prompts(prompts),
        concurrencies=tuple(concurrency or (1, 4)),
        max_tokens=max_tokens,
        samples=samples,
        seed=seed,
        dtype=dtype,
    )
    if any(count < 1 for count in wishes.concurrencies):
        raise ConfigError(f"--concurrency: got {concurrency}, expected numbers of at least 1")
    report = asyncio.run(
        verify_engine(wishes, local) if served is None else verify_served(wishes, served)
    )
    typer.echo(json.dumps(report.to_dict()) if as_json else table(report))
    raise typer.Exit(report.exit_status)


def _served(url: str | None, api_key: str | None, named: dict[str, str | None]) -> Served | None:
    """The servers that options name; None for a model in this process."""
    if url is None:
        refuse_served(named)
        return None
    kind: Kind = named["kind"] or "ddtree"  # type: ignore[assignment]
    served = Served(
        url, kind, named["baseline_url"], named["served_model"], named["tokenizer"], api_key
    )
    served.check()
    return served


def _arms(budgets: list[int] | None, topk: int, window: str | None) -> tuple[Arm, ...]:
    """Arms of our own server or engine, which takes them by request."""
    width = parse_window(window)
    trees = (Arm("ddtree", budget, topk, width) for budget in budgets or (8, 16))
    return tuple(dict.fromkeys([Arm("chain", draft_window=width), *trees]))


def _launched_arms(budgets: list[int] | None, topk: int, window: str | None) -> tuple[Arm, ...]:
    """The one arm that a server of another kind was launched with."""
    width = parse_window(window)
    if not budgets:
        return (Arm("chain", draft_window=width),)
    if len(budgets) > 1:
        raise ConfigError(f"--budget: got {budgets}, but the server at --url runs with one")
    return (Arm("ddtree", budgets[0], topk, width),)


def _bias(text: str) -> tuple[int, float]:
    """ID=X."""
    token, _, value = text.partition("=")
    try:
        return int(token), float(value)
    except ValueError:
        raise ConfigError(
            f"--logit-bias: got {text!r}, expected ID=X, a token id and what to add to its logit"
        ) from None


def _samplings(
    temperatures: list[float] | None,
    filters: dict[str, Any],
    edits: dict[str, Any],
    *,
    launched: bool,
) -> tuple[Sampling, ...]:
    asked = [name for name, value in filters.items() if value != getattr(Sampling(), name)]
    if asked and not any(value > 0 for value in temperatures or ()):
        flag = asked[0].replace("_", "-")
        raise ConfigError(f"--{flag}: name temperatures above 0 for it with --temperature")
    if temperatures is None:
        usual = _DEFAULT_SAMPLINGS[:1] if launched else _DEFAULT_SAMPLINGS
        return tuple(replace(sampling, **edits) for sampling in usual)
    chosen = (Sampling(value, **(filters if value > 0 else {}), **edits) for value in temperatures)
    return tuple(dict.fromkeys(chosen))
