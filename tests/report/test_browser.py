"""The page in a real browser: on a desk, on a phone, in the dark, on paper; and by the rules of accessibility.

Needs node, Chromium, and a folder with ``npm install playwright-core axe-core`` that POLYLOOM_BROWSER names.
"""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

FOLDER = os.environ.get("POLYLOOM_BROWSER")
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(
        not FOLDER or not shutil.which("node"),
        reason="needs node, and a folder with playwright-core, axe-core (POLYLOOM_BROWSER)",
    ),
]
VIEWS = ["desktop", "phone", "dark"]


@pytest.fixture(scope="module")
def folder(page, tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")
    (folder / "report.html").write_text(page)
    return folder


@pytest.fixture(scope="module")
def seen(folder):
    script = Path(__file__).with_name("browser.mjs")
    command = ["node", str(script), str(folder / "report.html"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("view", VIEWS)
def test_no_request_leaves_the_page_and_nothing_is_complained_about(seen, view):
    found = seen["found"][view]
    assert found["requests"] == [seen["address"]]
    assert found["errors"] == []
    assert found["scripts"] == 0
    assert found["styled"], "the policy lets the style in"


@pytest.mark.parametrize("view", VIEWS)
def test_the_page_does_not_scroll_sideways_and_what_does_can_be_reached(seen, view):
    found = seen["found"][view]
    assert found["page"] == found["opened"] == found["window"]
    assert found["unreachable"] == []
    assert all(found["links"])


@pytest.mark.parametrize("view", VIEWS)
def test_no_interval_is_cut_off_and_text_of_figures_can_be_read(seen, view):
    found = seen["found"][view]
    assert found["cut"] == []
    assert found["small"] >= 9, "pixels"


@pytest.mark.parametrize("view", VIEWS)
def test_no_accessibility_fault_is_found(seen, view):
    assert seen["found"][view]["violations"] == []


def test_it_can_be_printed(seen, folder):
    pdf = (folder / "report.pdf").read_bytes()
    assert len(re.findall(rb"/Type\s*/Page\b", pdf)) > 1
