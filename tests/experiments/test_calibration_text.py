"""Texts of the calibration: reproducible, and outside every evaluation."""

from __future__ import annotations

import pytest

from experiments import calibration_text
from nexus.tasks import haystacks, ruler_niah


def test_texts_follow_from_the_seed():
    """A fingerprint says what was read; another seed reads something else."""
    one, again, other = (calibration_text.filler(seed, 40) for seed in (3, 3, 4))
    assert one == again and one.sha256 != other.sha256 and len(one.sentences) == 40
    assert len({calibration_text.needle(0, n).sentence for n in range(20)}) == 20
    assert calibration_text.fingerprint(["a", "b"]) == calibration_text.fingerprint(["b", "a"])


def test_wording_is_that_of_no_evaluation():
    """Heads found on the benchmark's own sentences would be chosen on its test data."""
    sentences = {*calibration_text.filler(0, 400).sentences, calibration_text.needle(0, 0).sentence}
    assert not sentences & set(haystacks.NOISE)
    words = set(ruler_niah.needle("number", "x", "1").split())
    assert all(len(words & set(sentence.split())) < 4 for sentence in sentences)


def test_texts_of_an_evaluation_are_refused(tmp_path):
    """By their fingerprint, and by any sentence they share."""
    (tmp_path / "a.txt").write_text(" ".join(haystacks.NOISE))
    with pytest.raises(ValueError, match="holds the noise sentences of the needle tasks"):
        calibration_text.filler(0, 5, str(tmp_path))
    (tmp_path / "a.txt").write_text("A sentence of one's own. The sky is blue. Another one.")
    with pytest.raises(ValueError, match="The sky is blue"):
        calibration_text.filler(0, 5, str(tmp_path))
    (tmp_path / "a.txt").write_text("A sentence of one's own. Another one.")
    assert calibration_text.filler(0, 5, str(tmp_path)).sentences[:3] == (
        "A sentence of one's own.", "Another one.", "A sentence of one's own.",
    )  # fmt: skip
