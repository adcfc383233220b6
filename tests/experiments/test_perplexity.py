"""Perplexity of streamed documents: what is judged, what is refused, and that a killed run goes on."""

from __future__ import annotations

import numpy as np
import pytest

from configs import perplexity as perplexity_config
from experiments import perplexity
from nexus import methods, record
from nexus.generate import Session, Settings
from nexus.models.load import load_model


@pytest.fixture
def folder(tmp_path):
    """Four texts; one is too short for 96 tokens (bytes)."""
    texts = tmp_path / "texts"
    texts.mkdir()
    for i in range(4):
        (texts / f"{i}.txt").write_text(f"Text {i} is about {i * i} things. " * (1 if i == 1 else 12))
    return texts


def config(folder, options="", **changes):
    text = "model=tiny-llama,length=96,n=3,batch=2,chunk=16,evict_every=16,methods=full,streaming_llm"
    c = perplexity_config.get_config(f"{text},ratios=0.25,recent=8{options}")
    c.eval.data_dir = str(folder)
    for name, value in changes.items():
        c.eval[name] = value
    return c


def test_the_last_third_is_judged_and_the_full_cache_is_the_plain_model(folder, tmp_path):
    """The full cache's numbers are those of a forward pass; a small cache is compared on the same documents."""
    perplexity.run(config(folder), tmp_path / "run")
    rows = record.read_rows(tmp_path / "run" / "documents.jsonl")
    assert [(row["method"], row["document"]) for row in rows] == [
        (method, name) for method in ("full", "streaming_llm") for name in ("0", "2", "3")
    ]
    model = load_model("tiny-llama")
    tokens = model.tokenizer.with_bos(model.tokenizer.encode((folder / "2.txt").read_text()))[:96]
    session = Session(model, methods.build("full", budget=96), Settings(), 1, capacity=96)
    want = -session.score([tokens])[0][64:].astype(np.float64).mean()
    found = next(row for row in rows if (row["method"], row["document"]) == ("full", "2"))
    np.testing.assert_allclose(found["nll"], want, atol=1e-4)
    assert found["judged_tokens"] == 32 and found["kept_mean"] == 96
    small = [row for row in rows if row["method"] == "streaming_llm"]
    assert all(row["kept_mean"] <= 24 and row["nll"] != found["nll"] for row in small)
    text = (tmp_path / "run" / "report.md").read_text()
    assert "| streaming_llm |     24 |" in text and "the last 32 judged" in text
    assert (tmp_path / "run" / "figures" / "perplexity.png").stat().st_size > 5_000


def test_a_killed_run_goes_on_with_what_is_missing(folder, tmp_path, monkeypatch):
    """The same rows as an uninterrupted run, none twice."""
    perplexity.run(config(folder), tmp_path / "whole")
    read, calls = perplexity._read, []

    def killed(*args):
        if len(calls) == 3:
            raise KeyboardInterrupt
        calls.append(args)
        return read(*args)

    monkeypatch.setattr(perplexity, "_read", killed)
    with pytest.raises(KeyboardInterrupt):
        perplexity.run(config(folder), tmp_path / "run")
    monkeypatch.setattr(perplexity, "_read", read)
    perplexity.run(config(folder), tmp_path / "run")
    drop = lambda row: {name: row[name] for name in ("method", "budget", "document", "nll")}  # noqa: E731
    whole, found = (
        [drop(row) for row in record.read_rows(tmp_path / name / "documents.jsonl")] for name in ("whole", "run")
    )
    assert found == whole


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methods": ("snapkv",)}, "lacks full"),
        ({"protocol": "oneshot"}, "a text is read in streaming"),
        ({"lengths": (64, 96)}, "must be one length"),
        ({"tasks": ("vt",)}, "texts are chosen by eval.data_dir"),
        ({"ratios": (0.01,)}, "streaming_llm"),
    ],
)
def test_what_cannot_run_is_refused_first(folder, changes, message):
    with pytest.raises(ValueError, match=message):
        perplexity.resolve(config(folder, **changes))


def test_too_few_texts_are_named_before_a_folder_is_claimed(folder, tmp_path):
    with pytest.raises(perplexity.ConfigError, match="only 3 of 4 texts"):
        perplexity.run(config(folder, num_examples=4), tmp_path / "run")
    with pytest.raises(perplexity.ConfigError, match="no .txt files"):
        perplexity.run(config(tmp_path / "none"), tmp_path / "run")
    assert not (tmp_path / "run").exists()
