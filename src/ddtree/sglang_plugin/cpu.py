"""Attention on a CPU for verifying passes, which SGLang has only on GPUs: the tests' backend."""

from typing import Any

import torch
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.mem_cache.memory_pool import KVWriteLoc
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


class TreeTorchBackend(TorchNativeAttnBackend):
    """SGLang's torch backend plus verifying passes with a mask, request by request."""

    def forward_extend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
    ) -> Tensor:
        """Prompt passes as SGLang runs them, verifying ones here."""
        if not forward_batch.forward_mode.is_target_verify():
            plain: Tensor = super().forward_extend(q, k, v, layer, forward_batch, save_kv_cache)
            return plain
        if save_kv_cache:
            self.token_to_kv_pool.set_kv_buffer(
                layer, KVWriteLoc(forward_batch.out_cache_loc, None), k, v
            )
        keys = self.token_to_kv_pool.get_key_buffer(layer.layer_id)
        values = self.token_to_kv_pool.get_value_buffer(layer.layer_id)
        lengths = forward_batch.seq_lens.tolist()
        masks = block_masks(layer, forward_batch.spec_info, lengths)
        rows = forward_batch.spec_info.draft_token_num
        queries = q.view(len(lengths), rows, layer.tp_q_head_num, layer.qk_head_dim)
        own = forward_batch.out_cache_loc.view(len(lengths), rows)
        table = self.req_to_token_pool.req_to_token
        out = []
        for number, length in enumerate(lengths):
            row = forward_batch.req_pool_indices[number]
            slots = torch.cat([table[row, :length].long(), own[number]])
            seen = torch.cat([torch.ones(rows, length, dtype=torch.bool), masks[number]], 1)
            attended = scaled_dot_product_attention(
                queries[number].transpose(0, 1)[None],
                keys[slots].transpose(0, 1)[None].to(q.dtype),
                values[slots].transpose(0, 1)[None].to(q.dtype),
                attn_mask=seen,
                scale=layer.scaling,
                enable_gqa=layer.tp_q_head_num != layer.tp_k_head_num,
            )
            out.append(attended[0].transpose(0, 1))
        return torch.cat(out).reshape(-1, layer.tp_q_head_num * layer.v_head_dim)


def block_masks(layer: Any, spec_info: Any, lengths: list[int]) -> list[Tensor]:
    """[N, N] bool a request: which of the pass's own rows a row sees."""
    rows = spec_info.draft_token_num
    if layer.attn_type == AttentionType.ENCODER_ONLY:
        return [torch.ones(rows, rows, dtype=torch.bool)] * len(lengths)
    if spec_info.custom_mask is None:
        return [torch.ones(rows, rows, dtype=torch.bool).tril()] * len(lengths)
    parts = spec_info.custom_mask.split([rows * (length + rows) for length in lengths])
    return [
        part.view(rows, length + rows)[:, length:].bool()
        for part, length in zip(parts, lengths, strict=True)
    ]
