"""Pages of methods: every option with its default and its meaning."""

import pytest

from nexus import manual, methods


@pytest.mark.parametrize("name", methods.names())
def test_every_option_is_there_with_its_default_and_a_meaning(name):
    """A new option needs a comment beside its field."""
    lines = manual.options(name)
    assert [line.split()[0] for line in lines] == [
        f"{option}={value}".split()[0] for option, value in methods.options(name).items()
    ]
    for line, (option, value) in zip(lines, methods.options(name).items(), strict=True):
        assert line.strip().removeprefix(f"{option}={value}").strip(), option


def test_a_page_says_where_a_method_comes_from_and_what_its_scorer_computes():
    page = manual.page("snapkv")
    assert "SnapKV, arXiv 2404.14469" in page and "scorer WindowAttention" in page
    assert "score = mean over G of pool(mean over window rows of A)" in page  # the scorer's docstring
    assert "--config.method.snapkv.window=32" in page


def test_the_table_or_the_pages(capsys):
    assert manual.main([]) == 0
    assert capsys.readouterr().out == methods.table() + "\n"
    assert manual.main(["full", "h2o"]) == 0
    said = capsys.readouterr().out
    assert "full: Full cache" in said and "no options" in said and "h2o: H2O" in said
