"""A second plugin for tests alone: what SGLang lacks on a CPU for stock DFLASH and for ranks."""

import logging
import sys
from types import ModuleType

import torch
from sglang.srt.layers.attention.attention_registry import register_attention_backend
from sglang.srt.plugins.hook_registry import HookRegistry, HookType
from sglang.srt.server_args import ATTENTION_BACKEND_CHOICES
from sglang.srt.speculative.spec_registry import get_spec

BACKEND = "chain_torch"
SLOTS = "sglang.srt.speculative.dflash_worker_v2.assign_extend_cache_locs_func"
CUTLASS = "sglang.jit_kernel.dsa.cutedsl_paged_mqa_logits"
GATHER = "sglang.srt.distributed.parallel_state.GroupCoordinator.all_gather_into_tensor"
DRAFTING = "sglang.srt.arg_groups.speculative_hook._resolve_dflash_draft_attention_backend"
_log = logging.getLogger(__name__)


def backend(runner):
    """The attention of DDTREE's own tests, whose module registers nothing."""
    from ddtree.sglang_plugin.cpu import TreeTorchBackend

    # In the process that serves, after all plugins have run.
    _log.info("DDTREE registered: %s", get_spec("DDTREE") is not None)
    _log.info("Slots a row: %s", runner.req_to_token_pool.req_to_token.shape[1])
    return TreeTorchBackend(runner)


def slots(*, req_pool_indices, req_to_token, start_offset, draft_token_num, **_):
    """KV slots of each request's block: SGLang has kernels for GPUs alone."""
    places = start_offset[:, None] + torch.arange(draft_token_num)
    return req_to_token[req_pool_indices[:, None], places].long().flatten()


def gather(group, output, part):
    """What SGLang's operator does, which is there for GPUs alone."""
    group._all_gather_into_tensor(output, part)


def drafts_alike(server_args):
    """The drafter takes the target's backend; SGLang's list holds those for GPUs."""
    server_args.speculative_draft_attention_backend = BACKEND


def without_cutlass():
    """DeepSeek's models import kernels of a package for GPUs, which they call on GPUs alone."""
    kernels = ModuleType(CUTLASS)
    kernels.CuteDSLPagedMQALogitsRunner = kernels.pick_dsl_expand = None
    sys.modules[CUTLASS] = kernels


def latent_attention():
    """Prompt passes as GPUs run verifying ones, on what the cache holds: the torch backend reads
    no keys from elsewhere."""
    from sglang.srt.models.deepseek_common.attention_backend_handler import (
        AttentionBackendRegistry,
        AttnForwardMethod,
    )

    AttentionBackendRegistry.register("ddtree_torch", lambda *_: AttnForwardMethod.MLA)


def register():
    """Add them to this process."""
    without_cutlass()
    latent_attention()
    register_attention_backend(BACKEND)(backend)
    ATTENTION_BACKEND_CHOICES.append(BACKEND)
    HookRegistry.register(SLOTS, slots, HookType.REPLACE)
    HookRegistry.register(GATHER, gather, HookType.REPLACE)
    HookRegistry.register(DRAFTING, drafts_alike, HookType.REPLACE)
    # A CPU has no streams.
    torch.Tensor.record_stream = lambda tensor, stream: None
