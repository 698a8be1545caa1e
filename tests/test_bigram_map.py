import pytest
import torch

from engine.bigram_map import counted, draw, shares
from zoo.ladder import LadderConfig
from zoo.models import make


def test_the_table_as_counted_by_hand():
    tokens = torch.tensor([0, 1, 1, 2, 0, 2, 0])  # $aab$b$
    table = counted(tokens, 4)
    torch.testing.assert_close(table[:3], torch.tensor([[0, 1 / 2, 1 / 2, 0], [0, 1 / 2, 1 / 2, 0], [1, 0, 0, 0]]))
    assert table[3].isnan().all()  # never seen


def test_the_table_of_a_model():
    model = make(LadderConfig(kind="bigram", vocab_size=3, smoothing=None))
    assert torch.equal(shares(model), torch.full((3, 3), 1 / 3)) and not shares(model).requires_grad


@pytest.mark.parametrize("count", [3, 61])
def test_a_cell_holds_its_per_cent(count):
    table = torch.zeros(count, count)
    table[:, 0], table[:, 1], table[:, 2] = 0.99, 0.006, 0.004
    table[2] = float("nan")
    names = ["$", r"$\b$", "_^", *map(str, range(count))][:count]
    figure = draw(table, names, "$ of _^")
    figure.draw_without_rendering()
    axes = figure.axes[0]
    written = {text.get_position()[::-1]: text.get_text() for text in axes.texts}
    assert written == ({(0, 0): "99", (0, 1): "1", (1, 0): "99", (1, 1): "1"} if count == 3 else {})
    assert [text.get_text() for text in axes.get_yticklabels()] == names and not any(t.get_parse_math() for t in axes.get_xticklabels())
    assert axes.images[0].get_array().mask[2].all()
    draw(torch.full((2, 2), float("nan")), ["$", "a"], "nothing").draw_without_rendering()
