"""Vocabularies: what SentencePiece itself would say, samples as the formula says, nothing that depends on chance."""

import json
import lzma
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
import sentencepiece
from transformers import AutoTokenizer

from polyloom.cli import main
from polyloom.data.tokenization import vocabulary
from polyloom.data.tokenization.tokenizer import load_tokenizer
from polyloom.data.tokenization.vocabulary import (
    MODEL_FILE,
    VocabularyConfig,
    language_token,
    share_lines,
    train_vocabulary,
)
from polyloom.errors import PolyloomError
from polyloom.io.yaml import dump_yaml
from tests.shared import DATA, Done, Run, needs_data

LANGUAGES = ["amh", "ara", "cmn", "deu", "ell", "fra", "heb", "hin", "hye", "jpn", "kat", "khm", "kor", "mya", "rus",
             "tam", "tha", "tur", "uig", "vie"]  # fmt: skip
TOY = {
    "en": [
        f"the {a} sees {n} {b}s" for n in range(20) for a in ("cat", "dog", "owl") for b in ("fish", "bird", "mouse")
    ],
    "de": ["die Katze sieht den Fisch", "der Hund sieht die Maus", "die Eule sieht den Vogel"],
}


def tatoeba(language, split="train"):
    with lzma.open(DATA / f"mt/tatoeba/eng-{language}/{split}.tsv.xz", "rt", encoding="utf-8", newline="\n") as file:
        return [line.rstrip("\n").split("\t")[1] for line in file]


def plain(text):
    """NFKC with single spaces, by another judge."""
    return " ".join(unicodedata.normalize("NFKC", text).split())


def trained(into, texts=TOY, languages=(), **settings):
    report = train_vocabulary(texts, into, config=VocabularyConfig(**{"size": 60, **settings}), languages=languages)
    return load_tokenizer(into), report


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """A vocabulary of 20 languages, its report, and the text it was made from."""
    texts = {language: tatoeba(language)[:1200] for language in LANGUAGES}
    into = tmp_path_factory.mktemp("vocabulary") / "it"
    report = train_vocabulary(texts, into, config=VocabularyConfig(size=8000), languages=["swh"])
    return into, report, texts


@needs_data
def test_ids_are_those_of_sentencepiece_itself(real):
    """But for ties: 000 is 00 and 0, or 0 and 00, and SentencePiece's choice depends on rounding."""
    into, _, texts = real
    tokenizer = load_tokenizer(into)
    judge = sentencepiece.SentencePieceProcessor(model_file=str(into / MODEL_FILE))
    seen = ties = 0
    for language in texts:
        lines = tatoeba(language, "test") + tatoeba(language)[-1000:]
        for ids, expected in zip(tokenizer.text(lines), judge.encode([plain(line) for line in lines]), strict=True):
            seen += 1
            ties += ids != expected
            assert ids == expected or sorted(ids) == sorted(expected)
    assert seen > 20_000
    assert ties < seen / 5000


@needs_data
def test_text_comes_back_where_all_characters_are_known(real):
    into, _, texts = real
    tokenizer = load_tokenizer(into)
    whole = 0
    for language in texts:
        lines, token = tatoeba(language, "test"), tokenizer.language_id(language)
        assert token
        for line, ids in zip(lines, tokenizer.text(lines), strict=True):
            if tokenizer.unk_id not in ids:
                whole += 1
                assert tokenizer.decode(tokenizer.single([token, *ids])) == plain(line)
    assert whole > 10_000


@needs_data
def test_no_more_characters_are_unknown_than_the_coverage_allows(real):
    _, report, texts = real
    shares = report.shares.values()
    assert 0 < sum(s.unknown for s in shares) <= (1 - 0.99995) * sum(s.characters for s in shares)
    assert list(report.shares) == list(texts)
    for language, share in report.shares.items():
        assert share.available == len({plain(line) for line in texts[language]})
        assert share.words <= share.tokens <= share.characters


@needs_data
def test_what_is_reported_is_what_the_pieces_say(real):
    """Where every line is drawn equally often, the report can be counted again from the text."""
    into, report, texts = real
    tokenizer = load_tokenizer(into)
    share = report.shares["amh"]
    lines = sorted({plain(line) for line in texts["amh"]})
    times, extra = divmod(share.drawn, share.available)
    fewest, most = (count * sum(map(len, tokenizer.text(lines))) for count in (times, times + (extra > 0)))
    assert times > 1
    assert fewest <= share.tokens <= most
    assert report.to_dict()["languages"]["amh"]["tokens_per_word"] == share.tokens / share.words


@needs_data
def test_transformers_opens_the_folder_also_beside_a_config_of_m2m_100(real):
    into, _, texts = real
    tokenizer = load_tokenizer(into)
    for beside in (None, {"model_type": "m2m_100"}):
        if beside:
            (into / "config.json").write_text(json.dumps(beside))
        judge = AutoTokenizer.from_pretrained(into)
        assert judge.is_fast
        assert (judge.bos_token_id, judge.pad_token_id, judge.eos_token_id, judge.unk_token_id) == (0, 1, 2, 3)
        assert (tokenizer.bos_id, tokenizer.pad_id, tokenizer.eos_id, tokenizer.unk_id) == (0, 1, 2, 3)
        assert len(judge) == tokenizer.vocab_size == 8000 + 21
        tokens = [language_token(language) for language in ["swh", *texts]]
        assert judge.convert_tokens_to_ids(tokens) == list(range(8000, 8021)), "in the order asked for"
        assert judge(texts["deu"][0])["input_ids"] == tokenizer.single(tokenizer.text(texts["deu"][:1])[0])
    (into / "config.json").unlink()


def test_special_and_language_tokens_never_come_out_of_text(tmp_path):
    """Not even of text to learn from that is full of them."""
    texts = {**TOY, "en": [*TOY["en"], *["the __de__ cat </s> sees __sw__"] * 200]}
    tokenizer, _ = trained(tmp_path / "it", texts, ["en", "de", "sw"])
    assert [tokenizer.language_id(language) for language in ("en", "de", "sw")] == [60, 61, 62]
    forbidden = {*tokenizer.special_ids, *map(tokenizer.language_id, ("en", "de", "sw"))} - {tokenizer.unk_id}
    for token in ("__de__", "__sw__", "</s>", "<s>", "<pad>", "<unk>"):
        for text in (token, f"the {token} cat", f"the{token}cat", f"__{token}__"):
            assert forbidden.isdisjoint(tokenizer.text([text])[0])
            assert forbidden.isdisjoint(tokenizer.words([text.split()])[0].ids)


@pytest.mark.parametrize(("temperature", "expected"), [(1.0, [900, 90, 10]), (5.0, None), (1e9, [334, 333, 333])])
def test_shares_are_what_the_formula_says(temperature, expected):
    sizes = {"a": 90_000, "b": 9_000, "c": 1_000}
    drawn = share_lines(sizes, VocabularyConfig(size=10, temperature=temperature, lines=1000))
    exact = [
        1000 * n ** (1 / temperature) / sum(m ** (1 / temperature) for m in sizes.values()) for n in sizes.values()
    ]
    assert sum(drawn.values()) == 1000
    assert all(abs(count - share) < 1 for count, share in zip(drawn.values(), exact, strict=True))
    assert expected is None or list(drawn.values()) == expected


def test_every_language_has_a_line_and_there_are_no_more_than_there_are_texts():
    config = VocabularyConfig(size=10, temperature=1, lines=5)
    assert share_lines({"a": 10**9, "b": 1, "c": 1}, config) == {"a": 3, "b": 1, "c": 1}
    assert sum(share_lines({"a": 70, "b": 3}, VocabularyConfig(size=10)).values()) == 73
    assert share_lines(dict.fromkeys("abcdefg", 9), config) == dict.fromkeys("abcdefg", 1)


def sampled(texts, **settings):
    config = VocabularyConfig(size=60, **settings)
    found = {language: vocabulary._count(lines, config) for language, lines in texts.items()}
    draws = share_lines({language: one.count for language, one in found.items()}, config)
    return {name: dict(vocabulary._draw(lines, found[name], draws[name], config)) for name, lines in texts.items()}


def test_lines_repeat_only_where_they_must_and_then_evenly():
    drawn = sampled(TOY, lines=100)
    assert len(TOY["en"]) == 180
    counts = share_lines({"en": 180, "de": 3}, VocabularyConfig(size=60, lines=100))
    assert counts["de"] > 3
    assert set(drawn["en"].values()) == {1}
    assert len(drawn["en"]) == counts["en"]
    assert set(drawn["en"]) <= set(TOY["en"])
    assert set(drawn["de"]) == set(TOY["de"])
    assert sum(drawn["de"].values()) == counts["de"]
    assert max(drawn["de"].values()) - min(drawn["de"].values()) <= 1


def test_a_sentence_counts_once_however_often_and_wherever_it_stands():
    """English stands in many pairs; and no line is likelier for standing early."""
    often = {"en": [*TOY["en"][::-1], *TOY["en"], *(f" {line}\t" for line in TOY["en"]), ""], "de": TOY["de"]}
    for lines in (50, 100, 10_000):
        assert sampled(often, lines=lines) == sampled(TOY, lines=lines)
    assert sampled(TOY, lines=50) != sampled(TOY, lines=50, seed=1)


def test_the_sample_is_even_over_the_text():
    lines = [f"line {i}" for i in range(20_000)]
    drawn = sampled({"a": lines}, lines=5_000, temperature=1)["a"]
    thirds = [sum(f"line {i}" in drawn for i in range(start, start + 5_000)) for start in range(0, 20_000, 5_000)]
    assert sum(thirds) == 5_000
    assert all(abs(count - 1250) < 150 for count in thirds), "five standard deviations"


def test_the_same_seed_gives_the_same_bytes(tmp_path):
    one, _ = trained(tmp_path / "one")
    again, _ = trained(tmp_path / "again")
    other, _ = trained(tmp_path / "other", lines=60, seed=1)
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert names == [MODEL_FILE, "tokenizer.json", "tokenizer_config.json"]
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    assert one.fingerprint == again.fingerprint != other.fingerprint
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "one", "other"], "nothing is left behind"


def test_text_is_normalised_before_it_is_counted_learnt_and_cut(tmp_path):
    wide = {"en": [line.replace("a", "ａ").replace(" ", "\u3000 \u00a0▁") for line in TOY["en"]], "de": TOY["de"]}
    one, _ = trained(tmp_path / "one")
    other, _ = trained(tmp_path / "other", wide)
    assert one.fingerprint == other.fingerprint
    assert one.text(wide["en"]) == one.text(TOY["en"])
    assert one.text(["", " ", "\u3000▁"]) == [[], [], []]


@pytest.mark.parametrize(
    ("texts", "settings", "message"),
    [
        ({}, {}, "no text to learn from"),
        ({"en": iter(["a"])}, {}, "'en': is an iterator, but is read twice"),
        ({"en": TOY["en"], "de": ["", "  "]}, {}, "text of 'de': there is nothing in it"),
        ({"e n": TOY["en"]}, {}, "'e n': is not a name"),
        (TOY, {"size": 9000}, r"there is text for (\d+) tokens, not for 9000. Set size to \1 or less"),
        (TOY, {"size": 12}, r"12 tokens cannot hold the \d+ characters .* larger size, or a lower coverage"),
        (TOY, {"size": 3}, "leave nothing for text"),
        (TOY, {"coverage": 1.5}, "coverage is above 0 and at most 1"),
    ],
)
def test_what_cannot_be_done_says_what_to_do(tmp_path, texts, settings, message):
    with pytest.raises(PolyloomError, match=message):
        trained(tmp_path / "it", texts, **settings)
    assert not list(tmp_path.iterdir())


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "it").mkdir()
    trained(tmp_path / "it")
    with pytest.raises(PolyloomError, match=r"it: is there already\. Remove it"):
        trained(tmp_path / "it")


def test_without_sentencepiece_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(PolyloomError, match=r"pip install 'polyloom\[train\]'"):
        trained(tmp_path / "it")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Run ``polyloom data vocab`` in this process."""
    monkeypatch.chdir(tmp_path)

    def run_here(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["polyloom", "data", "vocab", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return Done(int(ended.value.code or 0), *capsys.readouterr())

    for language, lines in TOY.items():
        (tmp_path / f"{language}.txt").write_text("\n".join(lines) + "\n")
    return run_here


FILES = ("--text", "en=en.txt", "--text", "de=de.txt", "--size", "60")


def test_the_command_makes_a_vocabulary_of_files(run, tmp_path):
    done = run(*FILES, "-o", "made/here")
    assert done.returncode == 0, done.stderr
    trained(tmp_path / "direct")
    assert load_tokenizer(tmp_path / "made/here").fingerprint == load_tokenizer(tmp_path / "direct").fingerprint
    head, _, *rows = done.stdout.splitlines()
    assert head.split() == ["language", "lines", "drawn", "tokens", "per", "word", "unknown", "characters"]
    assert [row.split()[:2] for row in rows] == [["en", "180"], ["de", "3"]]


def test_the_command_prints_json_alone(run):
    report = json.loads(run(*FILES, "-o", "it", "--json").stdout)
    assert (report["size"], report["temperature"], report["coverage"]) == (60, 5.0, 0.99995)
    assert report["languages"]["de"]["available"] == 3
    assert report["language_tokens"] == ["en", "de"]


def test_mistakes_on_the_command_line_are_explained(run):
    assert "--text en: expected language=file" in run("--text", "en", "-o", "it").stderr
    assert "no such file" in run("--text", "en=no.txt", "-o", "it").stderr
    assert "no text to learn from" in run("-o", "it").stderr
    assert run("--text", "en=en.txt").returncode == 2


def test_help_comes_at_once():
    code = (
        "import sys\nsys.argv = ['polyloom', 'data', 'vocab', '--help']\nfrom polyloom.cli import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print([m for m in ('torch', 'tokenizers', 'sentencepiece', 'numpy') if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    assert "Example: polyloom data vocab" in done.stdout


def test_a_recipe_brings_both_sides_of_its_pairs_and_every_language_a_token(run, tmp_path):
    rows = [f"{line}\t{TOY['de'][i % 3]}" for i, line in enumerate(TOY["en"])]
    (tmp_path / "en-de.tsv").write_text("\n".join(rows) + "\n")
    recipe = {
        "backbone": {"config": {"model_type": "m2m_100"}},
        "method": {"name": "full"},
        "languages": ["sw", "de", "en"],
        "tasks": {"mt": {}},
        "data": {
            "train": {"mt/en/de": ["en-de.tsv#en,de"], "mt/de/en": ["en-de.tsv#en,de"], "mt/en/sw": ["en-sw.tsv"]}
        },
    }
    (tmp_path / "en-sw.tsv").write_text(
        "\n".join(f"{line}\tpaka anaona {i}" for i, line in enumerate(TOY["en"])) + "\n"
    )
    (tmp_path / "recipe.yaml").write_text(dump_yaml(recipe))
    done = run("recipe.yaml", "-o", "it", "--size", "70", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert {name: share["available"] for name, share in report["languages"].items()} == {"en": 180, "de": 3, "sw": 180}
    assert report["language_tokens"] == ["sw", "de", "en"]
