"""`ddtree verify`: is what trees emit the target's own text?"""

import asyncio
import json
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddtree.cli.options import (
    API_KEY_VARIABLE,
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
from ddtree.errors import ConfigError, DDTreeError, EndpointError
from ddtree.records.arms import Arm
from ddtree.records.sampling import Sampling

if TYPE_CHECKING:
    from ddtree.verify.report import VerifyReport
    from ddtree.verify.run import VerifyPlan
    from ddtree.verify.source import Source

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
    budget: Annotated[
        list[int] | None, typer.Option(help="ddtree budgets, repeatable. Default: 8 and 16.")
    ] = None,
    topk: Annotated[int, typer.Option(help="Candidates kept at each depth.")] = 4,
    draft_window: WindowOption = None,
    window_kind: WindowKindOption = None,
    draft_causal: DraftCausalOption = None,
    temperature: Annotated[
        list[float] | None,
        typer.Option(help="Repeatable. Default: 0, 0.7 with top_p 0.95, and 1."),
    ] = None,
    top_p: Annotated[float, typer.Option(help="For --temperature above 0.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="For --temperature above 0; 0 keeps all.")] = 0,
    min_p: Annotated[float, typer.Option(help="For --temperature above 0.")] = 0.0,
    repetition_penalty: Annotated[float, typer.Option(help="For every temperature.")] = 1.0,
    presence_penalty: Annotated[float, typer.Option(help="For every temperature.")] = 0.0,
    frequency_penalty: Annotated[float, typer.Option(help="For every temperature.")] = 0.0,
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
    dtype: DtypeOption = "bfloat16",
    device: DeviceOption = "cpu",
    threads: ThreadsOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare every arm's tokens with `ar`'s, greedy and sampled, and judge each difference.

    Exit status: 0 lossless (exact or up to near-ties), 3 not lossless, 4 unclassified.
    """
    from ddtree.verify.prompts import PROMPTS, read_prompts

    local = LocalModel(model, expand(drafter), dtype, device, threads, window_kind, draft_causal)
    if url is not None:
        _refuse_local(local)
    filters = {"top_p": top_p, "top_k": top_k, "min_p": min_p}
    penalties = {
        "repetition_penalty": repetition_penalty,
        "presence_penalty": presence_penalty,
        "frequency_penalty": frequency_penalty,
    }
    wishes = Wishes(
        arms=_arms(budget or [8, 16], topk, draft_window),
        samplings=_samplings(temperature, filters, penalties),
        texts=PROMPTS if prompts is None else read_prompts(prompts),
        concurrencies=tuple(concurrency or (1, 4)),
        max_tokens=max_tokens,
        samples=samples,
        seed=seed,
    )
    if any(count < 1 for count in wishes.concurrencies):
        raise ConfigError(f"--concurrency: got {concurrency}, expected numbers of at least 1")
    if url is None:
        report = asyncio.run(_verify_engine(wishes, local))
    else:
        report = asyncio.run(_verify_endpoint(wishes, url, api_key))
    typer.echo(json.dumps(report.to_dict()) if as_json else table(report))
    raise typer.Exit(report.exit_status)


@dataclass(frozen=True)
class Wishes:
    """What to check, before prompts are tokens and the target is known."""

    arms: tuple[Arm, ...]
    samplings: tuple[Sampling, ...]
    texts: tuple[str, ...]
    concurrencies: tuple[int, ...]
    max_tokens: int
    samples: int
    seed: int


@dataclass(frozen=True)
class LocalModel:
    """Which model to load, and how to run it."""

    model: str
    drafter: str | None
    dtype: str
    device: str
    threads: int | None
    window_kind: str | None = None
    draft_causal: bool | None = None


def _arms(budgets: list[int], topk: int, window: str | None) -> tuple[Arm, ...]:
    width = parse_window(window)
    trees = (Arm("ddtree", budget, topk, width) for budget in budgets)
    return tuple(dict.fromkeys([Arm("chain", draft_window=width), *trees]))


def _samplings(
    temperatures: list[float] | None,
    filters: dict[str, float | int],
    penalties: dict[str, float],
) -> tuple[Sampling, ...]:
    asked = [name for name, value in filters.items() if value != getattr(Sampling(), name)]
    if asked and not any(value > 0 for value in temperatures or ()):
        flag = asked[0].replace("_", "-")
        raise ConfigError(f"--{flag}: name temperatures above 0 for it with --temperature")
    if temperatures is None:
        return tuple(
            replace(sampling, **penalties)  # type: ignore[arg-type]
            for sampling in _DEFAULT_SAMPLINGS
        )
    chosen = (
        Sampling(value, **(filters if value > 0 else {}), **penalties)  # type: ignore[arg-type]
        for value in temperatures
    )
    return tuple(dict.fromkeys(chosen))


def _refuse_local(local: LocalModel) -> None:
    """ConfigError for an option that a served model has decided already."""
    unset = LocalModel(DEFAULT_MODEL, None, "bfloat16", "cpu", None)
    for option in fields(LocalModel):
        if getattr(local, option.name) != getattr(unset, option.name):
            flag = option.name.replace("_", "-")
            raise ConfigError(f"--{flag}: is the served model's own; leave it out with --url")


async def _verify_engine(wishes: Wishes, local: LocalModel) -> "VerifyReport":
    from ddtree.serve.engine_source import EngineSource

    async with _worker(wishes, local) as (worker, tokenizer):
        engine = worker.engine
        if engine.block_size is None:
            raise ConfigError("--drafter: there is none, so there is nothing to check against ar")
        source = EngineSource(worker, tokenizer)
        target = {
            "dtype": local.dtype,
            "block_size": engine.block_size,
            "eos_ids": sorted(engine.target.eos_ids),
        }
        plan = await _plan(wishes, source, target)
        return await _run(plan, source)


@asynccontextmanager
async def _worker(wishes: Wishes, local: LocalModel) -> AsyncIterator[tuple[Any, Any]]:
    """A running engine wide enough for all arms."""
    import torch

    from ddtree.cli.loading import drafter_overrides, resolve_model
    from ddtree.engine import EngineConfig, load_engine
    from ddtree.serve.worker import EngineWorker

    if local.threads is not None:
        torch.set_num_threads(local.threads)
    windows = {arm.draft_window for arm in wishes.arms} - {None}
    loaded = load_engine(
        resolve_model(local.model, local.drafter),
        dtype=local.dtype,
        device=local.device,
        config=EngineConfig(
            slots=max(wishes.concurrencies),
            max_budget=max(arm.budget or 1 for arm in wishes.arms),
            max_topk=max(arm.topk or 1 for arm in wishes.arms),
            draft_window=next(iter(windows), None),
        ),
        overrides=drafter_overrides(local.window_kind, local.draft_causal),
    )
    worker = EngineWorker(loaded.engine)
    worker.start()
    try:
        yield worker, loaded.tokenizer
    finally:
        await asyncio.to_thread(worker.stop)


async def _verify_endpoint(wishes: Wishes, url: str, api_key: str | None) -> "VerifyReport":
    from ddtree.endpoint.client import ServerClient
    from ddtree.verify.endpoint_source import EndpointSource

    async with ServerClient(url, api_key=api_key) as client:
        info = await client.server_info()
        if info.get("dtype") is None:
            raise EndpointError(f"{url}/server_info: names no dtype; is this a ddtree server?")
        source = EndpointSource(client)
        plan = await _plan(wishes, source, info)
        return await _run(plan, source)


async def _plan(wishes: Wishes, source: "Source", target: dict[str, Any]) -> "VerifyPlan":
    from ddtree.verify.run import VerifyPlan

    prompts = [await source.encode(text) for text in wishes.texts]
    return VerifyPlan(
        prompts=tuple(prompts),
        arms=wishes.arms,
        samplings=wishes.samplings,
        max_tokens=wishes.max_tokens,
        concurrencies=wishes.concurrencies,
        dtype=str(target["dtype"]),
        block_size=int(target.get("block_size") or 1),
        samples=wishes.samples,
        seed=wishes.seed,
        eos_ids=frozenset(target.get("eos_ids") or ()),
    )


async def _run(plan: "VerifyPlan", source: "Any") -> "VerifyReport":
    """`source` generates and scores."""
    from ddtree.verify.run import run_verify

    try:
        return await run_verify(plan, source, source, _note)
    except DDTreeError as error:
        raise DDTreeError(f"the check could not be finished: {error}") from None


def _note(text: str) -> None:
    typer.echo(text, err=True)


def table(report: "VerifyReport") -> str:
    """The report for people: a line per row, the controls and tests, the verdict last."""
    lines: list[str] = []
    head = ("sampling", "arm", "at once", "identical", "near-ties", "edges", "suspects", "bugs")
    rows: list[tuple[str, ...]] = [(*head, "largest gap", "accept. length", "grade")]
    for result in report.results:
        for row in result.rows:
            found = row.losslessness
            gap, length = found.largest_gap_ulps, row.acceptance_length
            rows.append(
                (
                    result.sampling.label,
                    row.arm.label,
                    str(row.concurrency),
                    f"{found.identical}/{found.outputs}",
                    *map(
                        str,
                        (
                            found.near_ties - found.filter_edges,
                            found.filter_edges,
                            found.suspects,
                            found.bugs,
                        ),
                    ),
                    "-" if gap is None else f"{gap:.2g} ULP" if math.isfinite(gap) else "inf",
                    "-" if length is None else f"{length:.2f}",
                    row.verdict,
                )
            )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for cells in rows:
        lines.append("  ".join(c.ljust(w) for c, w in zip(cells, widths, strict=True)).rstrip())
    return "\n".join([*lines, "", *_evidence(report), report.headline])


def _evidence(report: "VerifyReport") -> list[str]:
    """Controls, distribution tests, likely causes."""
    from ddtree.verify.law import FALSE_ALARM

    lines = []
    for result in report.results:
        label, control, law = result.sampling.label, result.control, result.law
        if control is not None:
            lines.append(
                f"control, {label}: no drafter, 1 row against {control.rows}: {control.flips} of "
                f"{control.positions} tokens change, margins move by up to "
                f"{control.quantile:.2g} logits ({control.largest_gap_ulps:.2g} bf16 ULP)"
            )
        if law is not None:
            lines.append(
                f"distribution, {label}: {'passed' if law.passed else 'FAILED'}, D = "
                f"{law.distance:.3f} over {law.positions} tokens (a D of {law.detectable:.3f} "
                f"fails; a correct sampler fails with a chance of at most {FALSE_ALARM:g})"
            )
        for row in result.rows:
            if row.signature is not None:
                lines.append(f"cause, {label}, {row.arm.label}: {row.signature.hint}")
            lines += [f"{found.verdict}, {label}, {row.arm.label}: {found}" for found in row.worst]
    return [*lines, *(f"cause: {hint}" for hint in report.hints)]
