"""The page of real runs: complete, closed to the outside, true to what the runs have stored."""

import base64
import hashlib
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from polyloom.errors import CheckpointError, PolyloomError
from polyloom.evaluate.comparison import compare
from polyloom.evaluate.matrix import MARK, Matrix
from polyloom.report.page import make_report
from polyloom.report.sources import History, read_source
from tests.report.conftest import HOSTILE
from tests.report.reading import Page
from tests.shared import polyloom

SECTIONS = [
    "runs",
    "scores",
    "comparison",
    "examples",
    "curves",
    "mixture",
    "parameter_report",
    "languages",
    "donors",
    "weights",
]


def only(run: Path, **options) -> Page:
    return Page(make_report([run], output=Path("report.html"), **{"examples": 0} | options))


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
    assert {f"#{name}" for name in [*SECTIONS, "commands", "main"]} <= set(links)
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
    a, b = (Matrix.read(run / "evaluations" / "test.json") for run in (madx, hyperx))
    for one in compare(a, b).differences:
        low, high = (f"{end:+.1f}".replace("-", "−") for end in one.interval)
        assert f"{low} to {high}" in text
    assert f"polyloom compare {madx}" in text


def test_a_single_run_is_compared_with_nothing(hyperx):
    assert "comparison" not in only(hyperx).attributes("id")


def test_runs_scored_on_other_data_are_told_apart(madx, copy):
    stored = json.loads((copy / "evaluations" / "test.json").read_text())
    for result in stored["datasets"].values():
        for score in result["scores"]:
            score["signature"] = re.sub("sha256:[^|]*", "sha256:other", score["signature"])
    (copy / "evaluations" / "test.json").write_text(json.dumps(stored))
    text = Page(make_report([madx, copy], output=Path("r"), examples=0)).text()
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
    text = only(copy, examples=3).text()
    assert "no checkpoint here" in text
    assert "nothing is known of the training" in text


def test_scores_and_probes_of_another_checkpoint_are_not_shown(hyperx, tmp_path):
    run = Path(shutil.copytree(hyperx, tmp_path / "run"))
    for path in (*run.glob("evaluations/*.json"), *run.glob("probes/*.json")):
        path.write_text(re.sub(r'"checkpoint": "[^"]*"', '"checkpoint": "step-00000001"', path.read_text()))
    source = read_source(run, name="run", split="test")
    assert source.matrix is None
    assert not source.probes
    assert all("step-00000001" in source.missing[kind] for kind in ("scores", "languages", "swap", "weights"))


@pytest.mark.parametrize("spoilt", ["", "[]", "{", '{"checkpoint": "%s"}', '{"checkpoint": "%s", "languages": 3}'])
def test_a_spoilt_probe_spoils_nothing_else(hyperx, tmp_path, spoilt):
    run = Path(shutil.copytree(hyperx, tmp_path / "run"))
    checkpoint = json.loads((run / "probes" / "swap.json").read_text())["checkpoint"]
    for kind in ("languages", "swap", "weights"):
        (run / "probes" / f"{kind}.json").write_text(spoilt.replace("%s", checkpoint))
    read = only(run)
    assert read.text().count("Make it anew: polyloom probe") == 3
    assert "parameter_report" in read.attributes("id")


def test_probes_are_drawn(hyperx):
    read = only(hyperx)
    assert {"Map of 3 languages", "Dendrogram of 3 languages"} <= {text for name, text in read.texts if name == "title"}
    assert "of the same family for 100 %" in read.text()
    assert [a.get("class", "") for name, a in read.elements if name == "td" and "own" in (a.get("class") or "")]


def test_steps_that_a_resumed_run_took_again_are_counted_once(tmp_path):
    def step(total: int, loss: float) -> dict[str, object]:
        return {"event": "step", "total": total, "losses": {"pos": loss}, "datasets": {"pos/aa": 1}}

    events = [
        {"event": "stage", "stage": "joint", "steps": 4, "parameter_report": []},
        *(step(i, 1.0) for i in (1, 2, 3)),
        {"event": "validation", "total": 3, "scores": {}, "best": True},
        {"event": "resumed", "total": 1},
        {"event": "stage", "stage": "joint", "steps": 4, "parameter_report": []},
        *(step(i, 2.0) for i in (2, 3, 4)),
    ]
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps(event) + "\n" for event in events) + '{"event": "st')
    history = History.read(log)
    assert [(s["total"], s["losses"]["pos"]) for s in history.steps] == [(1, 1.0), (2, 2.0), (3, 2.0), (4, 2.0)]
    assert not history.validations
    assert list(history.stages) == ["joint"]
    assert not history.done


def test_a_log_that_is_none_is_refused_with_its_line(tmp_path):
    (tmp_path / "log.jsonl").write_text('{"event": "begin"}\nnonsense\n{"event": "done"}\n')
    with pytest.raises(PolyloomError, match=r"log\.jsonl:2: not an event"):
        History.read(tmp_path / "log.jsonl")


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
    assert polyloom("report", madx, "-o", target, "--examples", 0).strip() == str(target)
    assert "--examples 0" in Page(target.read_text()).text()
    assert list(target.parent.iterdir()) == [target]
