"""Further answers: what notes say in words, and what models do beside."""

from grading_of_extracts import BODY, CIPHER, METHOD, PROMPT, RIGHT, SCRIPT, WRONG, fence
from noted_cases import DRAFT, USAGE, Case

QUOTING = '''def total(xs):
    # Not after </think>
    text = "<think>".replace("</think>", "")
    """Ends with
    </think>
    """
    return sum(x for x in xs if x % 2 == 0)'''
FENCED_DOC = '''def total(xs):
    """Adds even numbers.

    ```python
    total([2])
    ```

    ```
    2
    ```
    """
    return sum(x for x in xs if x % 2 == 0)'''
UNSHIFT = 'def unshift(text):\n    return "".join(chr((ord(c) - 102) % 26 + 97) for c in text)'
UNSHIFT_BY_SHIFT = """def unshift(text):
    for _ in range(25):
        text = shift(text)
    return text"""
DOUBLE = "n = int(input())\nprint(2 * n)"
SOLUTION = f"class Solution:\n{BODY}".replace("\n    ", "\n        ").replace(
    "        result = 0", "    def total(self, xs):\n        result = 0"
)

THINKING = (
    Case("closing tag inline before the answer", f"<think>easy</think>Here:\n{fence(RIGHT)}"),
    Case(
        "quoted tag in thinking",
        f"<think>\nI close with '</think>' later.\n{DRAFT}</think>\n{fence(RIGHT)}",
        block=0,
    ),
    Case(
        "quoted tag, thinking never closed",
        f"<think>\nI close with `</think>` later.\n{fence(RIGHT)}",
        "truncated_thinking",
        "none",
    ),
    Case(
        "tag amid prose does not count beside another",
        f"<think>\nThe tag </think> ends it.\n{DRAFT}</think>\n{fence(RIGHT)}",
        block=0,
    ),
    Case(
        "tag amid a sentence, thinking never closed",
        f"<think>\nThe tag </think> ends it.\n{fence(RIGHT)}",
        "truncated_thinking",
        "none",
    ),
    Case("all in one line", f"<think> so easy </think> here it is:\n{fence(RIGHT)}"),
    Case("tags inside the program", f"Sure.\n{fence(QUOTING)}", block=0),
    Case("tags inside the program, after thinking", f"<think>a\n</think>\n{fence(QUOTING)}"),
    Case("empty thinking", f"<think>\n\n</think>\n\n{fence(RIGHT)}", flags=("thinking_cut",)),
    Case("second closing tag", f"<think>a\n</think>\n{DRAFT}</think>\n{fence(RIGHT)}", block=0),
    Case(
        "thinking twice",
        f"<think>a\n</think>\nNow\n<think>{DRAFT}\n</think>\n{fence(RIGHT)}",
        block=0,
    ),
    Case(
        "a second thinking without end",
        f"<think>a\n</think>\n{fence(RIGHT)}<think>\n{DRAFT}",
        "truncated_thinking",
        "none",
    ),
    Case(
        "only a second thinking has code",
        f"<think>a\n</think>\nWait.\n<think>\n{fence(RIGHT)}",
        "truncated_thinking",
        "none",
    ),
    Case(
        "thinking behind the answer",
        f"{fence(RIGHT)}\n<think>\n{DRAFT}</think>\n",
        flags=("answer_before_thinking",),
    ),
    Case("nothing behind the closing tag", f"{DRAFT}</think>\n", "no_code", "none"),
    Case(
        "nothing behind the closing tag, at the limit",
        f"{DRAFT}</think>\n",
        "truncated_thinking",
        "none",
        finish_reason="length",
    ),
    Case("capitals", f"<THINK>\n{DRAFT}</THINK>\n{fence(RIGHT)}", block=0),
    Case("thinking tags", f"<thinking>\n{DRAFT}</thinking>\n{fence(RIGHT)}", block=0),
    Case("seed", f"<seed:think>\n{DRAFT}</seed:think>\n{fence(RIGHT)}", block=0),
    Case("mistral", f"[THINK]{DRAFT}[/THINK]{fence(RIGHT)}", block=0),
    Case("square brackets in code", fence(f"think = 0\n{RIGHT}\nfirst = [1][think]\n")),
    Case(
        "another family's closing tag",
        f"<think>\n<thought>\nhm\n</thought>\n{fence(RIGHT)}",
        "truncated_thinking",
        "none",
    ),
    Case(
        "channels without their tokens",
        f"analysisWe need\n{DRAFT}assistantfinal{fence(RIGHT)}",
        flags=("channels",),
    ),
    Case(
        "channels without their tokens or an end",
        f"analysisWe need\n{fence(RIGHT)}",
        "truncated_thinking",
        "none",
    ),
    Case(
        "commentary and two finals",
        f"<|channel|>final<|message|>{DRAFT}<|end|><|start|>assistant<|channel|>commentary"
        f"<|message|>hm<|end|><|start|>assistant<|channel|>final <|constrain|>text<|message|>"
        f"{fence(RIGHT)}",
        block=0,
    ),
    Case("the word analysis", f"analysis of the task\n{fence(RIGHT)}"),
)

FENCES = (
    Case("fences in the docstring", fence(FENCED_DOC), flags=("fence_in_string",), block=0),
    Case("fences in the docstring, usage behind", f"{fence(FENCED_DOC)}\n{fence(USAGE)}", block=0),
    Case("backticks inside tildes", fence(FENCED_DOC, mark="~~~"), block=0),
    Case("shorter fence inside", fence(FENCED_DOC, mark="````"), block=0),
    Case("no label", fence(RIGHT, ""), block=0),
    Case("python3", fence(RIGHT, "python3"), block=0),
    Case("pandoc's label", fence(RIGHT, "{.python .numberLines}"), block=0),
    Case("label with a file", fence(RIGHT, "python:total.py"), block=0),
    Case("another label, no Python one", fence(RIGHT, "text"), block=0),
    Case("text block, then output", f"{fence(RIGHT, 'code')}\n{fence('6', '')}", block=0),
    Case("javascript alone", fence("function total(xs) { return 0 }", "js"), "no_code", "none"),
    Case("unclosed draft, then the answer", f"```python\n{WRONG}\n\nBut:\n{fence(RIGHT)}", block=1),
    Case("unclosed bash, then the answer", f"```bash\npip install x\n\nNow:\n{fence(RIGHT)}"),
    Case("markdown around it all", f"```markdown\nThe code:\n{fence(RIGHT)}\n```"),
    Case("closing fence too many", f"{fence(RIGHT)}```\nThat is it."),
    Case(
        "opener missing, usage behind",
        f"{RIGHT}\n```\nUsage:\n{fence(USAGE)}",
        method="bare",
        flags=("stray_fence",),
    ),
    Case(
        "opener missing, bare usage behind",
        f"{RIGHT}\n```\nUsage\n```\n{USAGE}\n```",
        method="bare",
        flags=("stray_fence",),
    ),
    Case("bare code, usage in a block", f"{RIGHT}\n\nUsage:\n\n{fence(USAGE)}", method="bare"),
    Case("opener behind words", f"Sure: ```python\n{RIGHT}\n```", block=0),
    Case("closer behind the code", f"```python\n{RIGHT}```\nDone.", flags=("glued_fence",)),
    Case("block quote", "\n".join(f"> {line}" for line in fence(RIGHT).splitlines()), block=0),
    Case(
        "list marker before the fence", f"- ```python\n  {RIGHT.replace('    ', '      ')}\n  ```"
    ),
    Case("deep indentation", "\n".join(f"{' ' * 12}{x}" for x in fence(RIGHT).splitlines())),
    Case(
        "code deeper than its fence",
        fence("\n".join(f"    {line}" for line in RIGHT.splitlines())),
        flags=("dedented",),
    ),
    Case("code span", "Use ```total(xs)``` so:\n" + fence(RIGHT), block=0),
    Case("closer with blanks", f"```python\n{RIGHT}\n```   \nok", block=0),
    Case(
        "cut in the middle of a line",
        f"```python\n{RIGHT}\n\nprint(total([1, 2",
        method="unclosed_fence",
        flags=("trimmed",),
        finish_reason="length",
    ),
    Case(
        "unclosed, a word behind",
        f"```python\n{RIGHT}\n\nDone",
        method="unclosed_fence",
        flags=("trimmed",),
    ),
    Case("a block in one line", "```python total = lambda xs: sum(x for x in xs if not x % 2)```"),
    Case("code beside the fence", f"```{RIGHT}\n```", flags=("code_beside_fence",)),
    Case("code beside the label", f"```python {RIGHT}\n```", flags=("code_beside_fence",)),
    Case("four backticks around it all", f"````markdown\n{fence(RIGHT)}\n````\nBye."),
    Case(
        "cut before anything parses",
        "```python\ndef total(xs):\n    return sum(",
        "syntax",
        "unclosed_fence",
        ("unparsable",),
        finish_reason="length",
    ),
    Case("syntax error", fence("def total(xs):\n    retrun 1 2"), "syntax"),
    Case("broken draft behind a right answer", f"{fence(RIGHT)}{fence('def total(xs:')}", block=0),
)

CLEANING = (
    Case("byte order mark", "\ufeff" + RIGHT, method="bare", flags=("byte_order_mark",)),
    Case("odd spaces", fence(RIGHT.replace("    ", "\xa0" * 4)), flags=("odd_spaces",)),
    Case("odd spaces before the fence", f"\xa0{fence(RIGHT)}"),
    Case("an odd space in a string stays", fence(f"{RIGHT}\nassert ord('\xa0') == 160")),
    Case(
        "transcript",
        fence(
            ">>> def total(xs):\n...     return sum(x for x in xs if x % 2 == 0)\n...\n"
            ">>> total([2])\n2",
            "pycon",
        ),
        flags=("transcript",),
    ),
    Case("magics", fence(f"!pip install numpy\n%timeit 1\n{RIGHT}"), flags=("magics",)),
    Case("end of text", f"{RIGHT}</s>", method="bare", flags=("special_tokens",)),
    Case(
        "another turn behind",
        f"{fence(RIGHT)}<|im_end|>\n<|im_start|>user\nNo!\n{fence(WRONG)}",
        block=0,
    ),
    Case("turn's begin", f"<|im_start|>assistant\n{fence(RIGHT)}", flags=("special_tokens",)),
    Case("token in a string", fence(f"{RIGHT}\nEND = '<|im_end|>'")),
    Case("python tags", f"[PYTHON]\n{RIGHT}\n[/PYTHON]", method="bare", flags=("wrapper",)),
    Case("null byte", fence(f"{RIGHT}\n\0"), "syntax"),
)

CHOICE = (
    Case(
        "helpers in an earlier block",
        f"{fence('def even(x):' + chr(10) + '    return x % 2 == 0')}\nthen\n"
        + fence("def total(xs):\n    return sum(x for x in xs if even(x))"),
        flags=("helpers",),
        block=1,
    ),
    Case(
        "helper of a helper",
        fence("import math\n")
        + fence("def half(x):\n    return math.floor(x / 2)")
        + fence("def total(xs):\n    return sum(x for x in xs if 2 * half(x) == x)"),
        flags=("helpers",),
    ),
    Case(
        "a block that nobody needs is no helper",
        fence("import no_such_module") + fence(RIGHT),
        block=1,
    ),
    Case(
        "helper and import of an earlier attempt",
        fence(f"import math\n\ndef even(x):\n    return math.fmod(x, 2) == 0\n\n{WRONG}")
        + "Only the function changes:\n"
        + fence("def total(xs):\n    return sum(x for x in xs if even(x))"),
        flags=("helpers",),
        block=1,
    ),
    Case(
        "helper behind the answer",
        fence("def total(xs):\n    return sum(x for x in xs if even(x))")
        + fence("def even(x):\n    return x % 2 == 0"),
        flags=("helpers",),
        block=0,
    ),
    Case(
        "of two helpers the one before it",
        fence("def even(x):\n    return False")
        + fence("def even(x):\n    return x % 2 == 0")
        + fence("def total(xs):\n    return sum(x for x in xs if even(x))")
        + fence("def even(x):\n    return True"),
        flags=("helpers",),
        block=2,
    ),
    Case(
        "sample's variables are no helpers",
        fence("xs = [1, 2]\nresult = 3") + fence(RIGHT),
        block=1,
    ),
    Case(
        "usage that imports the answer",
        fence(RIGHT) + fence("from solution import total\nassert total([2]) == 2"),
        block=0,
    ),
    Case(
        "stub with NotImplementedError",
        fence(RIGHT) + fence("def total(xs):\n    raise NotImplementedError"),
        block=0,
    ),
    Case("stub with dots", fence(RIGHT) + fence("def total(xs): ..."), block=0),
    Case(
        "defined in a try",
        fence(f"try:\n    import numpy_\nexcept ImportError:\n    pass\n{RIGHT}"),
    ),
    Case("defined under a condition", fence("if True:\n    " + RIGHT.replace("\n", "\n    "))),
    Case(
        "only under the main guard",
        fence('if __name__ == "__main__":\n    total = len'),
        "entry_point_missing",
        "none",
    ),
    Case(
        "annotated assignment",
        fence("import typing\ntotal: typing.Any = lambda xs: sum(x for x in xs if x % 2 == 0)"),
    ),
    Case("future import", fence(f"from __future__ import annotations\n\n{RIGHT}")),
    Case("usage alone", fence(USAGE), "entry_point_missing", "none"),
    Case("stub echoed, then a body", f"{fence(PROMPT)}\nIts body:\n{fence(BODY)}", method="body"),
    Case("body at the margin", fence(BODY.replace("\n    ", "\n")[4:]), method="body"),
    Case(
        "body at the margin, all in a loop",
        fence("while True:\n    return sum(x for x in xs if x % 2 == 0)"),
        method="body",
    ),
    Case(
        "body with a deeper margin",
        fence("        result = [x for x in xs if x % 2 == 0]\n        return sum(result)"),
        method="body",
    ),
    Case("body behind prose", f"The body is\n\n{BODY}\n\nas you see.", method="body"),
    Case("another name, bare", RIGHT.replace("total", "even_sum"), "entry_point_missing", "none"),
    Case(
        "constant before bare code",
        f"Well.\n\nTWO = 2\n\n{RIGHT.replace('% 2', '% TWO')}",
        method="bare",
    ),
    Case("bare, corrected", f"{WRONG}\n\nNo, that is wrong:\n\n{RIGHT}\n", method="bare"),
    Case("bare, a word behind", f"{RIGHT}\n\nExplanation\n", method="bare"),
    Case("markdown's indented code", "So:\n\n    " + RIGHT.replace("\n", "\n    "), method="bare"),
    Case("prompt's helper", fence(UNSHIFT), task=CIPHER),
    Case(
        "prompt's helper in use",
        fence(UNSHIFT_BY_SHIFT),
        task=CIPHER,
    ),
    Case(
        "prompt's helper as a stub",
        fence("def shift(text):\n    ...") + fence(UNSHIFT_BY_SHIFT),
        task=CIPHER,
        block=1,
    ),
    Case("a method", fence(SOLUTION), task=METHOD),
    Case("a function for a method", fence(RIGHT), "entry_point_missing", "none", task=METHOD),
    Case(
        "a script",
        f"{fence(DOUBLE)}Input:\n{fence('3', '')}Output:\n{fence('6', '')}",
        task=SCRIPT,
        block=0,
    ),
    Case(
        "a script, then how to run it", fence(DOUBLE) + fence("python x.py < in", "sh"), task=SCRIPT
    ),
    Case("a bare script", f"Sure.\n\n{DOUBLE}\n", task=SCRIPT, method="bare"),
    Case(
        "a script that reads nothing",
        f"{fence('print(6)')}Output:\n{fence('6', '')}",
        "assertion",
        flags=("reads_nothing",),
        task=SCRIPT,
        block=0,
    ),
    Case("a broken script", fence("n = int(input()\nprint(2 * n)"), "syntax", task=SCRIPT),
    Case("no script", "It is 6.", "no_code", "none", task=SCRIPT),
)

MORE = (*THINKING, *FENCES, *CLEANING, *CHOICE)
