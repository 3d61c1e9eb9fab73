"""`ddtree serve`: the engine behind OpenAI's HTTP interface."""

import dataclasses
import importlib.metadata
import os
from typing import Annotated, Any

import typer

from ddtree import __version__
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

# Seconds that requests in flight get to end after SIGTERM.
SHUTDOWN_S = 3


def serve(
    model: ModelOption = DEFAULT_MODEL,
    drafter: DrafterOption = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8000,
    dtype: DtypeOption = "bfloat16",
    device: DeviceOption = "cpu",
    threads: ThreadsOption = None,
    slots: Annotated[int, typer.Option(help="Requests decoded at once.")] = 4,
    max_context: Annotated[
        int | None, typer.Option(help="Prompt + output tokens of a request. Default: the model's.")
    ] = None,
    max_budget: Annotated[int, typer.Option(help="Largest budget a request may ask for.")] = 64,
    max_topk: Annotated[int, typer.Option(help="Largest topk a request may ask for.")] = 16,
    prefill_chunk: Annotated[int, typer.Option(help="Prompt tokens per forward pass.")] = 512,
    draft_window: WindowOption = None,
    coupled_drafting: Annotated[
        bool, typer.Option(help="Let sampled requests' trees look at the noise of the draws.")
    ] = True,
) -> None:
    """Serve /v1/completions, /v1/chat/completions, /v1/models, /health and /server_info."""
    import torch
    import uvicorn

    from ddtree.cli.loading import resolve_model
    from ddtree.engine import EngineConfig, load_engine
    from ddtree.serve import EngineWorker, ServerInfo, create_app

    if threads is not None:
        torch.set_num_threads(threads)
    config = EngineConfig(
        slots,
        max_context,
        max_budget,
        max_topk,
        prefill_chunk,
        parse_window(draft_window),
        coupled_drafting,
    )
    paths = resolve_model(model, expand(drafter))
    typer.echo(f"loading {paths.name} ...", err=True)
    loaded = load_engine(paths, dtype=dtype, device=device, config=config)
    resolved = _resolved(loaded, dtype, device)
    for name, value in resolved.items():
        typer.echo(f"  {name}: {value}", err=True)
    app = create_app(
        EngineWorker(loaded.engine), loaded.tokenizer, ServerInfo(paths.name, resolved)
    )
    typer.echo(f"serving on http://{host}:{port}", err=True)
    uvicorn.run(
        app, host=host, port=port, log_level="warning", timeout_graceful_shutdown=SHUTDOWN_S
    )


def _resolved(loaded: Any, dtype: str, device: str) -> dict[str, Any]:
    """What the server will do, after every default."""
    import torch

    engine = loaded.engine
    drafter = loaded.paths.drafter
    return {
        "version": __version__,
        "target": str(loaded.paths.target),
        "drafter": None if drafter is None else str(drafter),
        "dtype": dtype,
        "device": device,
        "threads": torch.get_num_threads(),
        "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY"),
        "slots": engine.config.slots,
        "max_context": engine.max_context,
        "max_budget": engine.config.max_budget,
        "max_topk": engine.config.max_topk,
        "prefill_chunk": engine.config.prefill_chunk,
        "block_size": engine.block_size,
        "draft_window": engine.draft_window,
        "window_kind": engine.window_kind,
        "coupled_drafting": engine.coupled_drafting,
        "default_speculation": dataclasses.asdict(engine.default_speculation()),
        "eos_ids": sorted(engine.target.eos_ids),
        "kv_cache_bytes": engine.pool.num_bytes,
        "draft_cache_bytes": 0 if engine.drafting is None else engine.drafting.pool.num_bytes,
        "torch": torch.__version__,
        "transformers": importlib.metadata.version("transformers"),
    }
