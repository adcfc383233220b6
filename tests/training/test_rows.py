"""Packed rows: whole documents, stored once, in an order that a continued training repeats."""

from __future__ import annotations

import dataclasses

import grain
import numpy as np
import pytest

from nexus.models.tokenizer import byte_tokenizer
from nexus.training import records, rows
from nexus.training.rows import Mix

TOKENIZER = byte_tokenizer()
MIX = Mix(kinds=(("facts", 0.6), ("text", 0.4)), row=2000, shares=(1.0, 0.5))


def test_documents_stay_whole_and_count_from_zero():
    """A document that sees its neighbour learns to keep it."""
    made = [records.Document(np.arange(n, dtype=np.int32) + 1, np.arange(n) > n - 3, np.arange(n) == 2) for n in (5, 7)]
    row = rows.pack(made, 15)
    assert row["doc"].tolist() == [0] * 5 + [1] * 7 + [-1] * 3
    assert row["place"].tolist() == [*range(5), *range(7), 0, 0, 0]
    assert row["tokens"].tolist() == [*range(1, 6), *range(1, 8), 0, 0, 0]
    assert np.flatnonzero(row["answer"]).tolist() == [3, 4, 10, 11]
    assert np.flatnonzero(row["cut"]).tolist() == [2, 7]


def test_what_does_not_fit_is_refused():
    """A document longer than the context."""
    made = [records.Document(np.zeros(9, np.int32), np.zeros(9, bool), np.zeros(9, bool))] * 2
    with pytest.raises(ValueError, match="documents of 18 tokens do not fit a row of 15"):
        rows.pack(made, 15)


def test_stored_rows_are_made_rows(tmp_path, prose):
    """Through array_record and back; a second reading makes nothing."""
    source = rows.source(dataclasses.replace(MIX, seed=5), TOKENIZER, 3, tmp_path)
    again = rows.source(dataclasses.replace(MIX, seed=5), TOKENIZER, 3, tmp_path)
    for i in range(3):
        made = rows.make_row(dataclasses.replace(MIX, seed=5), TOKENIZER, i)
        for name, value in made.items():
            np.testing.assert_array_equal(source[i][name], value)
            np.testing.assert_array_equal(again[i][name], value)
        assert (made["doc"] >= 0).mean() > 0.5


def test_the_name_of_a_block_says_what_is_in_it():
    """Another mix, length or seed is another data set, never a stale one."""
    changes = ({}, {"seed": 1}, {"row": 2048}, {"kinds": (("facts", 1.0),)}, {"shares": (1.0,)})
    keys = {rows.mix_key(dataclasses.replace(MIX, **change), TOKENIZER) for change in changes}
    assert len(keys) == 5


def test_batches_follow_from_the_seed_and_the_step():
    """Step s sees the same rows whoever asks and whenever; processes share a batch in its order, without overlap."""
    data = grain.MapDataset.range(12).map(lambda i: {"tokens": np.array([i])})

    def drawn(step, seed=0, **who):
        return rows.share(rows.in_order(data, seed), step, 4, **who)["tokens"][:, 0].tolist()

    assert sorted(x for step in range(3) for x in drawn(step)) == list(range(12))
    assert drawn(7) == drawn(7) and [drawn(i) for i in range(3)] != [drawn(i, seed=1) for i in range(3)]
    assert drawn(5) == drawn(5, process=0, processes=2) + drawn(5, process=1, processes=2)
    with pytest.raises(ValueError, match="a batch of 4 rows cannot be shared by 3 processes"):
        drawn(0, process=0, processes=3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kinds": ()}, "data mix is empty"),
        ({"kinds": (("facts", 0.0),)}, "data mix is empty"),
        ({"kinds": (("novels", 1.0),)}, "data kind 'novels'; allowed: facts, tracking, dialogue, text"),
        (
            {"kinds": (("facts", 2.0), ("text", -1.0))},
            "share of data kind 'text' must be a finite number of at least 0",
        ),
        ({"row": 100}, "a row must hold at least 192 tokens, got 100"),
        ({"shares": (1.5,)}, "shares of a row between 0 and 1"),
    ],
)
def test_a_mix_that_cannot_be(change, message):
    """Refused before anything is made."""
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(MIX, **change)


def test_a_rest_that_fits_nothing_is_padding(monkeypatch, prose):
    """A coarse tokenizer ended trainings while their rows were made; a row that fits nothing at all is refused."""
    made = records.document

    def only_one(kind, tokenizer, length, seed, index):
        if index % 1000:
            raise records.TooShort("too few")
        return made("text", tokenizer, length // 2, seed, index)

    monkeypatch.setattr(records, "document", only_one)
    row = rows.make_row(MIX, TOKENIZER, 3)
    assert set(row["doc"].tolist()) == {0, -1}

    def none(*_):
        raise records.TooShort("too few")

    monkeypatch.setattr(records, "document", none)
    with pytest.raises(records.TooShort, match="too few"):
        rows.make_row(MIX, TOKENIZER, 3)
