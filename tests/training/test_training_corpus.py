"""Shards, batches and prompts."""

import pytest
import torch

from ddtree.errors import ConfigError
from training import corpus, prompts
from training.writing import Written

BLOCK = 4


def a_corpus(rows=7, length=30):
    torch.manual_seed(0)
    ids = torch.arange(rows)[:, None] * 1000 + torch.arange(length)
    drawn = torch.zeros(rows, length, dtype=torch.bool)
    drawn[:, 10:] = True
    return Written(ids, drawn)


def test_shards_come_back_in_order(tmp_path):
    whole = a_corpus()
    for number, rows in ((1, slice(3, 7)), (0, slice(0, 3))):
        part = Written(whole.ids[rows], whole.drawn[rows])
        corpus.save_shard(tmp_path, number, part, {"seed": number})
    (tmp_path / "00002.part.npz").write_bytes(b"broken off")
    found = corpus.load_shards(tmp_path)
    assert torch.equal(found.ids, whole.ids)
    assert torch.equal(found.drawn, whole.drawn)


def test_no_shards_and_mixed_lengths_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="no shards there"):
        corpus.load_shards(tmp_path)
    corpus.save_shard(tmp_path, 0, a_corpus(), {})
    corpus.save_shard(tmp_path, 1, a_corpus(length=20), {})
    with pytest.raises(ConfigError, match=r"sequences of \[20, 30\] tokens"):
        corpus.load_shards(tmp_path)


def test_batches_go_through_all_sequences_and_repeat_by_seed():
    whole = a_corpus()
    seen = []
    for step in range(7):
        batch = corpus.batch_of(whole, step, (2, 3), BLOCK, seed=1)
        again = corpus.batch_of(whole, step, (2, 3), BLOCK, seed=1)
        assert torch.equal(batch.ids, again.ids)
        assert torch.equal(batch.anchors, again.anchors)
        seen += (batch.ids[:, 0] // 1000).tolist()
    assert sorted(seen[:7]) == sorted(seen[7:]) == list(range(7))
    assert seen[:7] != seen[7:]


def test_anchors_are_where_the_target_writes_and_have_a_whole_block():
    whole = a_corpus()
    found = torch.cat([corpus.batch_of(whole, s, (7, 5), BLOCK, 0).anchors for s in range(30)])
    assert (found.diff(dim=1) > 0).all()
    assert found.min() == 9  # the token in front of the first that it wrote
    assert found.max() == 30 - BLOCK


def test_given_tokens_fill_up_where_the_target_wrote_little():
    whole = a_corpus()
    whole.drawn[:, :28] = False
    anchors = corpus.batch_of(whole, 0, (7, 5), BLOCK, 0).anchors
    assert (anchors <= 30 - BLOCK).all()
    assert (anchors >= 0).all()


CODE = '''
class Box:
    def area(self, width: int, height: int) -> int:
        """Give the area of a rectangle of this width and height, in units of the box."""
        return width * height

def plain(x):
    return x

def is_near(numbers, threshold):
    """ Check if in given list of numbers, are any two numbers closer to each other than given. """
    return False
'''


def test_functions_come_with_their_docstrings_at_the_margin(tmp_path):
    (tmp_path / "a.py").write_text(CODE)
    (tmp_path / "broken.py").write_text("def f(:")
    found = list(prompts.functions_of([tmp_path]))
    assert len(found) == 2
    assert any(text.startswith("def area(self, width: int") for text in found)
    assert all(text.endswith('"""\n') for text in found)
    evaluation = [
        "def f(n):\n    '''Check if in given list of numbers, are any two\n numbers closer'''"
    ]
    assert prompts.apart_from(found * 2, evaluation) == [t for t in found if "area" in t]


def test_scripts_hold_chats_and_functions_in_the_asked_share():
    headers = prompts.ChatHeaders([1, 2], [3], [4, 5, 6])
    scripts = prompts.scripts_for(headers, [[9, 9]] * 40, 0.5)
    chats = sum(start < 15 for start in scripts.starts.tolist())
    assert chats == len(scripts.starts) - chats == 40
    assert scripts.tokens[2].tolist() == [4, 5, 6]
    assert scripts.following[:6].tolist() == [1, 2, 1, 4, 5, 4]
    assert scripts.temperatures[[1, 4, 7, 10, 13]].tolist() == pytest.approx([0, 0, 0.4, 0.7, 1])
    assert (scripts.following[15:] == -1).all()


@pytest.mark.model
def test_chat_headers_are_the_templates(smollm2):
    from ddtree.models.compat import load_tokenizer

    tokenizer = load_tokenizer(smollm2.target)
    (end,) = tokenizer.encode("<|im_end|>", add_special_tokens=False)
    headers = prompts.chat_headers(tokenizer, [end])
    talk = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}]
    talk.append({"role": "user", "content": "So"})
    expected = tokenizer.apply_chat_template(talk, tokenize=True, return_dict=False)

    def said(text):
        return [*tokenizer.encode(text, add_special_tokens=False), end]

    built = headers.user + said("Hi") + headers.answer + said("Yes") + headers.again + said("So")
    assert built == expected[: len(built)]


def test_a_function_that_the_target_made_up_ends_with_its_docstring():
    example = prompts.EXAMPLES[0]
    made = (
        'import math\n\n\ndef half(x: float) -> float:\n    """ Half of x, as a number.\n    """\n'
    )
    text = f"{example}\n\n{made}    return x / 2\n\ndef other(: '"
    assert prompts.invented_function(text) == made
    assert prompts.invented_function(text.replace('"""', "#")) is None
    assert prompts.invented_function(f"{example}\n\ndef broken(:\n" + made) is None
    assert prompts.invented_function('def f():\n    """ short """') is None


def test_a_mixture_draws_by_tokens_and_repeats():
    long, short = a_corpus(9, 60), a_corpus(60, 27)
    mixed = corpus.Mixture([long, short], 400, seed=1)
    again = corpus.Mixture([long, short], 400, seed=1)
    lengths = []
    for step in range(400):
        batch = mixed.batch(step, (120, 10), BLOCK)
        assert torch.equal(batch.anchors, again.batch(step, (120, 10), BLOCK).anchors)
        length = batch.ids.shape[1]
        assert batch.anchors.shape == (120 // length, length // 10)
        lengths.append(length)
    assert sum(length == 60 for length in lengths) / 400 == pytest.approx(0.25, abs=0.06)
    firsts = {int(mixed.batch(s, (120, 10), BLOCK).ids[0, 0]) for s in range(40)}
    assert len(firsts) > 12
