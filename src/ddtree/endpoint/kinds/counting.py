"""How many tokens each chunk held, where the server only says how many there were in all."""

import re
from collections.abc import Sequence

# What tokenizers cut text into before they look anything up.
_PIECE = re.compile(r"\s*\w+|\s*[^\w\s]|\s+")


def shares(texts: Sequence[str], total: int) -> list[int]:
    """`total` tokens spread over chunks of text by their words and signs; the sum is `total`.

    Every chunk with text gets at least one as long as there are so many. ValueError when there is
    no text for a positive total.
    """
    weights = [len(_PIECE.findall(text)) for text in texts]
    weight = sum(weights)
    if not weight or total < 0:
        raise ValueError(f"{total} tokens and {weight} pieces of text")
    filled = sum(w > 0 for w in weights)
    least = 1 if total >= filled else 0
    spare = total - least * filled
    wanted = [w - least if w else 0 for w in weights]
    room = sum(wanted)
    exact = [
        spare * (n / room if room else w / weight) for n, w in zip(wanted, weights, strict=True)
    ]
    counts = [int(share) for share in exact]
    # What rounding left over goes to the largest remainders, the earlier chunk first.
    order = sorted(range(len(exact)), key=lambda i: (counts[i] - exact[i], i))
    for i in order[: spare - sum(counts)]:
        counts[i] += 1
    return [n + (least if w else 0) for n, w in zip(counts, weights, strict=True)]
