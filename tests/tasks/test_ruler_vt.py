import re

import pytest

from nexus.tasks import haystacks, ruler_vt

STATEMENT = re.compile(r"VAR ([A-Z]+) = (?:VAR ([A-Z]+)|(\d{5}))")


def parts(example):
    """The worked example and the task itself, as they stand in the context."""
    worked, _, task = example.context.rpartition(ruler_vt.WORDING["head"])
    return worked, task


@pytest.mark.parametrize("length", [512, 1024, 4096])
def test_the_chain_stands_in_order_from_number_to_last_name(make, length):
    for index in range(3):
        example = make("vt", length, index)
        lines = parts(example)[1].split("\n")
        found = [STATEMENT.fullmatch(line).groups() for line in lines if line.startswith("VAR")]
        names = [name for name, _, _ in found]
        assert names == list(example.references)
        assert len(set(names)) == 5 and all(re.fullmatch("[A-Z]{5}", name) for name in names)
        assert [previous for _, previous, _ in found] == [None, *names[:-1]]
        number = found[0][2]
        assert f"the value {number} in the text above" in example.question
        assert f"5 variables have the value {number}, they are: " in example.answer_prefix


def test_statements_are_lines_between_noise_lines(make):
    lines = [line for line in parts(make("vt", 2048))[1].split("\n")[:-1] if not line.startswith("VAR")]
    assert set(lines[:-1]) == {" ".join(haystacks.NOISE)}
    assert " ".join(haystacks.NOISE).startswith(lines[-1])


def test_the_worked_example_is_solved_and_smaller(make, tokenizer):
    example = make("vt", 4096)
    worked, _ = parts(example)
    names = [match[1] for match in STATEMENT.finditer(worked)]
    assert len(names) == 5 and all(len(name) == 3 for name in names)
    assert worked.endswith(f"they are: {' '.join(names)}\n\n")
    assert 400 < len(tokenizer.encode(worked)) <= ruler_vt.EXAMPLE_TOKENS


def test_the_worked_example_is_drawn_anew_and_has_another_number(make):
    examples = [make("vt", 1024, index) for index in range(5)]
    assert len({parts(example)[0] for example in examples}) == 5
    for example in examples:
        numbers = re.findall(r"= (\d{5})", example.context)
        assert len(set(numbers)) == 2
