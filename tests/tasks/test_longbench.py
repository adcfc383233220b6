"""All 16 tasks on records made by hand in LongBench's schema; the data themselves are not needed."""

import json

import pytest

from nexus import metrics
from nexus.models.tokenizer import byte_tokenizer
from nexus.tasks import catalog, longbench
from nexus.tasks.longbench_wording import WORDING

BYTES = byte_tokenizer()
PUBLISHED = {  # task: metric, generation tokens, chat wrapping, first line only
    "narrativeqa": ("f1", 128, True, False),
    "qasper": ("f1", 128, True, False),
    "multifieldqa_en": ("f1", 64, True, False),
    "hotpotqa": ("f1", 32, True, False),
    "2wikimqa": ("f1", 32, True, False),
    "musique": ("f1", 32, True, False),
    "gov_report": ("rouge_l", 512, True, False),
    "qmsum": ("rouge_l", 512, True, False),
    "multi_news": ("rouge_l", 512, True, False),
    "trec": ("classification", 64, False, True),
    "triviaqa": ("f1", 32, False, True),
    "samsum": ("rouge_l", 128, False, True),
    "passage_count": ("count", 32, True, False),
    "passage_retrieval_en": ("retrieval", 32, True, False),
    "lcc": ("edit", 64, False, False),
    "repobench-p": ("edit", 64, False, False),
}
CUES = {"trec": "Type:", "triviaqa": "Answer:", "samsum": "Summary:"}
ANSWERS = {"trec": ["City"], "passage_count": ["3"], "passage_retrieval_en": ["Paragraph 7"], "lcc": ["    return x"],
           "repobench-p": ["    return x"]}  # fmt: skip
NO_INPUT = ("gov_report", "multi_news", "passage_count", "lcc")


def record(task, **changes):
    asked = "" if task in NO_INPUT else "Where is {it}?"
    return {
        "input": f"{asked}\n{CUES[task]}" if task in CUES else asked,
        "context": "The long {text}.",
        "answers": ANSWERS.get(task, ["In the garden. There."]),
        "length": 100,
        "dataset": task,
        "language": "python" if task in ("lcc", "repobench-p") else "en",
        "all_classes": ["City", "Country"] if task == "trec" else None,
        "_id": "0a1b",
    } | changes  # fmt: skip


@pytest.fixture
def write(tmp_path):
    def rows(file, *records):
        lines = [row if isinstance(row, str) else json.dumps(row) for row in records]
        (tmp_path / f"{file}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        return str(tmp_path)

    return rows


def load(folder, task, n=1, length=4096, **more):
    return longbench.load(task, BYTES, length, n, folder, **more)


def test_the_table_is_the_published_one():
    """Raised generation limits make a different benchmark; few-shot and code tasks must not be wrapped."""
    facts = {n: (f.metric, f.max_new_tokens, f.chat, f.first_line) for n, f in longbench.TASKS.items()}
    assert facts == PUBLISHED and list(facts) == list(PUBLISHED) == list(WORDING)


@pytest.mark.parametrize("task", PUBLISHED)
def test_a_record_becomes_a_prompt_with_its_parts_in_order(write, task):
    row = record(task)
    (example,) = load(write(task, row), task)
    wording = WORDING[task]
    context, question = BYTES.prompt(example.context, example.question, example.answer_prefix, chat=example.chat)
    text = BYTES.decode(context + question, skip_special=False)
    asked = row["input"].removesuffix(wording.cue) if task in CUES else row["input"]
    parts = [wording.head, row["context"], wording.tail, wording.before, asked, wording.after, wording.cue]
    at = [text.index(parts[0])]
    for part in parts[1:]:
        at.append(text.index(part, at[-1]))
    assert text.endswith(wording.cue) and text.count("{text}") == 1
    assert ("<|im_start|>assistant" in text) == ("<|im_start|>" in text) == PUBLISHED[task][2]
    assert example.context + example.question + example.answer_prefix == "".join(parts)
    assert example.prompt_tokens == len(context) + len(question) and example.cut_tokens == 0
    assert (example.metric, example.max_new_tokens, example.chat, example.first_line) == PUBLISHED[task]
    assert (example.variant, example.template_hash) == ("longbench-nexus", wording.sha256)


@pytest.mark.parametrize("task", PUBLISHED)
def test_the_right_answer_scores_full_and_nothing_scores_zero(write, task):
    (example,) = load(write(task, record(task)), task)
    assert metrics.score(example, example.references[0]) == pytest.approx(100, abs=1e-4)
    assert metrics.score(example, "") == 0


@pytest.mark.parametrize("task", CUES)
def test_the_cue_stands_once_whether_the_record_ends_with_it_or_not(write, task):
    """The hub's copies end with it already; adding it again doubled it."""
    cue = CUES[task]
    folder = write(task, record(task), record(task, input="Where?"), record(task, input=f"Where?\n{cue} "))
    with_cue, without, blank = load(folder, task, n=3)
    assert (with_cue.question, with_cue.answer_prefix) == ("Where is {it}?\n", cue)
    assert (without.question, without.answer_prefix) == ("Where?\n", cue)
    assert (blank.question, blank.answer_prefix) == ("Where?\n", f"{cue} ")  # as it was


def test_every_task_has_wording_of_its_own_hash_except_those_that_share_it():
    hashes = {name: wording.sha256 for name, wording in WORDING.items()}
    assert len(set(hashes.values())) == 13  # three multi-document tasks, two code tasks
    assert hashes["hotpotqa"] == hashes["2wikimqa"] == hashes["musique"]


def test_the_first_records_are_taken_and_at_most_as_many_as_there_are(write):
    folder = write("qasper", record("qasper"), record("qasper", input="Second?"), "")
    assert [example.index for example in load(folder, "qasper", n=500)] == [0, 1]
    assert len(load(folder, "qasper", n=1)) == 1
    with pytest.raises(ValueError, match="n is 0"):
        load(folder, "qasper", n=0)


def test_each_record_has_its_own_classes(write):
    """The last row's classes were used for all rows (THUDM/LongBench)."""
    folder = write("trec", record("trec"), record("trec", all_classes=["City", "Food"]))
    assert [example.choices for example in load(folder, "trec", n=2)] == [("City", "Country"), ("City", "Food")]


def test_the_quirk_of_the_original_score_is_asked_for(write):
    folder = write("trec", record("trec"))
    assert load(folder, "trec", strict_upstream=True)[0].metric == "classification_upstream"
    assert load(write("lcc", record("lcc")), "lcc", strict_upstream=True)[0].metric == "edit"


def test_long_texts_lose_their_middle_and_the_log_says_so(write, caplog):
    text = "".join(f"{i:04d} " for i in range(1000))
    folder = write("narrativeqa", record("narrativeqa"), record("narrativeqa", context=text))
    short, long = load(folder, "narrativeqa", n=2, length=2048)
    assert short.cut_tokens == 0 and long.prompt_tokens + 128 in (2047, 2048)
    assert long.context.startswith(WORDING["narrativeqa"].head + "0000 0001 ")
    assert long.context.endswith("0998 0999 " + WORDING["narrativeqa"].tail)
    assert long.question == short.question and long.cut_tokens > 3000
    assert "narrativeqa: 1 of 2 prompts are longer than L=2048" in caplog.text


def test_a_length_without_room_for_an_answer_is_refused_with_the_numbers(write):
    with pytest.raises(ValueError, match=r"gov_report, line 1, at L=520 \(512 for the answer\): 8 tokens of prompt"):
        load(write("gov_report", record("gov_report")), "gov_report", length=520)


def test_longbench_e_is_read_by_bucket_of_words(write):
    lengths = [3999, 4000, 7999, 8000, 20000]
    rows = [record("qasper", length=n, dataset="qasper_e" if n == 4000 else "qasper") for n in lengths]
    folder = write("qasper_e", *rows)
    found = {bucket: [e.index for e in load(folder, "qasper", n=9, bucket=bucket)] for bucket in longbench.BUCKETS}
    assert found == {"0-4k": [0], "4-8k": [1, 2], "8k-up": [3, 4]}
    one = load(folder, "qasper", bucket="4-8k")[0]
    assert (one.task, one.variant) == ("qasper_e_4-8k", "longbench-e-nexus")
    with pytest.raises(ValueError, match="holds no record for this task"):
        load(write("lcc_e", record("lcc")), "lcc", bucket="8k-up")


def test_the_catalog_has_both_sets(write):
    names = [name for name, task in catalog.TASKS.items() if task.suite == "longbench"]
    assert names == list(PUBLISHED) and catalog.SUITES["longbench"].size == 16
    in_e = {name.rpartition("_e_")[0] for name, task in catalog.TASKS.items() if task.suite == "longbench_e"}
    assert in_e == set(PUBLISHED) - {"narrativeqa", "musique", "qmsum"}
    assert not any(set(name) & set("+;,") for name in catalog.TASKS)  # they separate names in a list
    folder = write("trec", record("trec"))
    request = catalog.Request(tokenizer=BYTES, length=4096, n=3, seed=0, data_dir=folder, strict_upstream=True)
    assert catalog.examples("trec", request)[0].metric == "classification_upstream"
