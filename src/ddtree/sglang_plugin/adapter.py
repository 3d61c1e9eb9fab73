"""What DDTREE needs of SGLang 0.5.15: the one module that a port rewrites.

`ServerWorker` turns stock DFLASH's worker into steps that a round is made of; `TreeAlgorithm` and
the hooks below make the rest of the server treat DDTREE as a DFLASH whose target verifies trees.
Every name is listed in `contract`, with what breaks if it changes.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.arg_groups.overrides import attention_backends_of, resolved_view
from sglang.srt.distributed import get_tp_group
from sglang.srt.managers.overlap_utils import FutureMap
from sglang.srt.managers.scheduler import GenerationBatchResult
from sglang.srt.model_executor.forward_batch_info import (
    CaptureHiddenMode,
    ForwardBatch,
    ForwardMode,
)
from sglang.srt.server_args import get_global_server_args
from sglang.srt.speculative.dflash_info import DFlashVerifyInput
from sglang.srt.speculative.dflash_info_v2 import DFlashDraftInputV2
from sglang.srt.speculative.dflash_utils import parse_dflash_draft_config
from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2
from sglang.srt.speculative.spec_registry import CustomSpecAlgo
from sglang.srt.utils.hf_transformers_utils import get_config
from torch import Tensor

from ddtree.errors import ConfigError
from ddtree.sglang_plugin.drafting import HeadShard
from ddtree.sglang_plugin.rounds import Block, Planted, Settled, Start, TreeShape, Verified
from ddtree.sglang_plugin.sampling import Drawing, request_seed
from ddtree.sglang_plugin.settings import (
    NAME,
    PATH_DEPENDENT,
    Flags,
    Resolved,
    path_problem,
)

# What the hooks below are put on.
MASK_POLICY = "sglang.srt.speculative.dflash_utils.resolve_dflash_verify_mask_policy"
MASK_BUFFER = "sglang.srt.layers.attention.triton_backend.TritonAttnBackend.init_cuda_graph_state"
FINISHING = "sglang.srt.managers.schedule_batch.Req.update_finish_state"
ROW_LENGTH = (
    "sglang.srt.model_executor.model_runner_kv_cache_mixin.get_req_to_token_extra_context_len"
)
REQUEST_CHECK = "sglang.srt.managers.scheduler.validate_dflash_request"


class TreeAlgorithm(CustomSpecAlgo):
    """DDTREE where SGLang asks which algorithm runs: a DFLASH but for the verified width."""

    def is_dflash(self) -> bool:
        """The target captures hidden states, the drafter's layers count in the KV budget."""
        return True

    # The drafter's block runs as a verifying pass.
    supports_target_verify_for_draft = is_dflash

    def need_topk(self) -> bool:
        """Nothing EAGLE-like is relayed between rounds."""
        return False

    def carries_draft_hidden_states(self) -> bool:
        """Nothing for a disaggregated decoder to receive."""
        return False

    def create_future_map(
        self, device: Any, req_to_token_pool: Any, needs_cpu_seq_lens: bool = True
    ) -> FutureMap:
        """The relay of overlap scheduling."""
        return FutureMap(device, self, req_to_token_pool, needs_cpu_seq_lens)

    def get_num_tokens_per_bs_for_target_verify(
        self, num_draft_tokens: int, is_draft_worker: bool
    ) -> int:
        """Rows per request: the drafter's block, or the tree and its root."""
        if is_draft_worker:
            return num_draft_tokens
        return served(get_global_server_args()).shape.rows


def served(server_args: Any) -> Resolved:
    """What `settle_arguments` left in a server's arguments."""
    return Resolved.from_json(server_args.ddtree)


def is_serving_trees() -> bool:
    """Whether this process belongs to a DDTREE server: hooks leave others alone."""
    return bool(get_global_server_args().speculative_algorithm == NAME)


def flags_of(server_args: Any) -> Flags:
    """What of a server's arguments decides whether DDTREE can run."""
    view = resolved_view(server_args)
    return Flags(
        server_args.speculative_draft_model_path,
        {name for name in attention_backends_of(view) if name is not None},
        view.page_size,
        server_args.pp_size,
        view.enable_dp_attention,
        server_args.enable_custom_logit_processor,
        (
            server_args.speculative_accept_threshold_single,
            server_args.speculative_accept_threshold_acc,
        ),
        server_args.speculative_adaptive,
    )


def drafter_block(server_args: Any) -> int:
    """The block that the drafter was trained with, or the flag's."""
    if server_args.speculative_dflash_block_size is not None:
        return int(server_args.speculative_dflash_block_size)
    config = get_config(
        server_args.speculative_draft_model_path,
        trust_remote_code=server_args.trust_remote_code,
        revision=server_args.speculative_draft_model_revision,
    )
    block = parse_dflash_draft_config(draft_hf_config=config).resolve_block_size(default=None)
    if block is None:
        raise ConfigError(
            f"{server_args.speculative_draft_model_path}: its config.json names no block_size; say"
            " --speculative-dflash-block-size"
        )
    return int(block)


def settle_arguments(server_args: Any, resolved: Resolved, *, overlap: bool) -> None:
    """Write a DDTREE server's arguments.

    KV slots are reserved by `speculative_num_draft_tokens`, so it has to cover the drafter's block
    too; the verified width is the shape's, here and nowhere else.
    """
    server_args.ddtree = resolved.as_json()
    server_args.speculative_num_draft_tokens = resolved.shape.span
    server_args.speculative_dflash_block_size = resolved.shape.block
    server_args.speculative_num_steps = 1
    server_args.speculative_eagle_topk = 1
    server_args.enable_mixed_chunk = False
    if not overlap:
        server_args.disable_overlap_schedule = True
    if server_args.max_running_requests is None:
        server_args.max_running_requests = 48
    if server_args.speculative_draft_attention_backend is None:
        _, decoding = attention_backends_of(resolved_view(server_args))
        server_args.speculative_draft_attention_backend = decoding


def captured_with_mask(original: Callable[[Any], tuple[str, bool]], backend: Any) -> Any:
    """Hook: the target's graph is captured with a mask, or it would never look at one."""
    name, wanted = original(backend)
    return name, wanted or is_serving_trees()


def roomier_mask(result: Any, backend: Any, max_bs: int, max_num_tokens: int, *_: Any) -> None:
    """Hook: SGLang's mask buffer ends at the context's length, a tree's rows lie beyond it."""
    if is_serving_trees():
        rows = max_num_tokens // max_bs
        flat = backend.cuda_graph_custom_mask
        backend.cuda_graph_custom_mask = flat.new_zeros(len(flat) + max_num_tokens * rows)


def refused_request(original: Callable[[Any, bool], str | None], req: Any, overlap: bool) -> Any:
    """Hook: why a request can't be served as asked, or None."""
    problem = original(req, overlap)
    if not is_serving_trees():
        return problem
    params = req.sampling_params
    fields = {name: getattr(params, name) for name in PATH_DEPENDENT}
    return problem.replace("DFLASH", NAME) if problem else path_problem(fields)


class ServerWorker(DFlashWorkerV2):
    """Stock DFLASH's worker, whose prompt pass, drafter and KV writers are used as they are."""

    def __init__(self, server_args: Any, **places: Any) -> None:
        self.resolved = served(server_args)
        self.shape: TreeShape = self.resolved.shape
        # The drafter's runner, backends and graphs take their width from its own arguments.
        drafting = copy.copy(server_args)
        drafting.speculative_num_draft_tokens = self.shape.block
        super().__init__(drafting, **places)
        self.server_args = server_args
        self.speculative_num_draft_tokens = self.shape.rows

    def init_attention_backends(self) -> None:
        """The target's backend counts `speculative_num_draft_tokens` rows unless told better."""
        super().init_attention_backends()
        backend = self._target_worker.model_runner.attn_backend
        if type(backend).__name__ not in ("TritonAttnBackend", "TreeTorchBackend"):
            raise ConfigError(
                f"{NAME}: the target's attention runs in {type(backend).__name__} (hybrid or"
                " linear attention?), expected plain triton"
            )
        backend.num_draft_tokens = self.shape.rows

    @property
    def on_gpu(self) -> bool:
        """Whether there are CUDA graphs and streams."""
        return str(self.device) != "cpu"

    @property
    def can_capture(self) -> bool:
        """Whether our own stages may be captured: collectives stay outside."""
        graphs = self.on_gpu and not self.server_args.disable_cuda_graph
        return bool(graphs and get_tp_group().world_size == 1)

    @property
    def capture_sizes(self) -> tuple[int, ...]:
        """Batch sizes of the target's graphs, ascending."""
        runner = self._target_worker.model_runner.decode_cuda_graph_runner
        return () if runner is None else tuple(sorted(runner.capture_bs))

    @property
    def shared_table(self) -> Tensor:
        """[R, columns] int32 KV slots of each request's positions."""
        table: Tensor = self.model_runner.req_to_token_pool.req_to_token
        return table

    @property
    def own_table(self) -> Tensor:
        """The drafter's table: its own with a window, else the shared one."""
        table: Tensor = self.draft_model_runner.req_to_token_pool.req_to_token
        return table

    @property
    def graph_mask(self) -> Tensor | None:
        """The buffer that the target's graphs read, if there are graphs."""
        backend = self._target_worker.model_runner.attn_backend
        return getattr(backend, "cuda_graph_custom_mask", None)

    def head(self) -> HeadShard:
        """The target's head, which the drafter borrows."""
        head = getattr(self._target_worker.model_runner.model, "lm_head", None)
        weight = getattr(head, "weight", None)
        if weight is None or not torch.is_floating_point(weight):
            raise ConfigError(
                f"{NAME}: the target's lm_head is quantised or missing, expected floats"
            )
        shard = getattr(head, "shard_indices", None)
        group = get_tp_group()
        if shard is None:
            return HeadShard(weight, 0, None)
        if shard.num_added_elements:
            raise ConfigError(f"{NAME}: the target has added tokens in its head, expected none")

        def gather(part: Tensor) -> Tensor:
            out = part.new_empty((group.world_size * part.shape[0], *part.shape[1:]))
            group.all_gather_into_tensor(out, part)
            return out.view(group.world_size, *part.shape)

        own = weight[: shard.num_org_elements]
        first = int(shard.org_vocab_start_index)
        return HeadShard(own, first, gather if group.world_size > 1 else None)

    def embed(self, ids: Tensor) -> Tensor:
        """The target's embeddings [B * block, E] of a block's ids."""
        embedded: Tensor = self._target_worker.model_runner.model.get_input_embeddings()(ids)
        return embedded.view(-1, embedded.shape[-1])

    def start_of(self, batch: Any) -> Start:
        """Where the requests of a decoding batch stand."""
        if self.on_gpu:
            # Overlap scheduling made them on another stream.
            batch.seq_lens.record_stream(torch.cuda.current_stream())
        return Start(batch.req_pool_indices, batch.seq_lens, batch.spec_info.bonus_tokens)

    def drawing_of(self, batch: Any) -> Drawing | None:
        """How the batch's requests draw; None where SGLang keeps no sampling state."""
        info = batch.sampling_info
        if info is None:
            return None
        reqs = [] if info.is_all_greedy else batch.reqs
        return Drawing(
            info.is_all_greedy,
            info.need_top_k_sampling or info.need_top_p_sampling,
            info.temperatures,
            info.top_ks,
            info.top_ps,
            info.min_ps,
            [request_seed(req.sampling_params.sampling_seed, str(req.rid)) for req in reqs],
            info.logit_bias,
        )

    def run_drafter(
        self, batch: Any, block: Block, embeds: Tensor, seen: Tensor
    ) -> tuple[Tensor, bool]:
        """The drafter's hidden states [B * block, E], and whether its CUDA graph gave them.

        seen: [B] committed tokens in the drafter's table.
        """
        size, draft = len(block.ids), batch.spec_info
        bound = draft.reserved_seq_lens_cpu
        if bound is None:
            bound = seen.to("cpu", dtype=torch.int32)
        elif self.shape.window is not None:
            bound = bound.clamp(max=self.shape.window + self.shape.block)
        forward = ForwardBatch(
            forward_mode=ForwardMode.TARGET_VERIFY,
            batch_size=size,
            input_ids=block.ids.flatten(),
            req_pool_indices=batch.req_pool_indices,
            seq_lens=seen,
            out_cache_loc=block.slots[:, : self.shape.block].flatten(),
            # Upper bounds: kernels that plan on the host take them so.
            seq_lens_sum=int(bound.sum()),
            seq_lens_cpu=bound,
            positions=block.positions.flatten(),
            input_embeds=embeds,
            spec_algorithm=batch.spec_algorithm,
            spec_info=self._draft_block_spec_info,
            capture_hidden_mode=CaptureHiddenMode.NULL,
        )
        with torch.inference_mode():
            out = self.draft_model_runner.forward(forward)
        return out.logits_output.hidden_states, bool(out.can_run_graph)

    def run_target(self, batch: Any, planted: Planted, slots: Tensor, mask: Tensor) -> Verified:
        """One verifying pass over the rows of `planted`; their KV goes to slots [B, N]."""
        rows = self.shape.rows
        verify = DFlashVerifyInput(
            draft_token=planted.rows.ids.flatten(),
            positions=planted.rows.positions.flatten(),
            draft_token_num=rows,
            custom_mask=mask,
            capture_hidden_mode=CaptureHiddenMode.FULL,
        )
        batch.out_cache_loc = slots.flatten()
        lens, total, draft = batch.seq_lens_cpu, batch.seq_lens_sum, batch.spec_info
        if lens is not None:
            batch.seq_lens_cpu = lens + rows
            batch.seq_lens_sum = int(batch.seq_lens_cpu.sum())
        elif draft.reserved_seq_lens_cpu is not None:
            batch.seq_lens_cpu = draft.reserved_seq_lens_cpu
            batch.seq_lens_sum = int(draft.reserved_seq_lens_sum)
        forward, _ = verify.prepare_for_verify(batch, self._target_worker)
        batch.seq_lens_cpu, batch.seq_lens_sum = lens, total
        result = self._target_worker.forward_batch_generation(
            batch=None, forward_batch=forward, is_verify=True, skip_attn_backend_init=True
        )
        output = result.logits_output
        return Verified(
            output.next_token_logits, output.hidden_states, output, bool(result.can_run_cuda_graph)
        )

    def graph_outputs(self, size: int) -> tuple[Tensor, Tensor]:
        """Logits and hidden states that the target's graph for `size` requests writes."""
        runner = self._target_worker.model_runner.decode_cuda_graph_runner
        output = runner.backend._outputs[runner._make_graph_key(size)]
        return output.next_token_logits, output.hidden_states

    def is_output_of(self, size: int, verified: Verified) -> bool:
        """Whether the target's present graph for `size` requests gave this answer."""
        if not verified.in_graph:
            return False
        logits, hidden = self.graph_outputs(size)
        return bool(
            logits.data_ptr() == verified.logits.data_ptr()
            and hidden.data_ptr() == verified.hidden.data_ptr()
        )

    def move_kv(self, sources: Tensor, targets: Tensor) -> None:
        """Copy the target's KV of all layers between slots."""
        self.model_runner.token_to_kv_pool.move_kv_cache(targets, sources)

    def feed_drafter(
        self, hidden: Tensor, slots: Tensor, positions: Tensor, counts: Tensor
    ) -> None:
        """Write the drafter's KV of the first counts[b] of A tokens; hidden [B * A, F], slots and
        positions [B, A]."""
        self._append_target_hidden_to_draft_kv_by_loc(
            target_hidden=hidden,
            cache_loc=slots.flatten(),
            cache_loc_2d=slots.contiguous(),
            positions=positions.flatten(),
            commit_lens=counts,
        )

    def result_of(self, verified: Verified, settled: Settled) -> GenerationBatchResult:
        """A finished round as the scheduler takes it."""
        # Large, and nobody asked: overlap scheduling would copy them to the host.
        verified.output.hidden_states = None
        following: DFlashDraftInputV2 = self._make_next_draft_input_decode(
            bonus_tokens=settled.roots, new_seq_lens=settled.lengths
        )
        return GenerationBatchResult(
            logits_output=verified.output,
            next_token_ids=settled.tokens.flatten(),
            accept_lens=settled.counts,
            can_run_cuda_graph=verified.in_graph,
            next_draft_input=following,
            # The stride of next_token_ids, and nothing else.
            speculative_num_draft_tokens=settled.tokens.shape[1],
            new_seq_lens=settled.lengths,
        )
