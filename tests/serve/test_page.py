"""The web UI in a real browser: on a desk, on a phone, in the dark, by keyboard, from right to left.

Needs node, Chromium, and a folder with ``npm install playwright-core axe-core`` that POLYLOOM_BROWSER names.
Screenshots are written to the folder that POLYLOOM_SCREENSHOTS names.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import urllib.parse

import pytest

pytest.importorskip("fastapi")

from tests.serve.test_web import Served

FOLDER = os.environ.get("POLYLOOM_BROWSER")
in_browser = pytest.mark.skipif(
    not FOLDER or not shutil.which("node"),
    reason="needs node, and a folder with playwright-core, axe-core (POLYLOOM_BROWSER)",
)
VIEWS = {"desktop": (1100, "light"), "phone": (360, "light"), "dark": (1100, "dark")}
LETTERS, HEBREW = "ba do fi gu ko lem mur sat", "שלום עולם טוב מאוד היום"
INPUTS = {
    "tags": ("pos", "cc", [LETTERS]),
    "entities": ("ner", "aa", ["😀 ba fi gu do ko"]),  # 😀 is two units of a string in JavaScript
    "tree": ("dep", "aa", [LETTERS]),
    "right-to-left": ("dep", "aa", [HEBREW]),
    "label": ("nli", "aa", ["lem ko", "sat fi"]),
    "answer": ("qa", "aa", ["ba", "😀 sat mur fi gu sat ko lem"]),
    "translation": ("mt", "boza", ["ba do"]),
    "unknown": ("pos", "xx", ["<img src=x> ba"]),
}

# Opens the page and writes what a reader would notice. `settings` and `results` are JSON.
BEGIN = """
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
const settings = JSON.parse(process.argv[2]);
const require = createRequire(process.env.POLYLOOM_BROWSER + "/");
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const flags = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync"];
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: flags });
const hosts = new Set(), errors = [];
async function open(address, width = 1100, colorScheme = "light") {
  const context = await browser.newContext({ viewport: { width, height: 800 }, colorScheme });
  context.setDefaultTimeout(0); // the time limit of the test is the only one
  const page = await context.newPage();
  page.on("request", (request) => hosts.add(new URL(request.url()).host));
  page.on("console", (message) => errors.push(message.text()));
  page.on("pageerror", (error) => errors.push(String(error)));
  if (address) await page.goto(address);
  return page;
}
async function violations(page) { // evaluated by the browser's tools, which the page's policy does not bind
  await page.evaluate(axe);
  return page.evaluate(async () => (await axe.run(document, { resultTypes: ["violations"] })).violations.map((v) =>
    `${v.id}: ${v.nodes.map((n) => n.html.slice(0, 160) + " " + n.failureSummary).join(" | ")}`));
}
const texts = (page, selector) => page.$$eval(selector, (nodes) => nodes.map((node) => node.textContent));
const answered = (page) => page.waitForSelector("#output:not([aria-busy]) article");
const results = {};
"""
END = """
await browser.close();
console.log(JSON.stringify({ hosts: [...hosts], errors, ...results }));
"""
VIEW = """
for (const [name, link] of Object.entries(settings.links)) {
  const page = await open(link, settings.width, settings.scheme);
  await answered(page);
  if (settings.shots) await page.screenshot({ path: `${settings.shots}/${settings.view}-${name}.png`, fullPage: true });
  results[name] = {
    wide: await page.evaluate(() => document.documentElement.scrollWidth > document.documentElement.clientWidth),
    words: await texts(page, ".words li > span"), tags: await texts(page, ".words b"),
    cards: await texts(page, "article > .text"),
    marks: await page.$$eval("mark", (marks) => marks.map((mark) =>
      [mark.firstChild.textContent, mark.querySelector("b")?.firstChild.textContent])),
    tree: await page.$$eval("svg .word", (words) => words.map((w) => [w.textContent, w.getBoundingClientRect().x])),
    relations: await texts(page, "svg .relation"), label: await texts(page, ".label"),
    headings: await texts(page, "article h2"),
    facts: await page.$$eval("article", (all) => all.map((one) => Object.fromEntries(
      [...one.querySelectorAll("dl div")].map((fact) => [...fact.children].map((node) => node.textContent))))),
    bad: await texts(page, ".bad"), images: await page.$$eval("main img", (all) => all.length),
    dark: await page.evaluate(() => getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0] < 128),
    violations: await violations(page),
  };
  await page.context().close();
}
"""
KEYBOARD = """
const page = await open(settings.url);
await page.waitForSelector("#ask:not([hidden])");
const press = async (...keys) => { for (const key of keys) await page.keyboard.press(key); };
await press("Tab", "ArrowRight", "ArrowLeft", "ArrowRight", "ArrowRight"); // to the third task
await press("Tab", "ArrowDown"); // the languages
results.offered = await texts(page, "#language-list li");
results.violations = await violations(page);
await page.keyboard.type("b");
await press("Enter", "Tab");
await page.keyboard.type("ba do fi");
await answered(page);
await page.waitForFunction(() => location.hash.includes("fi"));
results.link = page.url();
results.condition = (await texts(page, "dd"))[0];
results.words = await texts(page, "svg .word");
// the link in another tab
const other = await open(results.link);
await answered(other);
results.other = await other.evaluate(() => [":checked", "#language", "textarea"].map((one) =>
  document.querySelector(one).value));
// links within one tab
await other.evaluate((link) => { location.href = link; }, settings.other_link);
await other.waitForSelector(".label");
results.moved = (await texts(other, "dd"))[0];
// targets
const third = await open(settings.translation);
await answered(third);
await third.focus("#target");
await third.keyboard.press("Backspace");
await third.waitForFunction(() => document.querySelectorAll("article").length === 1);
results.one = await texts(third, "article h2");
for (const key of ["ArrowDown", "ArrowDown", "Enter"]) await third.keyboard.press(key);
await third.waitForFunction(() => document.querySelectorAll("article").length === 2);
results.two = await texts(third, "article h2");
"""
TYPING = """
const page = await open(settings.link);
await page.evaluate(() => {
  window.times = [];
  document.addEventListener("input", () => { window.typed = performance.now(); }, true);
  new MutationObserver(() => {
    const words = [...document.querySelectorAll(".words li > span")].map((node) => node.textContent).join("");
    if (words === document.querySelector("textarea").value.replaceAll(" ", "") && words && window.typed) {
      window.times.push(performance.now() - window.typed);
      window.typed = 0;
    }
  }).observe(document.getElementById("output"), { childList: true });
});
await page.focus("textarea");
for (const letter of "ba do fi gu ko lem".split("")) {
  const before = await page.evaluate(() => window.times.length);
  await page.keyboard.type(letter);
  if (letter !== " ") await page.waitForFunction((count) => window.times.length > count, before);
  else await page.waitForTimeout(400);
}
results.times = await page.evaluate(() => window.times);
"""
ORDER = """
// a slow answer to an older text never replaces a newer one
const page = await open(settings.link);
const asked = [], ended = [];
let release;
const newer = new Promise((resolve) => { release = resolve; });
for (const event of ["requestfinished", "requestfailed"]) page.on(event, (request) => ended.push(request.postData()));
await page.route("**/v1/predict", async (route) => {
  const text = route.request().postData();
  asked.push(text);
  if (text.includes("mur")) await newer;
  await route.continue().catch(() => {}); // the page may have withdrawn it
});
await page.fill("textarea", "mur");
while (!asked.length) await page.waitForTimeout(10);
await page.fill("textarea", "sat ko");
await page.waitForFunction(() => document.querySelectorAll(".words li").length === 2);
release();
while (!ended.some((text) => text?.includes("mur"))) await page.waitForTimeout(10);
await page.evaluate(() => new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve))));
results.last = await texts(page, ".words li > span");
results.asked = asked.length;
// many keys in a row ask once; by the page's clock, 20 milliseconds pass after each of them
const still = await open("");
await still.clock.install({ time: 0 });
await still.goto(settings.link);
await still.waitForSelector("#ask:not([hidden])");
let together = 0;
still.on("request", (request) => { together += request.url().endsWith("/v1/predict"); });
await still.clock.pauseAt(60000);
await still.focus("textarea");
for (const letter of "ba do fi gu") {
  await still.keyboard.type(letter);
  await still.clock.runFor(20);
}
results.before = together;
await still.clock.runFor(1000);
await still.waitForFunction(() => document.querySelectorAll(".words li").length === 4);
results.together = together;
"""
MANY = """
const page = await open("");
await page.route("**/info", async (route) => {
  const body = await (await route.fetch()).json();
  for (const model of body.models) if ("pos" in model.tasks) model.languages.push(...settings.languages);
  await route.fulfill({ json: body });
});
await page.goto(settings.link);
await answered(page);
await page.click("#language");
results.options = (await texts(page, "#language-list li")).length;
results.note = (await texts(page, "#language-list li")).at(-1);
await page.keyboard.type("l4242");
results.matching = await texts(page, "#language-list li");
await page.keyboard.press("Enter");
results.chosen = await page.inputValue("#language");
await page.waitForFunction(() => document.querySelector(".bad"));
results.bad = await texts(page, ".bad");
await page.click("#language");
await page.keyboard.type("turk");
results.named = await texts(page, "#language-list li");
"""
PROBLEMS = """
const page = await open(settings.link);
await answered(page);
const detail = "<img src=x onerror=alert(1)> is <b>wrong</b>";
await page.route("**/v1/predict", (route) => route.fulfill({ status: 503, json: { detail } }));
await page.fill("textarea", "ba");
await page.waitForSelector("#problem:not([hidden])");
results.shown = await page.textContent("#problem-text");
results.images = (await page.$$("main img, main b")).length;
results.violations = await violations(page);
await page.unroute("**/v1/predict");
await page.route("**/v1/predict", (route) => route.abort());
await page.fill("textarea", "ba do");
await page.waitForFunction(() => document.getElementById("problem-text").textContent.includes("reached"));
results.unreachable = await page.textContent("#problem-text");
await page.unroute("**/v1/predict");
await page.waitForTimeout(400);
await page.click("#again");
await answered(page);
results.again = [await texts(page, ".words li > span"), await page.isVisible("#problem")];
"""
KEY = """
const page = await open(settings.link);
await page.waitForSelector("#key-form:not([hidden])");
results.first = [await page.isVisible("#problem"), await page.isVisible("#ask"),
  await page.evaluate(() => document.activeElement.id)];
results.violations = await violations(page);
if (settings.shots) await page.screenshot({ path: `${settings.shots}/key.png` });
await page.keyboard.type("wrong");
await page.keyboard.press("Enter");
await page.waitForSelector("#problem:not([hidden])");
results.refused = await page.textContent("#problem-text");
await page.fill("#key", "secret");
await page.keyboard.press("Enter");
await answered(page);
results.words = await texts(page, ".words li > span");
results.stored = await page.evaluate(() =>
  [localStorage.length, sessionStorage.length, document.cookie, location.href]);
await page.reload();
await answered(page);
"""


def look(script, **settings):
    """Run a script in the browser, and return what it saw."""
    command = ["node", "--input-type=module", "-", json.dumps(settings)]
    done = subprocess.run(command, input=BEGIN + script + END, capture_output=True, text=True, check=False, cwd=FOLDER)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def link(server, task, language, texts):
    pairs = [("task", task), ("language", language), *(("text", text) for text in texts)]
    return f"{server.url}/#{urllib.parse.urlencode(pairs)}"


@pytest.fixture(scope="module")
def served(run, translator):
    server = Served(run.path, translator.path)
    yield server
    server.stop()


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=() if name == "desktop" else pytest.mark.nightly) for name in VIEWS],
)
def seen(request, served):
    width, scheme = VIEWS[request.param]
    links = {name: link(served, *about) for name, about in INPUTS.items()}
    shots = os.environ.get("POLYLOOM_SCREENSHOTS")
    found = look(VIEW, links=links, width=width, scheme=scheme, view=request.param, shots=shots)
    return found | {"scheme": scheme}


def test_files_are_served_with_a_policy_and_once(served):
    for path, kind in (
        ("/", "text/html"), ("/static/page.js", "text/javascript"), ("/static/page.css", "text/css"),
    ):  # fmt: skip
        status, content, headers = served.get(path)
        assert status == 200
        assert headers["content-type"].startswith(kind)
        assert headers["content-security-policy"].startswith("default-src 'self';")
        assert headers["x-content-type-options"] == "nosniff"
        assert not re.search(rb"(?<!xmlns=\")https?://(?!www.w3.org/2000/svg)", content), "nothing from other hosts"
        assert served.get(path, If_None_Match=headers["etag"])[:2] == (304, b"")
    for path in ("/static/none.js", "/static/..%2fpage.py", "/static/"):
        assert served.get(path)[0] == 404
    assert "/static/{name}" not in json.loads(served.get("/openapi.json")[1])["paths"]


@in_browser
def test_every_view_asks_this_server_only_fits_and_is_accessible(seen, served):
    assert seen["hosts"] == [served.url.removeprefix("http://")]
    assert seen["errors"] == []
    for name in INPUTS:
        assert not seen[name]["wide"], name
        assert seen[name]["dark"] == (seen["scheme"] == "dark")
        assert seen[name]["violations"] == [], name


@in_browser
def test_predictions_are_those_of_the_run(seen, run, translator):
    words = LETTERS.split()
    assert seen["tags"]["words"] == words
    assert seen["tags"]["tags"] == list(run.predict(LETTERS, "pos/cc").labels)
    text = INPUTS["entities"][2][0]
    predicted = [(word, label[2:]) for word, label in run.predict(text, "ner/aa") if label != "O"]
    assert predicted
    assert list(map(tuple, seen["entities"]["marks"])) == predicted
    assert seen["entities"]["cards"][0].startswith("😀 ba")
    assert [word for word, _ in seen["tree"]["tree"]] == words
    assert seen["tree"]["relations"] == list(run.predict(LETTERS, "dep/aa").relations)
    label = run.predict(tuple(INPUTS["label"][2]), "nli/aa")
    assert seen["label"]["label"] == [f"{label.label}{100 * label.score:.0f} %"]
    question, context = INPUTS["answer"][2]
    assert seen["answer"]["marks"] == [[run.predict((question, context), "qa/aa").text, None]]
    assert seen["answer"]["cards"] == [context]
    assert seen["translation"]["headings"] == ["bame", "kepa"]
    assert seen["translation"]["cards"] == [
        translator.predict(INPUTS["translation"][2][0], f"mt/boza/{target}") for target in ("bame", "kepa")
    ]


@in_browser
def test_every_answer_says_what_made_it(seen, served):
    row = {"condition": "pos/cc", "input": LETTERS}
    answer = served.post("/v1/predict", {"rows": [row]})[1]["results"][0]
    (facts,) = seen["tags"]["facts"]
    assert [facts[name] for name in ("Condition", "Model", "Version", "Weights", "Training")] == [
        "pos/cc", answer["model"], answer["version"], answer["weights"], "zero-shot",
    ]  # fmt: skip
    assert all(re.fullmatch(r"[\d.]+ ms", facts[name]) for name in ("Round trip", "Waited", "Computed"))
    assert [facts["Condition"] for facts in seen["translation"]["facts"]] == ["mt/boza/bame", "mt/boza/kepa"]
    assert seen["label"]["facts"][0]["Training"] == "trained"
    assert facts["Adapter"] in ("generated", "cached")
    assert answer["cached"], "the browser asked for it before"


@in_browser
def test_trees_run_as_the_script_does(seen):
    left, right = ([x for _, x in seen[name]["tree"]] for name in ("tree", "right-to-left"))
    assert left == sorted(left)
    assert right == sorted(right, reverse=True)
    assert [word for word, _ in seen["right-to-left"]["tree"]] == HEBREW.split()


@in_browser
def test_an_unknown_language_is_explained_in_plain_text(seen):
    assert "Known: aa, bb, cc" in seen["unknown"]["bad"][0]
    assert seen["unknown"]["images"] == 0


@in_browser
def test_the_keyboard_is_enough_and_the_link_carries_the_state(served):
    found = look(
        KEYBOARD, url=served.url, other_link=link(served, "nli", "bb", ["ba", "do"]),
        translation=link(served, *INPUTS["translation"]),
    )  # fmt: skip
    assert found["errors"] == []
    assert [one.split("(")[-1].rstrip(")") for one in found["offered"]] == ["aa", "bb", "cc"], "maybe Afar (aa)"
    assert found["violations"] == []
    assert found["condition"] == "dep/bb"
    assert found["words"] == ["ba", "do", "fi"]
    assert found["link"] == link(served, "dep", "bb", ["ba do fi"])
    assert found["other"] == ["dep", "bb", "ba do fi"]
    assert found["moved"] == "nli/bb"
    assert found["one"] == ["bame"]
    assert found["two"] == ["bame", "kepa"]


@in_browser
@pytest.mark.timing
def test_answers_follow_typing_at_once(served):
    times = sorted(look(TYPING, link=link(served, "pos", "aa", []))["times"])
    print(f"milliseconds from key to answer: median {times[len(times) // 2]:.0f}, all {[round(t) for t in times]}")
    assert times[0] <= 300, "the best, as machines are busy"


@in_browser
def test_answers_follow_typing_in_order_and_several_keys_ask_once(served):
    found = look(ORDER, link=link(served, "pos", "aa", []))
    assert found["last"] == ["sat", "ko"]
    assert found["asked"] == 2
    assert (found["before"], found["together"]) == (0, 1)


@in_browser
@pytest.mark.nightly
def test_ten_thousand_languages_can_be_chosen_from(served):
    languages = [f"l{number:05}" for number in range(10_000)] + ["tr"]
    languages[4242] = "l4242"
    found = look(MANY, link=link(served, "pos", "aa", ["ba"]), languages=languages)
    assert found["options"] == 101
    assert found["note"] == "9,904 more: type to find them"
    assert found["matching"][0] == found["chosen"] == "l4242"
    assert "unknown language 'l4242'" in found["bad"][0], "the server does not have it"
    assert found["named"] == ["Turkish (tr)"]


@in_browser
def test_problems_are_shown_as_text_and_can_be_left(served):
    found = look(PROBLEMS, link=link(served, "pos", "aa", ["fi"]))
    assert found["shown"] == "<img src=x onerror=alert(1)> is <b>wrong</b>"
    assert found["images"] == 0
    assert found["violations"] == []
    assert found["unreachable"] == "The server cannot be reached."
    assert found["again"] == [["ba", "do"], False]


@in_browser
def test_a_key_is_asked_for_and_kept_for_the_tab(run, tmp_path):
    (tmp_path / "keys").write_text(f"{hashlib.sha256(b'secret').hexdigest()} somebody\n")
    server = Served(run.path, "--keys", tmp_path / "keys")
    found = look(KEY, link=link(server, "pos", "aa", ["ba"]), shots=os.environ.get("POLYLOOM_SCREENSHOTS"))
    server.stop()
    assert found["first"] == [False, False, "key"]
    assert found["violations"] == []
    assert "valid API key" in found["refused"]
    assert found["words"] == ["ba"]
    stored = found["stored"]
    assert stored[:3] == [0, 1, ""]
    assert "secret" not in stored[3]
