"""The built site: no dead link, nothing from other hosts, every page reachable, and all that the code has is in it.

Building it takes half a minute. With every change of the documents or the package, .github/workflows/site.yml builds
it, too, and a warning or a dead link is an error there.
"""

import json
import os.path
import re
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

import pytest
import typer

import polyloom
from polyloom.cli import app
from polyloom.config import recipe_schema
from polyloom.methods import METHODS
from polyloom.tasks import TASKS
from tests.docs.conftest import ROOT

pytestmark = pytest.mark.nightly
OTHER_HOST = re.compile(r"(https?:)?//")


def target(page, link):
    """The path in the site that a link leads to, and the name there; None for a link out of the site."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return None
    path = unquote(parts.path)
    return os.path.normpath(PurePosixPath(page).parent / path) if path else page, unquote(parts.fragment)


def test_no_link_is_dead(site, pages):
    dead, checked = [], 0
    for name, page in pages.items():
        for link in page.links:
            if (place := target(name, link)) is None:
                continue
            path, anchor = place
            checked += 1
            exists = path in pages or (site / path).is_file()
            if not exists or (anchor and path in pages and anchor not in pages[path].ids):
                dead.append((name, link))
    assert checked > 2000
    assert dead == []


def test_links_to_other_hosts_are_few_and_no_page_is_on_this_machine(pages):
    links = {link for page in pages.values() for link in page.links if target("", link) is None}
    assert {urlsplit(link).scheme for link in links} == {"https"}


def test_nothing_is_loaded_from_another_host(site, pages):
    loaded = {link for page in pages.values() for link in page.loaded}
    assert any(link.endswith(".css") or ".css?" in link for link in loaded)
    assert [link for link in loaded if OTHER_HOST.match(link)] == []
    for style in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*['\"]?(https?:)?//", style.read_text()), style
    for font in ("*.woff*", "*.ttf", "*.eot"):
        assert list(site.rglob(font)) == [], "system fonts are enough"


def test_every_page_is_reached_from_the_first_one(pages):
    seen, ahead = set(), ["index.html"]
    while ahead:
        name = ahead.pop()
        if name in seen or name not in pages:
            continue
        seen.add(name)
        ahead += [place[0] for link in pages[name].links if (place := target(name, link))]
    assert set(pages) == seen
    assert len(pages) > 40


def test_every_document_is_a_page(pages):
    documents = {str(path.relative_to(ROOT / "docs").with_suffix(".html")) for path in (ROOT / "docs").rglob("*.md")}
    assert documents <= set(pages)


def test_all_pages_can_be_searched(site, pages):
    text = (site / "searchindex.js").read_text()
    assert text.startswith("Search.setIndex(")
    index = json.loads(text.removeprefix("Search.setIndex(").removesuffix(")"))
    names = {f"{name}.html" for name in index["docnames"]}
    assert names == set(pages) - {"search.html"}
    assert "hypernetwork" in index["terms"]
    scripts = [link for link in pages["search.html"].loaded if ".js" in link]
    assert any("searchindex.js" in link for link in scripts)


def test_titles_differ(pages):
    titles = [page.title for page in pages.values()]
    assert len(set(titles)) == len(titles)


def test_language_models_get_a_list_of_all_pages(site, pages):
    lines = (site / "llms.txt").read_text().splitlines()
    assert lines[0] == "# Polyloom"
    assert re.fullmatch(r"> .+\.", lines[2])
    listed = dict(re.findall(r"^- \[.+\]\((\S+\.html)\): (.{10,})$", "\n".join(lines[4:]), flags=re.MULTILINE))
    assert len(listed) == len(lines[4:])
    assert set(listed) == set(pages) - {"index.html", "search.html"}
    assert [name for name, line in listed.items() if not line.endswith((".", "?", "!", ":"))] == []


def commands(command, path=()):
    yield " ".join(path)
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(child, (*path, name))


def test_every_command_is_in_the_reference(pages):
    names = [name for name in commands(typer.main.get_command(app)) if name]
    assert len(names) > 25
    assert {f"polyloom-{name.replace(' ', '-')}" for name in names} <= pages["reference/commands.html"].ids


def test_every_key_of_a_recipe_is_in_the_reference(pages):
    schema, ids = recipe_schema(), pages["reference/recipe.html"].ids
    keys = [f"recipe-{key}" for key in schema["properties"]]
    sections = {"optim": "OptimConfig", "train": "TrainConfig", "mixture": "MixtureConfig", "data": "DataConfig"}
    sections |= {"backbone": "BackboneConfig", "data-filter": "Filter"}
    for section, name in sections.items():
        keys += [f"recipe-{section}-{key}" for key in schema["$defs"][name]["properties"]]
    for choice in schema["properties"]["method"]["oneOf"]:
        name = choice["properties"]["name"]["const"]
        keys += [f"recipe-method-{name}-{key}" for key in choice["properties"] if key != "name"]
    for name, task in schema["properties"]["tasks"]["properties"].items():
        keys += [f"recipe-tasks-{name}-{key}" for key in task["properties"]]
    assert len(keys) > 150
    assert {key.replace("_", "-") for key in keys} <= ids
    # A section that the page does not know would be missing in silence.
    assert set(schema["$defs"]) - {*sections.values(), "StageConfig"} == set()


def test_every_public_name_is_in_the_reference(pages):
    names = {f"polyloom.{name}" for name in polyloom.__all__ if name != "__version__"}
    assert names <= pages["reference/python.html"].ids
    assert "polyloom.Run.predict" in pages["reference/python.html"].ids


def test_every_method_and_task_is_in_the_tables(site):
    text = (site / "reference" / "tables.html").read_text()
    for name in (*METHODS, *TASKS):
        assert f">{name}</span></code>" in text, name
