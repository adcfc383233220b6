import dataclasses
import signal
import subprocess
import sys
import textwrap

import pytest

from nexus.tasks import generated, prepare, ruler
from nexus.tasks.example import data_hash


@pytest.fixture
def examples(tokenizer, essays):
    def prepared(data_dir, task="vt", n=3, length=512, seed=1):
        return prepare.examples(ruler.TASKS[task], tokenizer, length, n, seed, data_dir, essays)

    return prepared


def files(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("task", ["niah_multivalue", "vt", "fwe"])
def test_what_is_read_is_what_was_made(examples, tokenizer, essays, tmp_path, task):
    read = examples(tmp_path, task)
    assert read == [generated.make_example(ruler.TASKS[task], tokenizer, 512, i, 1, essays) for i in range(3)]
    assert isinstance(read[0].references, tuple) and isinstance(read[0].length, int)


def test_a_rerun_makes_nothing_and_another_folder_gets_the_same_samples(examples, tmp_path, monkeypatch):
    first = examples(tmp_path / "a")
    assert data_hash(examples(tmp_path / "b")) == data_hash(first)
    before = files(tmp_path / "a")
    assert any(name.endswith("array_record-00000-of-00001") for name in before)

    def never(*args):
        raise AssertionError("made again")

    monkeypatch.setattr(generated, "make_example", never)
    assert examples(tmp_path / "a") == first
    assert files(tmp_path / "a") == before


def test_asking_for_more_keeps_the_first_ones(examples, tmp_path):
    few = examples(tmp_path, n=3)
    before = files(tmp_path)
    more = examples(tmp_path, n=prepare.BLOCK + 2)
    assert more[:3] == few and [example.index for example in more] == list(range(prepare.BLOCK + 2))
    assert before.items() <= files(tmp_path).items()


def test_everything_that_decides_the_samples_is_in_the_key(tokenizer, essays, monkeypatch):
    def key(**changes):
        arguments = (
            dict(task=ruler.TASKS["niah_single_2"], tokenizer=tokenizer, length=512, seed=1, essays=essays) | changes
        )
        return prepare.block_key(**arguments)

    class Other(type(tokenizer)):
        fingerprint = "other"

    changes = [{"task": ruler.TASKS["vt"]}, {"tokenizer": Other()}, {"length": 513}, {"seed": 2}, {"essays": None}]
    keys = [key(), *(key(**change) for change in changes)]
    monkeypatch.setattr(prepare.words, "words_hash", lambda: "other lists")
    keys.append(key())
    assert len(set(keys)) == len(keys)


def test_another_code_version_is_made_again(examples, tmp_path, monkeypatch):
    examples(tmp_path)
    monkeypatch.setitem(ruler.TASKS, "vt", dataclasses.replace(ruler.TASKS["vt"], version="9.9.9"))
    examples(tmp_path)
    assert len({name.split("/")[1] for name in files(tmp_path) if "array_record" in name}) == 2


def test_a_killed_preparation_leaves_nothing_that_is_taken_for_data(tmp_path):
    """Killed in the middle of a block and started again: the same as if it had never been killed."""
    script = textwrap.dedent("""
        import os, signal, sys
        from nexus.models.tokenizer import byte_tokenizer
        from nexus.tasks import prepare, ruler
        from nexus.tasks.example import data_hash
        whole = prepare.NexusSamples._generate_examples
        def killed(self):
            for i, row in enumerate(whole(self)):
                if i == 5:
                    os.kill(os.getpid(), signal.SIGKILL)
                yield row
        if sys.argv[2] == "kill":
            prepare.NexusSamples._generate_examples = killed
        made = prepare.examples(ruler.TASKS["vt"], byte_tokenizer(), 4096, 4, 1, sys.argv[1])
        print(data_hash(made))
    """)

    def run(folder, how):
        return subprocess.run([sys.executable, "-c", script, folder, how], capture_output=True, text=True)

    assert run(tmp_path / "a", "kill").returncode == -signal.SIGKILL
    assert not list((tmp_path / "a").glob(f"nexus_samples/vt-*/{prepare.LAYOUT}"))
    again, whole = run(tmp_path / "a", "run"), run(tmp_path / "b", "run")
    assert (again.returncode, whole.returncode) == (0, 0), again.stderr + whole.stderr
    assert again.stdout == whole.stdout
    assert len(list((tmp_path / "a").glob(f"nexus_samples/vt-*/{prepare.LAYOUT}"))) == 1


def test_a_sample_that_does_not_fit_leaves_no_file(examples, tmp_path):
    with pytest.raises(ValueError, match="cwe does not fit"):
        examples(tmp_path, "cwe")
    assert not files(tmp_path)


@pytest.mark.parametrize("finished", [True, False])
def test_a_block_finished_by_another_process_meanwhile_is_used(examples, tmp_path, monkeypatch, finished):
    """The rename of a block fails when another process was first: its block is read; any other failure is raised."""
    write = prepare.NexusSamples.download_and_prepare

    def fails(builder):
        if finished:
            write(builder)
        raise OSError("Directory not empty")

    monkeypatch.setattr(prepare.NexusSamples, "download_and_prepare", fails)
    if finished:
        assert len(examples(tmp_path)) == 3
    else:
        with pytest.raises(OSError, match="not empty"):
            examples(tmp_path)


def test_wrong_requests_are_errors_before_work(examples, tmp_path):
    with pytest.raises(ValueError, match="n is 0; expected at least 1 example of vt"):
        examples(tmp_path, n=0)


def test_the_default_folder_is_in_the_cache(examples, tmp_path, monkeypatch):
    monkeypatch.setenv("NEXUS_CACHE", str(tmp_path))
    examples(None)
    assert list((tmp_path / "tfds" / "nexus_samples").glob("vt-512-seed1-*"))


def test_tensorflow_is_not_imported():
    code = "import sys, nexus.tasks.prepare; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
