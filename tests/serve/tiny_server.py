"""A real server around a tiny float64 model, up in a moment: the same tokens for every method."""

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import uvicorn
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import ddtree.serve
from ddtree.endpoint.launch import free_port
from ddtree.engine import Engine, EngineConfig
from support.drafts import with_drafts
from support.tiny import tiny_drafter, tiny_target

EOS = 256
# More ids than the tokenizer has, as checkpoints with padded heads have them.
VOCABULARY = 264
START_S = 20


@dataclass(frozen=True)
class TinyServer:
    """Where it listens, and what is behind it."""

    url: str
    engine: Engine
    tokenizer: PreTrainedTokenizerFast
    known: dict[tuple[tuple[int, ...], int], list[int]]  # (prompt, seed) -> what drafts propose


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Id b is byte b, so that most ids are only parts of characters; 257 is 'ab', 258 ' a'."""
    alphabet = bytes_to_characters()
    vocabulary = {character: byte for byte, character in enumerate(alphabet)}
    vocabulary |= {"<eos>": EOS, "ab": 257, f"{alphabet[32]}a": 258}
    merges = [("a", "b"), (alphabet[32], "a")]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<eos>"])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>")
    fast.chat_template = "{% for m in messages %}{{ m.role }}:{{ m.content }}|{% endfor %}"
    return fast


def bytes_to_characters() -> list[str]:
    """The byte-level alphabet in order of bytes: printable ones stand for themselves."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    spare = iter(range(256, 512))
    return [chr(byte if byte in printable else next(spare)) for byte in range(256)]


def tiny_engine(config: EngineConfig | None = None) -> Engine:
    """Always the same weights."""
    target = tiny_target(vocab_size=VOCABULARY, eos_token_id=EOS)
    config = config or EngineConfig(slots=4, max_context=128, prefill_chunk=16)
    return Engine(target, tiny_drafter(target), config, tokenizer=byte_tokenizer())


@contextlib.contextmanager
def tiny_server() -> Iterator[TinyServer]:
    """A server on a thread, stopped at the end."""
    known: dict[tuple[tuple[int, ...], int], list[int]] = {}

    def propose(request):
        """Two right tokens, where the output is known, then two that are probably wrong."""
        following = known.get((request.prompt, request.seed), [])[len(request.output) :]
        return ([*following[:2], 1, 1, 1, 1])[:4]

    engine, tokenizer = with_drafts(tiny_engine(), propose), byte_tokenizer()
    with served(engine, tokenizer) as url:
        yield TinyServer(url, engine, tokenizer, known)


@contextlib.contextmanager
def served(engine: Engine, tokenizer: PreTrainedTokenizerFast, **settings: Any) -> Iterator[str]:
    """The URL of a server on a thread, stopped at the end. Settings are the worker's, `guards`
    and the `default` speculation."""
    guards, default = settings.pop("guards", None), settings.pop("default", None)
    worker = ddtree.serve.EngineWorker(engine, **settings)
    info = ddtree.serve.ServerInfo("tiny", {})
    app = ddtree.serve.create_app(worker, tokenizer, info, guards, default)
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning", ws="none"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        end = time.monotonic() + START_S
        while not server.started:
            assert thread.is_alive()
            assert time.monotonic() < end
            time.sleep(0.01)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()
