"""Choices along a tree by SGLang's sampling parameters."""

import pytest
import torch
from torch import Tensor

from ddtree.core.candidates import Candidates
from ddtree.core.levelwise import LevelwiseBuilder
from ddtree.core.sampling import SamplingRules, log_probabilities, sample
from ddtree.core.walk import UNVISITED, walk_choices
from ddtree.sglang_plugin import sampling
from ddtree.sglang_plugin.rounds import Planted, Start, TreeShape, plant, settle
from ddtree.sglang_plugin.sampling import Drawing, choose, request_seed

VOCABULARY = 40
SHAPE = TreeShape(4, 6, 3, None)


def sglang_filter(logits: Tensor, temperature: float, k: int, p: float, least: float) -> Tensor:
    """The distribution that SGLang's torch sampler draws from, written from its description: sort,
    cut by k, cut where the mass of better tokens exceeds p, cut below a share of the best."""
    probabilities = (logits / temperature).softmax(-1)
    ordered, ids = probabilities.sort(descending=True)
    before = ordered.cumsum(-1) - ordered
    ordered[k:] = 0.0
    ordered[before > p] = 0.0
    ordered[ordered < ordered[0] * least] = 0.0
    return torch.zeros_like(ordered).scatter(0, ids, ordered / ordered.sum())


@pytest.mark.parametrize(
    ("k", "p", "least"),
    [(VOCABULARY, 1.0, 0.0), (5, 1.0, 0.0), (VOCABULARY, 0.7, 0.0), (5, 0.6, 0.0), (9, 0.9, 0.2)],
)
def test_filters_are_joint_as_sglangs(k: int, p: float, least: float) -> None:
    torch.manual_seed(0)
    logits = (torch.randn(6, VOCABULARY) * 2).double()
    column = torch.ones(6).double()
    rules = SamplingRules(
        torch.arange(6), column * 0.8, torch.full((6,), k), column * p, column * least, joint=True
    )
    found = log_probabilities(logits, rules).exp()
    for row in range(6):
        torch.testing.assert_close(found[row], sglang_filter(logits[row], 0.8, k, p, least))


def test_joint_and_sequential_differ_where_both_filters_cut() -> None:
    logits = torch.tensor([[0.3, 0.25, 0.2, 0.15, 0.1]]).log().double()
    one = torch.ones(1).double()
    rules = SamplingRules(torch.zeros(1).long(), one, torch.tensor([3]), one * 0.6, one * 0)
    kept = [
        int((log_probabilities(logits, r) > -torch.inf).sum())
        for r in (rules, SamplingRules(rules.seeds, one, rules.top_k, rules.top_p, one * 0, True))
    ]
    # After top_k the first two hold 0.73 of the mass; of the whole vocabulary only 0.55.
    assert kept == [2, 3]


def test_a_joint_draw_is_from_what_is_kept() -> None:
    torch.manual_seed(0)
    # More tokens than the pool that sampling looks at first.
    logits = torch.randn(64, 3000) * 0.2
    one = torch.ones(64).double()
    rules = SamplingRules(
        torch.arange(64), one, torch.full((64,), 1500), one * 0.8, one * 0, joint=True
    )
    tokens = sample(logits, rules, torch.arange(64))
    kept = log_probabilities(logits, rules).gather(1, tokens[:, None])
    assert (kept > -torch.inf).all()
    assert len(tokens.unique()) > 50


def a_batch(seed: int) -> tuple[Planted, Start, Tensor]:
    torch.manual_seed(seed)
    start = Start(torch.tensor([1, 2, 3]), torch.tensor([5, 9, 2]), torch.tensor([3, 4, 5]))
    logits = torch.randn(3, 3, VOCABULARY).log_softmax(-1)
    best = logits.topk(3, -1)
    candidates = Candidates(best.indices, best.values, torch.zeros(3, dtype=torch.bool))
    planted = plant(candidates, LevelwiseBuilder(6, 3, 3, torch.device("cpu")), SHAPE, start)
    return planted, start, torch.randn(3 * SHAPE.rows, VOCABULARY) * 2


def drawing(
    greedy: bool,
    temperature: float = 1.0,
    bias: Tensor | None = None,
    k: int = 1 << 30,
    p: float = 1.0,
) -> Drawing:
    one = torch.ones(3)
    ks = torch.full((3,), k, dtype=torch.int32)
    filtered = k < 1 << 30 or p < 1
    heat = one[:, None] * temperature
    return Drawing(greedy, filtered, heat, ks, one * p, one * 0, [7, 8, 9], bias)


def test_greedy_choices_are_the_argmax() -> None:
    planted, start, logits = a_batch(0)
    expected = logits.argmax(-1).view(3, -1)
    assert torch.equal(choose(planted, logits, start, None), expected)
    assert torch.equal(choose(planted, logits, start, drawing(True)), expected)


def test_a_bias_is_added_on_every_row() -> None:
    planted, start, logits = a_batch(0)
    bias = torch.zeros(3, VOCABULARY)
    bias[1, 17] = 100.0
    choices = choose(planted, logits, start, drawing(True, bias=bias))
    assert (choices[1] == 17).all()
    assert torch.equal(choices[[0, 2]], logits.argmax(-1).view(3, -1)[[0, 2]])


def test_sampled_tokens_are_the_draw_of_their_position() -> None:
    """Wherever the walk goes, a row's token is the seed's draw at its absolute position."""
    seen = 0
    for seed in range(20):
        planted, start, logits = a_batch(seed)
        grid = logits.view(3, SHAPE.rows, -1)
        choices = choose(planted, logits, start, drawing(False))
        settled = settle(planted, choices, start)
        one = torch.ones(1).double()
        for number, key in enumerate((7, 8, 9)):
            for depth in range(int(settled.counts[number])):
                row = int(settled.path[number, depth])
                rules = SamplingRules(
                    torch.tensor([key]), one, torch.tensor([VOCABULARY]), one, one * 0
                )
                position = start.lengths[number : number + 1] + depth + 1
                drawn = sample(grid[number, row][None], rules, position)
                assert int(drawn) == int(settled.tokens[number, depth])
                seen += depth > 0
    assert seen > 0


@pytest.mark.parametrize(("k", "p"), [(1 << 30, 1.0), (5, 1.0), (1 << 30, 0.6), (9, 0.8)])
@pytest.mark.parametrize("entries", [1, 3 * VOCABULARY, 1 << 24])
def test_drawing_at_all_rows_is_walking(
    monkeypatch: pytest.MonkeyPatch, k: int, p: float, entries: int
) -> None:
    monkeypatch.setattr(sampling, "ENTRIES_AT_ONCE", entries)
    deep = 0
    for seed in range(30):
        planted, start, logits = a_batch(seed)
        how = drawing(False, 0.7, k=k, p=p)
        grid = logits.view(3, SHAPE.rows, -1)
        rules = sampling.rules_of(how, torch.device("cpu"))
        walked = walk_choices(planted.tree, grid, rules, None, start.lengths).tokens
        everywhere = choose(planted, logits, start, how)
        visited = walked != UNVISITED
        assert torch.equal(everywhere[visited], walked[visited])
        deep += int(visited[:, 1:].sum())
    assert deep > 5


def test_rows_that_the_pool_leaves_open_are_walked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flat logits: the pool of the best tokens holds less than top_p asks for."""
    monkeypatch.setattr("ddtree.core.sampling.POOL", 8)
    for seed in range(6):
        planted, start, logits = a_batch(seed)
        how = drawing(False, 5.0, p=0.9)
        grid = logits.view(3, SHAPE.rows, -1)
        rules = sampling.rules_of(how, torch.device("cpu"))
        tokens, sure = sampling.draw_all(planted, grid, rules, filtered=True)
        assert not sampling.is_sure(planted, tokens, sure).all()
        walked = walk_choices(planted.tree, grid, rules, None, start.lengths).tokens
        assert torch.equal(choose(planted, logits, start, how), walked)


def test_an_open_row_matters_on_the_walk_alone() -> None:
    planted, _, _ = a_batch(0)
    first = planted.tree.tokens[:, :1]
    tokens = torch.full((3, SHAPE.rows), -1)
    tokens[:, :1] = first
    sure = torch.ones_like(tokens, dtype=torch.bool)
    sure[0, 3:], sure[1, 1], sure[2, 0] = False, False, False
    assert sampling.is_sure(planted, tokens, sure).tolist() == [True, False, False]


def test_seeds_are_the_requests_own() -> None:
    assert request_seed(5, "a") == 5
    assert request_seed(0, "a") == 0
    seeds = {request_seed(None, f"request-{number}") for number in range(1000)}
    assert len(seeds) == 1000
    assert all(0 <= seed < 2**63 for seed in seeds)
