"""The page: one file that asks for nothing, holds what the run says, and cannot be taken over by what a model says."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser

import pytest

from experiments import report
from experiments.page import build
from experiments.sections import Picture
from nexus import record
from tests.experiments import fake_run

OPTIONS = "tasks=niah_single_1,niah_multivalue,methods=full,snapkv,h2o,budgets=64,128,n=3"
ATTACK = '</div></script><script>alert(1)</script><img src="http://evil.example/x.png" onerror=alert(2)>&amp;'
VOID = {"meta", "link", "img", "br"}


class Page(HTMLParser):
    """Elements with their attributes, text by innermost element, and whether every element is closed."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements, self.open, self.texts, self.wrong = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data):
        self.texts.append((self.open[-1] if self.open else "", data))

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]

    def text(self, *tags):
        return "".join(data for tag, data in self.texts if not tags or tag in tags)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("run")
    fake_run.write(path, OPTIONS, full_scores={"niah_multivalue": 0.0}, rename={"snapkv": ATTACK, " word": ATTACK})
    (path / "figures").mkdir()
    picture = base64.b64decode(
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    )
    (path / "figures" / "needle-map_1024.png").write_bytes(picture)
    report.write(path)
    return path


@pytest.fixture(scope="module")
def page(folder):
    return Page((folder / "report.html").read_text("utf-8"))


def test_the_page_asks_for_nothing(folder, page):
    for tag, attributes in page.elements:
        for name in ("src", "href", "srcset", "data", "action", "poster"):
            value = attributes.get(name)
            assert value is None or value.startswith(("data:", "#")), f"{tag} {name}={value[:60]}"
    style = page.text("style")
    assert "url(" not in style and "@import" not in style and "http" not in page.text("script")
    assert not {"iframe", "object", "embed", "base"} & {tag for tag, _ in page.elements}
    policy = next(a["content"] for a in page.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; img-src data:;")
    for tag in ("style", "script"):
        digest = base64.b64encode(hashlib.sha256(page.text(tag).encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy, "a browser would not apply it"


def test_text_of_models_and_prompts_is_text(page):
    """Answers and prompts are whatever a model and a data set say."""
    assert len(page.all("script")) == 1 and len(page.all("img")) >= 5
    assert not [a for _, a in page.elements if any(name.startswith("on") for name in a)]
    assert not page.wrong and page.open == []
    assert ATTACK in page.text("td") and ATTACK in page.text("i")


def test_figures_lie_in_the_page_with_a_text_of_their_own(folder, page):
    """The run's other figures are found in its folder."""
    images = page.all("img")
    assert {image["alt"] for image in images} >= {"score against budget, length 1024", "needle map 1024"}
    made = (folder / "figures" / "score-1024.png").read_bytes()
    assert images[0]["src"] == "data:image/png;base64," + base64.b64encode(made).decode()
    with pytest.raises(ValueError, match=r"report\.csv is not a PNG"):
        build._picture(folder, Picture(path="report.csv", text=""))


def test_tables_have_captions_and_named_headers_and_scroll_in_a_box(page):
    tables = page.elements.count(("div", {"class": "box"}))
    assert tables == 0, "a box that scrolls can be reached by keyboard, and has a name"
    boxes = [a for a in page.all("div") if a.get("class") == "box"]
    assert boxes and all(a["tabindex"] == "0" and a["role"] == "region" and a["aria-label"] for a in boxes)
    assert len(page.all("caption")) == len(page.all("table")) >= 4
    assert all(a.get("scope") in ("col", "row") for a in page.all("th"))
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(b - a <= 1 for a, b in zip(levels, levels[1:], strict=False)), "no level of headings is left out"
    assert page.all("html") == [{"lang": "en"}]


def test_the_leaderboard_holds_the_numbers_of_the_run(folder, page):
    text = page.text()
    for row in record.read_rows(folder / "metrics.jsonl"):
        assert f"{row['score']:.1f}" in text
    for said in ("KV MB", "KV live MB", "decode tok/s", "rank", "minus full", "0.0, not meaningful", "3 of 13"[:1]):
        assert said in text
    assert "niah_multivalue: not meaningful." in text
    values = [a["data-v"] for a in page.all("td") if "data-v" in a]
    assert values and all(value == "" or float(value) is not None for value in values)


def test_an_older_run_without_tokens_has_a_page_that_says_so(folder, tmp_path):
    fake_run.write(tmp_path, OPTIONS + ",show=0")
    report.write(tmp_path)
    page = Page((tmp_path / "report.html").read_text("utf-8"))
    assert "was not recorded in this run" in page.text("p") and "Context as" not in str(page.elements)
    assert "snapkv, budget 64" in page.text("th"), "answers are there all the same"


def test_several_tables_and_pairs_stand_in_one_page(folder, tmp_path):
    fake_run.write(tmp_path / "other", OPTIONS + ",protocol=oneshot")
    report.write_all([folder, tmp_path / "other"], tmp_path / "out")
    page = Page((tmp_path / "out" / "report.html").read_text("utf-8"))
    assert "apart from table 1, since it differs in protocol (streaming, here oneshot)" in page.text("li")
    assert f"other minus {folder.name}" in page.text("h3")
    ids = [a["id"] for _, a in page.elements if "id" in a]
    assert len(ids) == len(set(ids)) and {a["href"][1:] for a in page.all("a")} <= set(ids)
    assert not page.wrong


def test_inline_marks_are_made_after_escaping():
    assert build.inline("a `<b>` **c** <i>") == "a <code>&lt;b&gt;</code> <strong>c</strong> &lt;i&gt;"


def _luminance(colour):
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4
              for v in (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))]  # fmt: skip
    return sum(w * v for w, v in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_text_has_contrast_in_both_schemes(scheme):
    style = (build.HERE / "page.css").read_text("utf-8")
    found = re.findall(r"--(\w+): (#[0-9a-f]{6})", style)
    assert len(found) % 2 == 0
    half = len(found) // 2
    colours = dict(found[scheme * half : (scheme + 1) * half])
    pairs = [("ink", name) for name in ("page", "shade", "k1", "k2", "k3", "k4", "k5")]
    pairs += [("quiet", "page"), ("quiet", "k0"), ("quiet", "shade"), ("link", "page")]
    for ink, ground in pairs:
        a, b = sorted((_luminance(colours[ink]), _luminance(colours[ground])))
        assert (b + 0.05) / (a + 0.05) >= 4.5, (ink, ground)
    a, b = sorted((_luminance(colours["box"]), _luminance(colours["page"])))
    assert (b + 0.05) / (a + 0.05) >= 3, "of a line that means something"
