"""Plain decoding by the target's own forward pass, without our plan or caches."""

import torch

GAP = 1e-4  # below this, rounding may decide; tests draw another prompt


@torch.inference_mode()
def plain_greedy(target, prompt, count):
    """The next `count` ids, and the smallest gap between the two best logits on the way."""
    ids, gap = list(prompt), float("inf")
    for _ in range(count):
        logits = target.reference_logits(torch.tensor(ids))[-1]
        best = logits.topk(2)
        gap = min(gap, float(best.values[0] - best.values[1]))
        ids.append(int(best.indices[0]))
    return ids[len(prompt) :], gap


def draw_prompt(target, length, count, seed):
    """A random prompt whose greedy continuation is decided by more than rounding, and that
    continuation."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(50):
        prompt = torch.randint(target.shape.vocab_size, (length,), generator=generator).tolist()
        output, gap = plain_greedy(target, prompt, count)
        if gap > GAP:
            return prompt, output
    raise AssertionError("no prompt without a near-tie in 50 draws")
