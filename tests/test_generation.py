"""engine/generation.py and engine/trace.py against plain loops."""

import copy
import gc
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from test_model import ATTENTION, GPT2, MODERN, SHAPE, ids, make
from test_sampling import plain_choose

from engine.generation import closed_up, generate, lay_out
from engine.sampling import Choice
from engine.trace import traced
from model import GPT

COMPILER = pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler for torch.compile")
PROMPTS = [ids(40).tolist()[i : i + length] for i, length in enumerate((1, 5, 12, 2, 20, 11, 13))]  # the context is 12
EVERYTHING = Choice(
    temperature=1.2,
    top_k=9,
    top_p=0.95,
    min_p=0.01,
    repetition_penalty=1.3,
    presence_penalty=0.25,
    frequency_penalty=0.125,
    banned=(3, 8),
    stop_tokens=(5, 16),
    min_new_tokens=4,
)
EVERYTHING_ENDLESS = replace(EVERYTHING, stop_tokens=(), min_new_tokens=0)
CHOICES = {
    "greedy": Choice(temperature=0.0),
    "plain": Choice(),
    "stop": Choice(temperature=1.5, stop_tokens=(1, 2)),
    "filters": Choice(temperature=0.7, top_k=6, top_p=0.9, min_p=0.05),
    "greedy-penalties": Choice(temperature=0.0, repetition_penalty=1.8, presence_penalty=0.5, frequency_penalty=0.25),
    "everything": EVERYTHING,
}
CHOICE = pytest.mark.parametrize("choice", CHOICES.values(), ids=CHOICES)


def plain_text(model, prompt, max_new_tokens, choice, seed=0, row=0):
    """The new tokens of one row: the last block_size ids are read anew for each."""
    text = []
    for draw in np.random.default_rng((seed, row)).random(max_new_tokens):
        with torch.no_grad():
            logits = model(torch.tensor([(prompt + text)[-model.config.block_size :]]))[0][0, -1].double().tolist()
        text.append(plain_choose(logits, choice, prompt, text, draw))
        if text[-1] in choice.stop_tokens:
            break
    return text


def texts(tokens):
    """{row: its ids}. No row goes on after its end, and every row has one."""
    rows, finished = {}, set()
    for token in tokens:
        assert token.row not in finished
        rows.setdefault(token.row, []).append(token.id)
        if token.finish:
            finished.add(token.row)
    assert finished == set(rows)
    return rows


@ATTENTION
@SHAPE
@CHOICE
def test_a_batch_writes_what_the_plain_loop_does(config, attention, choice):
    model = make(config, scale=6.0, attention=attention)
    expected = {row: plain_text(model, prompt, 30, choice, 3, row) for row, prompt in enumerate(PROMPTS)}
    assert texts(generate(model, PROMPTS, 30, choice, seed=3)) == expected
    for row in (0, 4):
        assert texts(generate(model, [PROMPTS[row]], 30, choice, seed=3, first_row=row)) == {row: expected[row]}
    if choice.stop_tokens:
        assert len({len(text) for text in expected.values()}) > 2  # rows leave in the middle


@COMPILER
@pytest.mark.parametrize(
    ("config", "choice"),
    [
        pytest.param(GPT2, Choice(), id="gpt2-plain"),
        pytest.param(MODERN, replace(EVERYTHING, min_new_tokens=0), id="modern-everything"),
        pytest.param(MODERN, EVERYTHING, id="modern-ban-lifted"),
    ],
)
def test_compiled_and_in_chunks_the_same(config, choice):
    """With min_new_tokens the number of tokens that may not come changes on the way."""
    torch._dynamo.reset()
    model = make(config, scale=6.0, attention="manual")
    prompts = [*PROMPTS[:6], PROMPTS[1], PROMPTS[0]]
    expected = {row: plain_text(model, prompt, 20, choice, 3, row) for row, prompt in enumerate(prompts)}
    assert texts(generate(model, prompts, 20, choice, seed=3, compiled=True, rows_at_once=3)) == expected


@SHAPE
def test_chunks_change_nothing(config):
    model, prompts = make(config, scale=6.0), [*PROMPTS, [4]]
    expected = texts(generate(model, prompts, 30, EVERYTHING, seed=3))
    for rows_at_once in (1, 3, 8):
        assert texts(generate(model, iter(prompts), 30, EVERYTHING, seed=3, rows_at_once=rows_at_once)) == expected


@SHAPE
def test_a_row_does_not_depend_on_those_beside_it(config):
    model = make(config, scale=6.0)
    choice = replace(EVERYTHING, stop_tokens=(5,))
    prompts = [PROMPTS[row % 5] for row in range(64)]
    together = texts(generate(model, prompts, 25, choice, seed=11))
    assert len({tuple(text) for text in together.values()}) > 32
    for row in (0, 7, 33, 63):
        assert texts(generate(model, [prompts[row]], 25, choice, seed=11, first_row=row)) == {row: together[row]}
    others = [[9, 9, 9]] * 10 + prompts[10:20] + [[1]] * 3
    mixed = texts(generate(model, others, 25, choice, seed=11))
    assert all(mixed[row] == together[row] for row in range(10, 20))
    assert texts(generate(model, prompts[:3], 25, choice, seed=12)) != {row: together[row] for row in range(3)}


@SHAPE
@pytest.mark.parametrize("options", [{"temperature": 0.0}, {}, {"temperature": 1.5, "top_k": 5, "top_p": 0.9, "min_p": 0.02}])
def test_the_model_alone_writes_the_same(config, options):
    model, idx = make(config, scale=6.0), ids(4, 5)
    expected = model.generate(idx, 40, seed=9, **options)[:, 5:].tolist()  # more than are drawn at once
    assert list(texts(generate(model, idx.tolist(), 40, Choice(**options), seed=9)).values()) == expected


@SHAPE
@CHOICE
def test_logprobs_are_those_of_the_model_itself(config, choice):
    model = make(config, scale=6.0)
    written = [[*prompt] for prompt in PROMPTS]
    for token in generate(model, PROMPTS, 20, choice, seed=2, logprobs=True):
        with torch.no_grad():
            expected = model(torch.tensor([written[token.row][-12:]]))[0][0, -1].log_softmax(-1)[token.id].item()
        assert token.logprob == pytest.approx(expected, abs=1e-5)
        written[token.row].append(token.id)


@SHAPE
def test_logprobs_are_those_of_one_forward_pass(config):
    model = make(config, scale=6.0)
    (prompt,) = ids(1, 4).tolist()
    tokens = list(generate(model, [prompt], 8, EVERYTHING, seed=2, logprobs=True))
    idx = torch.tensor([prompt + [token.id for token in tokens]])
    logprobs = model(idx, idx)[0][0].log_softmax(-1)
    for place, token in enumerate(tokens, start=3):
        assert token.logprob == pytest.approx(logprobs[place, token.id].item(), abs=1e-5)


def test_without_logprobs_there_are_none():
    assert {token.logprob for token in generate(make(GPT2), PROMPTS, 3)} == {None}


def test_why_a_row_ends():
    model, asked = make(GPT2, scale=3.0), []

    def ended(row, token):
        asked.append((row, token))
        return token == 7

    tokens = list(generate(model, [[1]] * 40, 15, Choice(stop_tokens=(4,)), ended=ended, seed=1))
    texts(tokens)
    assert {token.finish for token in tokens} == {"stop_token", "stop_string", "length", None}
    assert asked == [(token.row, token.id) for token in tokens if token.id != 4]
    for row in range(40):
        text = [token for token in tokens if token.row == row]
        assert all(token.finish is None and token.id not in (4, 7) for token in text[:-1])
        assert len(text) == 15 or text[-1].finish != "length"
        assert text[-1].finish == {4: "stop_token", 7: "stop_string"}.get(text[-1].id, "length")


def test_min_and_max_new_tokens():
    model = make(GPT2, scale=3.0)
    tokens = texts(generate(model, [[1]] * 30, 9, Choice(stop_tokens=(4, 5, 6, 7), min_new_tokens=5), seed=1))
    lengths = {len(text) for text in tokens.values()}
    assert min(lengths) == 6  # the fifth may not be a stop token: it would make a text of four and its end
    assert max(lengths) == 9
    assert {len(text) for text in texts(generate(model, PROMPTS, 17)).values()} == {17}
    assert list(generate(model, PROMPTS, 0)) == []
    assert list(generate(model, [], 5)) == []


@pytest.mark.parametrize(
    ("prompts", "options", "message"),
    [
        ([[1], []], {}, "at least one token"),
        ([[1], [17]], {}, "id 17 "),
        ([[-1, 3]], {}, "id -1 "),
        ([[1]], {"choice": Choice(banned=(17,))}, "id 17 "),
        ([[1]], {"choice": Choice(stop_tokens=(-2,))}, "id -2 "),
        ([[1]], {"choice": Choice(banned=tuple(range(17)))}, "all 17 tokens"),
        ([[1]], {"context": "slide"}, "slide.*learned"),
    ],
)
def test_what_does_not_fit_is_named(prompts, options, message):
    model = make(GPT2).train()
    with pytest.raises(ValueError, match=message):
        list(generate(model, prompts, 3, **options))
    assert model.training


def test_dropout_is_off_while_writing_and_the_mode_comes_back():
    model = make(GPT2, dropout=0.5)
    expected = texts(generate(model, PROMPTS, 10))
    assert not model.training
    model.train()
    assert texts(generate(model, PROMPTS, 10)) == expected
    assert model.training
    tokens = generate(model, PROMPTS, 10)
    next(tokens)
    tokens.close()
    assert model.training

    def ended(row, token):
        raise RuntimeError("the consumer's")

    with pytest.raises(RuntimeError, match="consumer"):
        list(generate(model, PROMPTS, 10, ended=ended))
    assert model.training


def plain_slide(model, prompt, max_new_tokens, choice, seed=0, row=0):
    """A full forward over all tokens, in which each sees the last block_size, itself included."""
    size, text = model.config.block_size, []
    large = GPT(replace(model.config, block_size=size + max_new_tokens, attention="manual")).eval()
    large.load_state_dict(model.state_dict())
    for draw in np.random.default_rng((seed, row)).random(max_new_tokens):
        idx = torch.tensor([prompt[-size:] + text])
        T = idx.size(1)
        with torch.no_grad():
            x = large.transformer.wte(idx)
            mask = torch.ones(T, T, dtype=torch.bool).tril() & torch.ones(T, T, dtype=torch.bool).triu(1 - size)
            for block in large.transformer.h:
                x = block(x, large._rotary(torch.arange(T)), mask)
            logits = large._head(large.transformer.ln_f(x))[0, -1].double().tolist()
        text.append(plain_choose(logits, choice, prompt, text, draw))
        if text[-1] in choice.stop_tokens:
            break
    return text


@ATTENTION
@pytest.mark.parametrize("choice", [Choice(temperature=0.0), Choice(), EVERYTHING], ids=["greedy", "plain", "everything"])
def test_a_sliding_context_is_banded_attention(attention, choice):
    model = make(MODERN, scale=6.0, attention=attention)
    slid = texts(generate(model, PROMPTS, 30, choice, seed=4, context="slide"))
    assert slid == {row: plain_slide(model, prompt, 30, choice, 4, row) for row, prompt in enumerate(PROMPTS)}
    exact = texts(generate(model, PROMPTS, 30, choice, seed=4))
    for row, prompt in enumerate(PROMPTS):
        same = max(13 - len(prompt), 1)
        assert slid[row][:same] == exact[row][:same]
    if choice == Choice():
        assert slid != exact


@COMPILER
def test_a_sliding_context_compiled():
    torch._dynamo.reset()
    model = make(MODERN, scale=6.0, attention="manual")
    expected = texts(generate(model, PROMPTS, 30, seed=4, context="slide"))
    assert texts(generate(model, PROMPTS, 30, seed=4, context="slide", compiled=True)) == expected


@pytest.mark.parametrize(("config", "context"), [(GPT2, "exact"), (MODERN, "slide")])
def test_memory_does_not_grow_with_the_text(config, context):
    model, sizes = make(config, n_layer=1), {}
    gc.collect()
    for number, _ in enumerate(generate(model, [[1, 2]], 2001, EVERYTHING_ENDLESS, context=context)):
        if number in (200, 2000):
            tensors = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor)]
            sizes[number] = sum(tensor.nbytes for tensor in tensors)
    assert abs(sizes[2000] - sizes[200]) < 1000


@SHAPE
def test_laid_out_the_logits_are_the_same(config):
    model = make(config, tied_head=True, n_layer=2)
    before = copy.deepcopy(model)
    laid = lay_out(model)
    assert laid is model
    torch.testing.assert_close(model(ids(3, 12))[0], before(ids(3, 12))[0], atol=1e-5, rtol=1e-5)
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert texts(generate(model, PROMPTS, 20)) == texts(generate(before, PROMPTS, 20))


@SHAPE
def test_in_bfloat16_the_angles_stay_exact(config):
    model = lay_out(make(config), torch.bfloat16)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    if config.position == "rotary":
        assert model.rotary_cos.dtype == model.rotary_sin.dtype == torch.float32
    assert {len(text) for text in texts(generate(model, PROMPTS, 20, replace(EVERYTHING, stop_tokens=()))).values()} == {20}


@SHAPE
@CHOICE
def test_a_trace_is_row_0(config, choice):
    model = make(config, scale=6.0)
    for prompt in PROMPTS[:5]:
        tokens = list(generate(model, [prompt], 25, choice, seed=6, logprobs=True))
        steps = list(traced(model, prompt, 25, choice, seed=6))
        assert [step.token for step in steps] == [token.id for token in tokens]
        assert [step.logprob for step in steps] == pytest.approx([token.logprob for token in tokens], abs=1e-5)
        for number, step in enumerate(steps):
            assert step.history == prompt + [token.id for token in tokens[:number]]
            assert step.probabilities.sum().item() == pytest.approx(1)
            assert step.probabilities[step.token] > 0
            assert (step.probabilities[list(choice.banned)] == 0).all()
            assert choice.top_k is None or int((step.probabilities > 0).sum()) <= choice.top_k


def test_a_sliding_trace_is_row_0():
    model = make(MODERN, scale=6.0)
    tokens = list(generate(model, [PROMPTS[1]], 30, seed=6, context="slide"))
    assert [step.token for step in traced(model, PROMPTS[1], 30, Choice(), seed=6, slide=True)] == [token.id for token in tokens]


def test_unpenalised_steps_multiply_to_the_probability_of_the_text():
    model, prompt = make(GPT2, scale=6.0), [3, 1]
    steps = list(traced(model, prompt, 10, Choice(), seed=6))
    idx = torch.tensor([prompt + [step.token for step in steps]])
    expected = model(idx[:, :-1], idx[:, 1:])[0][0].log_softmax(-1)[range(1, 11), idx[0, 2:]].sum().item()
    product = float(np.prod([step.probabilities[step.token].item() for step in steps]))
    assert np.log(product) == pytest.approx(expected, abs=1e-4)
    assert sum(step.logprob for step in steps) == pytest.approx(expected, abs=1e-4)


def test_a_trace_is_made_without_dropout():
    model = make(GPT2, dropout=0.5)
    expected = [step.token for step in traced(model, [1], 20, Choice(), seed=6)]
    model.train()
    assert [step.token for step in traced(model, [1], 20, Choice(), seed=6)] == expected


@pytest.mark.parametrize("slots", [[0, 1, 2], [2, 5, 6], [0, 3], [6], [0, 1, 6, 7]])
def test_closing_up_moves_few_rows(slots):
    closed = closed_up(slots)
    assert sorted(closed) == slots
    assert all(closed[slot] == slot for slot in slots if slot < len(slots))
