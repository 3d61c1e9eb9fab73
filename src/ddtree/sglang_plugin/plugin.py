"""What SGLang calls in each of its processes before it parses arguments or loads a model."""

import logging
import os
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from ddtree.errors import ConfigError
from ddtree.sglang_plugin.contract import installed_root, problems
from ddtree.sglang_plugin.endings import stops_before_limit
from ddtree.sglang_plugin.settings import (
    CPU_BACKEND,
    NAME,
    read_wishes,
    require_supported,
    resolve,
    row_headroom,
)

_log = logging.getLogger(__name__)


def register() -> None:
    """Register DDTREE, or say which of SGLang's names is not what it was and register nothing.

    SGLang logs and swallows what a plugin raises, so that the server then says "Unknown
    speculative algorithm name: DDTREE"; the reason stands in the log above it.
    """
    found = problems(installed_root())
    if found:
        for problem in found:
            _log.error("ddtree: %s", problem)
        raise ConfigError(
            f"DDTREE is not registered: SGLang {version('sglang')} is not one this version of"
            f" ddtree knows: {found[0]}" + (f" (and {len(found) - 1} more)" if found[1:] else "")
        )
    _register()


def _register() -> None:
    """Everything that imports SGLang."""
    from sglang.srt.layers.attention.attention_registry import register_attention_backend
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    from sglang.srt.server_args import ATTENTION_BACKEND_CHOICES
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    from ddtree.sglang_plugin import adapter

    class Algorithm(adapter.TreeAlgorithm):
        """With the environment's wishes, where arguments are resolved."""

        def handle_server_args(self, server_args: Any) -> None:
            """Check and complete a server's arguments."""
            require_supported(adapter.flags_of(server_args))
            resolved = resolve(
                server_args.speculative_num_draft_tokens,
                adapter.drafter_block(server_args),
                server_args.speculative_draft_window_size,
                read_wishes(os.environ),
            )
            adapter.settle_arguments(server_args, resolved, overlap=server_args.device != "cpu")

    def worker(server_args: Any) -> type:
        from ddtree.sglang_plugin.worker import DDTreeWorker

        return DDTreeWorker

    def cpu_backend(runner: Any) -> Any:
        from ddtree.sglang_plugin.cpu import TreeTorchBackend

        return TreeTorchBackend(runner)

    def finishing(original: Any, req: Any, new_accepted_len: int = 1) -> None:
        stops_before_limit(adapter.is_serving_trees, original, req, new_accepted_len)

    def row_length(original: Any, server_args: Any) -> int:
        plain: int = original(server_args)
        if server_args.speculative_algorithm != NAME:
            return plain
        return row_headroom(plain, server_args.speculative_num_draft_tokens)

    put = SpeculativeAlgorithm.register(NAME, supports_overlap=True, spec_class=Algorithm)
    put(worker)
    hooks: tuple[tuple[str, Callable[..., Any], HookType], ...] = (
        (adapter.MASK_POLICY, adapter.captured_with_mask, HookType.AROUND),
        (adapter.MASK_BUFFER, adapter.roomier_mask, HookType.AFTER),
        (adapter.REQUEST_CHECK, adapter.refused_request, HookType.AROUND),
        (adapter.ROW_LENGTH, row_length, HookType.AROUND),
        (adapter.FINISHING, finishing, HookType.AROUND),
    )
    for target, hook, kind in hooks:
        HookRegistry.register(target, hook, kind)
    register_attention_backend(CPU_BACKEND)(cpu_backend)
    ATTENTION_BACKEND_CHOICES.append(CPU_BACKEND)
