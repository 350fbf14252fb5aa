"""What is in corpora, and whether what should worry a person does."""

import json
import random
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from polyloom.conditions import Condition
from polyloom.data.catalog import Corpus, resolve
from polyloom.data.check import Report, check_corpora
from polyloom.data.corpus_stats import CorpusRole, Lengths, Role, text_key
from polyloom.data.records import Bitext, Kind, Pair, Record, Tagged, Text, Tree
from polyloom.data.tokenization.tokenizer import load_tokenizer
from polyloom.errors import DataError
from tests.reliability.forks import peak_memory
from tests.shared import DATA, lines_of, needs_data


class Made(Corpus):
    """A corpus of given records."""

    made: tuple[Record, ...]

    def __init__(self, name: str, *records: Record, **facts: Any) -> None:
        super().__init__(name, Path(name), **facts)
        object.__setattr__(self, "made", records)

    def records(self, kind: Kind, *, direction: tuple[str, str] | None = None) -> Iterator[Record]:
        yield from self.made

    @property
    def sha256(self) -> str:
        return "0" * 64


def tagged(text: str) -> Tagged:
    """Read ``word/TAG word/TAG``."""
    pairs = [word.split("/") for word in text.split()]
    return Tagged(tuple(word for word, _ in pairs), tuple(tag for _, tag in pairs))


def check(*uses: tuple[str, Role, Corpus], **options: Any) -> Report:
    parts = [(Condition.parse(condition), role, corpus) for condition, role, corpus in uses]
    return check_corpora([CorpusRole(one.task, one.source, role, corpus) for one, role, corpus in parts], **options)


def said(report: Report) -> list[str]:
    return [f"{issue.severity}: {issue.what}" for issue in report.issues]


MANY = [tagged(f"w{number}/N runs/V") for number in range(200)]


def test_facts_are_counted():
    corpus = Made("a", tagged("Ali/N gitti/V"), tagged("Gel/V"), tagged("ali/N Gitti/V"), licence="CC0")
    (facts,) = check(("pos/tr", "train", corpus)).corpora
    assert (facts.sentences, facts.duplicates, facts.empty) == (3, 1, 0)
    assert facts.words == Lengths(total=5, mean=5 / 3, median=2, p95=2, longest=2)
    assert facts.labels == {"V": 3, "N": 2}
    assert (facts.licence, facts.language, facts.role, facts.tokens) == ("CC0", "tr", "train", None)


def test_pairs_count_the_words_of_both_texts():
    (facts,) = check(("nli/tr", "train", Made("a", Pair("bir iki", "üç", "yes"), Pair("bir iki üç", "", "no")))).corpora
    assert facts.words.total == 6
    assert facts.labels == {"yes": 1, "no": 1}
    assert facts.empty == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Text("Ali  gitti."), Tagged(("Ali", "gitti", "."), ("N", "V", "P"))),
        (Text("Straße"), Text("STRASSE")),
        (Text("é"), Text("e\u0301")),
        (Tagged(("a", "b"), ("X", "X")), Tree(("a", "b"), (0, 1), ("root", "x"))),
    ],
)
def test_the_same_text_has_the_same_key_however_it_is_written(one, other):
    assert text_key(one) == text_key(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Text("a"), Text("b")),
        (Pair("a", "bc", "x"), Pair("ab", "c", "x")),
        (Text("ı"), Text("i")),
        (Text("é"), Text("e")),
    ],
)
def test_other_texts_have_other_keys(one, other):
    assert text_key(one) != text_key(other)


def test_test_sentences_in_training_are_serious_whatever_their_case_and_spaces():
    train, test = Made("train", *MANY), Made("test", tagged("W7/N RUNS/V"), tagged("new/N"))
    report = check(("pos/tr", "train", train), ("pos/tr", "test", test))
    (overlap,) = report.overlaps
    assert (overlap.name, overlap.other, overlap.count, overlap.share) == ("test", "train", 1, 0.5)
    assert said(report)[0] == "serious: 1 of 2 sentences (50 %) of test are also in train: scores will be skewed."


def test_overlap_is_found_across_languages_and_corpora():
    test = Made("test", *MANY[:3])
    others = [("pos/tr", Made("a", *MANY[3:])), ("pos/az", Made("b", *MANY[:1])), ("pos/kk", Made("c", *MANY[1:2]))]
    report = check(("pos/tr", "test", test), *((where, "train", corpus) for where, corpus in others))
    assert {(overlap.other, overlap.count) for overlap in report.overlaps} == {("b", 1), ("c", 1)}


def test_repeated_test_sentences_count_each_time():
    report = check(
        ("pos/tr", "train", Made("a", *MANY)), ("pos/tr", "test", Made("b", MANY[0], MANY[0], tagged("x/N")))
    )
    assert report.overlaps[0].count == 2


def test_the_choice_of_the_model_by_test_sentences_is_to_be_checked():
    report = check(("pos/tr", "validation", Made("dev", *MANY)), ("pos/tr", "test", Made("test", *MANY[:2])))
    assert said(report) == [
        "check: 2 of 2 sentences (100 %) of test are also in dev: the choice of the model will be skewed."
    ]


def test_text_seen_in_another_task_is_noted():
    text = Made("raw", Text("w1 runs"), Text("w2runs"))
    report = check(("mlm/tr", "train", text), ("pos/tr", "test", Made("test", *MANY)))
    assert said(report) == ["note: sentences whose text is seen in another task: test in raw (2)."]


def test_a_few_short_sentences_that_recur_are_but_a_note():
    report = check(
        ("pos/tr", "train", Made("train", *MANY[:1], tagged("x/N"))), ("pos/tr", "test", Made("test", *MANY))
    )
    assert said(report) == ["note: a few sentences (below 1.0 %) recur: test in train (1)."]


def test_a_file_in_two_roles_is_seen_even_if_what_is_read_of_it_differs():
    # The words of "du" are "de le": as raw text and as words the sentence has two keys.
    text, words = Text("Je viens du bois"), tagged("Je/P viens/V de/A le/D bois/N")
    report = check(("mlm/fr", "train", Made("file", text)), ("pos/fr", "test", Made("file", words)))
    assert text_key(text) != text_key(words)
    assert report.overlaps[0].count == 1
    apart = Made("file", words, start=1, stop=2)
    assert not check(("mlm/fr", "train", Made("file", text, stop=1)), ("pos/fr", "test", apart)).overlaps


def test_labels_that_no_training_corpus_of_the_task_has_are_named():
    train = [("ner/en", Made("en", tagged("a/O b/B-PER"))), ("ner/de", Made("de", tagged("c/O d/B-LOC")))]
    test = Made("test", tagged("e/B-LOC f/B-DATE"))
    report = check(*((where, "train", corpus) for where, corpus in train), ("ner/yo", "test", test))
    assert said(report) == [
        "check: test has labels that no ner training corpus has (50 % of all): B-DATE. They can never be predicted."
    ]
    assert not check(("pos/en", "train", train[0][1]), ("ner/yo", "test", test)).issues  # nothing is known of ner


def test_relations_are_compared_by_what_counts():
    train = Made("train", Tree(("a", "b"), (0, 1), ("root", "nmod")))
    test = Made("test", Tree(("c", "d", "e"), (0, 1, 1), ("root", "nmod:poss", "obl:arg")))
    (issue,) = check(("dep/en", "train", train), ("dep/tr", "test", test)).issues
    assert "obl:arg." in issue.what
    assert "nmod" not in issue.what


def test_labels_that_are_missing_or_all_alike_are_serious():
    report = check(("pos/xx", "train", Made("a", tagged("x/_ y/N"))), ("ner/xx", "test", Made("b", tagged("z/O"))))
    assert said(report) == [
        "serious: 1 of 2 labels of a are missing ('_').",
        "serious: b has only one label, O: is it labelled at all?",
    ]


def test_labels_that_occur_once_in_training_are_noted():
    rare = tagged("x/N y/V z/SYM")
    train = [("pos/tr", Made("a", *MANY, rare)), ("pos/az", Made("b", tagged("x/INTJ")))]
    report = check(*((where, "train", corpus) for where, corpus in train))
    assert said(report)[-1] == "note: labels that occur only once in all training corpora of pos: SYM, INTJ."
    twice = Made("c", tagged("a/SYM b/INTJ"))
    assert "once" not in str(said(check(*((where, "train", c) for where, c in [*train, ("pos/kk", twice)]))))
    assert "once" not in str(said(check(("pos/tr", "train", Made("d", *MANY)), ("pos/tr", "test", Made("e", rare)))))


def test_common_labels_that_a_test_corpus_lacks_are_noted():
    train = Made("train", *MANY, *(tagged("x/ADJ") for _ in range(5)), tagged("x/SYM y/SYM"))
    test = Made("test", *(tagged(f"t{number}/N") for number in range(50)), *(tagged("t/ADJ u/ADJ") for _ in range(25)))
    assert said(check(("pos/tr", "train", train), ("pos/tr", "test", test)))[-2:] == [
        "note: labels that are common in training but never occur in: test (V).",
        "note: repeated sentences: test (32 %).",
    ]
    assert "never occur" not in str(said(check(("ner/tr", "train", train), ("pos/tr", "test", test))))


def test_headers_are_noted_and_suspected(tmp_path):
    rows = "".join(f"w{number}\tN\nx\tV\n\n" for number in range(20))
    (tmp_path / "known.tsv").write_text(f"word\ttag\n{rows}")
    (tmp_path / "unknown.tsv").write_text(f"Wort\tWortart\n{rows}")
    known, unknown = (resolve(f"{tmp_path}/{name}.tsv") for name in ("known", "unknown"))
    report = check(("pos/de", "train", known))
    assert said(report) == [f"note: the first line of {known.name} is a header and is not read as data: word, tag."]
    assert (report.corpora[0].header, report.corpora[0].labels) == ("word\ttag", {"N": 20, "V": 20})
    (suspected,) = said(check(("pos/de", "train", unknown)))
    assert suspected.startswith(
        f"check: the first label of {unknown.name}, 'Wortart', occurs nowhere else: is the first"
    )
    named = resolve(f"{unknown.name}#Wort,Wortart")
    assert check(("pos/de", "train", named)).corpora[0].labels == {"N": 20, "V": 20}


def test_empty_corpora_and_sentences_are_told():
    empty = Made("empty", Tagged((), ()), tagged("x/N y/V"), Tagged((" ", "x"), ("N", "V")))
    report = check(("pos/xx", "train", Made("none")), ("pos/yy", "train", empty))
    assert said(report) == ["serious: none has no sentences.", "check: 2 of 3 sentences of empty have an empty part."]


def test_repetitions_and_licences_are_notes_and_come_last():
    train = Made("a", *MANY[:3], MANY[0], non_commercial=True)
    report = check(("pos/tr", "train", train), ("pos/tr", "test", Made("b", tagged("w1/N Runs/X"))))
    assert [issue.severity for issue in report.issues] == ["serious", "check", "note", "note"]
    assert said(report)[2:] == ["note: repeated sentences: a (25 %).", "note: not for commercial use: a."]


def test_long_lists_are_cut_where_people_read_them():
    corpora = [Made(f"c{number}", tagged(f"w{number}/N x/V"), non_commercial=True) for number in range(10)]
    report = check(*(("pos/tr", "train", corpus) for corpus in corpora))
    assert said(report) == ["note: not for commercial use: c0, c1, c2, c3, c4, c5, c6, c7 and 2 more."]


def test_a_good_corpus_is_nothing_to_worry_about():
    assert not check(("pos/tr", "train", Made("a", *MANY[:50])), ("pos/tr", "test", Made("b", *MANY[50:]))).issues


def test_an_unknown_task_is_an_error():
    with pytest.raises(DataError, match=r"no check for 'posh'\. Did you mean 'pos'"):
        check(("posh/tr", "train", Made("a")))


def test_reports_are_json():
    report = check(("pos/tr", "train", Made("a", *MANY)), ("pos/tr", "test", Made("b", *MANY)))
    assert json.loads(json.dumps(report.to_dict()))["overlaps"][0]["count"] == 200


def test_memory_grows_by_few_bytes_per_sentence(tmp_path):
    class Long(Made):
        def records(self, kind: Kind, *, direction: tuple[str, str] | None = None) -> Iterator[Record]:
            for number in range(self.stop or 0):
                yield Text(
                    f"{number} and so on, and so on, and so on, and so on, and so on, and so on, and so on, and so on"
                )

    def peak(sentences: int) -> int:
        work = partial(check, ("mlm/xx", "train", Long("long", stop=sentences)))
        return peak_memory(work, tmp_path / str(sentences))

    # 16 bytes at rest; arrays grow by an eighth, and hashes are sorted in a copy. A text alone has more than 150.
    assert (peak(12_000) - peak(4_000)) / 8_000 < 40


@needs_data
def test_overlap_of_real_corpora_is_that_of_a_plain_comparison():
    names = {"train": "wikiann:yo/train", "validation": "wikiann:yo/dev", "test": "wikiann:yo/test"}
    corpora = {role: resolve(name, root=DATA) for role, name in names.items()}
    report = check_corpora([CorpusRole("ner", "yo", role, corpus) for role, corpus in corpora.items()])  # type: ignore[arg-type]
    texts = {
        role: ["".join(record.words).casefold() for record in corpus.records("tags") if isinstance(record, Tagged)]
        for role, corpus in corpora.items()
    }
    expected = {
        (names[one], names[other]): sum(text in set(texts[other]) for text in texts[one])
        for one, other in (("validation", "train"), ("test", "train"), ("test", "validation"))
    }
    assert {(overlap.name, overlap.other): overlap.count for overlap in report.overlaps} == expected
    assert expected["wikiann:yo/test", "wikiann:yo/train"] == 8
    for facts, (role, corpus) in zip(report.corpora, corpora.items(), strict=True):
        counted = Counter(tag for record in corpus.records("tags") if isinstance(record, Tagged) for tag in record.tags)
        assert facts.labels == counted
        assert facts.duplicates == len(texts[role]) - len(set(texts[role]))


@needs_data
def test_a_planted_leak_in_a_real_corpus_is_found_exactly(tmp_path):
    lines = lines_of("leipzig:tr", DATA)
    random.Random(0).shuffle(lines)
    (tmp_path / "train.txt").write_text("\n".join(lines[:600]) + "\n")
    (tmp_path / "test.txt").write_text("\n".join(line.replace(" ", "  ") for line in lines[593:]) + "\n")
    train, test = (resolve(str(tmp_path / name)) for name in ("train.txt", "test.txt"))
    (overlap,) = check(("mlm/tr", "train", train), ("mlm/tr", "test", test)).overlaps
    assert overlap.count == 7


@needs_data
def test_pieces_are_counted_as_the_tokenizer_cuts_them(pretrained):
    tokenizer = load_tokenizer(pretrained)
    words, pairs, text = (resolve(name, root=DATA) for name in ("wikiann:yo/test", "americasnli:gn/test", "leipzig:yo"))
    uses = (("ner/yo", "test", words), ("nli/gn", "test", pairs), ("mlm/yo", "train", text))
    of_words, of_pairs, of_text = check(*uses, tokenizer=tokenizer, max_length=64).corpora  # type: ignore[arg-type]
    lengths = [
        sum(map(len, tokenizer.text([record.first, record.second])))
        for record in pairs.records("pair")
        if isinstance(record, Pair)
    ]
    assert of_pairs.tokens
    assert (of_pairs.tokens.total, of_pairs.tokens.longest) == (sum(lengths), max(lengths))
    assert of_pairs.too_long == sum(length + tokenizer.num_special(pair=True) > 64 for length in lengths)
    sentences = [record.words for record in words.records("tags") if isinstance(record, Tagged)]
    assert of_words.tokens
    assert of_words.tokens.total == sum(len(cut.ids) for cut in tokenizer.words(sentences))
    lines = tokenizer.text([record.text for record in text.records("text") if isinstance(record, Text)])
    assert of_text.unknown == sum(line.count(tokenizer.unk_id) for line in lines) > 0


@needs_data
def test_letters_that_the_tokenizer_does_not_know_are_told_per_language(pretrained):
    strange = Made("a", *(Text("𐌰𐌱𐌲 𐌳𐌴") for _ in range(3)))
    report = check(
        ("mlm/got", "train", strange),
        ("mlm/tr", "train", Made("b", Text("bir iki"))),
        tokenizer=load_tokenizer(pretrained),
    )
    assert [issue.what.partition("tokens")[2] for issue in report.issues if issue.severity == "check"] == [
        " of got are unknown: characters are not in the vocabulary."
    ]


def test_a_file_that_serves_both_directions_is_worried_about_once():
    corpus = Made("pairs", Bitext("a", "b"), Bitext("a", "b"), Bitext("c", ""))
    report = check(("mt/en/de", "train", corpus), ("mt/de/en", "train", corpus))
    assert said(report) == [
        "check: 1 of 3 sentences of pairs have an empty part.",
        "note: repeated sentences: pairs (33 %).",
    ]
