import re

import numpy as np
import pytest

from nexus.tasks import generated, haystacks, ruler, ruler_niah, words

NIAH = [name for name in ruler.TASKS if name.startswith("niah")]
SENTENCE = re.compile(r"One of the special magic (\w+) for (.+?) is: ([\w-]+)\.")
TOWN = re.compile(r"(\S+) lives in the town of (\S+)\.")  # niah_words


@pytest.mark.parametrize("task", NIAH)
@pytest.mark.parametrize("length", [512, 2048])
def test_what_is_planted_and_asked(make, task, length):
    """Each answer stands in the context once, in a needle with its key; only the keys asked for give answers."""
    spec = ruler.TASKS[task].planner.args[0]
    for index in range(3):
        example = make(task, length, index)
        found = SENTENCE.findall(example.context) or [("words", *pair) for pair in TOWN.findall(example.context)]
        keys = max(spec.keys, spec.queries)
        if spec.haystack != "needle":
            assert len(found) == keys * spec.values
            assert len({key for _, key, _ in found}) == keys
        assert {kind for kind, _, _ in found} == {f"{spec.value_kind}s"}  # plural, always
        assert len(example.references) == spec.queries * spec.values
        asked = {key for _, key, value in found if value in example.references}
        assert len(asked) == spec.queries
        assert all(key in example.question and key in example.answer_prefix for key in asked)
        assert {value for _, key, value in found if key in asked} == set(example.references)
        assert all(example.context.count(reference) == 1 for reference in example.references)


@pytest.mark.parametrize("task", ["niah_multikey_2", "niah_multikey_3"])
def test_distractors_look_like_the_answer(make, task):
    example = make(task, 2048)
    head, *lines, last = example.context.split("\n")
    assert last == ""
    assert all(SENTENCE.fullmatch(line) for line in lines)
    keys = [SENTENCE.fullmatch(line)[2] for line in lines]
    assert len(set(keys)) == len(keys) > 10


def test_noise_needles_are_lines_of_their_own(make):
    lines = make("niah_single_1", 1024).context.split("\n")[1:-1]
    needles = [line for line in lines if SENTENCE.fullmatch(line)]
    noise = [line for line in lines if not SENTENCE.fullmatch(line)]
    assert len(needles) == 1
    assert set(noise[:-1]) == {" ".join(haystacks.NOISE)}


def test_essay_needles_stand_at_drawn_depths_in_one_paragraph(make, essays):
    """Needle j stands before sentence int(n * depth / 100) of the essay, in increasing depth."""
    for index in range(4):
        paragraph = make("niah_multivalue", 2048, index).context.split("\n")[1]
        pieces = SENTENCE.split(paragraph)
        between = ["".join(pieces[i]) for i in range(0, len(pieces), 4)]
        word_counts = [len(text.split()) for text in between]
        sentences = essays.first_words(sum(word_counts))
        starts = np.cumsum([0] + [len(sentence.split()) for sentence in sentences])
        allowed = {int(len(sentences) * depth / 100) for depth in ruler_niah.DEPTHS}
        at = [list(starts).index(words_before) for words_before in np.cumsum(word_counts)[:-1]]
        assert set(at) <= allowed
        assert len(set(at)) == 4  # four depths, drawn without replacement


def test_depths_are_forty_from_end_to_end():
    depths = ruler_niah.DEPTHS
    assert (len(set(depths)), depths[0], depths[-1]) == (40, 0, 100)


def test_depths_vary_over_samples_and_cover_the_context(make):
    shares = []
    for index in range(30):
        context = make("niah_single_2", 512, index).context
        shares.append(context.index("One of the special magic") / len(context))
    assert min(shares) < 0.25 and max(shares) > 0.8 and len(set(shares)) > 10


def test_needle_order_is_one_permutation_for_the_whole_run(tokenizer, essays):
    """Drawn keys in their order of making, against their order in the text: the same for every sample."""
    from nexus.tasks import draws

    orders = set()
    for index in range(4):
        source = draws.Draws(seed=5, task="niah_multikey_1", length=1024, index=index)
        rng = source.sample("needles")
        keys = draws.distinct(lambda rng=rng: words.word_pair(rng), 4)
        context = generated.make_example(ruler.TASKS["niah_multikey_1"], tokenizer, 1024, index, 5, essays).context
        orders.add(tuple(sorted(range(4), key=lambda i, k=keys, c=context: c.index(f" {k[i]} is:"))))
    assert len(orders) == 1


def test_one_value_is_asked_for_in_the_singular(make):
    """Replacing "are" in finished text would change a chat template too, so the sentences are built."""
    example = make("niah_single_1", 512)
    key = SENTENCE.search(example.context)[2]
    assert example.context.startswith("A special magic number is hidden")
    assert example.question == f"What is the special magic number for {key} mentioned in the provided text?"
    assert example.answer_prefix == f" The special magic number for {key} mentioned in the provided text is"


@pytest.mark.parametrize("task", ["niah_multivalue", "niah_multiquery"])
def test_several_values_are_asked_for_in_the_plural(make, task):
    example = make(task, 512)
    assert example.context.startswith("Some special magic numbers are hidden")
    assert example.question.startswith("What are all the special magic numbers for ")
    assert example.answer_prefix.endswith(" mentioned in the provided text are")


def test_keys_are_joined():
    assert [ruler_niah.join_keys(list(keys)) for keys in ("a", "ab", "abcd")] == ["a", "a, and b", "a, b, c, and d"]


def test_a_question_is_not_part_of_its_context(make):
    for task in NIAH:
        example = make(task, 512)
        assert example.question not in example.context
        assert example.context.endswith("\n")
