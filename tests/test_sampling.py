"""engine/sampling.py: penalties, filters and draws against plain Python."""

import math

import numpy as np
import pytest
import torch

from engine.sampling import Choice, Memory, State, allowed, choose

CPU = torch.device("cpu")


def plain_allowed(logits, choice, prompt, text):
    """The logits of one row, a list, with the penalties and without what may not come."""
    logits = list(logits)
    for token in range(len(logits)):
        if token in text or (token in prompt and token not in choice.stop_tokens):
            logits[token] = logits[token] / choice.repetition_penalty if logits[token] > 0 else logits[token] * choice.repetition_penalty
        if token in text:
            logits[token] -= choice.presence_penalty + choice.frequency_penalty * text.count(token)
        if token in choice.banned or (token in choice.stop_tokens and len(text) < choice.min_new_tokens):
            logits[token] = -math.inf
    return logits


def plain_probabilities(logits, choice):
    """What is drawn from, a list: temperature, top_k, top_p and min_p, in this order."""
    highest = max(logits)
    if choice.temperature == 0:
        return [float(token == logits.index(highest)) for token in range(len(logits))]
    weights = [math.exp((logit - highest) / choice.temperature) for logit in logits]
    if choice.top_k is not None:
        kth = sorted(logits, reverse=True)[min(choice.top_k, len(logits)) - 1]
        weights = [weight if logit >= kth else 0.0 for weight, logit in zip(weights, logits, strict=True)]
    if choice.top_p is not None:
        total, before, kept = sum(weights), 0.0, set()
        for token in sorted(range(len(weights)), key=lambda token: -weights[token]):
            if before < choice.top_p * total:
                kept.add(token)
            before += weights[token]
        weights = [weight if token in kept else 0.0 for token, weight in enumerate(weights)]
    if choice.min_p is not None:
        weights = [weight if weight >= choice.min_p * max(weights) else 0.0 for weight in weights]
    return [weight / sum(weights) for weight in weights]


def plain_choose(logits, choice, prompt, text, draw):
    """The next token of one row: the draw falls on the cumulated probabilities, in vocabulary order."""
    probabilities = plain_probabilities(plain_allowed(logits, choice, prompt, text), choice)
    cumulated = 0.0
    for token, probability in enumerate(probabilities):
        cumulated += probability
        if draw < cumulated:
            return token
    return max(token for token, probability in enumerate(probabilities) if probability > 0)  # the sum was rounded


@torch.inference_mode()
def state_of(choice, prompts, texts, vocab_size, draws=None):
    """The state in which the rows have these texts, all of one length."""
    memory = Memory(choice, prompts, vocab_size, CPU, seed=0, first_row=0)
    for tokens in zip(*texts, strict=True):
        memory.note(torch.tensor(tokens))
    state = memory.next_state()
    return state if draws is None else state._replace(draw=torch.tensor(draws, dtype=torch.float64))


def some_choice(chance):
    """A choice with each option on or off."""
    maybe = lambda value, other=None: value if chance.random() < 0.5 else other  # noqa: E731
    return Choice(
        temperature=maybe(float(chance.choice([0.0, 0.3, 1.7])), 1.0),
        top_k=maybe(int(chance.integers(1, 14))),
        top_p=maybe(float(chance.uniform(0.05, 1))),
        min_p=maybe(float(chance.uniform(0, 0.5))),
        repetition_penalty=maybe(float(chance.uniform(0.5, 3)), 1.0),
        presence_penalty=maybe(float(chance.uniform(-2, 2)), 0.0),
        frequency_penalty=maybe(float(chance.uniform(-1, 1)), 0.0),
        banned=maybe(tuple(chance.choice(12, 3, replace=False).tolist()), ()),
        stop_tokens=maybe(tuple(chance.choice(12, 2, replace=False).tolist()), ()),
        min_new_tokens=maybe(int(chance.integers(0, 8)), 0),
    )


@pytest.mark.parametrize("seed", range(150))
def test_penalties_filters_and_draws_against_plain_python(seed):
    chance = np.random.default_rng(seed)
    choice, rows, length = some_choice(chance), 9, int(chance.integers(0, 8))
    logits = torch.from_numpy(chance.normal(0, 2, (rows, 12)).astype(np.float32))
    prompts = [chance.integers(0, 12, chance.integers(1, 6)).tolist() for _ in range(rows)]
    texts = chance.integers(0, 12, (rows, length)).tolist()
    draws = chance.random(rows)
    state = state_of(choice, prompts, texts, 12, draws)
    expected = [plain_allowed(row, choice, prompt, text) for row, prompt, text in zip(logits.tolist(), prompts, texts, strict=True)]
    torch.testing.assert_close(allowed(logits, choice, state).double(), torch.tensor(expected, dtype=torch.float64), atol=1e-5, rtol=0)
    tokens = [plain_choose(*row) for row in zip(logits.tolist(), [choice] * rows, prompts, texts, draws, strict=True)]
    assert choose(logits, choice, state).tolist() == tokens


def test_penalties_in_numbers():
    choice = Choice(repetition_penalty=2.0, presence_penalty=0.5, frequency_penalty=0.25)
    state = state_of(choice, [[0, 1]], [[1, 2, 2, 3]], 5)
    logits = torch.tensor([[4.0, -4.0, 3.0, 0.0, 3.0]])
    assert allowed(logits, choice, state).tolist() == [[2.0, -8.75, 0.5, -0.75, 3.0]]


def test_a_penalty_is_taken_off_in_full_precision():
    choice = Choice(presence_penalty=0.3, frequency_penalty=0.1)
    state = state_of(choice, [[0]], [[1, 1, 1]], 3)
    assert allowed(torch.tensor([[0.0, 1.0, 0.0]]), choice, state)[0, 1].item() == pytest.approx(0.4, abs=1e-7)


def test_a_stop_token_in_the_prompt_is_no_repetition():
    choice = Choice(repetition_penalty=2.0, stop_tokens=(0,))
    state = state_of(choice, [[0, 1]], [[]], 3)
    assert allowed(torch.tensor([[4.0, 4.0, 4.0]]), choice, state).tolist() == [[4.0, 2.0, 4.0]]


def test_penalties_belong_to_their_row_and_leave_the_logits_alone():
    choice = Choice(presence_penalty=1.0)
    logits = torch.zeros(2, 3)
    state = state_of(choice, [[0], [0]], [[1], [2]], 3)
    assert allowed(logits, choice, state).tolist() == [[0, -1, 0], [0, 0, -1]]
    assert (logits == 0).all()


def test_tokens_tied_with_the_kth_stay():
    choice = Choice(top_k=2)
    logits = torch.tensor([[1.0, 3.0, 1.0, 0.0, 1.0]]).expand(400, -1)
    draws = np.linspace(0, 1, 400, endpoint=False)
    tokens = choose(logits, choice, state_of(choice, [[0]] * 400, [[]] * 400, 5, draws)).tolist()
    assert set(tokens) == {0, 1, 2, 4}
    assert tokens == sorted(tokens)


def test_what_may_not_come_does_not_count_among_the_k_likeliest():
    choice = Choice(top_k=1, banned=(1,))
    state = state_of(choice, [[0]], [[]], 3, [0.5])
    assert choose(torch.tensor([[0.0, 9.0, 1.0]]), choice, state).tolist() == [2]


def test_draws_follow_the_penalised_and_filtered_distribution():
    count, chance = 20_000, np.random.default_rng(2)
    choice = Choice(
        temperature=1.3,
        top_k=10,
        top_p=0.95,
        min_p=0.02,
        repetition_penalty=1.2,
        presence_penalty=0.4,
        frequency_penalty=0.3,
        banned=(4,),
        stop_tokens=(7,),
        min_new_tokens=9,
    )
    logits, prompt, text = chance.normal(0, 1.2, 14).astype(np.float32).tolist(), [1, 2, 3], [3, 5, 5]
    expected = plain_probabilities(plain_allowed(logits, choice, prompt, text), choice)
    state = state_of(choice, [prompt] * count, [text] * count, 14)  # a generator of its own for each row
    tokens = choose(torch.tensor([logits]).expand(count, -1), choice, state)
    seen = torch.bincount(tokens, minlength=14).tolist()
    left = [token for token in range(14) if expected[token] > 0]
    assert 5 < len(left) < 12
    assert sum(seen[token] for token in left) == count
    statistic = sum((seen[token] - count * expected[token]) ** 2 / (count * expected[token]) for token in left)
    df = len(left) - 1
    assert statistic < df * (1 - 2 / (9 * df) + 3.09 * math.sqrt(2 / (9 * df))) ** 3  # p = 0.001 (Wilson & Hilferty 1931)


@torch.inference_mode()
def test_draw_number_j_of_a_row_comes_from_its_seed_and_number():
    memory = Memory(Choice(), [[0]] * 3, 5, CPU, seed=7, first_row=4)
    steps = [memory.next_state().draw for _ in range(10)]
    memory.take([2, 0])
    after = [memory.next_state().draw for _ in range(70)]  # beyond what is drawn at once
    for slot, row in ((0, 6), (1, 4)):
        expected = np.random.default_rng((7, row)).random(80).tolist()
        assert [float(draw[row - 4]) for draw in steps] == expected[:10]
        assert [float(draw[slot]) for draw in after] == expected[10:]


@torch.inference_mode()
def test_rows_taken_keep_their_penalties():
    choice = Choice(repetition_penalty=2.0, presence_penalty=1.0)
    memory = Memory(choice, [[0], [1], [2]], 4, CPU, seed=0, first_row=0)
    memory.note(torch.tensor([3, 0, 1]))
    memory.take([2, 1])
    memory.note(torch.tensor([1, 3]))
    logits = torch.full((2, 4), 4.0)
    assert allowed(logits, choice, memory.next_state()).tolist() == [[4, 1, 2, 4], [1, 2, 4, 1]]


@torch.inference_mode()
def test_stop_tokens_may_come_once_the_text_is_long_enough():
    choice = Choice(banned=(1,), stop_tokens=(2, 3), min_new_tokens=2)
    memory = Memory(choice, [[0]], 5, CPU, seed=0, first_row=0)
    for left in ([0, 4], [0, 4], [0, 2, 3, 4], [0, 2, 3, 4]):
        logits = allowed(torch.zeros(1, 5), choice, memory.next_state())
        assert (logits[0] > -math.inf).nonzero().flatten().tolist() == left
        memory.note(torch.tensor([0]))


def test_without_penalties_and_bans_the_logits_are_as_they_were():
    logits = torch.randn(2, 5)
    assert allowed(logits, Choice(), State(torch.zeros(2), None, None, None)) is logits


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1.0}, "temperature=-1"),
        ({"temperature": math.nan}, "temperature=nan"),
        ({"top_k": 0}, "top_k=0"),
        ({"top_p": 0.0}, "top_p=0"),
        ({"min_p": 1.5}, "min_p=1.5"),
        ({"repetition_penalty": 0.0}, "repetition_penalty=0"),
        ({"repetition_penalty": -1.5}, "repetition_penalty=-1.5"),
        ({"repetition_penalty": math.nan}, "repetition_penalty=nan"),
        ({"repetition_penalty": math.inf}, "repetition_penalty=inf"),
        ({"presence_penalty": math.nan}, "presence_penalty=nan"),
        ({"presence_penalty": math.inf}, "presence_penalty=inf"),
        ({"frequency_penalty": -math.inf}, "frequency_penalty=-inf"),
        ({"min_new_tokens": -1}, "min_new_tokens=-1"),
    ],
)
def test_values_that_mean_nothing(options, message):
    with pytest.raises(ValueError, match=message):
        Choice(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"banned": (0, 5)}, "banned: id 5"),
        ({"banned": (-1,)}, "banned: id -1"),
        ({"stop_tokens": (7,)}, "stop_tokens: id 7"),
        ({"banned": (0, 1, 2, 3, 4)}, "all 5 tokens are banned"),
        ({"banned": (0, 1, 2), "stop_tokens": (3, 4), "min_new_tokens": 1}, "all 5 tokens are banned"),
    ],
)
def test_ids_that_do_not_fit_the_vocabulary(options, message):
    with pytest.raises(ValueError, match=message):
        Choice(**options).check_vocabulary(5)


def test_banned_twice_is_banned_once():
    assert Choice(banned=(0, 0, 1, 1), stop_tokens=(1,), min_new_tokens=2).check_vocabulary(3) is None  # it raises nothing
    assert Choice(banned=(0, 1), stop_tokens=(2,)).check_vocabulary(3) is None  # the empty text is left
