"""The dialogue experiment: one real run on a preset with its kill and resume; the rest with made-up answers."""

from __future__ import annotations

import json
import shutil
import zlib

import pytest
from matplotlib.image import imread

from configs import dialogue as configs_dialogue
from experiments import dialogue, plan
from experiments.talks import turns
from nexus import record
from nexus.tasks import haystacks

REAL = (
    "model=tiny-llama,tasks=facts_told,scb_mf,methods=full,snapkv,budgets=64,length=1000,n=2,batch=1,questions=2,"
    "max_new_tokens=6,floor=0,chunk=64,evict_every=8"
)
FAKE = "model=tiny-llama,tasks=scb_mf,scb_vt,methods=full,snapkv,budgets=64,length=1400,n=3,batch=2,questions=3"
DIFFER = ("prefill_s", "decode_s", "compile_s", "git_commit")


@pytest.fixture(scope="module", autouse=True)
def own_text():
    """Nothing is downloaded."""
    text = haystacks.EssayText.from_texts([f"Line {i * i} says {i % 7} and {i % 11}. Again." for i in range(200)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(haystacks, "package_essays", lambda: text)
        yield


def run(workdir, options):
    dialogue.run(configs_dialogue.get_config(options), workdir)
    return record.read_rows(workdir / "predictions.jsonl"), record.read_rows(workdir / "metrics.jsonl")


def untimed(rows):
    """Rows without what differs from run to run, in one order."""
    kept = [{k: v for k, v in row.items() if k not in DIFFER and not k.endswith("_per_s")} for row in rows]
    return sorted(kept, key=lambda r: (r["mode"], r["method"], r["task"], r.get("index", 0), r.get("turn", 0)))


# --- a real model -----------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("dialogue")
    return path, run(path, REAL)


def test_a_row_per_answer_and_one_per_cell(folder):
    path, (predictions, metrics) = folder
    assert len(metrics) == 2 * 2 * 2 and len(predictions) == 2 * 2 * 2 * 2 * 2
    assert [row["method"] for row in metrics[:4]] == ["full"] * 4, "the full cache runs first"
    for row in metrics:
        assert row["num_examples"] == 2 and row["num_answers"] == 4 and row["measure"] == "score"
        assert [group["group"] for group in row["by_turn"]] == [1, 2]
        full = row["method"] == "full"
        assert row["kept_fraction_mean"] == 1.0 if full else row["held_max"] <= 64 + 8
        assert sum(group["num_answers"] for group in row["by_distance"]) == (4 if row["task"] == "facts_told" else 0)
        assert max(r["prompt_tokens"] for r in predictions) <= 1000
    text = (path / "report.md").read_text()
    for part in ("facts_told, multi_turn", "scb_mf, multi_request", "turn 2", "tok (n=", "history `golden`"):
        assert part in text
    assert imread(path / "figures" / "dialogue-1000.png").shape[0] > 600


def test_metrics_rows_have_every_promised_field(folder):
    """Scores could not be reproduced: variant, commit and wording were not in the row (NVIDIA/RULER#86)."""
    promised = (
        "model dtype task mode history length method budget ratio protocol question_mode tail num_examples score "
        "score_low score_high score_unit measure measures by_turn by_distance nulls truncated_share kept_fraction_mean "
        "kept_fraction_max held_max kv_bytes_allocated peak_bytes prefill_tokens_per_s decode_tokens_per_s compile_s "
        "seed variant template_hash tokenizer_hash config_hash git_commit max_new_tokens"
    ).split()
    for row in folder[1][1]:
        assert not set(promised) - row.keys()


@pytest.mark.parametrize("die_after", [1, 7])  # in the middle of a cell
def test_a_killed_run_continues_and_ends_like_an_uninterrupted_one(folder, tmp_path, monkeypatch, die_after):
    """Results were written at the end only, and a rerun got a new folder: a kill lost everything (NVIDIA/kvpress)."""
    calls = []

    def converse(*arguments, **options):
        calls.append(None)
        if len(calls) == die_after + 1:
            raise KeyboardInterrupt
        return turns_converse(*arguments, **options)

    turns_converse = turns.converse
    monkeypatch.setattr(turns, "converse", converse)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, REAL)
    lines = (tmp_path / "predictions.jsonl").read_bytes().splitlines(keepends=True)
    assert len(lines) == die_after * 2
    (tmp_path / "predictions.jsonl").write_bytes(b"".join(lines[:-1]) + lines[-1][:50])  # torn by the kill as well
    found = run(tmp_path, REAL)
    assert len(calls) == 16 + 2, "finished batches are not held again, but for the one with the torn line"
    assert [untimed(rows) for rows in found] == [untimed(rows) for rows in folder[1]]


def test_a_finished_run_answers_nothing_again(folder, tmp_path, monkeypatch):
    copied = tmp_path / "copy"
    shutil.copytree(folder[0], copied)
    monkeypatch.setattr(turns, "converse", lambda *a, **k: pytest.fail("answered again"))
    assert run(copied, REAL) == folder[1]


# --- made-up answers --------------------------------------------------------------------------------------------------
class Answers:
    """Stands in for the conversation. `right`: methods that know the golden answers."""

    def __init__(self, monkeypatch, right=("full", "snapkv")):
        self.right, self.calls = right, []
        monkeypatch.setattr(turns, "converse", self.converse)

    def converse(self, model, method, settings, scripts, limits, rng=None, capacity=None):
        assert len({turns.shape(script, limits) for script in scripts}) == 1
        assert max(script.needs(limits) for script in scripts) <= capacity
        self.calls.append((method.name, scripts[0].mode, len(scripts)))
        replies = []
        for turn in scripts[0].conversation.asked:
            texts = [self.say(method.name, script.conversation.turns[turn]) for script in scripts]
            tokens = [list(text.encode())[: limits(scripts[0].conversation.turns[turn])] for text in texts]
            size = len(scripts)
            replies.append(
                turns.Reply(turn=turn, tokens=tokens, cut=[False] * size, limit=40, seen=[300] * size,
                            distance=[100 * turn + 5] * size, held=[64.0] * size, held_after=[66.0] * size,
                            log_prob=[-1.5] * size)
            )  # fmt: skip
        return turns.Talk(replies=replies, kv_bytes_allocated=1000, peak_bytes=5000, prefill_seconds=1.0,
                          decode_seconds=0.5, compile_seconds=0.25, prefill_tokens=300, decode_tokens=40)  # fmt: skip

    def say(self, method, turn):
        return turn.reply if method in self.right else f"no idea {zlib.crc32(turn.user.encode()) % 7 * 'x'}"


def test_scores_by_turn_and_distance(tmp_path, monkeypatch, capsys):
    Answers(monkeypatch)
    _, metrics = run(tmp_path, FAKE)
    row = metrics[-1]
    assert (row["method"], row["mode"], row["score"]) == ("snapkv", "multi_request", 100.0)
    assert [(g["score"], g["num_answers"]) for g in row["by_turn"]] == [(100.0, 3)] * 3
    assert [g["group"] for g in row["by_distance"]] == ["0-63", "64-127", "128-255"]
    assert "scb_vt multi" in capsys.readouterr().out


def test_below_the_floor_of_the_full_cache_nothing_else_is_run_or_printed(tmp_path, monkeypatch):
    """A full cache of 13.8 lost to a cache of 20 % with 35.2: nothing was measured there (snu-mllab/KVzip#4)."""
    fake = Answers(monkeypatch, right=("snapkv",))
    _, metrics = run(tmp_path, FAKE)
    assert {row["method"] for row in metrics} == {name for name, *_ in fake.calls} == {"full"}
    report = (tmp_path / "report.md").read_text()
    assert report.count("**Not meaningful**: the full cache scores 0.0 here, below the floor of 25.") == 4
    assert "snapkv" not in report
    # A run without a floor has the rows.
    _, metrics = run(tmp_path / "no-floor", FAKE + ",floor=0")
    assert {row["method"] for row in metrics} == {"full", "snapkv"}


def write_files(folder):
    says = lambda user, bot: {"user": user, "bot": bot}  # noqa: E731
    dialogues = [
        {"task": "CM", "id": 4, "history": [says("Hi", "Hello you"), says("And?", "Nothing else")]},
        {"task": "GR", "id": 9, "history": [says("One?", "It is one")]},
    ]
    (folder / "mtbench101.jsonl").write_text("".join(json.dumps(row) + "\n" for row in dialogues))
    question = {
        "question_type": "multi-session", "question": "Bike?", "answer": "red", "question_date": "now",
        "haystack_session_ids": ["a"], "haystack_dates": ["then"], "answer_session_ids": ["a"],
        "haystack_sessions": [[{"role": "user", "content": "It is red"}, {"role": "assistant", "content": "Nice"}]],
    }  # fmt: skip
    questions = [question | {"question_id": name} for name in ("q1", "q2_abs")]
    (folder / "longmemeval.json").write_text(json.dumps(questions))
    many = {"context": "c" * 3000, "multi_turns": [{"input": f"{i}?", "answer": ["red"]} for i in range(2)]}
    (folder / "scbench_many_shot.jsonl").write_text(json.dumps(many) + "\n")
    (folder / "scbench_summary.jsonl").write_text(json.dumps(many) + "\n")


def test_files_of_others(tmp_path, monkeypatch):
    """Lines for the official scorers; proxies by name; what has no rule is missing, not 0; dialogues of any shape."""
    write_files(tmp_path)
    fake = Answers(monkeypatch)
    options = FAKE.replace("tasks=scb_mf,scb_vt", "tasks=longmemeval,mt_bench_101,scbench_many_shot,scbench_summary")
    workdir = tmp_path / "run"
    predictions, metrics = run(workdir, f"{options},data_dir={tmp_path}")
    by = {(row["task"], row["mode"], row["method"]): row for row in metrics}
    assert len(by) == len(metrics) == 2 * (2 + 1 + 2 + 2), "mt_bench_101 runs in one mode"
    memory = by["longmemeval", "multi_turn", "snapkv"]
    assert (memory["measure"], memory["score"], memory["num_answers"], memory["num_scored"]) == (
        "proxy_substring", 100.0, 2, 1,
    )  # fmt: skip
    assert set(memory["measures"]) == {"proxy_substring", "proxy_token_f1"}
    bench = by["mt_bench_101", "multi_turn", "snapkv"]
    assert bench["measures"] == {"agree_token_f1": 100.0, "agree_first_32": 100.0}
    assert {size for name, _, size in fake.calls if name == "full"} == {1, 2}, "unlike dialogues share no batch"
    summary = by["scbench_summary", "multi_turn", "full"]
    assert summary["score"] is None and summary["measure"] is None and summary["by_turn"][0]["score"] is None
    assert 0.5 < summary["cut_share_max"] < 0.9
    lines = record.read_rows(workdir / "answers" / "longmemeval-multi_turn-snapkv-64-1400.jsonl")
    assert lines == [{"question_id": "q1", "hypothesis": "red"}, {"question_id": "q2_abs", "hypothesis": "red"}]
    (replies,) = (workdir / "answers").glob("mt_bench_101-multi_turn-full-*.jsonl")
    assert record.read_rows(replies)[1] == {"task": "CM", "id": 4, "turn": 2, "reply": "Nothing else"}
    report = (workdir / "report.md").read_text()
    assert "proxy_token_f1" in report and "1 of 2 answers have no rule here: missing, not 0" in report
    assert "Contexts were cut in the middle to fit" in report


def test_agreement_is_with_the_full_cache(tmp_path, monkeypatch):
    write_files(tmp_path)
    Answers(monkeypatch, right=("full",))
    options = FAKE.replace("scb_mf,scb_vt", "mt_bench_101")
    _, metrics = run(tmp_path / "run", f"{options},data_dir={tmp_path}")
    full, other = metrics
    assert full["score"] == 100.0 and other["score"] == 0.0


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("modes=multi", "dialogue.modes='multi' is not known; allowed: multi_turn, multi_request"),
        ("modes=multi_turn,multi_turn", "names something twice"),
        ("history=gold", "dialogue.history='gold' is not known; allowed: golden, own"),
        ("questions=0", "dialogue.questions=0 is out of range"),
        ("tasks=scbench", "eval.tasks='scbench' is not known; allowed: facts_told"),
        ("tasks=longmemeval", "task longmemeval is read from files: set eval.data_dir"),
        ("question_mode=query_aware", "eval.question_mode='query_aware': dialogues are query_agnostic"),
        ("tail=free", "eval.tail='free': dialogues are counted"),
        ("tasks=mt_bench_101,data_dir=/tmp,modes=multi_request", "task mt_bench_101 runs in multi_turn"),
        ("tasks=mt_bench_101,data_dir=/tmp,methods=snapkv,floor=0", "mt_bench_101 measures agreement with the full"),
        ("methods=snapkv", "lacks it: add full"),
        ("budgets=8", "budget of 8"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_is_loaded(change, complaint):
    names = {pair.split("=")[0] for pair in change.split(",") if "=" in pair}
    kept = [pair for pair in FAKE.replace("scb_mf,scb_vt", "scb_mf").replace("full,snapkv", "full;snapkv").split(",")
            if pair.split("=")[0] not in names]  # fmt: skip
    with pytest.raises(ValueError, match=complaint):
        dialogue.resolve(configs_dialogue.get_config(",".join([*kept, change])))


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (FAKE.replace("length=1400", "length=300"), "task scb_mf does not fit into L=300"),
        (FAKE.replace("tiny-llama", "no-such-model"), "no-such-model"),
    ],
)
def test_what_does_not_fit_claims_no_folder(tmp_path, monkeypatch, options, complaint):
    """A refused run would block the corrected one in the same folder."""
    fake = Answers(monkeypatch)
    with pytest.raises(plan.ConfigError, match=complaint):
        run(tmp_path / "run", options)
    assert fake.calls == [] and not (tmp_path / "run").exists()
