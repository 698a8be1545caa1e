import math
from collections import Counter, defaultdict

import pytest
import torch
from conftest import NAMES, TOKENIZER
from safetensors.torch import load, save

import zoo.ngram as ngram
from config.settings import NamesSettings
from data.names.prepare import prepare
from data.tokenizers import encode_documents
from zoo.ladder import Bigram, LadderConfig
from zoo.ngram import KneserNey

FEW = NAMES  # so few that no discount can be estimated
MORE = [*NAMES, "", "a", "madison", "marlee", "keira", "oliver", "max", "eli", "elio", "leo", "mario", "dora", "mike", "rae", "rosa", "rex"]
MORE += ["lara", "kara", "sara", "dara", "alex", "alexa", "lexi", "remi", "rome", "romeo", "elena", "milena", "ilan", "alan", "dean", "dee"]
ENOUGH = [a + b + c + d for a in ("b", "kr", "l", "sa") for b in "aeio" for c in "mnrs" for d in ("a", "o", "an", "ie", "")][::3] + MORE
SYMBOLS = "$" + "".join(sorted(set("".join(ENOUGH))))


def tokens_of(names):
    return torch.tensor([SYMBOLS.index(c) for c in "$" + "".join(name + "$" for name in names)])


def counted(names, order, **changes):
    model = KneserNey(LadderConfig("ngram", vocab_size=len(SYMBOLS), order=order, **changes))
    model.count(tokens_of(names))
    return model


def some_ids(rows=64, length=16):
    """Random letters after a boundary: most of the longer contexts in them were never seen."""
    idx = torch.randint(1, len(SYMBOLS), (rows, length), generator=torch.Generator().manual_seed(0))
    idx[:, 0] = 0
    return idx


def every_logit(model, idx, positions=None):
    return model.logits(idx, torch.arange(idx.size(1)).expand_as(idx) if positions is None else positions)


class Slow:
    """The same by the formula, one dictionary for each order: strings in, chances out."""

    def __init__(self, names, order):
        self.order = order
        self.counts = {n: Counter() for n in range(1, order + 1)}
        padded = ["$" * order + name + "$" for name in names]
        before = defaultdict(set)
        for text in padded:
            for end in range(order, len(text)):
                self.counts[order][text[end - order + 1 : end + 1]] += 1
                for n in range(1, order):
                    gram = text[end - n + 1 : end + 1]
                    if n > 1 and gram[0] == "$":
                        self.counts[n][gram] += 1
                    else:
                        before[gram].add(text[end - n])
        for gram, different in before.items():
            self.counts[len(gram)][gram] = len(different)
        self.discount = {n: self.discounts(self.counts[n]) for n in self.counts}
        self.after = {n: defaultdict(dict) for n in self.counts}
        for n, counts in self.counts.items():
            for gram, count in counts.items():
                self.after[n][gram[:-1]][gram[-1]] = count

    @staticmethod
    def discounts(counts):
        of = Counter(counts.values())
        usual = [0, 0.5, 1, 1.5]
        if not all(of[k] for k in (1, 2, 3, 4)):
            return usual
        Y = of[1] / (of[1] + 2 * of[2])
        D = [0] + [k - (k + 1) * Y * of[k + 1] / of[k] for k in (1, 2, 3)]
        return [0] + [D[k] if 0 < D[k] <= k else usual[k] for k in (1, 2, 3)]

    def chance(self, character, text, n=None):
        """P_n of a character after the text of a name so far, which begins with $."""
        n = self.order if n is None else n
        if n == 0:
            return 1 / len(SYMBOLS)
        context = ("$" * n + text)[len(text) + 1 :] if n > 1 else ""
        assert len(context) == n - 1
        after = self.after[n].get(context)
        shorter = self.chance(character, text, n - 1)
        if not after:
            return shorter
        D, total = self.discount[n], sum(after.values())
        count = after.get(character, 0)
        saved = sum(D[min(c, 3)] for c in after.values())
        return (count - D[min(count, 3)]) / total + saved / total * shorter


@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("names", [FEW, MORE, ENOUGH], ids=["few", "more", "enough"])
def test_it_is_the_formula(names, order):
    slow, model = Slow(names, order), counted(names, order)
    for name in ["ada", "alexander", "kim", "", "sarie", "xox", "llama"]:
        text = "$" + name
        found = every_logit(model, torch.tensor([[SYMBOLS.index(c) for c in text]]))[0].exp()
        for t in range(len(text)):
            wanted = torch.tensor([slow.chance(c, text[: t + 1]) for c in SYMBOLS])
            torch.testing.assert_close(found[t], wanted, atol=1e-7, rtol=1e-5)
    assert model.num_parameters() == sum(map(len, slow.counts.values()))


def test_the_names_above_meet_both_kinds_of_discounts():
    usual = [0, 0.5, 1, 1.5]
    assert all(Slow(FEW, 3).discount[n] == usual for n in (1, 2))
    assert any(Slow(ENOUGH, 3).discount[n] != usual for n in (2, 3))


def test_a_discount_is_never_less_than_nothing_nor_more_than_the_count():
    def of(*n):
        counts = [c for c, times in enumerate(n, start=1) for _ in range(times)]
        return ngram.discounts(torch.tensor(counts)).tolist()

    assert of(4, 4, 2, 1) == pytest.approx([0, 1 - 2 / 3, 2 - 1 / 2, 3 - 2 / 3])  # Y = 1 / 3
    assert of(10, 1, 10, 1)[2] == 1  # 2 - 3 * 10/12 * 10 is far below nothing
    assert of(10, 1, 0, 1) == of(0, 1, 2, 3) == [0, 0.5, 1, 1.5]


@pytest.mark.parametrize("order", [1, 2, 3, 5, 8])
def test_chances_are_positive_and_sum_to_one(order):
    model = counted(ENOUGH, order)
    seen = tokens_of(["maria", "alexander"])[None]
    for idx in (some_ids(), seen):
        logits = every_logit(model, idx)
        assert logits.isfinite().all()
        torch.testing.assert_close(logits.exp().sum(-1), torch.ones(idx.shape), atol=1e-5, rtol=0)
        assert (logits.exp() > 0).all()
    tables = [value for name, value in model.state_dict().items() if name.startswith("table")]
    for table in tables:
        torch.testing.assert_close(table.exp().sum(-1), torch.ones(len(table)), atol=1e-5, rtol=0)


def test_before_counting_every_character_is_as_likely_as_any_other():
    model = KneserNey(LadderConfig("ngram", vocab_size=len(SYMBOLS), order=4))
    torch.testing.assert_close(every_logit(model, some_ids()), torch.full((64, 16, len(SYMBOLS)), -math.log(len(SYMBOLS))))
    assert model.num_parameters() == 0
    assert model.caches(2, 8)[0].k.device.type == "cpu"


def test_all_of_it_moves_with_the_model():
    model = counted(FEW, 3).to("meta")
    assert {value.device.type for value in model.state_dict().values()} == {"meta"}
    assert model.caches(2, 8)[0].k.device.type == "meta"


def test_it_beats_the_bigram_on_real_names_and_longer_contexts_help(tmp_path):
    data = prepare(NamesSettings(prepared_dir=str(tmp_path)))
    train, val = (torch.tensor(data.tokens[part]).long() for part in ("train", "val"))

    def loss(model):
        model.count(train)
        place = torch.arange(len(val) - 1)
        positions = place - torch.where(val[:-1] == 0, place, 0).cummax(0).values
        return model(val[None, :-1], val[None, 1:], positions[None])[1].item()

    shape = {"vocab_size": data.tokenizer.vocab_size, "block_size": len(val)}
    bigram = loss(Bigram(LadderConfig("bigram", **shape)))
    losses = {order: loss(KneserNey(LadderConfig("ngram", order=order, **shape))) for order in (2, 3, 4, 5)}
    assert losses[2] < bigram
    assert losses[3] < losses[2] - 0.2
    assert losses[4] < losses[3] - 0.1
    assert losses[5] == pytest.approx(2.043, abs=0.01)


@pytest.mark.parametrize("order", [2, 3, 5])
def test_packed_documents_are_as_in_rows_of_their_own(order):
    model = counted(ENOUGH, order)
    documents = [tokens_of([name])[:-1] for name in ("maria", "kim", "", "al", "sarie")]
    positions = torch.cat([torch.arange(len(document)) for document in documents])
    packed = every_logit(model, torch.cat(documents)[None], positions[None])[0]
    alone = torch.cat([every_logit(model, document[None])[0] for document in documents])
    assert torch.equal(packed, alone)
    if order > 2:  # the test can fail: without positions it does
        assert not torch.equal(every_logit(model, torch.cat(documents)[None])[0], alone)


def test_it_never_sees_the_future():
    model, idx = counted(ENOUGH, 5), some_ids()
    logits = every_logit(model, idx)
    for t in range(1, 16):
        later = idx.clone()
        later[:, t:] = later[:, t:] % (len(SYMBOLS) - 1) + 1  # other letters, all of them
        changed = every_logit(model, later)
        assert torch.equal(changed[:, :t], logits[:, :t])
        assert not torch.equal(changed[:, t], logits[:, t])


def test_it_sees_no_further_back_than_its_order():
    model, idx = counted(ENOUGH, 3), tokens_of(["maria", "lario"])[:-1].view(2, 6)
    logits = every_logit(model, idx)  # $maria and $lario: the same from the i on, where the context is "ri"
    assert torch.equal(logits[0, 4], logits[1, 4])
    assert not torch.equal(logits[0, 2], logits[1, 2])  # "ma" and "la"


def test_caches_change_nothing():
    model, idx = counted(ENOUGH, 5), some_ids(rows=8)
    whole = every_logit(model, idx)
    caches = model.caches(8, 16)
    assert torch.equal(model.next_logits(idx[:, :3], caches, 0), whole[:, 2])
    for t in range(3, 16):
        assert torch.equal(model.next_logits(idx[:, t : t + 1], caches, t), whole[:, t])
    starts = torch.arange(8) + 2  # each row at a place of its own
    caches, rows = model.caches(8, 16), torch.arange(8)
    model.next_logits(idx, caches, 0)
    assert torch.equal(model.next_logits(idx[rows, starts][:, None], caches, starts), whole[rows, starts])


@pytest.mark.parametrize("order", [1, 2, 5])
def test_saved_and_loaded_it_is_the_same(order):
    model = counted(ENOUGH, order)
    assert all(value.isfinite().all() for value in model.state_dict().values())
    weights = load(save(model.state_dict()))
    again = KneserNey(model.config)
    again.load_state_dict(weights)
    assert again.num_parameters() == model.num_parameters() > 0
    assert torch.equal(every_logit(again, some_ids()), every_logit(model, some_ids()))
    again.count(tokens_of(FEW))  # counted anew, and back again
    again.load_state_dict(weights)
    assert torch.equal(every_logit(again, some_ids()), every_logit(model, some_ids()))


def test_weights_of_another_shape_do_not_load():
    weights = counted(ENOUGH, 3).state_dict()
    with pytest.raises(RuntimeError, match="size mismatch"):
        KneserNey(LadderConfig("ngram", vocab_size=len(SYMBOLS) + 1, order=3)).load_state_dict(weights)
    with pytest.raises(RuntimeError, match="Missing key"):
        KneserNey(LadderConfig("ngram", vocab_size=len(SYMBOLS), order=4)).load_state_dict(weights)
    with pytest.raises(RuntimeError, match="Unexpected key"):
        KneserNey(LadderConfig("ngram", vocab_size=len(SYMBOLS), order=2)).load_state_dict(weights)


def test_what_cannot_work_says_so():
    with pytest.raises(ValueError, match="order=14 .* order=13 would fit"):
        KneserNey(LadderConfig("ngram", vocab_size=27, order=14))
    KneserNey(LadderConfig("ngram", vocab_size=27, order=13))
    with pytest.raises(ValueError, match="1 tokens are too few"):
        KneserNey(LadderConfig("ngram")).count(torch.zeros(1, dtype=torch.int64))


def test_generated_characters_follow_the_table():
    model, rows = counted(ENOUGH, 2), 20_000
    last = SYMBOLS.index("a")
    new = model.generate(torch.tensor([[0, last]]).expand(rows, -1), 1, seed=1)[:, -1]
    expected = model.table_2[last == model.keys_2].exp()[0].double() * rows  # (V,)
    frequencies = torch.bincount(new, minlength=len(SYMBOLS))
    assert expected.min() > 5
    chi_squared = ((frequencies - expected) ** 2 / expected).sum().item()
    freedom = len(SYMBOLS) - 1
    assert chi_squared < freedom + 3.5 * math.sqrt(2 * freedom)  # one chance in about two thousand


def test_generated_names_are_the_same_without_caches():
    model = counted(ENOUGH, 4, block_size=8)
    prompts = torch.zeros(5, 1, dtype=torch.int64)
    assert torch.equal(model.generate(prompts, 12, seed=3), model.generate(prompts, 12, seed=3, use_cache=False))


def test_documents_are_those_of_the_tokenizer():
    tokens = torch.as_tensor(encode_documents(NAMES, TOKENIZER)).long()
    model = KneserNey(LadderConfig("ngram", vocab_size=TOKENIZER.vocab_size, order=3))
    model.count(tokens)
    first = every_logit(model, tokens[:1][None])[0, 0].exp()
    assert TOKENIZER.boundary_id == ngram.BOUNDARY
    assert first.argmax().item() == TOKENIZER.encode("a")[0]  # ada, alexander: the only letter that begins two
