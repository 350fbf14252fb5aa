"""BLEU and chrF are sacrebleu's, of a corpus and of every resampling of it, and a signature says which ones."""

import json
import lzma
import sys
from typing import Any

import numpy as np
import pytest
import sacrebleu
from sacrebleu.significance import PairedTest

from polyloom.errors import PolyloomError
from polyloom.metrics.bleu import bleu_statistics, chrf_statistics, tokenizer
from polyloom.metrics.score import BLEU, CHRF, CHRF_WORDS, Score, read_signature, signature
from polyloom.metrics.significance import bootstrap_interval, paired_bootstrap, resampled_sums
from tests.shared import DATA, needs_data

LANGUAGES = [
    "amh", "ara", "cmn", "deu", "ell", "heb", "hin", "jpn", "kat", "khm",
    "kor", "lao", "mya", "rus", "tam", "tha", "tur", "vie", "yue",
]  # fmt: skip
HASH = "0123456789abcdef" * 4
SHORT = ["Yes .", "No", "", "The cat sat on the mat.", "I see  it\n", "Ja, ja, ja, ja, ja!", "Ἔ", "a b c d", "(hi)"]


def theirs(metric, language):
    if metric is BLEU:
        return sacrebleu.BLEU(tokenize=tokenizer(language))
    return sacrebleu.CHRF(word_order=2 if metric is CHRF_WORDS else 0)


def statistics(metric, references, hypotheses, *, language="en"):
    if metric is BLEU:
        return bleu_statistics(references, hypotheses, language=language)
    return chrf_statistics(references, hypotheses, words=2 if metric is CHRF_WORDS else 0)


def score(metric, references, hypotheses, *, language="en"):
    statistics_NP = statistics(metric, references, hypotheses, language=language)
    return Score(
        metric, statistics_NP, signature(metric, statistics_NP, condition=f"mt/x/{language}", corpus="c", sha256=HASH)
    )


def real(language, limit=150):
    with lzma.open(DATA / "mt" / "tatoeba" / f"eng-{language}" / "test.tsv.xz", "rt", encoding="utf-8") as file:
        return [line.rstrip("\n").split("\t")[1] for line in file][:limit]


def spoiled(sentences, *, seed=0, rate=0.7):
    """What a system may answer: right, with words or characters gone or in disorder, nothing, too much, another."""
    rng = np.random.default_rng(seed)
    answers = []
    for sentence in sentences:
        units = sentence.split(" ") if " " in sentence and rng.random() < 0.7 else list(sentence)
        glue = " " if " " in sentence and len(units) < len(sentence) else ""
        ways = [
            glue.join(unit for unit in units if rng.random() < 0.7),
            glue.join(rng.permutation(units)) if units else "",
            "",
            f"{sentence} {sentence}\n",
            sentences[rng.integers(len(sentences))],
            f"\t{sentence.upper()}  ",
        ]
        answers.append(ways[rng.integers(len(ways))] if rng.random() < rate else sentence)
    return answers


@needs_data
@pytest.mark.parametrize("metric", [BLEU, CHRF, CHRF_WORDS], ids=lambda m: m.name)
@pytest.mark.parametrize("language", LANGUAGES)
def test_values_are_those_of_sacrebleu_on_real_text(language, metric):
    references = real(language)
    for seed, rate in ((0, 0.7), (1, 0.2), (2, 1.0)):
        hypotheses = spoiled(references, seed=seed, rate=rate)
        expected = theirs(metric, language).corpus_score(hypotheses, [references]).score
        assert 1 < expected < 99, "else this test shows little"
        assert score(metric, references, hypotheses, language=language).value == pytest.approx(expected, abs=1e-9)
    assert score(metric, references, references, language=language).value == pytest.approx(100, abs=1e-9)


@pytest.mark.parametrize("metric", [BLEU, CHRF, CHRF_WORDS], ids=lambda m: m.name)
def test_values_of_every_resampling_are_those_of_sacrebleu(metric):
    """Of few and short sentences, where whole orders have no match or do not exist."""
    for seed in range(10):
        hypotheses = spoiled(SHORT, seed=seed)
        values = metric.value(resampled_sums(statistics(metric, SHORT, hypotheses), seed, samples=60))
        draws = np.random.default_rng(seed).integers(len(SHORT), size=(60, len(SHORT)))
        scorer = theirs(metric, "en")
        expected = [
            scorer.corpus_score([hypotheses[i] for i in draw], [[SHORT[i] for i in draw]]).score for draw in draws
        ]
        assert values == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("metric", [CHRF, CHRF_WORDS], ids=lambda m: m.name)
def test_orders_that_a_text_is_too_short_for_do_not_count(metric):
    assert score(metric, ["a"], ["a"]).value == theirs(metric, "en").corpus_score(["a"], [["a"]]).score == 100.0


def test_orders_without_a_match_are_smoothed():
    statistics_NP = bleu_statistics(["a b c d e f"], ["a b x d y f"], language="en")
    assert statistics_NP.tolist() == [[4, 1, 0, 0, 6, 5, 4, 3, 6]]
    # 4/6, 1/5, half a match of 4, a quarter of 3
    expected = 100 * (4 / 6 * 1 / 5 * 0.5 / 4 * 0.25 / 3) ** 0.25
    assert BLEU.value(statistics_NP.sum(0)) == pytest.approx(expected)


@pytest.mark.parametrize("metric", [BLEU, CHRF, CHRF_WORDS], ids=lambda m: m.name)
@pytest.mark.parametrize(
    ("references", "hypotheses"),
    [(["a b c d e"], [""]), ([""], ["a b c d e"]), ([""], [""]), (["a b c d"], ["x y z w"])],
)
def test_nothing_in_common_is_zero(metric, references, hypotheses):
    assert score(metric, references, hypotheses).value == 0.0
    assert theirs(metric, "en").corpus_score(hypotheses, [references]).score == 0.0


@pytest.mark.parametrize("metric", [BLEU, CHRF, CHRF_WORDS], ids=lambda m: m.name)
def test_the_last_part_is_the_reference_whatever_is_predicted(metric):
    sizes = [len(s.split() if metric is BLEU else "".join(s.split())) for s in SHORT]
    if metric is BLEU:
        sizes = [2, 1, 0, 7, 3, 10, 1, 4, 3]  # 13a sets punctuation apart
    for hypotheses in (SHORT, spoiled(SHORT), [""] * len(SHORT), ["much more than that"] * len(SHORT)):
        assert statistics(metric, SHORT, hypotheses)[:, -1].tolist() == sizes


@pytest.mark.parametrize("metric", [BLEU, CHRF, CHRF_WORDS], ids=lambda m: m.name)
def test_columns_have_their_names(metric):
    statistics_NP = statistics(metric, ["a b c d e f g", "x"], ["a b c", ""])
    columns = dict(zip(metric.statistics, statistics_NP[0].tolist(), strict=True))
    assert statistics(metric, [], []).shape == (0, len(metric.statistics))
    if metric is BLEU:
        assert columns["right_1"] == columns["predicted_1"] == 3
        assert columns["right_3"] == columns["predicted_3"] == 1
        assert columns["reference"] == 7
    else:
        assert columns["right_characters_2"] == columns["predicted_characters_2"] == 2
        assert (columns["reference_characters_6"], columns["reference_characters_1"]) == (2, 7)
    if metric is CHRF_WORDS:
        assert (columns["right_words_2"], columns["reference_words_2"]) == (2, 6)


def test_fewer_hypotheses_than_references_are_refused():
    with pytest.raises(PolyloomError, match="translations: 2 references and 1 hypotheses"):
        bleu_statistics(["a", "b"], ["a"], language="en")
    with pytest.raises(PolyloomError, match="translations: 1 references and 2 hypotheses"):
        chrf_statistics(["a"], ["a", "b"])


@pytest.mark.parametrize(
    ("tok", "languages"),
    [
        ("13a", "en de tr eng_Latn swh nob zha"),
        ("zh", "zh zho cmn yue zh-TW zh_Hans zho_Hant ZH"),
        ("char", "ja jpn ko kor_Hang th tha lo lao km khm_Khmr my mya bo bod"),
    ],
)
def test_the_target_language_chooses_the_tokenizer_and_the_signature_keeps_it(tok, languages):
    for language in languages.split():
        one = score(BLEU, ["abc."], ["abc."], language=language)
        again = Score.from_dict(json.loads(json.dumps(one.to_dict())))
        assert read_signature(again.signature)["tok"] == tokenizer(language) == tok


def test_signatures_end_with_that_of_sacrebleu():
    for metric in (BLEU, CHRF, CHRF_WORDS):
        scorer = theirs(metric, "de")
        scorer.corpus_score(["a"], [["a"]])
        ours, _, rest = score(metric, ["ein Hund."], ["ein Hund."], language="de").signature.partition("|nrefs")
        assert f"nrefs{rest}" == str(scorer.get_signature())
        assert read_signature(ours)["condition"] == "mt/x/de"
        assert not read_signature(ours).keys() & read_signature(f"nrefs{rest}").keys(), "no field hides another"
    fields = read_signature(score(BLEU, ["ein Hund."], ["ein Hund."], language="de").signature)
    assert fields["units"] == "3"
    assert {"nrefs": "1", "case": "mixed", "eff": "no", "tok": "13a", "smooth": "exp"}.items() <= fields.items()
    fields = read_signature(score(CHRF, ["ein Hund."], ["ein Hund."], language="de").signature)
    assert fields["units"] == "8"
    assert {"nc": "6", "nw": "0", "space": "no", "version": sacrebleu.__version__}.items() <= fields.items()


def test_without_sacrebleu_stored_scores_are_read_and_compared(monkeypatch):
    a, b = (score(BLEU, SHORT, spoiled(SHORT, seed=seed)) for seed in (0, 1))
    stored = [json.dumps(one.to_dict()) for one in (a, b)]
    before = paired_bootstrap(a, b, seed=0)
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    again = [Score.from_dict(json.loads(text)) for text in stored]
    assert [one.value for one in again] == [a.value, b.value]
    assert paired_bootstrap(*again, seed=0) == before
    assert bootstrap_interval(again[0], 0).low <= a.value
    for count in (lambda: bleu_statistics(["a"], ["a"], language="en"), lambda: chrf_statistics(["a"], ["a"])):
        with pytest.raises(PolyloomError, match=r"sacrebleu is not installed. pip install 'polyloom\[train\]'"):
            count()


@needs_data
@pytest.mark.parametrize("metric", [BLEU, CHRF], ids=lambda m: m.name)
def test_paired_comparison_is_that_of_sacrebleu(metric):
    """With its seed our draws are its draws, so that its p-value follows from our sums.

    It counts differences that chance makes larger, we also count those that it makes smaller: where a difference is
    more than a trifle, our p-value is about twice as large (to 0.02).
    """
    references = real("deu", limit=400)
    base, ours = (spoiled(references, seed=seed, rate=rate) for seed, rate in ((0, 0.30), (1, 0.17)))
    a, b = score(metric, references, ours), score(metric, references, base)
    test = PairedTest(
        [("base", base), ("ours", ours)], {"M": theirs(metric, "en")}, [references], test_type="bs", n_samples=1000
    )
    results: Any = test()[1]
    ((first, second),) = [pair for name, pair in results.items() if name != "System"]
    found = paired_bootstrap(a, b, seed=12345, samples=1000)
    assert found.difference == pytest.approx(second.score - first.score, abs=1e-9)

    values = [metric.value(resampled_sums(one.statistics_NP, 12345, samples=1000)) for one in (a, b)]
    assert values[0].mean() == pytest.approx(second.mean, abs=1e-4), "sacrebleu resamples in single precision"
    sizes = np.abs(values[0] - values[1])
    larger = sizes - sizes.mean() > abs(found.difference)
    assert (larger.sum() + 1) / 1001 == pytest.approx(second.p_value, abs=1.1 / 1001)
    assert 0.001 < second.p_value < 0.1, "else this test shows little"
    assert found.p_value == pytest.approx(2 * second.p_value, abs=0.02)
