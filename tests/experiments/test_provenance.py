"""Lines about where numbers were made."""

from experiments import provenance

ROWS = [{"task": "vt", "template_hash": "0123456789", "tokenizer_hash": "abcdef" * 4}]


def entry(*command):
    return {
        "started": "2026-11-30T09:00:00+00:00", "wall_s": 12.0, "device": "1 x cpu", "cpus": 2, "python": "3.11",
        "git_commit": "abc1234", "versions": {"jax": "0.10"}, "command": list(command),
    }  # fmt: skip


def test_the_command_is_what_a_reader_types():
    line, wording = provenance.lines([entry("/home/me/launch.py", "--config=configs/tiny.py:n=2,tasks=a b")], ROWS)
    assert line.endswith("; `python launch.py '--config=configs/tiny.py:n=2,tasks=a b'`")
    assert "/home" not in line and "vt `01234567`" in wording


def test_a_process_of_another_program_has_no_command():
    assert "launch.py" not in provenance.lines([entry("/usr/bin/pytest", "-q"), entry()], ROWS)[0]
