"""``polyloom predict`` as its users meet it: a filter."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from polyloom.cli import main
from polyloom.config import load_recipe
from polyloom.workflows.run import Run
from polyloom.workflows.train import train_recipe
from tests.shared import start_command
from tests.tiny_run import pos_tag, sentences, tiny_recipe

TASKS = ("mlm", "pos", "ner", "dep", "nli")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("world")


@pytest.fixture(scope="module")
def trained(world: Path) -> Path:
    recipe = tiny_recipe(world, tasks=TASKS, mixture={"datasets_per_batch": 8})  # five tasks need many cells at a time
    train_recipe(load_recipe(recipe), world / "run")
    return world / "run"


@pytest.fixture
def predict(trained: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]):
    def run_here(*arguments: str, stdin: str | bytes) -> tuple[int, str, str]:
        content = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        monkeypatch.setattr(sys, "argv", ["polyloom", "predict", str(trained), *arguments])
        capsysbinary.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsysbinary.readouterr()
        return int(ended.value.code or 0), out.decode(), err.decode()

    return run_here


def agreement(one: str, other: str) -> float:
    pairs = list(zip(one.split("\n"), other.split("\n"), strict=True))
    return sum(a == b for a, b in pairs) / len(pairs)


@pytest.mark.parametrize("language", ["aa", "bb"])
def test_a_treebank_gets_its_tags_and_trees_back(predict, world, language):
    gold = (world / f"{language}-test.conllu").read_text()
    for task, column in (("pos", 3), ("dep", 6)):
        lines = [line.split("\t") for line in gold.split("\n")]
        blank = "\n".join(
            "\t".join([*datasets[:column], "_", *datasets[column + 1 :]]) if len(datasets) == 10 else datasets[0]
            for datasets in lines
        )
        code, out, err = predict(f"{task}/{language}", "--input", "conllu", stdin=blank)
        assert (code, err) == (0, "")
        assert agreement(out, gold) > 0.9, "the languages contradict each other: half would be right by chance"


@pytest.mark.parametrize("language", ["aa", "bb"])
def test_text_gets_its_entities_and_pairs_their_labels(predict, world, language):
    text = "".join(f"{' '.join(words)}\n" for words in sentences("test"))
    code, out, _ = predict(f"ner/{language}", stdin=text)
    assert code == 0
    assert agreement(out, (world / f"{language}-test.tsv").read_text()) > 0.9
    pairs = [line.rpartition("\t") for line in (world / f"{language}-test.pairs.tsv").read_text().splitlines()]
    code, out, _ = predict(f"nli/{language}", stdin="".join(f"{pair}\n" for pair, _, _ in pairs))
    assert code == 0
    assert len(out.splitlines()) == len(pairs)
    assert set(out.splitlines()) <= {"entailment", "contradiction"}


def test_answers_are_those_of_the_evaluation(predict, trained, world):
    """What is predicted scores exactly as `evaluate` says."""
    run = Run.load(trained)
    for task, column in (("pos", 3), ("dep", 6)):
        name = f"{task}/cc"
        gold = (world / "cc-test.conllu").read_text()
        _, out, _ = predict(name, "--input", "conllu", stdin=gold)
        pairs = [
            (a.split("\t")[column : column + 2], b.split("\t")[column : column + 2])
            for a, b in zip(gold.split("\n"), out.split("\n"), strict=True)
            if "\t" in a
        ]
        right = 100 * sum(a == b for a, b in pairs) / len(pairs)
        (result,) = run.evaluate({name: [str(world / "cc-test.conllu")]}).results.values()
        assert result.scores[0].value == pytest.approx(right)


def test_empty_input_has_an_empty_answer(predict):
    assert predict("pos/aa", stdin="") == (0, "", "")
    assert predict("pos/aa", stdin="\n\n") == (0, "\n\n", "")


def test_json_keeps_what_it_knows(predict):
    _, out, _ = predict("dep/aa", "--input", "jsonl", stdin='{"id": "é", "words": ["ba", "do"]}\n')
    found = json.loads(out)
    assert (found["id"], found["words"], found["heads"]) == ("é", ["ba", "do"], [0, 1])
    assert "é" in out


@pytest.mark.parametrize(
    ("arguments", "stdin", "says"),
    [
        (["pos/ab"], "ba\n", "unknown language 'ab'. Known: aa, bb, cc."),
        (["ops/aa"], "ba\n", "Did you mean 'pos'?"),
        (["pos"], "ba\n", "expected task/language"),
        (["mlm/aa"], "ba\n", "polyloom evaluate measures it (perplexity)"),
        (["ner/aa", "--format", "conllu"], "ba\n", "cannot hold predictions of ner"),
        (["pos/aa"], b"\xff\n", "stdin:1: not UTF-8"),
        (["pos/aa"], b"a\0\n", "stdin:1: a NUL character"),
        (["pos/aa"], b"a" * 1_000_000, "stdin:1: a sentence of 1 words and 1,000,000 letters"),
        (["dep/aa"], b"a " * 50_000, "stdin:1: a sentence of 50,000 words"),
        (["nli/aa"], b"ba do\n", "stdin:1: 1 column, not 2"),
    ],
)
def test_mistakes_are_one_paragraph(predict, arguments, stdin, says):
    code, out, err = predict(*arguments, "--strict", stdin=stdin)
    assert (code, out) == (1, "")
    assert says in err
    assert len(err.splitlines()) == 1
    code, out, err = predict(*arguments, stdin=stdin)
    assert (code, out.strip()) == (1, ""), "there was no other input"
    assert says in err
    assert len(err.splitlines()) == 1


BAD_LINES = {
    "NUL": b"ba\0do",
    "not UTF-8": b"ba \xff do",
    "50,001 letters": b"b" * 50_001,
    "2,001 words": b"ba " * 2_001,
    "2 MB": b"ba " * 700_000,
}


@pytest.mark.parametrize("task", ["pos", "ner", "dep"])
@pytest.mark.parametrize("form", ["columns", "jsonl"])
def test_31_of_31_lines_around_a_bad_one_are_answered_as_without_it(predict, task, form):
    good = [" ".join(words).encode() for words in sentences("test")[:31]]
    options = (f"{task}/aa", "--format", form)
    code, alone, err = predict(*options, stdin=b"\n".join(good))
    assert (code, err) == (0, "")
    end = "\n" if form == "jsonl" else "\n\n"
    answers = alone.split(end)[:-1]
    for place, bad in zip((0, 7, 13, 30, 31), BAD_LINES.values(), strict=True):
        code, out, err = predict(*options, stdin=b"\n".join([*good[:place], bad, *good[place:]]))
        assert code == 0
        assert err.startswith(f"polyloom: 1 input was not predicted. The first: stdin:{place + 1}: ")
        before, behind = end.join(["", *answers[:place]])[len(end) :], end.join([*answers[place:], ""])
        before += end if place else ""
        assert out.startswith(before)
        assert out.endswith(behind)
        between = out[len(before) : len(out) - len(behind)]
        assert between == "\n" if form == "columns" else json.loads(between).keys() == {"error"}


def test_bad_json_lines_keep_their_fields_and_their_places(predict):
    good = [{"condition": f"pos/{x}", "words": words, "id": i} for i, (x, words) in enumerate(
        (("aa", "bb")[i % 2], words) for i, words in enumerate(sentences("test")[:31]))]  # fmt: skip
    _, alone, _ = predict(stdin="".join(json.dumps(line) + "\n" for line in good))
    bad = [
        '{"id": -1, "condition": "pos/xx", "words": ["ba"]}', '{"id": -1, "condition": "ops/aa", "words": ["ba"]}',
        '{"id": -1, "condition": "nothing", "words": ["ba"]}', '{"id": -1, "words": ["ba"]}',
        '{"id": -1, "condition": "pos/aa", "words": ["\\ud800"]}',
        '{"id": -1, "condition": "pos/aa", "words": ["\\u0000"]}',
        json.dumps({"id": -1, "condition": "dep/aa", "words": ["ba"] * 2001}),
        json.dumps({"id": -1, "condition": "pos/aa", "text": "b" * 50_001}),
        '{"id": -1, "condition": "mlm/aa", "words": ["ba"]}', '{"id": -1, "condition": "pos/aa"}',
    ]  # fmt: skip
    lines = [json.dumps(line) for line in good]
    for number, line in enumerate(bad):
        lines.insert(4 * number, line)
    code, out, err = predict(stdin="".join(f"{line}\n" for line in lines))
    made = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert err.startswith("polyloom: 10 inputs were not predicted. The first: stdin:1: ")
    assert [line for line in made if line["id"] >= 0] == [json.loads(line) for line in alone.splitlines()]
    assert [number for number, line in enumerate(made) if "error" in line] == list(range(0, 40, 4))
    assert all(line["error"].startswith(f"stdin:{number + 1}: ") for number, line in enumerate(made) if "error" in line)
    code, out, err = predict("--strict", stdin="".join(f"{line}\n" for line in lines))
    assert (code, out) == (1, "")
    assert "unknown language 'xx'" in err


def test_what_is_cut_is_said_once(predict):
    long = f"{'ba ' * 100}\t{'do ' * 100}\n"
    code, out, err = predict("nli/aa", stdin=f"ba\tdo\n{long}{long}")
    assert (code, out.count("\n")) == (0, 3)
    assert err == "polyloom: 2 inputs were longer than 64 tokens and cut (nli/aa: 2).\n"
    _, _, err = predict("pos/aa", stdin=f"{'ba ' * 1000}\n{'b' * 100}\n")
    assert err == "polyloom: 1 input was longer than 64 tokens and cut (pos/aa: 1).\n", "one word; sentences are not"


def test_long_sentences_are_answered(predict):
    _, out, _ = predict("pos/aa", stdin="ba " * 2000)
    assert out.count("\n") == 2001
    _, out, _ = predict("pos/aa", stdin="b" * 50_000)
    assert out.count("\n") == 2
    _, out, _ = predict("dep/aa", stdin="ba " * 300)
    assert out.count("\n") == 302
    code, out, _ = predict("nli/aa", stdin=f"{'ba ' * 100_000}\t{'do ' * 100_000}\n")
    assert (code, out.count("\n")) == (0, 1)


def test_who_waits_gets_an_answer_and_may_leave_early(trained, predict):
    words = ("ba", "do", "fi")
    answers = predict("pos/aa", stdin="\n".join(words))[1].split("\n\n")
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with start_command("predict", trained, "pos/aa", **pipes) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        for word, answer in zip(words, answers, strict=False):
            process.stdin.write(f"{word}\n")
            process.stdin.flush()
            assert answer.startswith(f"{word}\t")
            assert process.stdout.readline() == f"{answer.strip()}\n"
            assert process.stdout.readline() == "\n"
        process.stdout.close()
        process.stdin.write("ba do\n" * 1000)
        process.stdin.close()
        assert process.stderr.read() == ""


def test_lines_of_one_stream_name_their_own_conditions(predict):
    """The languages contradict each other: under one condition for all, half of the tags would be wrong."""
    lines = [(language, words) for words in sentences("test") for language in ("aa", "bb")]
    stdin = "".join(json.dumps({"condition": f"pos/{x}", "words": words}) + "\n" for x, words in lines)
    code, out, err = predict(stdin=stdin)
    assert (code, err) == (0, "")
    made = [json.loads(line) for line in out.splitlines()]
    assert [(line["condition"], line["words"]) for line in made] == [(f"pos/{x}", words) for x, words in lines]
    right = [
        pos_tag(x, w) == tag
        for (x, _), line in zip(lines, made, strict=True)
        for w, tag in zip(line["words"], line["labels"], strict=True)
    ]
    assert sum(right) / len(right) > 0.9
    code, _, err = predict(stdin='{"words": ["ba"]}\n')
    assert code != 0
    assert "stdin:1" in err
    code, _, err = predict(stdin='{"condition": "pos/xx", "words": ["ba"]}\n')
    assert code != 0
    assert "unknown language 'xx'" in err


def test_predictions_come_with_their_probabilities(predict):
    words = ["ba", "do", "fi"]
    for task in ("pos", "ner", "dep"):
        stdin = json.dumps({"words": words}) + "\n\n"
        code, plain, _ = predict(f"{task}/aa", "--input", "jsonl", stdin=stdin)
        code, out, err = predict(f"{task}/aa", "--input", "jsonl", "--scores", stdin=stdin)
        assert (code, err) == (0, "")
        made = [json.loads(line) for line in out.splitlines()]
        shares = made[0].pop("scores")
        assert made == [json.loads(line) for line in plain.splitlines()]
        assert len(shares) == len(words)
        assert all(0 < share <= 1 for share in shares)
        assert min(shares) > 0.4, "it has learnt this"
    pair = json.dumps({"premise": "ba", "hypothesis": "do"}) + "\n"
    _, out, _ = predict("nli/aa", "--input", "jsonl", "--scores", stdin=pair)
    assert 0.5 <= json.loads(out)["score"] <= 1
    code, _, err = predict("pos/aa", "--scores", stdin="ba\n")
    assert code != 0
    assert "--format jsonl" in err
