"""Needle maps: where the needle stands, that it stands there whole, and which names are tasks."""

import pytest

from nexus.models.tokenizer import byte_tokenizer
from nexus.tasks import catalog, generated, needle_map, prepare
from nexus.tasks.haystacks import EssayText
from nexus.tasks.needles import NEEDLES

SENTENCES = [f"Sentence number {i} says little." for i in range(10)]  # 5 words each


@pytest.mark.parametrize(
    ("percent", "at"), [(0, 0), (1, 1), (10, 1), (19, 1), (20, 2), (50, 5), (59, 5), (99, 9), (100, 10)]
)
def test_the_needle_goes_back_to_the_end_of_the_sentence_before(percent, at):
    assert needle_map.position(SENTENCES, percent) == at


def test_depth_is_a_share_of_words_not_of_sentences():
    """One long sentence would move all needles behind it."""
    sentences = ["One two three four five six seven eight nine ten.", *(["Short."] * 10)]
    assert needle_map.position(sentences, 60) == 3
    assert needle_map.position(sentences, 25) == 1  # the first sentence holds a quarter; only depth 0 is the start


def test_a_cut_sentence_is_closed_so_that_the_last_needle_follows_a_full_stop():
    assert needle_map.closed(["A b.", "C and"]) == ["A b.", "C and."]
    assert needle_map.closed(["A b.", "C and,"]) == ["A b.", "C and."]
    for whole in ("Why?", 'He said "no."', "Yes!"):
        assert needle_map.closed([whole]) == [whole]


@pytest.mark.parametrize("bos", [False, True])
@pytest.mark.parametrize("percent", [0, 33, 100])
def test_the_needle_stands_whole_at_its_depth_and_text_survives_the_tokenizer(essays, percent, bos):
    """A needle that was encoded with a BOS, decoded and encoded again left "<s>" in the middle of the context
    (gkamradt/LLMTest_NeedleInAHaystack)."""
    tokenizer = byte_tokenizer(bos=bos)
    example = generated.make_example(needle_map.row(percent), tokenizer, 3000, 1, 0, essays)
    needle = NEEDLES[1]
    assert example.context.count(needle.sentence) == 1 and needle.question in example.question
    ids, _ = tokenizer.prompt(example.context, example.question, example.answer_prefix)
    seen = tokenizer.decode(ids, skip_special=False)
    assert example.context in seen and seen.count("<s>") == bos
    text = needle_map.TEXTS
    body = example.context.removeprefix(text["head"]).removesuffix(text["tail"])
    before, after = body.split(needle.sentence)
    share = len(before.split()) / len([*before.split(), *after.split()])
    assert percent / 100 - 0.1 < share <= percent / 100
    assert not before or before.rstrip()[-1] in ".?!"
    assert 0.97 < example.fill <= 1
    assert example.references[0] == needle.sentence
    assert [group.split("|") for group in example.references[1:]] == [list(group) for group in needle.phrases]


def test_the_haystack_is_the_same_at_all_depths_and_the_seed_changes_the_needles(tokenizer, essays):
    def body(percent, seed=0):
        example = generated.make_example(needle_map.row(percent), tokenizer, 900, 0, seed, essays)
        needle = example.references[0]
        return needle, example.context.replace(f"{needle} ", "").replace(f" {needle}", "")

    assert body(25) == body(75) == body(100)
    assert body(25)[0] == NEEDLES[0].sentence and body(25, seed=3)[0] == NEEDLES[3].sentence


def test_every_whole_per_cent_is_a_task_and_nothing_else():
    assert [needle_map.depth(f"needle_map_{d}") for d in ("0", "7", "100")] == [0, 7, 100]
    for name in ("needle_map_101", "needle_map_07", "needle_map_-1", "needle_map_2.5", "needle_map", "niah_single_2"):
        assert needle_map.depth(name) is None
    assert catalog.task_named("needle_map_33").suite == "needle_map" and catalog.known("needle_map_33")
    assert not catalog.known("needle_map_101")
    with pytest.raises(ValueError, match="unknown task 'needle_map_101'; did you mean .*needle_map_100.* allowed: "):
        catalog.task_named("needle_map_101")


def test_the_needles_are_part_of_the_template_hash():
    """Rows made with other needles are other rows."""
    assert any(NEEDLES[0].sentence in text for text in needle_map.row(0).wording.values())


def test_essays_of_a_folder_are_used_in_the_order_of_their_names_and_named_in_the_variant(
    tokenizer, tmp_path, monkeypatch
):
    monkeypatch.setenv("NEXUS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "data" / "essays"
    folder.mkdir(parents=True)
    for name in "ba":
        (folder / f"{name}.txt").write_text(f"File {name} begins here. " + "It goes on and on. " * 60)
    request = catalog.Request(tokenizer=tokenizer, length=400, n=20, seed=0, data_dir=str(tmp_path / "data"))
    made = catalog.examples("needle_map_50", request)
    assert len(made) == len(NEEDLES)  # no more than there are
    assert made[0].context.removeprefix(needle_map.TEXTS["head"]).startswith("File a begins here.")
    text = EssayText.from_texts((folder / f"{name}.txt").read_text() for name in "ab")
    assert made[0].variant == f"needle-map-nexus-{text.sha256[:8]}"
    assert prepare.block_key(needle_map.row(50), tokenizer, 400, 0, text) != prepare.block_key(
        needle_map.row(50), tokenizer, 400, 0
    )
