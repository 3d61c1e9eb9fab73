"""Written text on disk, in shards, and training batches out of it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ddtree.errors import ConfigError
from training.writing import Written


def save_shard(folder: Path, number: int, written: Written, told: Mapping[str, Any]) -> Path:
    """Shard `number` of a folder, with what made it; there whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{number:05d}.npz"
    part = path.with_suffix(".part.npz")
    np.savez_compressed(
        part,
        ids=written.ids.cpu().numpy().astype(np.int32),
        drawn=np.packbits(written.drawn.cpu().numpy(), axis=1),
        told=json.dumps(dict(told)),
    )
    part.rename(path)
    return path


def load_shards(folder: Path) -> Written:
    """All shards of a folder; ConfigError if there are none, or of several lengths."""
    paths = sorted(path for path in folder.glob("*.npz") if ".part." not in path.name)
    if not paths:
        raise ConfigError(f"{folder}: no shards there, expected what `training.generate` writes")
    ids, drawn = [], []
    for path in paths:
        with np.load(path) as shard:
            ids.append(torch.from_numpy(shard["ids"]).long())
            length = ids[-1].shape[1]
            drawn.append(torch.from_numpy(np.unpackbits(shard["drawn"], axis=1)[:, :length] > 0))
    lengths = {part.shape[1] for part in ids}
    if len(lengths) > 1:
        raise ConfigError(f"{folder}: sequences of {sorted(lengths)} tokens, expected one length")
    return Written(torch.cat(ids), torch.cat(drawn))


@dataclass(frozen=True)
class Batch:
    """ids [B, S]; anchors [B, A], ascending, with a whole block of the sequence below each."""

    ids: Tensor
    anchors: Tensor


def batch_of(corpus: Written, step: int, size: tuple[int, int], block: int, seed: int) -> Batch:
    """The batch of a step: size = (B, A). Steps go through the sequences in an order drawn anew
    each time round; anchors are drawn among tokens whose next one the target wrote itself."""
    sequences, anchors = size
    total = len(corpus.ids)
    places = step * sequences + torch.arange(sequences)
    rows = torch.empty_like(places)
    for turn in sorted(set((places // total).tolist())):
        order = torch.randperm(total, generator=_generator(seed, turn))
        here = places // total == turn
        rows[here] = order[places[here] % total]
    ids, drawn = corpus.ids[rows], corpus.drawn[rows]
    usable = torch.zeros_like(drawn)
    usable[:, : ids.shape[1] - block + 1] = drawn[:, 1 : ids.shape[1] - block + 2]
    # Where the target wrote less than A tokens, given ones fill the rest.
    chance = torch.rand(usable.shape, generator=_generator(seed + 1, step)) + usable
    chance[:, ids.shape[1] - block + 1 :] = -1
    chosen = chance.topk(anchors, dim=1).indices.sort(1).values
    return Batch(ids, chosen)


class Mixture:
    """Corpora of different lengths, drawn from by how many tokens they have."""

    def __init__(self, corpora: Sequence[Written], steps: int, seed: int) -> None:
        self._corpora, self._seed = corpora, seed
        shares = torch.tensor([float(corpus.ids.numel()) for corpus in corpora])
        picks = torch.multinomial(shares, max(steps, 1), True, generator=_generator(seed, -1))
        self._picks = picks

    def batch(self, step: int, size: tuple[int, int], block: int) -> Batch:
        """The batch of a step: size = (tokens, tokens an anchor), of sequences of one corpus."""
        tokens, spacing = size
        pick = self._picks[step]
        corpus = self._corpora[int(pick)]
        length = corpus.ids.shape[1]
        number = int((self._picks[:step] == pick).sum())  # of this corpus's batches before it
        shape = max(1, tokens // length), max(1, length // spacing)
        return batch_of(corpus, number, shape, block, self._seed)


def _generator(seed: int, number: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed * 1_000_003 + number)
