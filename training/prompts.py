"""What the target is given to write from: chats' headers, functions of installed Python code."""

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from training.writing import Scripts, scripts_of

# Answers as they are asked for: half of them greedy ones.
ANSWER_TEMPERATURES = (0.0, 0.0, 0.4, 0.7, 1.0)
USER_TEMPERATURE = 1.0
_INVENTION = 0.9  # temperature
# Tokens after which code is left for the next start: on its own it goes on in circles.
_CODE_LIMIT, _NEVER = 320, 10**9
# What functions that the target makes up come after, so that they have docstrings.
EXAMPLES = (
    '''def double_all(values: List[int]) -> List[int]:
    """ Give a list with every value doubled.
    >>> double_all([1, 4])
    [2, 8]
    """
    return [2 * value for value in values]
''',
    '''def first_word(text):
    """
    Return the first word of the text, or an empty string if it has none.

    Example:
    first_word("red apple") => "red"
    """
    words = text.split()
    return words[0] if words else ""
''',
    '''def is_square(n: int) -> bool:
    """ Tell whether n is the square of a whole number.
    >>> is_square(16)
    True
    >>> is_square(17)
    False
    """
    root = int(n ** 0.5)
    return root * root == n
''',
    '''def invert(table):
    """Given a dictionary, return another one whose keys are the values of the first.

    For table = {"a": 1}, the output is {1: "a"}.
    """
    return {value: key for key, value in table.items()}
''',
)
OPENINGS = ("def", "from typing import List\n\n\ndef", "import math\n\n\ndef")
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
    paths = [path for root in roots for path in sorted(root.rglob("*.py"))]
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        for found in pool.map(functions_in, paths, chunksize=64):
            yield from found


def functions_in(path: Path) -> list[str]:
    """The same of one file; none of what is no Python."""
    try:
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source)
    except (OSError, SyntaxError, UnicodeDecodeError, ValueError, RecursionError, MemoryError):
        return []
    lines = source.splitlines()
    return [
        header
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and ast.get_docstring(node)
        for header in _header(node, lines)
    ]


def _header(node: ast.FunctionDef, lines: list[str]) -> Iterator[str]:
    end = node.body[0].end_lineno
    assert end is not None
    # The function as if it stood at the left margin.
    text = "\n".join(line[node.col_offset :] for line in lines[node.lineno - 1 : end]) + "\n"
    if _FEWEST <= len(text) <= _MOST and text.startswith("def "):
        yield text


def invented_function(text: str) -> str | None:
    """The first function of a text (after an example) up to the end of its docstring, with what
    stands before it; None if there is no such function."""
    for example in EXAMPLES:
        text = text.removeprefix(f"{example}\n\n")
    end = text.find('"""', text.find('"""') + 3)
    if end < 0:
        return None
    head = text[: end + 3] + "\n"
    try:
        *_, last = ast.parse(head).body
    except (SyntaxError, ValueError):
        return None
    if not isinstance(last, ast.FunctionDef) or not ast.get_docstring(last):
        return None
    return head if _FEWEST <= len(head) <= _MOST else None


def openings(tokenizer: Any) -> Scripts:
    """Scripts that let the target make up functions."""
    texts = [f"{example}\n\n{opening}" for example in EXAMPLES for opening in OPENINGS]
    given = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    count = len(given)
    return scripts_of(given, [_INVENTION] * count, [-1] * count, list(range(count)))


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
    limits = [_NEVER] * functions.start + [_CODE_LIMIT] * len(code)
    repeats = 1
    if code:
        repeats = max(1, round(chat_share / (1 - chat_share) * len(code) / len(chats)))
    return scripts_of(given, temperatures, following, [*(chats * repeats), *functions], limits)
