"""The site in a real browser: on a desk, on a phone, in the dark; its search, and the rules of accessibility.

Needs node, Chromium, and a folder with ``npm install playwright-core axe-core`` that POLYLOOM_BROWSER names.
Screenshots are written to the folder that POLYLOOM_SCREENSHOTS names.
"""

import json
import os
import shutil
import subprocess
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

FOLDER = os.environ.get("POLYLOOM_BROWSER")
pytestmark = [
    pytest.mark.nightly,  # builds the site, which takes half a minute
    pytest.mark.skipif(
        not FOLDER or not shutil.which("node"),
        reason="needs node, and a folder with playwright-core, axe-core (POLYLOOM_BROWSER)",
    ),
]
VIEWS = ["desktop", "phone", "dark", "dark-phone"]
# One of each kind: the first page, a long recipe, wide tables, quoted messages, generated pages, a figure.
PAGES = [
    "index.html", "tutorials/tagger.html", "choosing.html", "troubleshooting.html", "reference/recipe.html",
    "reference/python.html", "explanation/idea.html",
]  # fmt: skip


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def address(site):
    """The site, served from this machine."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def views(site, address):
    script = Path(__file__).with_name("browser.mjs")
    command = ["node", script, address, site, os.environ.get("POLYLOOM_SCREENSHOTS", ""), *PAGES]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("view", VIEWS)
def test_pages_fit_are_accessible_and_ask_this_server_only(views, view, address):
    seen = views[view]
    assert seen["hosts"] == [address]
    assert seen["errors"] == []
    for name in PAGES:
        page = seen["pages"][name]
        assert page.get("violations", []) == [], name
        assert not page["wide"], name
        assert page["dark"] == view.startswith("dark"), name


@pytest.mark.parametrize("view", VIEWS)
def test_the_first_screen_says_what_it_is(views, view):
    first = views[view]["first"]
    assert first["title"] < first["picture"] < first["commands"]
    assert first["picture"] < 800, "the height of the screen"
    assert first["commands"] < (900 if "phone" not in view else 1000)
    assert views[view]["smallest"] >= 9, "pixels"
    assert views[view]["cut"] == []


@pytest.mark.parametrize("view", VIEWS)
def test_the_search_needs_no_server(views, view):
    assert "Initialising hypernetworks" in views[view]["found"]
