"""Answers as models give them: 42 edge cases, numbered."""

from dataclasses import dataclass

from grading_of_extracts import BODY, PROMPT, RIGHT, TASK, WRONG, fence

from ddtree.evals.extract.answer import Method
from ddtree.evals.tasks import Task


@dataclass(frozen=True)
class Case:
    """A whole answer and what must become of it; `flags` are among those noted."""

    name: str
    text: str | None
    outcome: str = "passed"
    method: Method = "fence"
    flags: tuple[str, ...] = ()
    block: int | None = None
    finish_reason: str | None = "stop"
    task: Task = TASK


DRAFT = f"Perhaps:\n{fence(WRONG)}Hm, that is not it.\n"
USAGE = "print(total([1, 2, 4]))"

NOTED = (
    Case("1 one block", f"Here you are.\n\n{fence(RIGHT)}\nThat is all.", block=0),
    Case(
        "2 draft in thinking",
        f"<think>\n{DRAFT}</think>\n\nFinal:\n{fence(RIGHT)}",
        flags=("thinking_cut",),
        block=0,
    ),
    Case(
        "3 unfinished fence in thinking",
        f"<think>\nSo\n```python\n{WRONG}\n\nno, wait\n</think>\n{fence(RIGHT)}",
        block=0,
    ),
    Case("4 closing tag alone", f"Let me see.\n{DRAFT}</think>\n{fence(RIGHT)}", block=0),
    Case(
        "5 thinking never closed",
        f"<think>\nFirst\n{fence(RIGHT)}and then I would",
        "truncated_thinking",
        "none",
        ("thinking_unclosed",),
        finish_reason="length",
    ),
    Case(
        "6 closing fence missing",
        f"Sure:\n```python\n{RIGHT}",
        method="unclosed_fence",
    ),
    Case(
        "6 closing fence missing, prose behind",
        f"Sure:\n```python\n{RIGHT}\n\nThis takes every even number, and adds it.",
        method="unclosed_fence",
        flags=("trimmed",),
    ),
    Case(
        "7 opening fence missing",
        f"Here is the function.\n\n{RIGHT}\n```\nIt adds the even numbers.",
        method="bare",
        flags=("stray_fence",),
    ),
    Case("8 bare code", RIGHT, method="bare"),
    Case(
        "9 prose and bare code",
        f"The function below adds them.\n\n{RIGHT}\n\nIt passes over the odd ones.",
        method="bare",
    ),
    Case(
        "10 usage and output behind",
        f"{fence(RIGHT)}\nUsage:\n{fence(USAGE)}\nOutput:\n{fence('6', '')}",
        block=0,
    ),
    Case("11 bash behind", f"{fence(RIGHT)}\nRun it:\n{fence('python total.py', 'bash')}", block=0),
    Case("12 corrected", f"{fence(WRONG)}\nOh no, rather:\n{fence(RIGHT)}", block=1),
    Case("13 two right ones", f"{fence(RIGHT)}\nOr:\n{fence(RIGHT)}", block=1),
    Case("14 body alone in a block", fence(BODY), method="body"),
    Case("14 body alone", BODY, method="body"),
    Case("14 body, stripped by the server", BODY.strip(), method="body"),
    Case("15 label in capitals, with a space", f"```Python \n{RIGHT}\n```", block=0),
    Case("16 tildes", fence(RIGHT, mark="~~~"), block=0),
    Case(
        "17 block in a list item",
        "1. The code:\n\n"
        + "\n".join(f"   {line}" for line in fence(RIGHT).splitlines())
        + "\n2. Done.",
        block=0,
    ),
    Case("18 longer fence", fence(RIGHT, mark="`````"), block=0),
    Case("19 text behind the label", f'```python title="total.py"\n{RIGHT}\n```', block=0),
    Case("20 line ends", fence(RIGHT).replace("\n", "\r\n"), flags=("line_ends",)),
    Case(
        "21 another name", fence(RIGHT.replace("total", "even_sum")), "entry_point_missing", "none"
    ),
    Case(
        "22 a method of Solution",
        fence("class Solution:\n    def total(self, xs):\n        return sum(xs)"),
        "entry_point_missing",
        "none",
    ),
    Case(
        "23 no return",
        fence("def total(xs):\n    print(xs)"),
        "assertion",
    ),
    Case(
        "24 import and constant",
        fence("import operator\nTWO = 2\n" + RIGHT.replace("% 2", "% operator.pos(TWO)")),
    ),
    Case(
        "25 nested functions",
        fence(
            "def total(xs):\n    def even(x):\n        return x % 2 == 0\n\n"
            "    return sum(filter(even, xs))"
        ),
    ),
    Case(
        "26 decorated",
        fence(
            "import functools\n\n@functools.lru_cache(None)\ndef cached(x):\n    return x % 2\n\n"
            "def same(f):\n    return f\n\n@same\ndef total(xs):\n"
            "    return sum(x for x in xs if not cached(x))"
        ),
    ),
    Case("27 a lambda", fence("total = lambda xs: sum(x for x in xs if x % 2 == 0)")),
    Case("28 main guard", fence(f'{RIGHT}\n\nif __name__ == "__main__":\n    print(1 / 0)')),
    Case("29 own assertion", fence(f"{RIGHT}\n\nassert total([2]) == 3"), "own_assert"),
    Case("30 answer tags", f"<answer>\n{RIGHT}\n</answer>", method="bare", flags=("wrapper",)),
    Case("31 tags and a block", f"<answer>\n{fence(RIGHT)}</answer>"),
    Case("32 async helper", fence(f"async def later():\n    return 1\n\n{RIGHT}")),
    Case(
        "33 class and function",
        fence(
            "class Adder:\n    def add(self, xs):\n        return sum(xs)\n\n"
            "def total(xs):\n    return Adder().add([x for x in xs if x % 2 == 0])"
        ),
    ),
    Case(
        "34 harmony",
        f"<|channel|>analysis<|message|>{DRAFT}<|end|><|start|>assistant<|channel|>final"
        f"<|message|>{fence(RIGHT)}<|return|>",
        flags=("channels",),
    ),
    Case(
        "35 harmony without an end",
        f"<|channel|>analysis<|message|>{DRAFT}",
        "truncated_thinking",
        "none",
    ),
    Case(
        "36 token behind the fence", f"{fence(RIGHT).rstrip()}<|im_end|>", flags=("special_tokens",)
    ),
    Case("37 C++ first", f"{fence('int total();', 'cpp')}\nIn Python:\n{fence(RIGHT)}", block=1),
    Case("38 stub echoed", f"You gave me\n{fence(PROMPT)}\nand I say\n{fence(RIGHT)}", block=1),
    Case("38 stub behind", f"{fence(RIGHT)}\nwhich completes\n{fence(PROMPT)}", block=0),
    Case("39 stub alone", fence(PROMPT), "no_code", "none", ("stub",)),
    Case("40 empty", "", "no_code", "none"),
    Case("40 nothing", None, "no_code", "none"),
    Case("40 empty at the limit", "", "truncated_thinking", "none", finish_reason="length"),
    Case("40 nothing at the limit", None, "truncated_thinking", "none", finish_reason="length"),
    Case("41 prose alone", "I can't help with that. Sorry!", "no_code", "none"),
    Case("42 tabs", fence(RIGHT.replace("    ", "\t"))),
)
