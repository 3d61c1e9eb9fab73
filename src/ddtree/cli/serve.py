"""`ddtree serve`: the engine behind OpenAI's HTTP interface."""

import dataclasses
import importlib.metadata
import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddtree import __version__
from ddtree.cli.default_speculation import (
    BudgetOption,
    MethodOption,
    ScheduleOption,
    TopkOption,
    default_speculation,
)
from ddtree.cli.options import (
    API_KEY_VARIABLE,
    DEFAULT_MODEL,
    DeviceOption,
    DraftCausalOption,
    DrafterOption,
    DtypeOption,
    EagerOption,
    ModelOption,
    ThreadsOption,
    WindowKindOption,
    WindowOption,
    expand,
    parse_window,
)
from ddtree.errors import ConfigError

if TYPE_CHECKING:
    from ddtree.engine import LoadedEngine
    from ddtree.serve import DefaultSpeculation
    from ddtree.serve.guards import Guards
    from ddtree.serve.running import ServeSettings

_ENGINE, _HTTP = "Engine", "HTTP"
SlotsOption = Annotated[
    int, typer.Option(help="Requests decoded at once.", rich_help_panel=_ENGINE)
]
MaxContextOption = Annotated[
    int | None,
    typer.Option(
        help="Prompt + output tokens of a request. Default: the model's.", rich_help_panel=_ENGINE
    ),
]
CacheTokensOption = Annotated[
    int | None,
    typer.Option(
        help="Tokens the target's cache has room for. Default: slots x max-context.",
        rich_help_panel=_ENGINE,
    ),
]
MaxBudgetOption = Annotated[
    int, typer.Option(help="Largest budget a request may ask for.", rich_help_panel=_ENGINE)
]
MaxTopkOption = Annotated[
    int, typer.Option(help="Largest topk a request may ask for.", rich_help_panel=_ENGINE)
]
ChunkOption = Annotated[
    int, typer.Option(help="Prompt tokens per forward pass, at most.", rich_help_panel=_ENGINE)
]
StallOption = Annotated[
    float,
    typer.Option(
        min=0,
        help="Milliseconds that prompts may hold up decoding requests; 0 never cuts a chunk.",
        rich_help_panel=_ENGINE,
    ),
]
CoupledOption = Annotated[
    bool,
    typer.Option(
        help="Let sampled requests' trees look at the noise of the draws.", rich_help_panel=_ENGINE
    ),
]
HostOption = Annotated[str, typer.Option(help="Address to listen on.", rich_help_panel=_HTTP)]
PortOption = Annotated[
    int, typer.Option(min=1, max=65535, help="Port to listen on.", rich_help_panel=_HTTP)
]
KeyOption = Annotated[
    list[str] | None,
    typer.Option(
        envvar=API_KEY_VARIABLE,
        help=f"Key that clients must send, repeatable; {API_KEY_VARIABLE} in the environment keeps "
        "it out of process lists. Default: none is asked for.",
        rich_help_panel=_HTTP,
    ),
]
QueueOption = Annotated[
    int,
    typer.Option(
        min=0, help="Requests that may wait for a slot; more get a 429.", rich_help_panel=_HTTP
    ),
]
BodyOption = Annotated[
    int,
    typer.Option(
        min=1, help="Largest request body in bytes; larger ones get a 413.", rich_help_panel=_HTTP
    ),
]
ShutdownOption = Annotated[
    float,
    typer.Option(
        min=0, help="Seconds that requests in flight get after SIGTERM.", rich_help_panel=_HTTP
    ),
]
WriteOption = Annotated[
    float,
    typer.Option(
        min=0.1,
        help="Seconds after which a client that takes nothing is given up.",
        rich_help_panel=_HTTP,
    ),
]


def serve(
    model: ModelOption = DEFAULT_MODEL,
    drafter: DrafterOption = None,
    dtype: DtypeOption = "bfloat16",
    device: DeviceOption = "cpu",
    threads: ThreadsOption = None,
    eager: EagerOption = False,
    slots: SlotsOption = 4,
    max_context: MaxContextOption = None,
    cache_tokens: CacheTokensOption = None,
    max_budget: MaxBudgetOption = 64,
    max_topk: MaxTopkOption = 16,
    prefill_chunk: ChunkOption = 512,
    max_stall_ms: StallOption = 500.0,
    draft_window: WindowOption = None,
    window_kind: WindowKindOption = None,
    draft_causal: DraftCausalOption = None,
    coupled_drafting: CoupledOption = True,
    method: MethodOption = None,
    budget: BudgetOption = None,
    topk: TopkOption = None,
    schedule: ScheduleOption = None,
    host: HostOption = "127.0.0.1",
    port: PortOption = 8000,
    api_key: KeyOption = None,
    max_queue: QueueOption = 256,
    max_body_bytes: BodyOption = 16 * 2**20,
    shutdown_timeout: ShutdownOption = 30.0,
    write_timeout: WriteOption = 30.0,
) -> None:
    """Serve OpenAI's completions and chat completions; see docs/server.md for every route."""
    import torch

    from ddtree.cli.loading import drafter_overrides, resolve_model
    from ddtree.engine import EngineConfig, load_engine
    from ddtree.serve.guards import Guards
    from ddtree.serve.running import ServeSettings

    if threads is not None:
        torch.set_num_threads(threads)
    config = EngineConfig(
        slots=slots,
        max_context=max_context,
        cache_tokens=cache_tokens,
        max_budget=max_budget,
        max_topk=max_topk,
        prefill_chunk=prefill_chunk,
        max_stall_s=max_stall_ms / 1000 or None,
        draft_window=parse_window(draft_window),
        coupled_drafting=coupled_drafting,
        rounds="ragged" if eager else "auto",
    )
    default = default_speculation(method, budget, topk, schedule)
    guards = Guards(_keys(api_key), max_body_bytes)
    settings = ServeSettings(host, port, shutdown_timeout, write_timeout)
    paths = resolve_model(model, expand(drafter))
    typer.echo(f"loading {paths.name} ...", err=True)
    overrides = drafter_overrides(window_kind, draft_causal)
    loaded = load_engine(paths, dtype=dtype, device=device, config=config, overrides=overrides)
    default.check(loaded.engine, loaded.paths.name, str(schedule or "schedule"))
    recorded = loaded.engine.prepare(() if default.fixed is None else (default.fixed,))
    resolved = _resolved(loaded, default, dtype, device)
    resolved["graphs"] = None if recorded is None else dataclasses.asdict(recorded)
    _run(loaded, default, resolved, max_queue, (guards, settings))


def _keys(given: list[str] | None) -> tuple[str, ...]:
    """Keys that open the server; ConfigError where one was meant and none is there."""
    if not given and API_KEY_VARIABLE in os.environ:
        raise ConfigError(
            f"{API_KEY_VARIABLE}: is empty, which would let anybody in; give it a key, or unset it "
            "to ask for none"
        )
    return tuple(given or ())


def _run(
    loaded: "LoadedEngine",
    default: "DefaultSpeculation",
    resolved: dict[str, Any],
    max_queue: int,
    http: "tuple[Guards, ServeSettings]",
) -> None:
    """Say what will be done, then serve until told to stop."""
    from ddtree.serve import EngineWorker, ServerInfo, create_app
    from ddtree.serve.running import DrainingServer

    guards, settings = http
    resolved |= {
        "max_queue": max_queue,
        "max_body_bytes": guards.max_body_bytes,
        "api_key_required": bool(guards.api_keys),
        "shutdown_timeout_s": settings.shutdown_timeout_s,
        "write_timeout_s": settings.write_timeout_s,
    }
    for name, value in resolved.items():
        typer.echo(f"  {name}: {value}", err=True)
    worker = EngineWorker(loaded.engine, max_queue)
    info = ServerInfo(loaded.paths.name, resolved)
    app = create_app(worker, loaded.tokenizer, info, guards, default)
    server = DrainingServer(app, worker, settings)
    typer.echo(f"serving on http://{settings.host}:{settings.port}", err=True)
    server.run()


def _resolved(
    loaded: "LoadedEngine", default: "DefaultSpeculation", dtype: str, device: str
) -> dict[str, Any]:
    """What the server will do, after every default."""
    import torch

    from ddtree.cli.loading import window_meaning
    from ddtree.models.text import chat_format

    engine = loaded.engine
    drafter = loaded.paths.drafter
    return {
        "version": __version__,
        "target": str(loaded.paths.target),
        "drafter": None if drafter is None else str(drafter),
        "dtype": dtype,
        "device": device,
        "threads": torch.get_num_threads(),
        "rounds": engine.rounds,
        "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY"),
        "slots": engine.config.slots,
        "max_context": engine.max_context,
        "cache_tokens": engine.cache_use().cells,
        "max_budget": engine.config.max_budget,
        "max_topk": engine.config.max_topk,
        "prefill_chunk": engine.config.prefill_chunk,
        "max_stall_s": engine.config.max_stall_s,
        "block_size": engine.block_size,
        "draft_window": engine.draft_window,
        **window_meaning(engine),
        "coupled_drafting": engine.coupled_drafting,
        "default_speculation": dataclasses.asdict(default.fixed or engine.default_speculation()),
        "schedule": default.to_dict(),
        "eos_ids": sorted(engine.target.eos_ids),
        "chat_format": chat_format(loaded.tokenizer),
        "kv_cache_bytes": engine.pool.num_bytes,
        "draft_cache_bytes": 0 if engine.drafting is None else engine.drafting.pool.num_bytes,
        "torch": torch.__version__,
        "transformers": importlib.metadata.version("transformers"),
    }
