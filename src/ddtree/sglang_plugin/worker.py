"""The worker of a DDTREE server: one round as the scheduler sees it.

    open     the drafter's block, the KV slots, the window of context      (one graph)
    draft    the drafter's pass, and in its graph the tree and its mask
    verify   the target's pass over the tree's rows
    settle   accepted path, KV moved to the front, the drafter fed         (one graph)

Greedy rounds read nothing back, so overlap scheduling hides what the host does. Sampled requests
and such with a logit bias settle outside the graph.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ddtree.sglang_plugin.adapter import ServerWorker
from ddtree.sglang_plugin.drafting import TreeHead
from ddtree.sglang_plugin.graphs import Stage
from ddtree.sglang_plugin.ranks import attach_places
from ddtree.sglang_plugin.rounds import (
    Block,
    Planted,
    Settled,
    Start,
    Verified,
    fill_window,
    full_mask,
    kept_hidden,
    moves,
    open_block,
    settle,
)
from ddtree.sglang_plugin.sampling import choose


@dataclass(frozen=True)
class Opened:
    """A round's beginning: the block, its embeddings [B * block, E], and [B] int32 committed
    tokens that the drafter sees."""

    block: Block
    embeds: Tensor
    seen: Tensor

    def first(self, count: int) -> "Opened":
        """The first `count` requests."""
        block = self.block
        size = block.ids.shape[1]
        return Opened(
            Block(block.ids[:count], block.positions[:count], block.slots[:count]),
            self.embeds[: count * size],
            self.seen[:count],
        )


class DDTreeWorker(ServerWorker):
    """Drafts, verifies and accepts trees for a batch of requests."""

    def init_cuda_graphs(self) -> None:
        """Capture the drafter's graphs with the trees in them, then our own stages."""
        most = max(len(self.shared_table), *self.capture_sizes, 1)
        zeros = torch.zeros(3, most, dtype=torch.int64, device=self.device)
        self._start = Start(*zeros)
        captures = self.can_capture and len(self.capture_sizes) > 0
        self._tree_head = TreeHead(
            self.head(), self.shape, self._start, self.graph_mask if captures else None
        )
        self._opening = Stage(self._open)
        self._settling: Stage[Settled] = Stage(self._settle_in_graph)
        self._sizes: tuple[int, ...] = ()
        if captures:
            pool = torch.cuda.graph_pool_handle()
            with torch.no_grad():
                self._opening.capture(self.capture_sizes, pool)
        super().init_cuda_graphs()
        if captures and self._draft_sampler is not None:
            with torch.no_grad():
                self._settling.capture(self.capture_sizes, pool)
            self._sizes = self.capture_sizes

    def _maybe_build_draft_sampler(self) -> TreeHead | None:
        """In the drafter's graph, where stock DFLASH takes its argmax, the trees grow."""
        return self._tree_head if self.can_capture else None

    def forward_batch_generation(
        self, batch: Any, on_publish: Callable[[Tensor], None] | None = None
    ) -> Any:
        """One step: stock DFLASH's for prompts and idle batches, a round of trees else."""
        mode = batch.forward_mode
        if mode.is_extend() or batch.is_extend_in_batch or mode.is_idle():
            return super().forward_batch_generation(batch, on_publish)
        with torch.no_grad():
            return self._round(batch, on_publish)

    def _round(self, batch: Any, on_publish: Callable[[Tensor], None] | None) -> Any:
        count = len(batch.seq_lens)
        size = next((size for size in self._sizes if size >= count), count)
        self._place(self.start_of(batch), size)
        opened = self._opening.run(size).first(count)
        planted, mask = self._draft(batch, opened, size)
        slots = opened.block.slots[:, : self.shape.rows]
        verified = self.run_target(batch, planted, slots, mask)
        settled = self._settle(batch, verified, planted, opened.block, size)
        if on_publish is not None:
            on_publish(settled.lengths)
        result = self.result_of(verified, settled)
        if self.resolved.ranks:
            attach_places(batch.reqs, result, planted.tree, settled)
        return result

    def _place(self, start: Start, size: int) -> None:
        """Copy where requests stand to where graphs look; padding stands nowhere."""
        count = len(start.rows)
        for static, value in zip(
            (self._start.rows, self._start.lengths, self._start.roots),
            (start.rows, start.lengths, start.roots),
            strict=True,
        ):
            static[:count].copy_(value)
            if size > count:
                static[count:size].zero_()

    def _open(self, size: int) -> Opened:
        start = self._start.first(size)
        block = open_block(start, self.shared_table, self.shape, int(self._mask_token_id))
        seen = start.lengths.int()
        if self.shape.window is not None:
            seen = fill_window(self.shared_table, self.own_table, start, block, self.shape.window)
        return Opened(block, self.embed(block.ids), seen)

    def _draft(self, batch: Any, opened: Opened, size: int) -> tuple[Planted, Tensor]:
        """Trees for the batch and the flat mask for the target's pass."""
        count = len(opened.seen)
        hidden, in_graph = self.run_drafter(batch, opened.block, opened.embeds, opened.seen)
        if in_graph and self._sizes:
            # The graph has written the mask where the target's graph reads it: what is passed on
            # only says that there is one.
            assert self.graph_mask is not None
            return self._tree_head.planted[size].first(count), self.graph_mask[:1]
        self._tree_head(hidden)
        planted = self._tree_head.planted[count]
        return planted, full_mask(planted, self._start.lengths[:count])

    def _settle(
        self, batch: Any, verified: Verified, planted: Planted, block: Block, size: int
    ) -> Settled:
        """Accept and commit, in a graph where the choices are plain argmaxes."""
        drawing = self.drawing_of(batch)
        count = len(planted.rows.ids)
        # SGLang may capture its graphs anew (a request for hidden states); ours would then read
        # tensors that nobody fills.
        known = bool(self._sizes) and self.is_output_of(size, verified)
        if known and (drawing is None or drawing.plain):
            done = self._settling.run(size)
            # Copies: in the next round the graph's own tensors hold other values.
            return Settled(
                done.tokens[:count].clone(),
                done.counts[:count].clone(),
                done.roots[:count].clone(),
                done.lengths[:count].clone(),
                done.path[:count],
            )
        start = self._start.first(count)
        choices = choose(planted, verified.logits, start, drawing)
        settled = settle(planted, choices, start)
        self._commit(verified.hidden, block, settled, start)
        return settled

    def _settle_in_graph(self, size: int) -> Settled:
        logits, hidden = self.graph_outputs(size)
        planted, start = self._tree_head.planted[size], self._start.first(size)
        settled = settle(planted, choose(planted, logits, start, None), start)
        self._commit(hidden, self._opening.captured(size).block, settled, start)
        return settled

    def _commit(self, hidden: Tensor, block: Block, settled: Settled, start: Start) -> None:
        """Accepted rows' KV to the front, their hidden states to the drafter."""
        sources, targets = moves(block, settled.path)
        self.move_kv(sources, targets)
        steps = self.shape.steps
        self.feed_drafter(
            kept_hidden(hidden, settled.path, self.shape.rows),
            block.slots[:, :steps],
            block.positions[:, :steps],
            settled.counts,
        )
