"""report.md of a dilution folder. Reads its files only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.boards import table
from experiments.dilute import figures, fits
from nexus import metrics, record

Row = dict[str, Any]
YOUNG = 64  # ages up to this are fitted, older ones foretold
FAR = 1000  # a factor beyond which its size says nothing
READ = (4, 16, 64, 256, 1024)  # ages at which a half-life is read off
THEORY = """Useful entries have a logit that is `margin` higher than that of distractors on average, both with the
same noise. Their share of the attention falls as distractors come, though nothing about them has changed: this is
dilution, and without a limit on the number of distractors no fixed margin holds it off. The bound of Prop. 3.1 knows
only the best useful logit and how many distractors come how near; here it is the least over all gaps, draw by draw."""
SELECTIVE = """The selective cache keeps the best of all entries by a score that tells useful from useless only
through noise; `separation` is the distance of the two means in units of that noise (0: by lot). What is lost is lost
for good: its mass is 0, so a draw by lot leaves about as much as the full cache on average, in a few lucky draws.
At the largest number of distractors, `held` is the share of useful entries that stay, `better` the share of draws in
which the useful entries get more attention than in the full cache."""
MODEL = """Attention while the right answer is read, token by token, whatever the model would have said: mean over the
retrieval heads of the share that falls on the needle asked for (whole sentence), on the first four positions, on other
needles, and on the rest of the context; what is missing to 100 is the question and the answer itself. 1 minus the
first is the dilution, and `minus full` compares the same samples. Retrieval heads were chosen on samples that are not
reported. `held`: share of the needle's entries that these heads' caches hold when the question comes. Score 0-100. In
brackets 95 % intervals over samples, rough where there are few."""
DECAY = """`off by` is the typical factor between curve and fit (1 is perfect), over bins that are equally long in
log(age). `off beyond` fits ages up to {young} only and asks about the older ones. Mean over all heads and texts; the
last two columns count query heads, each fitted for itself."""
CAUTION = """The mean over tokens can have a heavy tail although every single token fades geometrically, if the rates
differ: that is what the gates claim, and the last rows and the right panel put it to the test on the same tokens."""
QUARTERS = """What the gates are used for is an order, not a curve: at ages {low} to {high} the tokens that they forget
last (quarter 4) receive {old:.1f} times the attention of the other three quarters on average."""


def write(workdir: Path) -> str:
    """Writes report.md and figures/; returns the tables. Works on unfinished runs too."""
    config = record.read_json(workdir / "config.json")
    files = ("theory", "metrics", "predictions", "decay")
    found = {name: record.read_rows(workdir / f"{name}.jsonl") for name in files}
    parts = [f"# Dilution: attention on what matters, {config['model']['name']}", _settings(config)]
    tables = []
    for rows, section in ((found["theory"], _theory), (found["metrics"], _model), (found["decay"], _decay)):
        if rows:
            lines, shown = section(rows)
            parts += lines
            tables += shown
    made = figures.write(workdir / "figures", config, found)
    parts += [f"![{text}](figures/{name})" for name, text in made]
    record.write_text(workdir / "report.md", "\n\n".join(parts) + "\n")
    return "\n\n".join([*tables, f"report: {workdir / 'report.md'}"])


def _settings(config: Row) -> str:
    d, ev = config["dilution"], config["eval"]
    return "\n".join([
        f"- seed {ev['seed']}",
        f"- theory: {d['useful']} useful entries, {d['draws']} draws, selective cache of {d['kept']}",
        f"- model: protocol {ev['protocol']}, {ev['question_mode']}, tail {ev['tail']}, chunk "
        f"{config['cache']['chunk']}, n {ev['num_examples']} per cell, {d['heads']} retrieval heads from {d['pilots']} "
        "further samples per task",
        f"- decay: {d['texts']} texts of {d['text_length']} tokens, gates {d['gates'] or 'none'}",
    ])  # fmt: skip


# --- synthetic logits -------------------------------------------------------------------------------------------------
def _theory(rows: Sequence[Row]) -> tuple[list[str], list[str]]:
    full = [row for row in rows if row["cache"] == "full"]
    sizes = sorted({row["distractors"] for row in full})
    at = {(row["margin"], row["noise"], row["distractors"]): row for row in full}
    settings = sorted({(row["margin"], row["noise"]) for row in full})
    body = []
    for margin, noise in settings:
        own = [at[margin, noise, n] for n in sizes]
        body.append([f"{margin:g}", f"{noise:g}", "measured", *(_percent(r["mass"], r["error"]) for r in own)])
        body.append(["", "", "bound", *(f"{100 * r['bound']:.2f}" for r in own)])
    whole = table(["margin", "noise", "useful mass, %", *map(str, sizes)], body)
    above, draws = sum(row["violations"] for row in full), sum(row["draws"] for row in full)
    kept = _selective(rows, sizes)
    text = f"{THEORY} It was exceeded in {above} of {draws} draws."
    return ["## Synthetic logits", whole, text, kept, SELECTIVE], [whole, kept]


def _selective(rows: Sequence[Row], sizes: Sequence[int]) -> str:
    margin, noise = figures.middle(rows)
    own = [row for row in rows if (row["margin"], row["noise"]) == (margin, noise)]
    head = [f"useful mass, %, margin {margin:g}, noise {noise:g}", *map(str, sizes), "held", "better"]
    names = {row["separation"]: None for row in own if row["cache"] == "selective"}
    whole = {row["distractors"]: row for row in own if row["cache"] == "full"}
    body = [["full cache", *(_percent(whole[n]["mass"], whole[n]["error"]) for n in sizes), "1.00", "-"]]
    for separation in names:
        line = {row["distractors"]: row for row in own if row["separation"] == separation}
        last = line[sizes[-1]]
        body.append([
            f"best {last['kept']}, separation {separation:g}",
            *(_percent(line[n]["mass"], line[n]["error"]) for n in sizes), f"{last['held']:.2f}", f"{last['wins']:.2f}",
        ])  # fmt: skip
    return table(head, body)


def _percent(mass: float, error: float) -> str:
    return f"{100 * mass:.2f} ± {196 * error:.2f}"


# --- the model --------------------------------------------------------------------------------------------------------
def _model(rows: Sequence[Row]) -> tuple[list[str], list[str]]:
    head = ["task", "length", "method", "kept", "score", "needle, %", "minus full", "first four", "other needles",
            "context", "needle, all heads", "needle, question", "held, %"]  # fmt: skip
    body, full = [], {(row["task"], row["length"]): row for row in rows if row["method"] == "full"}
    for row in sorted(rows, key=lambda row: (row["task"], row["length"])):
        percent = lambda name, row=row: f"{100 * row[name]:.1f}"  # noqa: E731
        body.append([
            row["task"], str(row["length"]), row["method"], f"{row['kept_mean']:.0f}", _between(row, "score", 1),
            _between(row, "mass_useful", 100), _minus(_gain(row, full)), percent("mass_sinks"), percent("mass_others"),
            percent("mass_context"), f"{100 * row['all_useful']:.2f}", percent("question_useful"),
            percent("held_useful"),
        ])  # fmt: skip
    found = table(head, body)
    return ["## In the model", found, MODEL, *_sentences(rows)], [found]


def _between(row: Row, name: str, unit: float) -> str:
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    limits = "" if low is None else f" [{unit * low:.0f}, {unit * high:.0f}]"
    return f"{unit * row[name]:.1f}{limits}"


def _gain(row: Row, full: dict[tuple[str, int], Row]) -> metrics.Interval | None:
    """Mass on the needle minus that of the full cache, same samples, in points."""
    other = full.get((row["task"], row["length"]))
    if row["method"] == "full" or other is None:
        return None
    own, whole = ([100 * x for x in r["mass_useful_by_sample"]] for r in (row, other))
    return metrics.paired_interval(own, whole)


def _minus(found: metrics.Interval | None) -> str:
    if found is None:
        return "-"
    limits = "" if np.isnan(found.low) else f" [{found.low:+.1f}, {found.high:+.1f}]"
    return f"{found.mean:+.1f}{limits}"


def _sentences(rows: Sequence[Row]) -> list[str]:
    """What happens to the full cache as the text grows, and where the others do better or worse."""
    lines = []
    for task in dict.fromkeys(row["task"] for row in rows):
        full = sorted((r for r in rows if r["task"] == task and r["method"] == "full"), key=lambda r: r["length"])
        if len(full) > 1:
            a, b = full[0], full[-1]
            lines.append(
                f"{task}: from {a['length']} to {b['length']} tokens the full cache's mass on the needle goes from "
                f"{100 * a['mass_useful']:.1f} to {100 * b['mass_useful']:.1f} % in the retrieval heads, and from "
                f"{100 * a['all_useful']:.2f} to {100 * b['all_useful']:.2f} % over all heads."
            )
    full_of = {(row["task"], row["length"]): row for row in rows if row["method"] == "full"}
    gains = [(row, gain) for row in rows if (gain := _gain(row, full_of)) is not None]
    more = [
        f"{r['method']} @ {r['budget']} on {r['task']} at {r['length']} tokens" for r, gain in gains if gain.low > 0
    ]
    less = sum(gain.high < 0 for _, gain in gains)
    text = f"more in {len(more)} of {len(gains)} cells" + (f" ({'; '.join(more)})" if more else "")
    lines.append(f"Against the full cache the needle gets {text} and less in {less}, where intervals lie off zero.")
    return lines


# --- attention by age -------------------------------------------------------------------------------------------------
def _decay(rows: Sequence[Row]) -> tuple[list[str], list[str]]:
    curves = figures.Curves.of(rows)
    families = [fits.geometric(curves.bins), fits.power_law(curves.bins)]
    heads = [fits.fit(curves.heads, family) for family in families]
    closer = np.argmin([fit.factor for fit in heads], axis=0)
    body = [
        [*_fitted(curves, family), f"{np.median(fit.factor):.2f}", f"{(closer == i).sum()} of {closer.size}"]
        for i, (family, fit) in enumerate(zip(families, heads, strict=True))
    ]
    if curves.predicted is not None:
        body.append([*_fitted(curves, fits.given("gates, mean of beta^age", curves.predicted)), "-", "-"])
    found = table(["curve", "fitted", "off by", "off beyond", "off by, median head", "closest in"], body)
    lives = _half_lives(curves)
    text = [DECAY.format(young=YOUNG), _verdict(curves, families, closer), lives]
    if curves.predicted is not None:
        old = curves.quarters[-1, -1] / curves.quarters[:-1, -1].mean()
        text.append(f"{CAUTION} {QUARTERS.format(low=curves.bins[-1][0], high=curves.bins[-1][1] - 1, old=old)}")
    return ["## Attention by age", found, *text], [found, lives]


def _fitted(curves: figures.Curves, family: fits.Family) -> list[str]:
    """Name, parameter, and errors on the mean over heads."""
    young = np.array([high - 1 <= YOUNG for _, high in curves.bins])
    whole, early = fits.fit(curves.mean, family), fits.fit(curves.mean, family, young)
    value = float(whole.value)
    words = {"geometric": f"half-life {np.log(2) / max(value, 1e-9):.0f}", "power law": f"p = {value:.2f}"}
    off = float(early.beyond)
    beyond = "-" if np.isnan(off) else f"{off:.2f}" if off < FAR else f"> {FAR}"
    return [family.name, words.get(family.name, "scale only"), f"{whole.factor:.2f}", beyond]


def _half_lives(curves: figures.Curves) -> str:
    ages = [age for age in READ if age <= curves.bins[-1][1] / 2]
    named = {"measured, mean over heads": curves.mean}
    if curves.predicted is not None:
        named["gates, mean of beta^age"] = curves.predicted
        for q, pair in enumerate(zip(curves.quarters, curves.quarters_predicted, strict=True), 1):
            named |= {f"quarter {q} by log beta, measured": pair[0], f"quarter {q} by log beta, gates": pair[1]}
    body = [
        [name, *(_tokens(fits.half_life(curve, curves.bins, age)) for age in ages)] for name, curve in named.items()
    ]
    return table(["half-life around age, tokens", *map(str, ages)], body)


def _verdict(curves: figures.Curves, families: Sequence[fits.Family], closer: np.ndarray) -> str:
    """Plainly: which of the two fits better, on the mean and by head."""
    off = [float(fits.fit(curves.mean, family).factor) for family in families]
    best = families[int(np.argmin(off))].name
    count = int((closer == int(np.argmin(off))).sum())
    return (
        f"On the mean over heads the {best} fits better (typically off by a factor {min(off):.2f} against "
        f"{max(off):.2f}); of the single heads it is the closer one in {count} of {closer.size}. A geometric law would "
        "give one half-life at all ages:"
    )


def _tokens(value: float) -> str:
    return "none" if not np.isfinite(value) else f"{value:.1f}" if value < 100 else f"{value:.0f}"
