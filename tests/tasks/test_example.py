import dataclasses

import pytest

from nexus.tasks.example import Example, data_hash

EXAMPLE = Example(
    task="vt",
    index=3,
    context="c",
    question="q",
    answer_prefix="a",
    references=("x",),
    max_new_tokens=30,
    metric="all",
    length=100,
    variant="test",
    template_hash="0",
    prompt_tokens=65,
)


def test_the_fill_counts_the_tokens_to_be_generated():
    assert EXAMPLE.fill == 0.95


def test_the_sample_id_tells_lengths_and_samples_apart():
    others = [dataclasses.replace(EXAMPLE, **change) for change in ({"index": 4}, {"length": 101}, {"task": "cwe"})]
    assert len({EXAMPLE.sample_id, *(other.sample_id for other in others)}) == 4


@pytest.mark.parametrize("references", [(), ("x", "")])
def test_an_answer_that_any_prediction_contains_is_refused(references):
    with pytest.raises(ValueError, match=r"vt\[3\]: references"):
        dataclasses.replace(EXAMPLE, references=references)


def test_an_unknown_metric_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="'rouge'; allowed: all, part"):
        dataclasses.replace(EXAMPLE, metric="rouge")


def test_the_data_hash_sees_every_field_and_the_order():
    other = dataclasses.replace(EXAMPLE, context="d")
    assert data_hash([EXAMPLE, other]) == data_hash([dataclasses.replace(EXAMPLE), other])
    assert len({data_hash(x) for x in ([], [EXAMPLE], [EXAMPLE, other], [other, EXAMPLE])}) == 4
