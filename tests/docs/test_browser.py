"""The site in a real browser: on a desk, on a phone, in the dark; its search, and the rules of accessibility.

Needs node, Chromium, and a folder with ``npm install playwright-core axe-core`` that POLYLOOM_BROWSER names.
Screenshots are written to the folder that POLYLOOM_SCREENSHOTS names.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

FOLDER = os.environ.get("POLYLOOM_BROWSER")
pytestmark = pytest.mark.skipif(
    not FOLDER or not shutil.which("node"),
    reason="needs node, and a folder with playwright-core, axe-core (POLYLOOM_BROWSER)",
)
VIEWS = ["desktop", "phone", "dark", "dark-phone"]
# One of each kind: the first page, a long recipe, wide tables, quoted messages, generated pages, figures.
PAGES = [
    "index.html", "tutorials/tagger.html", "choosing.html", "troubleshooting.html", "reference/recipe.html",
    "reference/commands.html", "reference/python.html", "explanation/idea.html", "results.html",
]  # fmt: skip


@pytest.fixture(scope="module")
def views(site):
    script = Path(__file__).with_name("browser.mjs")
    command = ["node", script, site, os.environ.get("POLYLOOM_SCREENSHOTS", ""), *PAGES]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("view", VIEWS)
def test_pages_fit_are_accessible_and_ask_nobody(views, view):
    seen = views[view]
    assert seen["protocols"] == ["file:"]
    assert seen["errors"] == []
    for name in PAGES:
        page = seen["pages"][name]
        assert page["violations"] == [], name
        assert not page["wide"], name
        assert page["dark"] == view.startswith("dark"), name


@pytest.mark.parametrize("view", VIEWS)
def test_the_first_screen_says_what_it_is(views, view):
    first = views[view]["first"]
    assert first["title"] < first["picture"] < first["commands"]
    assert first["picture"] < 800, "the height of the screen"
    assert first["commands"] < (900 if "phone" not in view else 1000)
    assert views[view]["smallest"] >= 9, "pixels"


@pytest.mark.parametrize("view", VIEWS)
def test_the_search_needs_no_server(views, view):
    assert "Initialising hypernetworks" in views[view]["found"]
