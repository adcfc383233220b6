"""The figures: curves or a ranking of scores, maps of kept entries, and the looks of methods."""

from matplotlib.axes import Axes

from configs import llama_ruler
from experiments import figures, summary
from tests.experiments import fake_run

MANY = "full,random,streaming_llm,knorm,keydiff,tova,snapkv,h2o,laprox,adakv"


def score_axes(folder, options):
    fake_run.write(folder, options)
    results = summary.load(folder)
    grid = summary.summaries(results, 1024)
    made = figures.write(folder / "figures", results, 1024, grid)
    return results, grid, dict(made)["score-1024.png"]


def test_many_methods_at_one_budget_are_ranked(tmp_path):
    results, grid, text = score_axes(tmp_path, f"methods={MANY},ratio=0.25,n=4,tasks=niah_single_1+niah_single_2")
    assert text == "score by method, budget 256, length 1024"
    axes: list[Axes] = figures._ranked(results, grid, figures.looks(results)).axes
    assert [axis.get_title() for axis in axes] == ["mean over tasks", "niah_single_1", "niah_single_2"]
    names = [label.get_text() for label in axes[0].get_yticklabels()]
    means = {row.method: row.mean.mean for row in grid}
    assert len(names) == 9 and [means[name] for name in names] == sorted(means[name] for name in names)


def test_few_methods_or_several_budgets_are_curves(tmp_path):
    for name, options in (("few", "methods=full,snapkv,ratio=0.25"), ("two", f"methods={MANY},ratios=0.1+0.25")):
        text = score_axes(tmp_path / name, f"{options},n=4,tasks=niah_single_1")[2]
        assert text == "score against budget, length 1024"


def test_maps_show_methods_with_unequal_heads_alone(tmp_path):
    """`fake_run` gives methods with an even number of letters unequal heads."""
    results, grid, _ = score_axes(tmp_path, "methods=full,h2o,snapkv,adakv,ratios=0.1+0.25,n=4,tasks=niah_single_1")
    maps = figures.kept(results, 1024, grid)
    assert maps is not None
    titles = [axis.get_title().replace("\n", " ") for axis in maps.axes if axis.get_title()]
    assert titles == ["snapkv @ 102", "snapkv @ 256"]
    results, grid, _ = score_axes(tmp_path / "even", "methods=full,h2o,adakv,ratio=0.25,n=4,tasks=niah_single_1")
    assert figures.kept(results, 1024, grid) is None


def test_methods_of_the_main_job_have_colours_of_their_own():
    config = {"method": {}, "eval": {"methods": llama_ruler.get_config().eval.methods}}
    look_of = figures.looks_of(config)
    assert len({look_of[name][0] for name in config["eval"]["methods"]}) == len(config["eval"]["methods"])
