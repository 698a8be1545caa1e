"""engine/beams.py against all sequences there are, and against a plain beam search."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from test_model import GPT2, MODERN, make

from engine.beams import beam_search
from engine.generation import generate
from engine.sampling import Choice

SHAPE = pytest.mark.parametrize("config", [replace(GPT2, bias=True), replace(MODERN, pad_vocab_to=1)], ids=["gpt2", "modern"])
PENALTY = pytest.mark.parametrize("length_penalty", [0.0, 1.0, 2.0, -1.0])


def small(config, vocab_size=4, **changes):
    """A model in float64: no order of two texts is up to rounding."""
    return make(config, vocab_size=vocab_size, **changes).double()


def next_logprobs(model, tokens):
    """The logarithm of the probability of each token after these, by a run of the whole window."""
    with torch.no_grad():
        return model(torch.tensor([tokens[-model.config.block_size :]]))[0][0, -1].log_softmax(-1).tolist()


def plain_beam_search(model, prompt, beams, max_new_tokens, choice, length_penalty=1.0, ended=None):
    """(ids, logprobs, score, finish), best first: no end before max_new_tokens. `beams` None leaves nothing out."""
    running, complete = [([], [])], []
    for length in range(1, max_new_tokens + 1):
        grown = []
        for ids, logprobs in running:
            for token, logprob in enumerate(next_logprobs(model, prompt + ids)):
                if token in choice.banned or (token in choice.stop_tokens and length <= choice.min_new_tokens):
                    continue
                text = ([*ids, token], [*logprobs, logprob])
                finish = "length" if length == max_new_tokens else None
                if token in choice.stop_tokens:
                    finish = "stop_token"
                elif ended is not None and ended(text[0]):
                    finish = "stop_string"
                if finish:
                    complete.append((*text, sum(text[1]) / length**length_penalty, finish))
                else:
                    grown.append(text)
        running = sorted(grown, key=lambda text: -sum(text[1]))[:beams]
    return sorted(complete, key=lambda text: -text[2])[:beams]


def assert_same(found, expected):
    assert [hypothesis.ids for hypothesis in found] == [text[0] for text in expected]
    assert [hypothesis.finish for hypothesis in found] == [text[3] for text in expected]
    for hypothesis, (_, logprobs, score, _) in zip(found, expected, strict=True):
        assert hypothesis.logprobs == pytest.approx(logprobs, abs=1e-9)
        assert hypothesis.logprob == pytest.approx(sum(logprobs), abs=1e-9)
        assert hypothesis.score == pytest.approx(score, abs=1e-9)


@SHAPE
@PENALTY
@pytest.mark.parametrize(
    "choice",
    [
        Choice(),
        Choice(stop_tokens=(2,)),
        Choice(stop_tokens=(2, 3), min_new_tokens=2),
        Choice(banned=(1,), stop_tokens=(0,), min_new_tokens=1),
    ],
    ids=["free", "stop", "stop-later", "banned"],
)
def test_with_enough_beams_nothing_is_left_out(config, length_penalty, choice):
    model = small(config)
    found = beam_search(model, [1, 3], 4**3, 3, choice, length_penalty=length_penalty)
    expected = plain_beam_search(model, [1, 3], None, 3, choice, length_penalty)
    assert len({len(text[0]) for text in expected}) == (1 if not choice.stop_tokens else 3 - choice.min_new_tokens)
    assert_same(found, expected)


@PENALTY
def test_with_enough_beams_nothing_is_left_out_at_length_4(length_penalty):
    model = small(MODERN, vocab_size=3, pad_vocab_to=1)
    choice = Choice(stop_tokens=(0,))
    found = beam_search(model, [0], 3**4, 4, choice, length_penalty=length_penalty)
    assert_same(found, plain_beam_search(model, [0], None, 4, choice, length_penalty))


@SHAPE
@PENALTY
@pytest.mark.parametrize("beams", [1, 3])
def test_an_early_end_changes_nothing(config, length_penalty, beams):
    """Past a full context of 4, too."""
    model = small(config, vocab_size=7, scale=14.0, block_size=4)
    for prompt, choice in (
        ([1], Choice(stop_tokens=(2,))),
        ([6, 2, 3], Choice(stop_tokens=(2, 5), banned=(3,), min_new_tokens=2)),
        ([5, 4, 3, 2, 1, 0], Choice(stop_tokens=(0, 6))),
    ):
        found = beam_search(model, prompt, beams, 6, choice, length_penalty=length_penalty)
        assert_same(found, plain_beam_search(model, prompt, beams, 6, choice, length_penalty))


@PENALTY
def test_a_text_is_complete_when_ended_says_so(length_penalty):
    beams = 4**3
    model, ended = small(GPT2), lambda ids: ids[-2:] == [1, 2]
    found = beam_search(model, [0], beams, 3, Choice(), length_penalty=length_penalty, ended=ended)
    assert_same(found, plain_beam_search(model, [0], beams, 3, Choice(), length_penalty, ended))
    assert sum(hypothesis.finish == "stop_string" for hypothesis in found) == 1 + 4
    for hypothesis in found:
        assert (hypothesis.finish == "stop_string") == ended(hypothesis.ids)
        assert not any(ended(hypothesis.ids[:n]) for n in range(len(hypothesis.ids)))


def test_texts_that_end_leave_the_beams_to_those_that_do_not():
    model = small(GPT2, vocab_size=9)
    ended = lambda ids: ids[-1] < 7  # noqa: E731  (most ways to go on end)
    found = beam_search(model, [0], 2, 4, Choice(), length_penalty=1.0, ended=ended)
    assert_same(found, plain_beam_search(model, [0], 2, 4, Choice(), 1.0, ended))


@SHAPE
def test_one_beam_is_greedy(config):
    model = make(config, vocab_size=17)
    for prompt in ([3], [5, 2, 8], list(range(15))):
        (found,) = beam_search(model, prompt, 1, 25, length_penalty=0.0)
        tokens = list(generate(model, [prompt], 25, Choice(temperature=0.0), logprobs=True))
        assert found.ids == [token.id for token in tokens]
        assert found.logprobs == pytest.approx([token.logprob for token in tokens], abs=1e-5)


@SHAPE
def test_hypotheses_are_sorted_and_add_up(config):
    model = make(config, vocab_size=17, scale=5.0)
    found = beam_search(model, [4, 2], 6, 20, Choice(stop_tokens=(3,)), length_penalty=0.7)  # past a full context
    assert len(found) == 6
    assert all(a.score >= b.score for a, b in pairwise(found))
    assert len({tuple(hypothesis.ids) for hypothesis in found}) == 6
    for hypothesis in found:
        expected = [next_logprobs(model, [4, 2, *hypothesis.ids[:n]])[token] for n, token in enumerate(hypothesis.ids)]
        assert hypothesis.logprobs == pytest.approx(expected, abs=1e-5)
        assert hypothesis.logprob == pytest.approx(math.fsum(hypothesis.logprobs), abs=1e-6)
        assert hypothesis.score == pytest.approx(hypothesis.logprob / len(hypothesis.ids) ** 0.7, abs=1e-6)


def test_the_best_text_may_start_with_an_unlikely_token():
    """Otherwise greedy would do."""
    better = 0
    for prompt in range(4):
        model = small(GPT2, scale=5.0)
        greedy, best = (beam_search(model, [prompt], beams, 4, length_penalty=0.0)[0] for beams in (1, 4**4))
        assert best.logprob >= greedy.logprob - 1e-12
        better += best.ids != greedy.ids
    assert better


@pytest.mark.parametrize(
    ("prompt", "choice", "message"),
    [
        ([], Choice(), "at least one token"),
        ([1, 9], Choice(), "id 9"),
        ([1], Choice(banned=(4,)), "id 4"),
        ([1], Choice(banned=(0, 1, 2, 3)), "all 4 tokens"),
    ],
)
def test_what_does_not_fit_is_named(prompt, choice, message):
    with pytest.raises(ValueError, match=message):
        beam_search(small(GPT2), prompt, 2, 3, choice)


def test_beams_are_searched_without_dropout():
    model = small(GPT2, dropout=0.5)
    expected = beam_search(model, [1], 3, 5)
    model.train()
    assert beam_search(model, [1], 3, 5) == expected
    assert model.training
