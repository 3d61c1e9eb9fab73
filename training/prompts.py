"""What the target is given to write from: chats' headers, functions of installed Python code."""

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.writing import Scripts, scripts_of

# Answers as they are asked for: half of them greedy ones.
ANSWER_TEMPERATURES = (0.0, 0.0, 0.4, 0.7, 1.0)
USER_TEMPERATURE = 1.0
_FEWEST, _MOST = 60, 1200  # characters of a signature with its docstring
_SHARED_WORDS = 9
_USER, _ANSWER, _AGAIN = "QUESTIONHERE", "ANSWERHERE", "ANOTHERHERE"


@dataclass(frozen=True)
class ChatHeaders:
    """Token ids in front of the first user turn, of each answer, and of further user turns; the
    token that ended the turn before is not among them."""

    user: list[int]
    answer: list[int]
    again: list[int]


def chat_headers(tokenizer: Any, ends: Sequence[int]) -> ChatHeaders:
    """As the tokenizer's own chat template writes them."""
    talk = [
        {"role": "user", "content": _USER},
        {"role": "assistant", "content": _ANSWER},
        {"role": "user", "content": _AGAIN},
    ]
    text = tokenizer.apply_chat_template(talk, tokenize=False, add_generation_prompt=False)
    parts = re.split(f"{_USER}|{_ANSWER}|{_AGAIN}", text)
    ids = [tokenizer.encode(part, add_special_tokens=False) for part in parts[:3]]
    user, answer, again = (part[1:] if part and part[0] in ends else part for part in ids)
    return ChatHeaders(user, answer, again)


def functions_of(roots: Iterable[Path]) -> Iterator[str]:
    """Signature and docstring of every documented function below `roots`, in order of path."""
    for root in roots:
        for path in sorted(root.rglob("*.py")):
            try:
                source = path.read_text(encoding="utf-8")
                tree = ast.parse(source)
            except (OSError, SyntaxError, UnicodeDecodeError, ValueError):
                continue
            lines = source.splitlines()
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef) and ast.get_docstring(node):
                    yield from _header(node, lines)


def _header(node: ast.FunctionDef, lines: list[str]) -> Iterator[str]:
    end = node.body[0].end_lineno
    assert end is not None
    # The function as if it stood at the left margin.
    text = "\n".join(line[node.col_offset :] for line in lines[node.lineno - 1 : end]) + "\n"
    if _FEWEST <= len(text) <= _MOST and text.startswith("def "):
        yield text


def words_of(text: str) -> list[str]:
    """Lower-case words, without anything between them."""
    return re.findall(r"[a-z0-9]+", text.lower())


def runs_of(text: str) -> set[tuple[str, ...]]:
    """Every run of _SHARED_WORDS words."""
    words = words_of(text)
    return {tuple(words[i : i + _SHARED_WORDS]) for i in range(len(words) - _SHARED_WORDS + 1)}


def apart_from(prompts: Iterable[str], evaluation: Iterable[str]) -> list[str]:
    """The prompts that share no run of words with any evaluation prompt, each once."""
    known = set().union(*map(runs_of, evaluation))
    return [prompt for prompt in dict.fromkeys(prompts) if not runs_of(prompt) & known]


def scripts_for(headers: ChatHeaders, code: Sequence[Sequence[int]], chat_share: float) -> Scripts:
    """Chats and functions side by side; `chat_share` of the starts are chats."""
    given: list[Sequence[int]] = []
    temperatures: list[float] = []
    following: list[int] = []
    chats = []
    for temperature in ANSWER_TEMPERATURES:
        first = len(given)
        chats.append(first)
        given += [headers.user, headers.answer, headers.again]
        temperatures += [USER_TEMPERATURE, temperature, USER_TEMPERATURE]
        following += [first + 1, first + 2, first + 1]
    functions = range(len(given), len(given) + len(code))
    given += list(code)
    temperatures += [ANSWER_TEMPERATURES[i % len(ANSWER_TEMPERATURES)] for i in range(len(code))]
    following += [-1] * len(code)
    repeats = 1
    if code:
        repeats = max(1, round(chat_share / (1 - chat_share) * len(code) / len(chats)))
    return scripts_of(given, temperatures, following, [*(chats * repeats), *functions])
