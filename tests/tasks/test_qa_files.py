"""SQuAD and HotpotQA in their official layouts, on small files of our own."""

import json

import pyarrow
import pytest
from pyarrow import parquet

from nexus.tasks import catalog, generated, prepare, qa_files
from nexus.tasks.draws import Draws
from nexus.tasks.fit import Context

NOUNS = "river stone window garden letter winter market engine harbour candle".split()


def paragraph(a, p):
    return f"In part {p} of book {a} the {NOUNS[a]} met the {NOUNS[(a + p + 1) % 10]} for the first time."


SQUAD = [
    {
        "title": f"Book_{a}",
        "paragraphs": [
            {
                "context": paragraph(a, p),
                "qas": [
                    {
                        "question": f"What did the {NOUNS[a]} meet in part {p}?",
                        "is_impossible": False,
                        "answers": [{"text": f"the {NOUNS[(a + p + 1) % 10]}"}, {"text": NOUNS[(a + p + 1) % 10]}] * 2,
                    },
                    {"question": f"What is not said in {a}.{p}?", "is_impossible": True, "answers": []},
                ],
            }
            for p in range(4)
        ],
    }
    for a in range(3)
]
HOTPOT = [
    {
        "question": f"Question {q}?",
        "answer": f"answer-{q}",
        "context": [[f"Title {q}.{i}", [f"One {i} of {q}.", " Two."]] for i in range(10)],
    }
    for q in range(12)
]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "dev-v2.0.json").write_text(json.dumps({"version": "v2.0", "data": SQUAD}))
    (tmp_path / "hotpot_dev_distractor_v1.json").write_text(json.dumps(HOTPOT))
    return tmp_path


def where(tokenizer, index=0, seed=1, length=512):
    draws = Draws(seed=seed, task="qa", length=length, index=index)
    return Context(draws=draws, length=length, max_new_tokens=32, tokenizer=tokenizer)


def test_squad_asks_what_has_an_answer_and_keeps_every_paragraph(folder):
    corpus = qa_files.load("qa_1", folder)
    assert len(corpus.documents) == len(corpus.questions) == 12
    first = corpus.questions[0]
    assert first.text == "What did the river meet in part 0?"
    assert first.answers == ("the stone", "stone")  # each answer once
    assert corpus.documents[first.gold[0]] == paragraph(0, 0)
    assert [corpus.documents[i] for i in first.near] == [paragraph(0, p) for p in (1, 2, 3)]


def test_hotpot_has_the_ten_documents_of_a_question_as_its_floor(folder):
    corpus = qa_files.load("qa_2", folder)
    assert len(corpus.documents) == 120 and len(corpus.questions) == 12
    asked = corpus.questions[3]
    assert (asked.text, asked.answers, len(asked.gold), asked.near) == ("Question 3?", ("answer-3",), 10, ())
    assert corpus.documents[asked.gold[9]] == "Title 3.9\nOne 9 of 3. Two."


def test_the_hub_tables_give_the_same_documents_and_questions(folder):
    rows = [
        {"id": "", "title": article["title"], "context": p["context"], "question": q["question"],
         "answers": {"text": [a["text"] for a in q["answers"]], "answer_start": [0] * len(q["answers"])}}
        for article in SQUAD for p in article["paragraphs"] for q in p["qas"]
    ]  # fmt: skip
    parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "squad.parquet")
    rows = [
        row | {"context": {"title": [t for t, _ in row["context"]], "sentences": [s for _, s in row["context"]]}}
        for row in HOTPOT
    ]
    parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "hotpot.parquet")
    for task, read, name in (("qa_1", qa_files.squad, "squad"), ("qa_2", qa_files.hotpot, "hotpot")):
        table, own = read(folder / f"{name}.parquet", ""), qa_files.load(task, folder)
        assert (table.documents, table.questions) == (own.documents, own.questions)


def test_the_same_article_comes_before_random_paragraphs_and_then_the_others_again(folder, tokenizer):
    corpus = qa_files.load("qa_1", folder)
    case = corpus.case(where(tokenizer))
    drawn = [case.others(i) for i in range(11 + 11)]
    book = case.gold[0].split(" the ")[0].split()[-1]
    same = [text for text in corpus.documents if f"of book {book} " in text and text not in case.gold]
    assert set(drawn[:3]) == set(same)
    assert set(drawn[3:11]) == set(corpus.documents) - set(same) - set(case.gold)
    assert sorted(drawn[11:]) == sorted({*corpus.documents} - {*case.gold})  # repeated where more are wanted


def test_a_file_of_one_paragraph_is_refused(tokenizer):
    """Filling the prompt with the gold paragraph itself would leave nothing to lose."""
    corpus = qa_files.Corpus(documents=("one",), questions=(qa_files.Question("who?", ("x",), (0,)),), sha256="0")
    with pytest.raises(ValueError, match="no document of the file can stand beside those of the question 'who[?]'"):
        corpus.case(where(tokenizer))


def test_a_question_is_not_asked_twice_and_seeds_ask_others(folder, tokenizer):
    corpus = qa_files.load("qa_1", folder)
    asked = [corpus.case(where(tokenizer, index)).question for index in range(12)]
    assert len(set(asked)) == 12
    assert asked != [corpus.case(where(tokenizer, index, seed=2)).question for index in range(12)]


@pytest.mark.parametrize("task", ["qa_1", "qa_2"])
@pytest.mark.parametrize(("length", "count"), [(512, 4), (1024, 4), (2048, 2), (4096, 1), (8192, 1)])
def test_the_prompt_fills_its_length_and_never_exceeds_it(folder, tokenizer, task, length, count):
    row = qa_files.row(task, folder, count)
    for index in range(count):
        made = generated.make_example(row, tokenizer, length, index, 7)
        context, question = tokenizer.prompt(made.context, made.question, made.answer_prefix)
        total = len(context) + len(question) + made.max_new_tokens
        new_document = 12  # tokens: number, wrapping and one word
        assert length - max(0.01 * length, new_document) <= total <= length
        assert any(reference in made.context for reference in made.references) or task == "qa_2"


def test_a_length_without_room_for_the_documents_of_a_question_is_refused(folder, tokenizer):
    row = qa_files.row("qa_2", folder, 1)
    with pytest.raises(ValueError, match="qa_2 does not fit into L=256 .*beside the 10 of the question"):
        generated.make_example(row, tokenizer, 256, 0, 7)


def test_another_file_makes_other_blocks(folder, tokenizer):
    """Samples of one file must not be taken for those of another: its sha256 is in the key."""
    rows = [qa_files.row("qa_1", folder, 1)]
    (folder / "dev-v2.0.json").write_text(json.dumps({"data": SQUAD[:2]}))
    rows.append(qa_files.row("qa_1", folder, 1))
    keys = {prepare.block_key(row, tokenizer, 512, 0) for row in rows}
    assert len(keys) == 2


def test_the_catalog_reads_both_and_ruler_is_complete(folder, tokenizer, tmp_path_factory, monkeypatch):
    monkeypatch.setenv("NEXUS_CACHE", str(tmp_path_factory.mktemp("cache")))
    assert sum(task.suite == "ruler" for task in catalog.TASKS.values()) == catalog.SUITES["ruler"].size
    request = catalog.Request(tokenizer=tokenizer, length=600, n=2, seed=0, data_dir=str(folder))
    for task in ("qa_1", "qa_2"):
        made = catalog.examples(task, request)
        expected = (task, "ruler-nexus", "part", 32)
        assert [(e.task, e.variant, e.metric, e.max_new_tokens) for e in made] == [expected] * 2


def test_more_samples_than_questions_are_refused(folder):
    with pytest.raises(ValueError, match=r"dev-v2\.0\.json has 12 questions with answers; 13 were asked for"):
        qa_files.row("qa_1", folder, 13)


def test_a_folder_without_the_file_is_refused_at_once(tmp_path):
    with pytest.raises(ValueError, match=r"task qa_1: no file .*dev-v2\.0\.json; expected .* data -> paragraphs"):
        catalog.check(("vt", "qa_1"), str(tmp_path), "generated")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"data": []}, "field 'data' is empty"),
        ({"data": [{"title": "x"}]}, r"data\[0\]: field 'paragraphs' is missing"),
        ({"data": [{"paragraphs": [{"context": "c", "qas": [{"question": "q", "answers": []}]}]}]},
         r"data\[0\]\.paragraphs\[0\]\.qas\[0\]: field 'is_impossible' is missing"),
        ({"data": [{"paragraphs": [{"context": "c", "qas": []}]}]}, "holds no question with an answer"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_squad_file_is_named(tmp_path, data, message):
    (tmp_path / "dev-v2.0.json").write_text(json.dumps(data))
    with pytest.raises(ValueError, match=message):
        qa_files.load("qa_1", tmp_path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "holds no question"),
        ([HOTPOT[0] | {"context": ["x"]}], r"\[0\]: context is not a list of \[title, \[sentences\]\]"),
        ([HOTPOT[0], {"question": "q"}], r"\[1\]: field 'context' is missing"),
    ],
)
def test_what_is_wrong_with_a_hotpot_file_is_named(tmp_path, data, message):
    (tmp_path / "hotpot_dev_distractor_v1.json").write_text(json.dumps(data))
    with pytest.raises(ValueError, match=message):
        qa_files.load("qa_2", tmp_path)
