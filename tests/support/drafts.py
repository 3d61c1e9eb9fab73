"""Drafters of known quality, put in the place of an engine's own."""

import torch


def with_drafts(engine, propose):
    """Replace what the drafter proposes: `propose(request)` gives its ids for the next D
    positions. The real drafter still runs, so that its caches are exercised."""
    drafting = engine.drafting
    original = drafting.draft

    def draft(requests):
        logits = torch.full_like(original(requests), -10.0)
        for row, request in enumerate(requests):
            for depth, token in enumerate(propose(request)):
                logits[row, depth, token] = 10.0
        return logits

    drafting.draft = draft
    return engine


def oracle(outputs, depth, vocab):
    """Proposes the true continuation, known beforehand by prompt."""

    def propose(request):
        following = outputs[request.prompt][len(request.output) :]
        return (following + [0] * depth)[:depth]

    return propose


def hostile(outputs, depth, vocab):
    """Proposes what is certainly wrong."""
    right = oracle(outputs, depth, vocab)
    return lambda request: [(token + 1) % vocab for token in right(request)]
