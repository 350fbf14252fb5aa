"""Examples of language models: what a run writes is what `generate` writes, beside what the corpus says."""

import pytest

from polyloom.conditions import Condition
from polyloom.data.records import Conversation, Message, Text
from polyloom.report.sections.examples import LETTERS, Example, Examples, examples_section, find_examples
from polyloom.report.sources import read_sources
from polyloom.tasks.chat import Chat
from polyloom.tasks.lm import CausalLm
from polyloom.workflows.train import train
from tests.report.reading import Page
from tests.tiny_decoder import decoder_recipe


def test_a_run_continues_the_first_half_of_a_text(tmp_path):
    run = train(decoder_recipe(tmp_path, steps=60), tmp_path / "run")
    for language in ("aa", "bb"):  # the first text is too long
        lines = (tmp_path / f"{language}-test.txt").read_text().splitlines(keepends=True)
        (tmp_path / f"{language}-test.txt").write_text("".join(["ba do " * 15 + "\n", *lines]))
    found = find_examples(read_sources([run.path], split="test"), 2)
    assert found.failures == []
    assert {str(example.condition) for example in found.chosen} == {"lm/aa", "lm/bb"}
    for example in found.chosen:
        text = (tmp_path / f"{example.condition.source}-test.txt").read_text().splitlines()[1]
        prompt, reference = CausalLm.opening(example.record, letters=LETTERS)
        assert (example.number, prompt + reference) == (2, text)
        assert reference.startswith(" ")
        assert example.predictions == {"run": run.generate(prompt, str(example.condition), max_new_tokens=24)}
    assert len({example.predictions["run"] for example in found.chosen}) == 2, "each has its own weights"
    page = Page(examples_section(found, 2).html())
    for example in found.chosen:
        assert example.predictions["run"].strip() in page.text()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ba do fi", "ba"),
        ("我们都是好朋友", "我们都"),
        ("ba", "b"),
        ("ba do " * 200, "ba do " * 33 + "ba"),
    ],
)
def test_a_text_is_divided_in_the_middle(text, expected):
    prompt, following = CausalLm.opening(Text(text), letters=LETTERS)
    assert text.startswith(prompt + following)
    assert len(prompt + following) == min(len(text), LETTERS)
    assert prompt == expected


def test_conversations_are_shown_up_to_their_last_answer_within_bounds():
    said = [Message("user" if n % 2 == 0 else "assistant", f"<b>{n}</b>") for n in range(11)]
    record = Conversation((*said, Message("assistant", "x" * 900)))
    before, answer = Chat.opening(record, letters=LETTERS)
    assert (len(before), answer) == (11, "x" * 900)
    html = examples_section(Examples([Example(Condition("chat", "aa"), "c", 1, record, {"run": ""})]), 1).html()
    page = Page(html)
    assert "<b>7</b>" in page.text()
    assert "<b>6</b>" not in page.text()
    assert "(empty)" in page.text()
    assert "x" * LETTERS + "…" in page.text()
    assert "x" * (LETTERS + 1) not in page.text()
