"""The loss against its definition, written out row by row."""

import math

import pytest
import torch

from training.objective import Objective, loss_of


def a_case():
    torch.manual_seed(0)
    head = torch.nn.Linear(6, 11, bias=False).double()
    drafted, true = torch.randn(2, 5, 3, 6).double()
    return head, drafted.requires_grad_(), true, torch.randint(11, (5, 3))


def written_out(objective, head, drafted, true, tokens):
    total, weights = 0.0, [math.exp(-depth / objective.decay) for depth in range(3)]
    for row in range(5):
        for depth in range(3):
            p = head(true[row, depth]).softmax(-1).tolist()
            q = head(drafted[row, depth]).softmax(-1).tolist()
            divergence = sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
            surprise = -math.log(q[tokens[row, depth]])
            mixed = objective.kl * divergence + (1 - objective.kl) * surprise
            total += weights[depth] / sum(weights) * mixed
    return total / 5


@pytest.mark.parametrize("rows_at_once", [1, 4, 100])
def test_the_loss_is_its_definition(rows_at_once):
    objective = Objective(0.6, 2.0, rows_at_once)
    head, drafted, true, tokens = a_case()
    learned = loss_of(objective, head, drafted, true, tokens)
    assert float(learned.loss.detach()) == pytest.approx(
        written_out(objective, head, drafted, true, tokens), rel=1e-5
    )
    same = head(drafted).argmax(-1) == head(true).argmax(-1)
    torch.testing.assert_close(learned.agreement, same.float().mean(0))


def test_parts_give_the_whole_gradient():
    head, drafted, true, tokens = a_case()
    for rows_at_once in (2, 100):
        objective = Objective(0.6, 2.0, rows_at_once)
        found = loss_of(objective, head, drafted, true, tokens).gradient
        for place in [(0, 0, 0), (3, 1, 5), (4, 2, 2)]:
            values = []
            for change in (1e-5, -1e-5):
                moved = drafted.detach().clone()
                moved[place] += change
                values.append(written_out(objective, head, moved, true, tokens))
            slope = (values[0] - values[1]) / 2e-5
            assert float(found[place]) == pytest.approx(slope, rel=1e-3, abs=1e-6)


def test_a_drafter_that_is_the_target_has_no_divergence():
    head, _, true, tokens = a_case()
    learned = loss_of(Objective(kl=1.0), head, true, true, tokens)
    assert float(learned.loss.detach()) == pytest.approx(0, abs=1e-6)
    assert learned.agreement.tolist() == [1, 1, 1]
