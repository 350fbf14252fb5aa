"""The site, built once, and its pages."""

import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


class Page(HTMLParser):
    """What a page has: names that links can lead to, links, and what is loaded with it."""

    def __init__(self, path):
        super().__init__()
        self.path, self.ids, self.links, self.loaded, self.title = path, set(), [], [], ""
        self._in_title = False
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self._in_title = tag == "title" and not self.title
        if name := attributes.get("id"):
            self.ids.add(name)
        if tag == "a" and "href" in attributes:
            self.links.append(attributes["href"])
        if tag == "form" and "action" in attributes:
            self.links.append(attributes["action"])
        is_loaded = tag != "link" or attributes.get("rel") in (
            "stylesheet",
            "preload",
            "icon",
            "prefetch",
            "preconnect",
        )
        if is_loaded and tag not in ("a", "form"):
            self.loaded += [attributes[key] for key in ("src", "href", "data", "poster") if attributes.get(key)]

    def handle_data(self, data):
        if self._in_title:
            self.title += data
            self._in_title = False


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The folder of the site."""
    pytest.importorskip("sphinx")
    folder = tmp_path_factory.mktemp("docs") / "site"
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run([ROOT / ".ci" / "site", folder], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="session")
def pages(site):
    """All pages by their path in the site."""
    return {str(path.relative_to(site)): Page(path) for path in sorted(site.rglob("*.html"))}
