"""Launch lines of SGLang servers that run DDTREE: data, and the words they come to."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ddtree.errors import ConfigError
from ddtree.sglang_plugin.settings import DEFAULT_BUDGET, DEFAULT_TOPK, NAME


@dataclass(frozen=True)
class Recipe:
    """A server for one target and its drafter.

    model, drafter: hub ids or folders; drafter None must be given. tp: GPUs that share the
    target. window: committed tokens the drafter sees. memory: share of a GPU's memory for weights
    and KV. graph_sizes: batch sizes with CUDA graphs, the largest of which is where eager begins.
    extra: further flags of SGLang.
    """

    model: str
    drafter: str | None
    tp: int = 1
    budget: int = DEFAULT_BUDGET
    topk: int = DEFAULT_TOPK
    window: int = 2048
    memory: float = 0.8
    graph_sizes: tuple[int, ...] = (1, 2, 4, 8, 16, 24, 32)
    port: int = 30000
    extra: tuple[str, ...] = ()


RECIPES: Mapping[str, Recipe] = {
    # Its drafter has a block of 8: beyond 32 nodes there is little left to guess.
    "kimi-k2.6": Recipe(
        "moonshotai/Kimi-K2.6",
        "z-lab/Kimi-K2.6-DFlash",
        tp=8,
        memory=0.85,
        extra=("--trust-remote-code",),
    ),
    "qwen3-8b": Recipe("Qwen/Qwen3-8B", "z-lab/Qwen3-8B-DFlash-b16", budget=32),
    # For trying: `ddtree models pull smollm2-135m` and `ddtree sglang drafter` make the folders.
    "smollm2-135m": Recipe("HuggingFaceTB/SmolLM2-135M-Instruct", None, window=1024, memory=0.4),
}


def recipe_of(name: str) -> Recipe:
    """The recipe called `name`; ConfigError naming those there are."""
    if name not in RECIPES:
        raise ConfigError(f"recipe: got {name!r}, expected one of {', '.join(RECIPES)}")
    return RECIPES[name]


def changed(recipe: Recipe, **changes: str | int | None) -> Recipe:
    """The recipe with what isn't None put in its place; ConfigError for sizes below 1."""
    given = {name: value for name, value in changes.items() if value is not None}
    for name, value in given.items():
        if isinstance(value, int) and value < 1:
            raise ConfigError(f"{name}: got {value}, expected at least 1")
    return replace(recipe, **given)  # type: ignore[arg-type]


def environment_of(recipe: Recipe) -> dict[str, str]:
    """What the plugin reads besides flags."""
    return {"DDTREE_TOPK": str(recipe.topk)}


def flags_of(recipe: Recipe) -> list[str]:
    """The server's flags; ConfigError where no drafter is known."""
    if recipe.drafter is None:
        raise ConfigError(
            f"drafter: {recipe.model} has none on the hub; say --drafter FOLDER, as"
            " `ddtree sglang drafter` writes it"
        )
    return [
        *("--model-path", recipe.model),
        *("--tp-size", str(recipe.tp)),
        *("--speculative-algorithm", NAME),
        *("--speculative-draft-model-path", recipe.drafter),
        *("--speculative-num-draft-tokens", str(recipe.budget + 1)),
        *("--speculative-draft-window-size", str(recipe.window)),
        # Trees are verified by the triton kernels alone, and move tokens one by one.
        *("--attention-backend", "triton"),
        *("--page-size", "1"),
        *("--cuda-graph-bs", *map(str, recipe.graph_sizes)),
        *("--mem-fraction-static", str(recipe.memory)),
        *("--port", str(recipe.port)),
        *recipe.extra,
    ]


def command_of(recipe: Recipe, extra: tuple[str, ...] = ()) -> list[str]:
    """The command's words; `extra` flags come last, and win."""
    return ["python3", "-m", "sglang.launch_server", *flags_of(recipe), *extra]


def shell_line(recipe: Recipe, extra: tuple[str, ...] = ()) -> str:
    """Variables and command as a shell takes them."""
    variables = [f"{name}={value}" for name, value in environment_of(recipe).items()]
    return " ".join([*variables, shlex.join(command_of(recipe, extra))])
