"""A tiny engine under the whole procedure, with drafts good enough that every fault can show."""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from transformers import PreTrainedTokenizerFast

from ddtree.engine import Engine, EngineConfig
from ddtree.records.arms import Arm
from ddtree.records.sampling import Sampling
from ddtree.serve.engine_source import EngineSource
from ddtree.serve.worker import EngineWorker
from ddtree.verify.report import VerifyReport
from ddtree.verify.run import VerifyPlan, run_verify
from support.tiny import tiny_drafter, tiny_target
from support.words import word_tokenizer

VOCABULARY = 64
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

FILTERED = Sampling(1.0, top_p=0.8, top_k=20)
PENALISED = Sampling(0.8, repetition_penalty=1.5, frequency_penalty=1.0)
PLAN = VerifyPlan(
    prompts=((5, 9, 23, 41, 7), (11, 3), (60, 2, 2, 17, 33, 8, 19)),
    arms=(Arm("chain"), Arm("ddtree", 8, 4)),
    samplings=(Sampling(), FILTERED, PENALISED),
    max_tokens=24,
    concurrencies=(1, 3),
    dtype="float32",
    block_size=5,
)


def make_engine(dtype: str = "float32", twins: bool = False) -> Engine:
    """`twins`: tokens 2n and 2n + 1 have the same logit, bit for bit."""
    target = tiny_target(seed=3, dtype=DTYPES[dtype], vocab_size=VOCABULARY)
    if twins:
        weight = target.model.lm_head.weight
        weight[1::2] = weight[::2]
    engine = Engine(target, tiny_drafter(target), EngineConfig(slots=3, max_context=64))
    give_good_drafts(engine)
    return engine


def give_good_drafts(engine: Engine) -> None:
    """Draft with the target's own logits along its greedy continuation, a little disturbed."""
    drafting = engine.drafting
    depth = drafting.block - 1
    original = drafting.draft
    generator = torch.Generator().manual_seed(1)

    def draft(requests: Sequence) -> torch.Tensor:
        logits = torch.zeros_like(original(requests))
        for row, request in enumerate(requests):
            text = [*request.prompt, *request.output]
            for place in range(depth):
                found = engine.target.reference_logits(torch.tensor(text))[-1]
                noise = torch.randn(found.shape, generator=generator)
                logits[row, place] = found + 0.5 * noise.to(found.dtype)
                text.append(int(found.argmax()))
        return logits

    drafting.draft = draft


@contextlib.contextmanager
def running(engine: Engine) -> Iterator[EngineSource]:
    """The engine on its thread."""
    worker = EngineWorker(engine)
    worker.start()
    try:
        words = word_tokenizer(VOCABULARY)
        yield EngineSource(worker, PreTrainedTokenizerFast(tokenizer_object=words))
    finally:
        worker.stop()


def check(engine: Engine, **changes: object) -> VerifyReport:
    """The procedure on an engine."""
    with running(engine) as source:
        plan = replace(PLAN, **changes)
        return asyncio.run(run_verify(plan, source, source, lambda _: None))
