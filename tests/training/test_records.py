"""Training documents: whole, marked, reproducible, and strangers to every evaluation."""

from __future__ import annotations

import functools
import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from nexus.generate import Settings
from nexus.models.tokenizer import byte_tokenizer
from nexus.tasks import (
    babi,
    babi_world,
    haystacks,
    heldout,
    qa_nexus,
    qa_world,
    ruler_cwe,
    ruler_fwe,
    ruler_niah,
    ruler_vt,
    words,
)
from nexus.training import records, texts, wordings

TOKENIZER = byte_tokenizer()
LENGTH = 1500
CODE = r"\b[a-z0-9]{3,8}(?:-[a-z0-9]{3,8})+\b"
VALUE = rf"{CODE}|\b\d{{4,}}\b|\b(?:{'|'.join(wordings.ITEMS)}) with (?:{'|'.join(wordings.ITEMS)})\b"


@pytest.mark.parametrize("kind", records.KINDS)
@pytest.mark.parametrize("index", range(4))
def test_a_document_fits_and_is_marked(kind, index, prose):
    """What is judged is a value or the end of an answer; a prompt's tokens are never marked."""
    made = records.document(kind, TOKENIZER, LENGTH, 0, index)
    assert 0 < len(made.tokens) <= LENGTH and made.tokens.shape == made.answer.shape == made.cut.shape
    if kind == "text":
        assert not made.answer.any() and not made.cut.any()
        return
    spans = [
        list(g) for marked, g in itertools.groupby(range(len(made.answer)), key=lambda i: made.answer[i]) if marked
    ]
    for span in spans:
        text = TOKENIZER.decode(made.tokens[span], skip_special=False)
        assert "<|im_start|>" not in text
        assert text.endswith("<|im_end|>") or made.tokens[span[-1] + 1] == ord("\n")  # several questions at once
        assert text not in [f"{remark}<|im_end|>" for remark in wordings.REMARKS]
        assert re.search(VALUE, text) or re.match(rf" ({'|'.join(wordings.PLACES)})\.", text)
    assert spans[-1][-1] == len(made.tokens) - 1


@pytest.mark.parametrize("kind", ["facts", "tracking", "dialogue"])
def test_streams_are_cut_where_an_answer_begins(kind, prose):
    """Behind the text, and before an answer: its first word in half of the documents, its first value in the others;
    then after every 32 tokens."""
    late = 0
    for index in range(12):
        made = records.document(kind, TOKENIZER, LENGTH, 0, index)
        text = functools.partial(_text, made.tokens)
        at = np.flatnonzero(made.cut).tolist()
        if kind != "dialogue":
            asked = at.pop(0)
            assert text(0, asked).endswith("\n") and "\n" not in text(asked, None).partition("<|im_end|>")[0]
        first_value = int(np.flatnonzero(made.answer)[0])
        late += at[0] == first_value
        assert at[0] == first_value or text(0, at[0]).endswith("assistant\n")
        inside = [b - a for a, b in itertools.pairwise(at) if "<|im_end|>" not in text(a, b)]
        assert set(inside) <= {records.IN_ANSWER}
    assert 2 <= late <= 10 and records.IN_ANSWER == Settings().evict_every


def _text(tokens: np.ndarray, first: int, last: int | None) -> str:
    return TOKENIZER.decode(tokens[first:last], skip_special=False)


def test_words_around_values_are_not_judged():
    """No cache can foresee them; a gate would learn the records' wording."""
    turn = records._asked(records.Fact(wordings.WRITTEN[2], "Kemlun", ["4711", "4712"]), "prose")
    assert turn.reply == (("Kemlun was handed", False), (" 4711 and 4712.", True))
    ids, judged = records._reply(TOKENIZER, turn)
    assert TOKENIZER.decode([id for id, one in zip(ids, judged, strict=True) if one]) == " 4711 and 4712."
    both = records._asked_at_once([turn, turn])
    assert both.answer == "Kemlun was handed 4711 and 4712.\nKemlun was handed 4711 and 4712."
    assert [one for _, one in both.reply] == [False, True, False, False, True]


@pytest.mark.parametrize("kind", records.KINDS)
def test_the_same_seed_gives_the_same_document(kind, prose):
    """A training that is continued must see the same data; another index or seed gives another document."""
    drawn = [(0, 3), (0, 3), (0, 4), (1, 3)]
    one, same, other, seeded = (records.document(kind, TOKENIZER, LENGTH, seed, i).tokens.tolist() for seed, i in drawn)
    assert one == same and one != other and one != seeded


@pytest.mark.parametrize("index", range(40))
def test_answers_can_be_found_in_the_text(index):
    """Every value of an answer stands in a sentence of the talk, in all ways of listing."""
    talk = records.facts(np.random.default_rng(index), 12)
    assert 1 <= len(talk.turns) <= 6
    for turn in talk.turns:
        values = re.findall(VALUE, turn.answer)
        assert values and all(any(value in sentence for sentence in talk.sentences) for value in values)


@pytest.mark.parametrize("index", range(0, 60, 3))
def test_every_question_has_one_answer(index, monkeypatch):
    """A key drawn twice, or one value of a key twice, would make an answer wrong; few names to draw from make sure that
    it happens. A value is written as in the text, also where a sentence or an answer begins with it."""
    told, in_order = [], records._said_in_some_order
    monkeypatch.setattr(records, "_said_in_some_order", lambda facts, rng: told.extend(facts) or in_order(facts, rng))
    monkeypatch.setattr(wordings, "name", lambda rng, ordinary: f"Key{rng.integers(60)}")
    talk = records.facts(np.random.default_rng(index), 50)
    assert len({fact.key for fact in told}) == len(told)
    assert all(len(set(fact.values)) == len(fact.values) for fact in told)
    said = re.findall(VALUE, " ".join(talk.sentences))
    assert all(value in said for turn in talk.turns for value in re.findall(VALUE, turn.answer, re.I))


def test_keys_and_values_are_drawn_until_they_differ():
    drawn = iter("abbac")
    assert records._distinct(lambda: next(drawn), 3) == ["a", "b", "c"]


def test_a_single_fact_is_short():
    """Where nothing longer fits: one key, one value."""
    for index in range(50):
        assert len(records.facts(np.random.default_rng(index), 1).sentences) == 1


def test_answers_are_listed_in_every_style():
    """In prose, with stars, dashes or numbers; one value after a colon; values alone where an answer has no start."""
    assert wordings.listed(["a", "b", "c"], "prose") == " a, b and c."
    assert wordings.listed(["a", "b"], "*") == ":\n\n* a\n* b"
    assert wordings.listed(["a", "b"], "1.") == ":\n\n1. a\n2. b"
    assert wordings.listed(["a"], "-") == ": a."
    bare = wordings.Template("{key}: {value}", "{key}?", "all of {key}?", "", "things")
    assert records._asked(records.Fact(bare, "K", ["a", "b"]), "-") == ("All of K?", (("- a\n- b", True),))
    several = wordings.Template("{key}: {value}", "", "", "the thing{s} of {key} {are}", "things")
    assert records._asked(records.Fact(several, "K", ["a", "b"]), "prose").answer == "The things of K are a and b."
    assert records._asked(records.Fact(several, "K", ["a"]), "prose").answer == "The thing of K is a."


def test_values_of_one_key_keep_their_order():
    """An answer lists them as the text gave them, whatever stands between them."""
    rng = np.random.default_rng(0)
    t = wordings.WRITTEN[0]
    said = records._said_in_some_order([records.Fact(t, "A", ["1", "2", "3"]), records.Fact(t, "B", ["4"])], rng)
    assert len(said) == 4
    assert [v for s in said for v in re.findall(r"\d", s) if "A" in s] == ["1", "2", "3"]


def test_the_last_place_counts():
    """Tracking: replayed move by move."""
    for seed in range(10):
        talk = records.tracking(np.random.default_rng(seed), 20)
        where = {}
        for sentence in talk.sentences:
            thing, place = re.search(r"the (\w+) jar to the (\w+)\.", sentence).groups()
            where[thing] = place
        for turn in talk.turns:
            thing = re.search(r"the (\w+) jar", turn.ask).group(1)
            assert turn.answer == f"The {thing} jar is in the {where[thing]}."


def ngrams(text: str, n: int) -> set[tuple[str, ...]]:
    found = re.findall(r"\w+", text.lower())
    return {tuple(found[i : i + n]) for i in range(len(found) - n + 1)}


def test_no_wording_is_shared_with_an_evaluation():
    """Gates that have seen the test's sentences keep them because they know them: no four words in a row in common."""
    tasks = (ruler_niah, ruler_vt, ruler_cwe, ruler_fwe, heldout)
    theirs = [*(text for task in tasks for text in task.WORDING.values()), *haystacks.NOISE]
    theirs += [text for row in [*qa_nexus.TASKS.values(), *babi.TASKS.values()] for text in row.wording.values()]
    theirs += [f"{who} {verb} the {what}." for who, verb, what in itertools.product(
        babi_world.PEOPLE, babi_world.MOVES + babi_world.TAKES + babi_world.DROPS,
        babi_world.PLACES + babi_world.OBJECTS)]  # fmt: skip
    strip = lambda text: re.sub(r"\{\w+\}", " ", text)  # noqa: E731
    seen = set().union(*(ngrams(strip(text), 4) for text in wordings.everything_said()))
    assert seen and not seen & set().union(*(ngrams(strip(text), 4) for text in theirs))


def test_no_key_is_shared_with_an_evaluation():
    """Needle keys are adjective-noun pairs with a hyphen, or identifiers: no key here is one, nor holds a word of one,
    but for the things that invented people own."""
    known = {word.lower() for word in words.all_words()}
    syllables = wordings.SYLLABLES
    invented = {"".join(parts) for n in (2, 3) for parts in itertools.product(syllables, repeat=n)}
    assert len(invented) > 20_000 and not invented & known
    people = {*qa_world.FIRST, *qa_world.LAST, *map("".join, itertools.product(*qa_world.TOWN)), *babi_world.PEOPLE}
    assert not invented & {word.lower() for word in people}
    things = {*wordings.THINGS, *wordings.ITEMS, *wordings.PLACES}
    assert not things & {*babi_world.PLACES, *babi_world.OBJECTS, *qa_world.OCCUPATION, *qa_world.INSTRUMENT}
    ordinary = {*wordings.LEADS, *wordings.PLURALS}
    assert not ordinary & (known | invented | {word.lower() for word in people | things})
    rng = np.random.default_rng(0)
    for _ in range(200):
        parts = re.split("[ _]", wordings.name(rng))
        if parts[-1].lower() in invented:
            assert {part.lower() for part in parts if part[0].isupper()} <= invented
        else:
            assert {part for part in parts if not part.isdigit()} <= ordinary | {"the"}
            assert all(len(part) <= 3 for part in parts if part.isdigit())  # values have at least four digits


def test_the_text_is_no_haystack():
    """The library is read by trainings alone, the essays by evaluations alone."""
    for module in (texts, records, wordings):
        source = Path(module.__file__).read_text(encoding="utf-8")
        assert "haystacks" not in source and "ESSAYS" not in source


def test_too_short_is_refused(prose):
    """Rather than an endless search for a document that fits."""
    with pytest.raises(ValueError, match="40 tokens are too few"):
        records.document("facts", TOKENIZER, 40, 0, 0)


@pytest.mark.parametrize("kind", sorted(records.KINDS))
def test_short_documents_of_every_kind_are_found(kind, prose):
    """A training on rows of 512 tokens ended while its rows were made: a draw of four questions did not fit."""
    for index in range(60):  # 512 bytes are about 130 tokens of a trained tokenizer
        assert len(records.document(kind, TOKENIZER, 512, 0, index).tokens) <= 512
