"""The page of real runs: complete, closed to the outside, true to what the runs have stored."""

import base64
import hashlib
import json
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from polyloom.errors import CheckpointError, PolyloomError
from polyloom.evaluate.comparison import compare
from polyloom.evaluate.matrix import MARK, Matrix
from polyloom.io.sealed import read_sealed, seal
from polyloom.report.page import make_report
from polyloom.report.sources import read_source
from tests.report.conftest import HOSTILE
from tests.report.reading import Page
from tests.shared import polyloom

SECTIONS = ["verdict", "scores", "comparison", "examples", "curves", "mixture", "parameters", "languages", "donors"]
SECTIONS += ["weights", "settings", "commands"]


def only(run: Path, **options) -> Page:
    return Page(make_report([run], output=Path("report.html"), **{"num_examples": 0} | options))


@pytest.fixture
def copy(madx, tmp_path):
    """A run to spoil."""
    return Path(shutil.copytree(madx, tmp_path / "run"))


def test_a_report_has_every_section_and_its_links_lead_to_them(page):
    read = Page(page)
    ids = read.attributes("id")
    assert len(ids) == len(set(ids))
    assert [name for name, _ in read.elements].count("h1") == 1
    links = read.attributes("href")
    assert [link for link in links if link != "#main"] == [f"#{name}" for name in SECTIONS], "in this order"
    assert {link.removeprefix("#") for link in links} <= set(ids)
    assert set(read.attributes("aria-labelledby")) <= set(ids)


def test_nothing_in_a_report_leads_or_asks_outside(page):
    read = Page(page)
    assert not read.names() & {"script", "img", "link", "iframe", "object", "embed", "base", "form", "image", "use"}
    assert all(link.startswith("#") for link in read.attributes("href"))
    for name, attributes in read.elements:
        assert not [
            key for key in attributes if key.startswith("on") or key in ("src", "style", "srcset", "xlink:href")
        ]
        assert name == "meta" or not [v for v in attributes.values() if v and re.match(r"\s*(\w+:)?//", v)]
    style = "".join(text for name, text in read.texts if name == "style")
    assert not re.search(r"url\(|@import|@font-face|https?:", style)


def test_the_policy_allows_this_style_and_nothing_else(page):
    policy = next(a["content"] for name, a in Page(page).elements if a.get("http-equiv") == "Content-Security-Policy")
    style = re.search(r"<style>(.*?)</style>", page, flags=re.DOTALL)
    assert policy
    assert style
    sha256 = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert policy.startswith(f"default-src 'none'; style-src 'sha256-{sha256}';")
    assert "unsafe" not in policy


def test_a_run_with_markup_for_a_name_is_called_so_and_no_more(page, hyperx):
    read = Page(page)
    assert ("span", HOSTILE) in read.texts
    assert "<img" not in page
    assert shlex.quote(str(hyperx)) in read.text(), "commands quote it for the shell"


def test_scores_are_those_that_were_stored(page, hyperx, madx):
    read = Page(page)
    results = [text for name, text in read.texts if name == "td"]
    for run in (hyperx, madx):
        matrix = Matrix.read(run / "evaluations" / "test.json")
        assert any(result.zero_shot for result in matrix.results.values())
        for result in matrix.results.values():
            for score in result.scores:
                value = f"{score.value:.1f}" if score.value < 1000 else f"{score.value:.3g}"
                assert value + (MARK if result.zero_shot else "") in results


def test_differences_are_those_of_polyloom_compare(page, hyperx, madx):
    text = Page(page).text()
    a, b = (Matrix.read(run / "evaluations" / "test.json") for run in (hyperx, madx))
    for difference in compare(a, b).differences:
        value, low, high = (f"{x:+.1f}".replace("-", "−") for x in (difference.a - difference.b, *difference.interval))
        assert re.search(rf"{re.escape(value)} +{re.escape(low)} to {re.escape(high)}", text), "first minus second"
    assert f"polyloom compare {shlex.quote(str(hyperx))} {madx}" in text


def test_a_single_run_is_compared_with_nothing(hyperx):
    read = only(hyperx)
    assert "comparison" not in read.attributes("id")
    matrix = Matrix.read(hyperx / "evaluations" / "test.json")
    assert f"pos: accuracy {matrix.mean('pos', 'accuracy'):.1f}." in read.text()
    assert "One seed:" in read.text()


def test_no_p_value_is_zero_and_every_setting_shown_differs(page):
    read = Page(page)
    assert not re.search(r"p = 0\.000|>0\.000<", page)
    start = page.index('<section id="settings"')
    settings = page[start : page.index("</section>", start)]
    rows = re.findall(r'<tr><th scope="row">(.*?)</th><td>(.*?)</td><td>(.*?)</td></tr>', settings)
    assert {"method", "steps", "method.hidden_size"} <= {name for name, *_ in rows}
    assert not [row for row in rows if row[1] == row[2]]
    assert "None" not in read.text().partition("Settings")[2].partition("polyloom train")[0]


def test_losses_and_validation_scores_have_units(page):
    captions = [text for name, text in Page(page).texts if name == "figcaption"]
    for caption in ("Training loss of mlm (nats per token)", "Training loss of pos (nats per label)"):
        assert caption in captions
    assert "Validation of dep (LAS)" in captions


def test_a_missing_matplotlib_is_named_before_a_run_is_loaded(madx, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(PolyloomError, match=r"report: the package matplotlib .*pip install"):
        make_report([madx], output=Path("r"))


def test_runs_scored_on_other_data_are_told_apart(madx, copy):
    stored = json.loads(read_sealed(copy / "evaluations" / "test.json"))
    for result in stored["results"].values():
        for score in result["scores"]:
            score["signature"] = re.sub("sha256:[^|]*", "sha256:other", score["signature"])
    (copy / "evaluations" / "test.json").write_text(seal(json.dumps(stored)))
    text = Page(make_report([madx, copy], output=Path("r"), num_examples=0)).text()
    assert "Only scores of one metric on the same data can be compared" in text


def test_examples_show_answers_of_both_runs(page):
    read = Page(page)
    assert [text for name, text in read.texts if name == "h3" and text in ("pos", "ner", "dep")] == [
        "pos",
        "ner",
        "dep",
    ]
    assert [name for name, _ in read.elements].count("article") == 9
    trees = [c for c in read.attributes("class") if c == "tree"]
    assert len(trees) == 6, "three sentences, two runs"
    assert re.search(r"\d+ of \d+ wrong", read.text())


def test_the_same_runs_give_the_same_page(hyperx, madx, page):
    assert make_report([hyperx, madx], output=Path("report.html")) == page


def test_what_is_missing_is_named_with_its_command(copy):
    shutil.rmtree(copy / "evaluations")
    text = only(copy).text()
    assert f"no scores on test here. Make them: polyloom evaluate {copy}" in text
    for kind in ("languages", "swap", "weights"):
        assert f"polyloom probe {kind} {copy}" in text
    assert f"polyloom probe swap {copy} --task" in text, "it must say of which task"
    shutil.rmtree(copy / "checkpoints")
    (copy / "log.jsonl").unlink()
    text = only(copy, num_examples=3).text()
    assert "no checkpoint here" in text
    assert "nothing is known of the training" in text


def test_scores_and_probes_of_another_checkpoint_are_not_shown(hyperx, tmp_path):
    run = Path(shutil.copytree(hyperx, tmp_path / "run"))
    for path in (*run.glob("evaluations/*.json"), *run.glob("probes/*.json")):
        path.write_text(seal(re.sub(r'"checkpoint": "[^"]*"', '"checkpoint": "step-00000001"', read_sealed(path))))
    source = read_source(run, name="run", split="test")
    assert source.matrix is None
    assert not source.probes
    assert all("step-00000001" in source.missing[kind] for kind in ("scores", "languages", "swap", "weights"))


@pytest.mark.parametrize("spoilt", ["", "[]", "{", '{"checkpoint": "%s"}', '{"checkpoint": "%s", "languages": 3}'])
def test_a_spoilt_probe_spoils_nothing_else(hyperx, tmp_path, spoilt):
    run = Path(shutil.copytree(hyperx, tmp_path / "run"))
    checkpoint = json.loads((run / "probes" / "swap.json").read_text())["checkpoint"]
    for kind in ("languages", "swap", "weights"):
        (run / "probes" / f"{kind}.json").write_text(seal(spoilt.replace("%s", checkpoint)))
    read = only(run)
    assert read.text().count("Run again: polyloom probe") == 3
    assert "parameters" in read.attributes("id")


def test_probes_are_drawn(hyperx):
    read = only(hyperx)
    assert {"Map of 3 languages", "Dendrogram of 3 languages"} <= {text for name, text in read.texts if name == "title"}
    assert "of the same family for 100 %" in read.text()
    assert [a.get("class", "") for name, a in read.elements if name == "td" and "own" in (a.get("class") or "")]


def test_a_run_in_progress_can_be_reported(copy):
    lines = (copy / "log.jsonl").read_text().splitlines()
    (copy / "log.jsonl").write_text("\n".join(line for line in lines if '"done"' not in line) + "\n")
    assert "not finished" in only(copy).text()


def test_no_run_and_a_run_named_twice_are_refused(tmp_path, madx):
    with pytest.raises(CheckpointError, match="no run here"):
        make_report([tmp_path], output=Path("r"))
    with pytest.raises(PolyloomError, match="given twice"):
        make_report([madx, madx / ".." / "madx"], output=Path("r"))


def test_the_command_writes_the_page_and_says_where(madx, tmp_path):
    target = tmp_path / "new" / "page.html"
    assert polyloom("report", madx, "-o", target, "--num-examples", 0).strip() == str(target)
    assert "--num-examples 0" in Page(target.read_text()).text()
    assert list(target.parent.iterdir()) == [target]
