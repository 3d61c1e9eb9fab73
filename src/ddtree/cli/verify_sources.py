"""What `ddtree verify` checks: an engine in this process, our server, or two servers of another
kind."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import typer

from ddtree.cli.options import DEFAULT_MODEL, expand
from ddtree.errors import ConfigError, DDTreeError
from ddtree.records.arms import Arm
from ddtree.records.sampling import Sampling

if TYPE_CHECKING:
    from ddtree.endpoint.client import ServerClient
    from ddtree.endpoint.kinds import Kind
    from ddtree.verify.report import VerifyReport
    from ddtree.verify.run import VerifyPlan
    from ddtree.verify.scoring import Scorer
    from ddtree.verify.source import Source

_LOCAL_DTYPE = "bfloat16"


@dataclass(frozen=True)
class Wishes:
    """What to check, before prompts are tokens and the target is known. `dtype` None: the served
    model's own, or bfloat16 in this process."""

    arms: tuple[Arm, ...]
    samplings: tuple[Sampling, ...]
    texts: tuple[str, ...]
    concurrencies: tuple[int, ...]
    max_tokens: int
    samples: int
    seed: int
    dtype: str | None = None


@dataclass(frozen=True)
class LocalModel:
    """Which model to load, and how to run it."""

    model: str = DEFAULT_MODEL
    drafter: str | None = None
    device: str = "cpu"
    threads: int | None = None
    window_kind: str | None = None
    draft_causal: bool | None = None

    def refuse(self) -> None:
        """ConfigError for an option that a served model has decided already."""
        for option in fields(self):
            if getattr(self, option.name) != option.default:
                flag = option.name.replace("_", "-")
                raise ConfigError(f"--{flag}: is the served model's own; leave it out with --url")


@dataclass(frozen=True)
class Served:
    """Servers that run already. `baseline_url` is the one without a drafter where an arm is a
    launch; `model` is the name to ask for, `tokenizer` a file that takes the place of a route."""

    url: str
    kind: "Kind" = "ddtree"
    baseline_url: str | None = None
    model: str | None = None
    tokenizer: str | None = None
    api_key: str | None = None

    def check(self) -> None:
        """ConfigError for servers that can't be compared."""
        from ddtree.endpoint.kinds import KINDS

        if self.kind not in KINDS:
            raise ConfigError(f"--kind: got {self.kind!r}, expected one of {', '.join(KINDS)}")
        if self.kind == "ddtree" and self.baseline_url is not None:
            raise ConfigError("--baseline-url: a ddtree server decodes without a drafter as well")
        if self.kind != "ddtree" and self.baseline_url is None:
            raise ConfigError(
                f"--baseline-url: is needed for kind {self.kind}, where a server decodes one way "
                "alone: the URL of one without a drafter"
            )


def refuse_served(given: Mapping[str, object]) -> None:
    """ConfigError for an option of servers where there is none."""
    for name, value in given.items():
        if value is not None:
            raise ConfigError(f"--{name.replace('_', '-')}: is for a served endpoint; give --url")


async def verify_engine(wishes: Wishes, local: LocalModel) -> "VerifyReport":
    """The report on a model in this process."""
    from ddtree.serve.engine_source import EngineSource

    async with _worker(wishes, local) as (worker, tokenizer):
        engine = worker.engine
        if engine.block_size is None:
            raise ConfigError("--drafter: there is none, so there is nothing to check against ar")
        source = EngineSource(worker, tokenizer)
        target = {
            "dtype": wishes.dtype or _LOCAL_DTYPE,
            "block_size": engine.block_size,
            "eos_ids": sorted(engine.target.eos_ids),
        }
        plan = await _plan(wishes, source, target)
        return await _run(plan, source, source)


async def verify_served(wishes: Wishes, served: Served) -> "VerifyReport":
    """The report on one server, or on two where an arm is a launch."""
    from ddtree.verify.classify import EXACT_DTYPES
    from ddtree.verify.endpoint_source import EndpointSource, PairSource

    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(_client(served, served.url))
        drafting = EndpointSource(client)
        if served.baseline_url is None:
            target = await _target(client, wishes.dtype)
            return await _run(await _plan(wishes, drafting, target), drafting, drafting)
        other = await stack.enter_async_context(_client(served, served.baseline_url))
        target = await _target(other, wishes.dtype)
        baseline = EndpointSource(other)
        plan = await _plan(wishes, baseline, target)
        # Log-probabilities hide the size of a logit's last place, which decides nothing there.
        scorer = baseline if plan.dtype in EXACT_DTYPES else None
        if scorer is None:
            _note(
                f"a server of kind {served.kind} shows no logits, and log-probabilities tell no "
                f"near-tie in {plan.dtype}: differences stay unclassified"
            )
        return await _run(plan, PairSource(baseline, drafting), scorer)


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
        resolve_model(local.model, expand(local.drafter)),
        dtype=wishes.dtype or _LOCAL_DTYPE,
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


def _client(served: Served, url: str) -> "ServerClient":
    from pathlib import Path

    from ddtree.endpoint.client import ServerClient
    from ddtree.endpoint.tokens import LocalTokenizer

    path = expand(served.tokenizer)
    tokenizer = None if path is None else LocalTokenizer(Path(path))
    return ServerClient(
        url, served.model, api_key=served.api_key, kind=served.kind, tokenizer=tokenizer
    )


async def _target(client: "ServerClient", dtype: str | None) -> dict[str, Any]:
    """What a server says of its target; ConfigError where it and `dtype` leave the dtype open, or
    differ."""
    info = await client.server_info()
    told = info.get("dtype")
    if told is None and dtype is None:
        raise ConfigError(
            f"--dtype: {client.url}{client.dialect.info_path} names no dtype; give the target's, "
            "and --kind if this is no ddtree server"
        )
    if told is not None and dtype not in (None, told):
        raise ConfigError(f"--dtype: got {dtype}, {client.url} says {told}; leave it out")
    return info | {"dtype": told or dtype}


async def _plan(wishes: Wishes, source: "Source", target: dict[str, Any]) -> "VerifyPlan":
    from ddtree.verify.classify import ulp
    from ddtree.verify.run import VerifyPlan

    dtype = str(target["dtype"])
    ulp(1.0, dtype)
    return VerifyPlan(
        prompts=tuple([await source.encode(text) for text in wishes.texts]),
        arms=wishes.arms,
        samplings=wishes.samplings,
        max_tokens=wishes.max_tokens,
        concurrencies=wishes.concurrencies,
        dtype=dtype,
        block_size=int(target.get("block_size") or 1),
        samples=wishes.samples,
        seed=wishes.seed,
        eos_ids=frozenset(target.get("eos_ids") or ()),
    )


async def _run(plan: "VerifyPlan", source: "Source", scorer: "Scorer | None") -> "VerifyReport":
    from ddtree.verify.run import run_verify

    try:
        return await run_verify(plan, source, scorer, _note)
    except DDTreeError as error:
        raise DDTreeError(f"the check could not be finished: {error}") from None


def _note(text: str) -> None:
    typer.echo(text, err=True)
