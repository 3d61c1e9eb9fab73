"""Every name of SGLang that DDTREE uses or replaces, checked in its source before anything runs.

The check reads source files and imports nothing, so it also works on an unpacked wheel. A port
starts here: change the table, then `adapter`.
"""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

from ddtree.errors import ConfigError


@dataclass(frozen=True)
class Needed:
    """A name in a module of SGLang.

    name: a function, a class, `Class.method` or a constant. takes: parameters, without self, that
    must be there in this order; further ones must have defaults or be named in `also`. holds:
    attributes that the class sets on itself.
    """

    module: str
    name: str
    why: str
    takes: tuple[str, ...] | None = None
    also: tuple[str, ...] = ()
    holds: tuple[str, ...] = ()


_SPEC = "srt.speculative"
_WORKER = f"{_SPEC}.dflash_worker_v2"
_PLACES = (
    "server_args", "gpu_id", "tp_rank", "dp_rank", "moe_ep_rank", "attn_cp_rank", "moe_dp_rank",
    "nccl_port", "target_worker",
)  # fmt: skip

TABLE: tuple[Needed, ...] = (
    Needed(f"{_SPEC}.spec_info", "SpeculativeAlgorithm.register", "puts DDTREE among the names",
           ("name", "supports_overlap", "validate_server_args", "spec_class")),
    Needed(f"{_SPEC}.spec_registry", "CustomSpecAlgo.handle_server_args",
           "where arguments are checked and completed", ("server_args",)),
    Needed(f"{_SPEC}.spec_registry", "CustomSpecAlgo.get_num_tokens_per_bs_for_target_verify",
           "rows per request", ("num_draft_tokens", "is_draft_worker")),
    Needed(f"{_SPEC}.spec_registry", "CustomSpecAlgo.supports_target_verify_for_draft",
           "the drafter's block is a verifying pass", ()),
    Needed(f"{_SPEC}.spec_registry", "CustomSpecAlgo.is_dflash", "hidden states, KV budget", ()),
    Needed(f"{_SPEC}.spec_info", "SpeculativeAlgorithm.create_future_map",
           "the relay of overlap scheduling",
           ("device", "req_to_token_pool", "needs_cpu_seq_lens")),
    Needed(f"{_SPEC}.spec_info", "SpeculativeAlgorithm.need_topk", "asked of every algorithm", ()),
    Needed(f"{_SPEC}.spec_info", "SpeculativeAlgorithm.carries_draft_hidden_states",
           "asked of every algorithm", ()),
    Needed("srt.managers.overlap_utils", "FutureMap", "the relay itself",
           ("device", "spec_algo", "req_to_token_pool", "needs_cpu_seq_lens")),
    Needed(_WORKER, "DFlashWorkerV2", "the worker that trees are built on", _PLACES,
           holds=("_target_worker", "draft_model_runner", "model_runner", "_mask_token_id",
                  "_draft_block_spec_info", "_draft_sampler", "device")),
    Needed(_WORKER, "DFlashWorkerV2.init_attention_backends", "sets the verified width", ()),
    Needed(_WORKER, "DFlashWorkerV2.init_cuda_graphs", "captures trees and stages", ()),
    Needed(_WORKER, "DFlashWorkerV2._maybe_build_draft_sampler",
           "what the drafter's graph ends with", ()),
    Needed(_WORKER, "DFlashWorkerV2.forward_batch_generation", "one step of the server",
           ("batch", "on_publish")),
    Needed(_WORKER, "DFlashWorkerV2._append_target_hidden_to_draft_kv_by_loc", "feeds the drafter",
           ("target_hidden", "cache_loc", "positions", "cache_loc_2d", "commit_lens")),
    Needed(_WORKER, "DFlashWorkerV2._make_next_draft_input_decode", "starts a round",
           ("bonus_tokens", "new_seq_lens")),
    Needed(f"{_SPEC}.dflash_info", "DFlashVerifyInput", "a verifying pass with a mask",
           ("draft_token", "positions", "draft_token_num", "topk", "custom_mask",
            "capture_hidden_mode")),
    Needed(f"{_SPEC}.dflash_info", "DFlashVerifyInput.prepare_for_verify", "plans the pass",
           ("batch", "target_worker")),
    Needed(f"{_SPEC}.dflash_info_v2", "DFlashDraftInputV2", "a round's state between rounds",
           ("topk_p", "topk_index", "bonus_tokens", "new_seq_lens", "hidden_states")),
    Needed(f"{_SPEC}.dflash_info_v2", "DFlashDraftInputV2.prepare_for_decode",
           "reserves 2 * speculative_num_draft_tokens KV slots", ("batch",)),
    Needed(f"{_SPEC}.dflash_utils", "parse_dflash_draft_config", "the drafter's block",
           ("draft_hf_config",)),
    Needed(f"{_SPEC}.dflash_utils", "resolve_dflash_verify_mask_policy",
           "hooked: graphs are captured with a mask", ("attn_backend",)),
    Needed(f"{_SPEC}.dflash_utils", "validate_dflash_request", "hooked: requests that are refused",
           ("req", "enable_overlap")),
    Needed("srt.managers.scheduler", "validate_dflash_request", "the name that is hooked"),
    Needed("srt.managers.schedule_batch", "Req.update_finish_state",
           "hooked: stops inside a run that reaches the limit", ("new_accepted_len",)),
    Needed("srt.managers.schedule_batch", "Req", "what an ending looks at",
           holds=("output_ids", "to_finish", "finished_reason", "customized_info")),
    Needed("srt.managers.utils", "GenerationBatchResult", "what a step gives back",
           ("logits_output",),
           also=("next_token_ids", "accept_lens", "can_run_cuda_graph", "next_draft_input",
                 "speculative_num_draft_tokens", "new_seq_lens")),
    Needed("srt.managers.tp_worker", "TpModelWorker.forward_batch_generation", "the target's pass",
           ("batch", "forward_batch"), also=("is_verify", "skip_attn_backend_init")),
    Needed("srt.model_executor.forward_batch_info", "ForwardBatch", "the drafter's pass",
           ("forward_mode", "batch_size", "input_ids", "req_pool_indices", "seq_lens",
            "out_cache_loc", "seq_lens_sum"),
           also=("seq_lens_cpu", "positions", "input_embeds", "spec_algorithm", "spec_info",
                 "capture_hidden_mode")),
    Needed("srt.model_executor.runner.decode_cuda_graph_runner",
           "DecodeCudaGraphRunner.get_spec_info", "asks the mask policy at capture",
           ("num_tokens",)),
    Needed("srt.model_executor.runner.decode_cuda_graph_runner",
           "DecodeCudaGraphRunner._make_graph_key", "finds a graph's outputs",
           ("bs", "stream_idx", "variant_label")),
    Needed("srt.model_executor.runner.decode_cuda_graph_runner", "DecodeCudaGraphRunner",
           "its sizes and graphs", holds=("capture_bs", "backend")),
    Needed("srt.model_executor.runner_backend.full_cuda_graph_backend", "FullCudaGraphBackend",
           "keeps a graph's outputs", holds=("_outputs",)),
    Needed("srt.layers.attention.triton_backend", "TritonAttnBackend.init_cuda_graph_state",
           "hooked: room for the mask", ("max_bs", "max_num_tokens")),
    Needed("srt.layers.attention.triton_backend", "TritonAttnBackend",
           "its width and its mask", holds=("num_draft_tokens", "cuda_graph_custom_mask")),
    Needed("srt.layers.attention.triton_ops.extend_attention", "extend_attention_fwd",
           "skips the mask of committed tokens", also=("custom_mask", "skip_prefix_custom_mask")),
    Needed("srt.layers.attention.torch_native_backend", "TorchNativeAttnBackend.forward_extend",
           "the CPU backend builds on it",
           ("q", "k", "v", "layer", "forward_batch", "save_kv_cache")),
    Needed("srt.layers.attention.attention_registry", "register_attention_backend",
           "adds the CPU backend", ("name",)),
    Needed("srt.mem_cache.memory_pool", "ReqToTokenPool", "KV slots by request, row 0 nobody's",
           ("size", "max_context_len", "device", "enable_memory_saver"), holds=("req_to_token",)),
    Needed("srt.model_executor.model_runner_kv_cache_mixin", "get_req_to_token_extra_context_len",
           "hooked: room for two rounds beyond the context"),
    Needed("srt.mem_cache.common", "get_req_to_token_extra_context_len",
           "the same, where it is made", ("server_args",)),
    Needed("srt.mem_cache.memory_pool", "MHATokenToKVPool.move_kv_cache", "accepted rows move",
           ("tgt_loc", "src_loc")),
    Needed("srt.mem_cache.memory_pool", "MLATokenToKVPool.move_kv_cache", "accepted rows move",
           ("tgt_loc", "src_loc")),
    Needed("srt.mem_cache.memory_pool", "KVWriteLoc", "the CPU backend writes KV"),
    Needed("srt.sampling.sampling_batch_info", "SamplingBatchInfo", "how requests draw",
           also=("temperatures", "top_ps", "top_ks", "min_ps", "is_all_greedy", "logit_bias",
                 "need_top_k_sampling", "need_top_p_sampling")),
    Needed("srt.arg_groups.overrides", "attention_backends_of", "which backends run", ("cfg",)),
    Needed("srt.arg_groups.overrides", "resolved_view", "arguments as they will be",
           ("server_args",)),
    Needed("srt.server_args", "get_global_server_args", "this process's arguments", ()),
    Needed("srt.server_args", "ATTENTION_BACKEND_CHOICES", "names that the flag takes"),
    Needed("srt.utils.hf_transformers.config", "get_config", "the drafter's config.json",
           ("model", "trust_remote_code", "revision")),
    Needed("srt.plugins.hook_registry", "HookRegistry.register", "puts hooks",
           ("target", "hook", "hook_type")),
    Needed("srt.distributed.parallel_state", "get_tp_group", "tensor parallelism"),
)  # fmt: skip


@dataclass(frozen=True)
class _Source:
    """One module's syntax tree."""

    tree: ast.Module

    @cached_property
    def names(self) -> Mapping[str, ast.AST]:
        """Functions, classes, methods and constants of the module; imported names as well."""
        return dict(_names(self.tree.body, ""))

    def parameters(self, name: str) -> tuple[list[str], set[str]] | None:
        """(all parameters without self, those without a default); None for what takes none."""
        node = self.names[name]
        if isinstance(node, ast.ClassDef):
            own = self.names.get(f"{name}.__init__")
            return _fields(node) if own is None else _parameters(own)
        return _parameters(node)


def _names(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, ast.AST]]:
    for node in body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield prefix + name, node
            case ast.ClassDef(name=name):
                yield prefix + name, node
                yield from _names(node.body, f"{prefix}{name}.")
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                yield prefix + name, node
            case ast.ImportFrom(names=names):
                yield from ((prefix + (n.asname or n.name), node) for n in names)
            case ast.If(body=inner, orelse=other) | ast.Try(body=inner, orelse=other):
                yield from _names(inner + other, prefix)


def _parameters(node: ast.AST) -> tuple[list[str], set[str]] | None:
    if not isinstance(node, ast.FunctionDef):
        return None
    plain = [*node.args.posonlyargs, *node.args.args]
    required = plain[: len(plain) - len(node.args.defaults)]
    required += [
        arg
        for arg, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
        if default is None
    ]
    hidden = {"self", "cls"}
    names = [arg.arg for arg in [*plain, *node.args.kwonlyargs] if arg.arg not in hidden]
    return names, {arg.arg for arg in required} - hidden


def _fields(node: ast.ClassDef) -> tuple[list[str], set[str]]:
    """A dataclass's fields."""
    fields = [item for item in node.body if isinstance(item, ast.AnnAssign)]
    names = [item.target.id for item in fields if isinstance(item.target, ast.Name)]
    return names, {name for name, item in zip(names, fields, strict=True) if item.value is None}


def installed_root() -> Path:
    """The folder of the installed `sglang`; ConfigError if there is none."""
    spec = find_spec("sglang")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError("SGLang is not installed here; install it first (docs/sglang.md)")
    return Path(spec.submodule_search_locations[0])


def problems(root: Path) -> tuple[str, ...]:
    """What in the SGLang below `root` (the folder `sglang`) is not as the table says."""
    sources: dict[str, _Source | None] = {}
    found = []
    for needed in TABLE:
        if needed.module not in sources:
            sources[needed.module] = _read(root, needed.module)
        problem = _problem(needed, sources[needed.module])
        if problem is not None:
            found.append(f"sglang.{needed.module}.{needed.name} ({needed.why}): {problem}")
    return tuple(found)


def _read(root: Path, module: str) -> _Source | None:
    path = root.joinpath(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return _Source(ast.parse(path.read_text(encoding="utf-8"))) if path.is_file() else None


def _problem(needed: Needed, source: _Source | None) -> str | None:
    if source is None:
        return "the module is not there"
    if needed.name not in source.names:
        return "not there"
    missing = [name for name in needed.holds if name not in _held(source, needed.name)]
    if missing:
        return f"does not set self.{missing[0]}"
    found = source.parameters(needed.name)
    if found is None or (needed.takes is None and not needed.also):
        return None
    names, required = found
    takes = needed.takes or ()
    if needed.takes is not None and tuple(n for n in names if n in takes) != takes:
        return f"takes ({', '.join(names)}), expected ({', '.join(takes)})"
    gone = [name for name in needed.also if name not in names]
    if gone:
        return f"does not take {gone[0]}"
    extra = sorted(required - {*takes, *needed.also}) if needed.takes is not None else []
    return f"also wants {extra[0]}" if extra else None


def _held(source: _Source, name: str) -> set[str]:
    """Attributes that a class's methods set on self, or that it declares."""
    node = source.names[name]
    targets = [n for n in ast.walk(node) if isinstance(n, ast.Attribute | ast.AnnAssign)]
    return {
        n.attr if isinstance(n, ast.Attribute) else ast.unparse(n.target)
        for n in targets
        if isinstance(n, ast.AnnAssign)
        or (isinstance(n.value, ast.Name) and n.value.id == "self" and isinstance(n.ctx, ast.Store))
    }
