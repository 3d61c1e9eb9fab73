"""A tiny server whose target says what a script says, so that texts and chunks are known."""

import contextlib
from dataclasses import dataclass, field

import torch
from serve_calls import post, stream
from tiny_server import EOS, byte_tokenizer, served, tiny_engine

from support.drafts import with_drafts

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
PROMPT = [120]
# No script holds it, so a draft of it is never accepted.
WRONG = 0


@dataclass
class Script:
    """`ids` follow a prompt of `before` tokens, then the end; drafts propose `right` of them, then
    wrong ones."""

    ids: list[int] = field(default_factory=list)
    right: int = 0
    before: int = len(PROMPT)

    def at(self, index):
        """The token after so many tokens of output."""
        return self.ids[index] if 0 <= index < len(self.ids) else EOS


@dataclass(frozen=True)
class ScriptedServer:
    """Where it listens, and what its target says next."""

    url: str
    script: Script

    def ask(self, text, right=0, **fields):
        """The answer to a prompt that `text` follows, in one piece."""
        return post(self.url, COMPLETIONS, self._body(text, right) | fields)

    def chunks(self, text, right=0, **fields):
        """The same, streamed."""
        return stream(self.url, COMPLETIONS, self._body(text, right) | fields)

    def chat(self, text, right=0, **fields):
        """The answer in a conversation, in one piece and streamed."""
        body = self._body(text, right) | fields
        del body["prompt"]
        body["messages"] = [{"role": "user", "content": "x"}]
        self.script.before = len("user:x|")
        return post(self.url, CHAT, body), stream(self.url, CHAT, body)

    def _body(self, text, right):
        self.script.ids, self.script.right = list(text.encode()), right
        self.script.before = len(PROMPT)
        method = {"method": "chain" if right else "ar"}
        body = {"prompt": PROMPT, "temperature": 0, "max_tokens": 100, "return_token_ids": True}
        return body | {"speculation": method}


def follow(engine, script):
    """Make the target's next token depend on its position alone: hidden states carry it."""
    forward, head = engine.target.forward, engine.target.head

    def numbered(ids, positions, *arguments, **options):
        hidden, features = forward(ids, positions, *arguments, **options)
        hidden = hidden.clone()
        hidden[..., 0] = positions.to(hidden.dtype)
        return hidden, features

    def say(hidden):
        logits = torch.full_like(head(hidden), -20.0)
        indices = hidden[..., 0].long() - script.before + 1
        tokens = [script.at(index) for index in indices.flatten().tolist()]
        logits.view(len(tokens), -1)[range(len(tokens)), tokens] = 20.0
        return logits

    engine.target.forward, engine.target.head = numbered, say
    return engine


@contextlib.contextmanager
def scripted_server():
    """A server on a thread, stopped at the end."""
    script = Script()

    def propose(request):
        done = len(request.output)
        right = [script.at(index) for index in range(done, done + script.right)]
        return ([*right, WRONG, WRONG, WRONG, WRONG])[:4]

    engine = with_drafts(follow(tiny_engine(), script), propose)
    with served(engine, byte_tokenizer()) as url:
        yield ScriptedServer(url, script)
