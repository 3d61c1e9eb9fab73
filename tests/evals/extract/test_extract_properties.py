"""Generated answers: fences and tags of every kind, and texts that make no sense."""

import ast

import pytest
from grading_of_extracts import BODY, PROMPT, RIGHT, TASK, WRONG, extracted, fence, outcome
from hypothesis import example, given
from hypothesis import strategies as st

from ddtree.evals.extract.cleaning import MOST_CHARS
from ddtree.evals.extract.extract import complete, extract
from ddtree.evals.extract.fences import read_fences
from ddtree.evals.extract.source import longest_prefix, parse
from ddtree.evals.extract.thinking import FAMILIES, ThinkingTags, cut_thinking

SECRET = WRONG.replace("-1", "'secret'")
PROSE = st.sampled_from(
    ["", "Here it is.", "- a list", "> said", "x", "It's `total`.", "# Title", "1. First", "a = b?"]
)
LABELS = st.sampled_from(["", "python", "Python", "py", "python3", "python x=1", "{.python}"])
PAIRS = st.sampled_from(
    [
        *FAMILIES,
        *((a.upper(), b.upper()) for a, b in FAMILIES if a.startswith("<") and "|" not in a),
    ]
)
TAGS = st.sampled_from([tag for pair in FAMILIES for tag in pair])
THOUGHTS = st.lists(
    st.one_of(
        PROSE,
        st.just(fence(SECRET)),
        st.just(f"```python\n{SECRET}"),
        st.just(f"~~~\n{SECRET}\n~~~"),
        st.just(SECRET),
        TAGS.map(lambda tag: f"I may say '{tag}' here"),
        TAGS.map(lambda tag: f"or `{tag}`"),
        TAGS.map(lambda tag: f"the tag {tag} amid words"),
    ),
    max_size=6,
).map("\n".join)
SOUP = st.lists(
    st.one_of(
        PROSE,
        TAGS,
        st.sampled_from(
            [fence(RIGHT), fence(BODY), fence(PROMPT), RIGHT, BODY, "```", "~~~~", "'''"]
        ),
        st.sampled_from(
            ["<|im_end|>", "</s>", "<answer>", "</answer>", ">>> f(1)", "\r", "\0", "\xa0"]
        ),
        st.sampled_from(["<|channel|>final<|message|>", "if x:", "    return (", "x = [", "@a"]),
        st.text(max_size=12),
    ),
    max_size=12,
).map("\n".join)


@given(
    st.sampled_from("`~"), st.integers(3, 7), st.integers(0, 9), LABELS, PROSE, PROSE, st.booleans()
)
def test_generated_fences(mark, length, indent, label, before, after, returns):
    edge = " " * indent
    block = "\n".join(edge + line for line in fence(RIGHT, label, mark * length).splitlines())
    text = f"{before}\n\n{block}\n\n{after}\n"
    answer = extracted(text.replace("\n", "\r\n") if returns else text)
    assert outcome(answer) == "passed"
    assert (answer.method, answer.blocks, answer.block) == ("fence", 1, 0)


@given(st.integers(3, 6), st.integers(0, 3), st.sampled_from("`~"), st.sampled_from("`~"))
def test_shorter_and_other_fences_do_not_close(length, less, outer, inner):
    inside = inner * max(3, length - less)
    body = f'text = """\n{inside}\n{inside}\n"""\n{RIGHT}'
    page = read_fences(fence(body, "python", outer * length))
    assert [block.code for block in page.blocks] == [body]


@given(st.lists(st.tuples(LABELS, st.integers(0, 3)), max_size=5))
def test_blocks_do_not_overlap(kinds):
    codes = [f"x{n} = {n}" for n, _ in enumerate(kinds)]
    parts = [
        "\n" * gap + fence(code, label) for code, (label, gap) in zip(codes, kinds, strict=True)
    ]
    text = "words\n" + "words\n".join(parts)
    page = read_fences(text)
    assert [block.code for block in page.blocks] == codes
    assert [stretch.strip() for stretch in page.outside] == ["words"] * max(1, len(kinds))


@given(PAIRS, THOUGHTS, st.booleans())
def test_code_is_never_from_thinking(pair, thoughts, opened):
    opening, closing = pair
    text = f"{opening if opened else ''}\n{thoughts}\n{closing}\n{fence(RIGHT)}"
    answer = extracted(text)
    assert outcome(answer) == "passed"
    assert answer.block == 0
    assert answer.thinking_chars == len(thoughts) + 2


@given(PAIRS, THOUGHTS)
def test_unclosed_thinking_is_no_answer(pair, thoughts):
    answer = extracted(f"{pair[0]}\n{thoughts}", finish_reason="length")
    assert (answer.program, answer.missing) == (None, "truncated_thinking")
    assert "thinking_unclosed" in answer.flags


@given(PAIRS, THOUGHTS, SOUP)
def test_nothing_behind_makes_thinking_an_answer(pair, thoughts, soup):
    opening, closing = pair
    answer = extracted(f"{opening}\n{thoughts}\n{closing}\n{soup}")
    for program in (answer.program, answer.lenient):
        assert program is None or "secret" not in program


@given(SOUP, st.sampled_from(["stop", "length", None]))
@example("\ud800", "stop")
@example("(" * 5000, "stop")
@example(fence("-" * 5000 + "1"), "stop")
@example(fence("x = " + "+".join("1" * 3000)), "stop")
@example(fence("if x:\n  y\n" + "elif x:\n  y\n" * 900), "stop")
@example(fence("'\\d'"), "stop")
def test_any_text_has_an_answer(text, finish_reason):
    answer = extract(text, TASK, finish_reason)
    assert answer == extract(text, TASK, finish_reason)
    assert (answer.program is None) == (answer.missing is not None)
    if answer.program is not None and "unparsable" not in answer.flags:
        assert parse(answer.program).tree is not None
    completed = complete(text, TASK)
    assert (completed.program is None) == (completed.missing is not None)


@given(
    st.lists(
        st.sampled_from([*BODY.split("\n"), "(", "'''", "x = 1", "  y()", "if x:", ""]), max_size=9
    )
)
def test_longest_prefix_is_the_longest(lines):
    code = "\n".join(lines)
    parsing = [
        end for end in range(len(lines) + 1) if parse("\n".join(lines[:end])).tree is not None
    ]
    prefix, tree = longest_prefix(code)
    best = "\n".join(lines[: max(parsing)])
    if ast.parse(best).body:
        assert tree is not None
        assert prefix.rstrip() == best.rstrip()
    else:
        assert (prefix, tree) == ("", None)


def test_template_that_opens_thinking():
    tags = ThinkingTags(opened=True)
    assert extract(fence(RIGHT), TASK, "length", tags).missing == "truncated_thinking"
    assert outcome(extract(f"hm\n</think>\n{fence(RIGHT)}", TASK, "stop", tags)) == "passed"


def test_families_can_be_chosen():
    tags = ThinkingTags(families=(("<hm>", "</hm>"),))
    text = f"<hm>\n{fence(WRONG)}\n</hm>\n{fence(RIGHT)}"
    assert extract(text, TASK, "stop", tags).block == 0
    assert extracted(text).block == 1
    none = ThinkingTags(families=(), channels=False)
    assert cut_thinking("<think>a</think>b", none).text == "<think>a</think>b"


def test_long_answers_are_cut():
    text = f"{fence(RIGHT)}\n" + "and so on\n" * (MOST_CHARS // 5)
    answer = extracted(text)
    assert outcome(answer) == "passed"
    assert "cut_long" in answer.flags


GROWING = {
    "thinking lines": ("<think>\n", "I think that x < y.\n", f"</think>\n{fence(RIGHT)}"),
    "thinking drafts": ("<think>\n", fence(WRONG), f"</think>\n{fence(RIGHT)}"),
    "tags in programs": ("", fence("'</think>'"), fence(RIGHT)),
    "tags alone": ("", "</think>\n", fence(RIGHT)),
    "openers": ("", "```python\nx = 1\n", ""),
    "strings without end": ("", "```python\n'''\n```\n", ""),
    "bare fences": ("", "```\n", ""),
    "brackets": ("", "x = (\n", ""),
    "tries": ("", "try:\n    x = 1\n", ""),
    "words": ("", "x = 1 is prose\n", ""),
    "blocks": ("", fence("def f(x):\n    return x"), ""),
    "functions": ("", "def f(x):\n    return x\n\n", ""),
}


@pytest.mark.parametrize("name", GROWING)
def test_work_is_linear(name, monkeypatch):
    """Counted in characters that are parsed, which is what costs time."""
    plain, counts = ast.parse, []

    def counting(source, *arguments, **named):
        counts[-1] += len(source)
        return plain(source, *arguments, **named)

    monkeypatch.setattr(ast, "parse", counting)
    head, unit, tail = GROWING[name]
    for size in (20_000, 80_000):
        counts.append(0)
        extracted(head + unit * (size // len(unit)) + tail)
    assert counts[1] <= 5 * counts[0] + 1_000_000
    assert counts[1] <= 100 * 80_000
