"""A random choice of examples: the same everywhere, each example once, and fair."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from polyloom.conditions import Condition
from polyloom.config import parse_recipe
from polyloom.data.catalog import resolve
from polyloom.data.check import check_corpora
from polyloom.data.corpus_stats import CorpusRole
from polyloom.data.records import Text
from polyloom.data.slices import Sample, Slice, parse_slice
from polyloom.data.tokenization.tokenizer import load_tokenizer
from polyloom.errors import ConfigError, DataError
from polyloom.training.prepare import prepare_dataset
from polyloom.workflows.add_language import part
from tests.tiny_run import write_backbone


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "lines.txt").write_text("".join(f"line{number}\n" for number in range(1000)))
    return str(tmp_path / "lines.txt")


def lines(name: str) -> list[int]:
    return [int(r.text.removeprefix("line")) for r in resolve(name).records("text") if isinstance(r, Text)]


def test_the_choice_never_changes(file):
    """These numbers are in results that others want to repeat."""
    assert lines(f"{file}[random:5]") == [138, 374, 483, 536, 620]
    assert lines(f"{file}[random:5:1]") == [504, 713, 792, 846, 851]
    assert Sample(3, 2**63).of(range(10_000)) == [5969, 6154, 8596]


@pytest.mark.parametrize("size", [1, 5, 20, 999, 1000])
def test_each_example_is_chosen_once_and_the_order_is_that_of_the_corpus(file, size):
    chosen = lines(f"{file}[random:{size}]")
    assert chosen == sorted(set(chosen))
    assert len(chosen) == size


def test_a_smaller_choice_is_part_of_a_larger_one_and_seeds_differ(file):
    few, more, other = (set(lines(f"{file}[random:{n}]")) for n in ("20", "50", "50:1"))
    assert few < more
    assert len(more & other) < 15
    assert lines(f"{file}[random:20]") == lines(f"{file}[random:20:0]")


def test_every_example_has_the_same_chance_wherever_it_is():
    """Of 5 in 25, over 4,000 seeds: 800 each; across the blocks in which numbers are drawn too."""
    counts = Counter(n for seed in range(4000) for n in Sample(5, seed).of(range(25)))
    assert min(counts.values()) > 800 - 5 * 25.3  # the standard deviation is 25.3
    assert max(counts.values()) < 800 + 5 * 25.3
    late = [n for seed in range(50) for n in Sample(20, seed).of(range(8192))]
    assert 400 < sum(n >= 4096 for n in late) < 600


def test_more_than_there_is_is_refused(file):
    with pytest.raises(DataError, match=r"\[random:1001\]: there are 1,000 examples only, so 1,001 cannot be chosen"):
        lines(f"{file}[random:1001]")


@pytest.mark.parametrize("wrong", ["[random]", "[random:]", "[random:0]", "[random:-1]", "[random:5:]", "[random:5:x]",
    "[random:5:1:2]", "[Random:5]", "[rand:5]", "[20 random]", "[:10][random:5]", "[random:5][:5][1:]"])  # fmt: skip
def test_what_is_no_choice_is_refused_with_the_way_to_write_it(file, wrong):
    with pytest.raises(DataError, match=r"Write \[:20\].*\[random:20\] for twenty random examples"):
        resolve(f"{file}{wrong}")


def test_config_check_finds_it_too(file):
    settings = {
        "backbone": {"config": {"model_type": "bert", "vocab_size": 50, "num_hidden_layers": 1}},
        "method": {"name": "full"},
        "languages": ["en"],
        "tasks": {"mlm": {}},
        "data": {"train": {"mlm/en": f"{file}[random:0]"}, "test": {"mlm/en": [f"{file}[random:3]", "x.txt[5]"]}},
    }
    with pytest.raises(ConfigError) as caught:
        parse_recipe(settings)
    train, test = caught.value.mistakes
    assert train.startswith(f"data.train.mlm/en: {file}[random:0]: the slice is empty. Write")
    assert test.startswith("data.test.mlm/en: x.txt[5]: not a slice. Write")


def test_a_slice_of_a_choice_counts_within_it(file):
    whole = lines(f"{file}[random:20:3]")
    assert lines(f"{file}[random:20:3][:5]") == whole[:5]
    assert lines(f"{file}[random:20:3][15:20]") == whole[15:]
    corpus = part(resolve(f"{file}[random:20:3]"), 2, 8)  # as `polyloom add` divides what it gets
    assert [r.text for r in corpus.records("text") if isinstance(r, Text)] == [f"line{n}" for n in whole[2:8]]
    assert lines(corpus.name) == whole[2:8], "its name says the same"
    with pytest.raises(DataError, match="fewer examples than the slice"):
        lines(f"{file}[random:20][:21]")


def test_it_is_still_that_split_of_that_file(file):
    assert parse_slice("ud:x/train[random:5]") == ("ud:x/train", Slice(Sample(5, 0)))
    plain, chosen = resolve("synthetic:boza/train#ner"), resolve("synthetic:boza/train#ner[random:5:2]")
    assert replace(chosen, name=plain.name, sample=None) == plain
    assert (chosen.split, chosen.language) == ("train", "boza")
    assert resolve(f"{file}[random:3]").sha256 == resolve(file).sha256


def test_both_directions_of_a_translation_have_the_same_pairs():
    corpus = resolve("synthetic:boza-kepa/train[random:5]")
    there, back = (list(corpus.records("bitext", direction=d)) for d in (("boza", "kepa"), ("kepa", "boza")))
    assert [(pair.source, pair.target) for pair in there] == [(pair.target, pair.source) for pair in back]  # type: ignore[attr-defined]


def leaks(train: str, test: str) -> list[tuple[str, str | None]]:
    uses = [CorpusRole("mlm", "en", "train", resolve(train)), CorpusRole("mlm", "en", "test", resolve(test))]
    return [(issue.what, issue.mistake) for issue in check_corpora(uses).issues if issue.severity == "serious"]


def test_a_leak_is_found_as_that_of_a_slice_is(file):
    ((_, mistake),) = leaks(file, f"{file}[random:20]")
    assert mistake == "test-in-train"
    ((_, mistake),) = leaks(f"{file}[random:50]", f"{file}[random:20]")
    assert mistake == "test-in-train"
    ((what, mistake),) = leaks(f"{file}[random:20]", file)
    assert "20 of 1,000 sentences (2.0 %)" in what
    assert mistake is None, "as with [:20]"
    first = lines(f"{file}[random:1]")[0]
    assert not leaks(f"{file}[:{first}]", f"{file}[random:1]")


def test_positions_are_compared_where_texts_are_not_the_same(tmp_path):
    """Two columns of a file are different texts of the same examples."""
    table = tmp_path / "t.csv"
    table.write_text("text,other,label\n" + "".join(f"a{n},b{n},{'xy'[n % 2]}\n" for n in range(100)))

    def shared(train: str, test: str) -> list[tuple[int, str]]:
        uses = [CorpusRole("cls", "en", "train", resolve(train)), CorpusRole("cls", "en", "test", resolve(test))]
        return [(overlap.count, overlap.name) for overlap in check_corpora(uses).overlaps]

    one, two = f"{table}#text,label", f"{table}#other,label"
    assert [count for count, _ in shared(one, f"{two}[random:7]")] == [7]
    assert [count for count, _ in shared(f"{one}[random:30]", f"{two}[random:7]")] == [7]
    few = {n for n, _ in resolve(f"{two}[random:9:1]").numbered("labelled")}
    more = {n for n, _ in resolve(f"{one}[random:40]").numbered("labelled")}
    assert [count for count, _ in shared(f"{one}[random:40]", f"{two}[random:9:1]")] == [len(few & more)]


def test_every_choice_is_encoded_apart(file, tmp_path):
    write_backbone(tmp_path / "backbone")
    tokenizer = load_tokenizer(tmp_path / "backbone")
    paths = {
        prepare_dataset(
            Condition("mlm", "en"), [resolve(f"{file}{chosen}")], tokenizer=tokenizer, folder=tmp_path / "sets"
        ).path
        for chosen in ("[:20]", "[random:20]", "[random:20:1]", "[random:20][:19]", "[random:19]")
    }
    assert len(paths) == 5
