"""The artificial family: the same everywhere, related as its tree says, contradictory where it should be."""

import os
import re
import subprocess
import sys
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import astuple
from functools import cache
from itertools import chain, combinations

import numpy as np
import pytest

from polyloom.cli import main
from polyloom.conditions import Condition
from polyloom.data.catalog import resolve
from polyloom.data.check import check_corpora
from polyloom.data.corpus_stats import CorpusRole, Role
from polyloom.data.readers.conllu import read_conllu
from polyloom.data.records import Bitext, Tagged, Text, Tree
from polyloom.data.synthetic import Family
from polyloom.data.synthetic.corpus import SIZES
from polyloom.data.synthetic.dice import Dice
from polyloom.data.synthetic.evolution import SUFFIXES, WORDS, stepped
from polyloom.data.synthetic.meaning import concepts_of
from polyloom.data.synthetic.render import Sentence
from polyloom.data.synthetic.sounds import changed, spelled
from polyloom.errors import DataError

FAMILY = Family()
NAMES = FAMILY.names
PAIRS = list(combinations(NAMES, 2))
GOLDEN_TREE = (
    "(((((boza:2,beva:3):0,beru:3):3,bame:4):1,baru:6):4,(kepa:3,(kumi:4,kite:4):1):6,"
    "((neno:2,nina:3):2,nivu:3):8,togu:10);"
)
GOLDEN_HASHES = ["8b45ac8fd9c86c1c", "dca77ea178306022"]
ROLES: dict[str, Role] = {"train": "train", "dev": "validation", "test": "test"}
PRINT_HASHES = """
from polyloom.data.catalog import resolve
for name in ("boza/dev", "kepa/test", "neno/dev#ner", "togu-boza/test"):
    print(name, resolve(f"synthetic:{name}").sha256)
"""


@cache
def said(language: str, split: str = "test") -> tuple[Sentence, ...]:
    speaker = FAMILY.speaker(language)
    return tuple(speaker.say(FAMILY.meaning(split, index)) for index in range(SIZES[split]))


def grams(word: str) -> set[str]:
    padded = f"<{word}>"
    return {padded[at : at + 2] for at in range(len(padded) - 1)}


def likeness(one: str, other: str, family: Family = FAMILY) -> float:
    """How much the words for the same concepts have in common, as they sound: Dice's coefficient of letter pairs."""
    lexicons = [family.state(language).lexicon for language in (one, other)]
    kinds = ("noun", "verb", "adjective", "adverb", "name")
    words = ([grams(word) for kind in kinds for word in lexicon[kind]] for lexicon in lexicons)
    return float(np.mean([2 * len(a & b) / (len(a) + len(b)) for a, b in zip(*words, strict=True)]))


def rank_correlation(*columns: Sequence[float]) -> float:
    """Spearman's, with mean ranks for ties."""
    ranks = [np.sign(np.subtract.outer(values, values)).sum(1) for values in columns]
    return float(np.corrcoef(ranks)[0, 1])


def test_what_is_generated_never_changes():
    """Runs continue by it and published figures rest on it; a new version of the generator is a new family."""
    assert FAMILY.tree() == GOLDEN_TREE
    assert resolve("synthetic:boza/dev").sha256.startswith(GOLDEN_HASHES[0])
    assert resolve("synthetic:kepa/test").sha256.startswith(GOLDEN_HASHES[1])


def test_other_processes_generate_the_same_bytes():
    answers = set()
    for seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": seed}
        answers.add(subprocess.check_output([sys.executable, "-c", PRINT_HASHES], env=environment, text=True))
    here = {name: resolve(f"synthetic:{name}").sha256 for name in ("boza/dev", "kepa/test", "togu-boza/test")}
    assert len(answers) == 1
    assert dict(line.split() for line in answers.pop().splitlines()).items() >= here.items()


def test_a_sentence_depends_on_nothing_that_was_said_before():
    forth = [Family().sentence("bame", "train", index) for index in range(30)]
    back = [Family().sentence("bame", "train", index) for index in reversed(range(30))]
    assert forth == back[::-1] == list(said("bame", "train")[:30])
    assert Family(seed=1).tree() != FAMILY.tree()


def test_the_same_place_means_the_same_in_all_languages_and_its_words_are_those_of_its_concepts():
    for language in NAMES:
        lexicon, script = FAMILY.state(language).lexicon, FAMILY.speaker(language).script
        for index, sentence in enumerate(said(language)[:50]):
            content = [tag for tag in sentence.upos if tag in ("NOUN", "VERB", "ADJ", "ADV", "NUM", "PROPN")]
            meant = list(concepts_of(FAMILY.meaning("test", index)))
            assert len(content) == len(meant)
            for kind, number in meant:
                root = spelled(lexicon[kind][number], script, capital=False)
                assert any(word.lower().startswith(root) for word in sentence.words)


@pytest.mark.parametrize("split", SIZES)
def test_what_every_language_must_say_all_say_equally_often(split):
    for sentences in zip(*(said(language, split)[:200] for language in NAMES), strict=True):
        tags = [Counter(sentence.upos) for sentence in sentences]
        for tag in ("NOUN", "PROPN", "VERB", "ADJ", "ADV", "NUM", "CCONJ", "SCONJ", "PUNCT"):
            assert len({counts[tag] for counts in tags}) == 1
        starts = [Counter(tag for tag in sentence.entities if tag[0] == "B") for sentence in sentences]
        assert all(entities == starts[0] for entities in starts)
        relations = [Counter(sentence.relations) for sentence in sentences]
        for relation in ("root", "obj", "obl", "nmod", "amod", "nummod", "conj", "cc", "ccomp", "flat", "compound"):
            assert len({counts[relation] for counts in relations}) == 1


def test_splits_share_no_meaning_and_no_sentence_in_any_language():
    meanings = {split: {FAMILY.meaning(split, index) for index in range(size)} for split, size in SIZES.items()}
    for one, other in combinations(meanings.values(), 2):
        assert not one & other
    texts = {split: {s.text.lower() for name in NAMES for s in said(name, split)} for split in SIZES}
    for ours, others in combinations(texts.values(), 2):
        assert not ours & others


@pytest.mark.parametrize("language", NAMES)
def test_trees_are_trees_by_our_reader_of_treebanks(language, tmp_path):
    text = ""
    for s in said(language):
        rows = enumerate(zip(s.words, s.upos, s.heads, s.relations, strict=True), start=1)
        text += "".join(f"{i}\t{w}\t_\t{u}\t_\t_\t{h}\t{r}\t_\t_\n" for i, (w, u, h, r) in rows) + "\n"
    (tmp_path / "x.conllu").write_text(text)
    read = [
        sentence.tree() for sentence in read_conllu(tmp_path / "x.conllu")
    ]  # raises unless there is one root and no circle
    assert read == list(resolve(f"synthetic:{language}/test").records("tree"))
    for tree in read:
        arcs = [tuple(sorted(arc)) for arc in enumerate(tree.heads, start=1) if arc[1]]
        assert not any(a < c < b < d for a, b in arcs for c, d in arcs)  # no two cross
        assert tree.relations[tree.heads.index(0)] == "root"


@pytest.mark.parametrize("language", NAMES)
def test_entities_are_whole_and_are_names(language):
    for sentence in said(language):
        before = "O"
        for tag, upos in zip(sentence.entities, sentence.upos, strict=True):
            assert (tag != "O") == (upos == "PROPN")
            assert tag[0] != "I" or before[1:] == tag[1:]
            before = tag
    kinds = set(chain.from_iterable(sentence.entities for sentence in said(language, "train")))
    assert kinds == {"O", "B-PER", "I-PER", "B-LOC", "B-ORG", "I-ORG"}


def test_one_branch_is_written_in_another_script():
    for language in NAMES:
        letters = {letter for sentence in said(language) for letter in "".join(sentence.words) if letter.isalpha()}
        scripts = {unicodedata.name(letter).split()[0] for letter in letters}
        assert scripts == ({"CYRILLIC"} if FAMILY.groups()[language] == "kepa" else {"LATIN"})


def test_no_two_words_of_a_language_sound_alike():
    for language in Family(languages=48).names:
        lexicon = Family(languages=48).state(language).lexicon
        words = [word for kind, forms in lexicon.items() if kind != "suffix" for word in forms]
        assert len(words) == len(set(words))
        assert len(lexicon["suffix"]) == len(set(lexicon["suffix"]))
        assert all(re.search("[aeiou]", word) for word in words)


def test_sound_changes_are_regular():
    """Names are never replaced nor shifted: but for those that came to sound like another word, all change alike."""
    state = FAMILY.state("togu")
    for roll in range(10):
        after = stepped(state, Dice(roll))
        expected = [changed(name, after.changes[-1]) for name in state.lexicon["name"]]
        same = sum(a == b for a, b in zip(after.lexicon["name"], expected, strict=True))
        assert same >= 0.95 * len(expected)


def newick_paths(text: str) -> dict[str, set[tuple[int, int]]]:
    """Each leaf with its way to the root: of each edge, which one and how long."""
    opened: list[list[str]] = [[]]
    below: list[str] = []
    ways: dict[str, set[tuple[int, int]]] = {}
    for number, token in enumerate(re.findall(r"\(|\)|[a-z]+|:\d+", text)):
        if token == "(":
            opened.append([])
        elif token[0] == ":":
            for leaf in below:
                ways[leaf].add((number, int(token[1:])))
        else:
            below = opened.pop() if token == ")" else [token]
            opened[-1] += below
            ways |= {token: set()} if token != ")" else {}
    return ways


@pytest.mark.parametrize("family", [FAMILY, Family(3, 25)], ids=["usual", "larger"])
def test_distances_are_those_of_the_tree(family):
    ways = newick_paths(family.tree())
    assert ways.keys() == set(family.names)
    for one, other in combinations(family.names, 2):
        path = ways[one] ^ ways[other]
        assert family.distance(one, other) == family.distance(other, one) == sum(length for _, length in path)
    assert all(family.distance(name, name) == 0 for name in family.names)


def test_branches_are_four_of_unequal_size_and_relatives_are_closer_than_strangers():
    groups = FAMILY.groups()
    assert sorted(Counter(groups.values()).values()) == [1, 3, 3, 5]
    near = [FAMILY.distance(*pair) for pair in PAIRS if groups[pair[0]] == groups[pair[1]]]
    far = [FAMILY.distance(*pair) for pair in PAIRS if groups[pair[0]] != groups[pair[1]]]
    assert max(near) < min(far)
    assert len({lineage.until for lineage in FAMILY.lineages}) > 2


def test_a_larger_family_holds_the_smaller_one_unchanged():
    large = Family(languages=20)
    assert large.names[:12] == NAMES
    assert all(large.state(name) == FAMILY.state(name) for name in NAMES)
    assert all(large.distance(*pair) == FAMILY.distance(*pair) for pair in PAIRS)
    assert all(str(Condition("pos", name)) == f"pos/{name}" for name in large.names)


@pytest.mark.parametrize("seed", range(4))
def test_words_are_the_less_alike_the_farther_apart_their_languages(seed):
    family = Family(seed)
    pairs = list(combinations(family.names, 2))
    distances = [family.distance(*pair) for pair in pairs]
    likenesses = [likeness(*pair, family=family) for pair in pairs]
    assert rank_correlation(distances, likenesses) < -0.55
    close, middle, far = (
        np.mean([like for like, distance in zip(likenesses, distances, strict=True) if low <= distance < high])
        for low, high in ((0, 8), (8, 15), (15, 99))
    )
    assert close > middle > far + 0.1


def test_grammars_are_the_less_alike_the_farther_apart_their_languages():
    grammars = {name: astuple(FAMILY.state(name).grammar) for name in NAMES}
    alike = [sum(a == b for a, b in zip(grammars[x], grammars[y], strict=True)) for x, y in PAIRS]
    assert rank_correlation([FAMILY.distance(*pair) for pair in PAIRS], alike) < -0.4


def tagger_of(language: str) -> Callable[[str], str]:
    """By whole words, else by the longest ending that is known."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for sentence in said(language, "train"):
        for word, tag in zip(sentence.words, sentence.upos, strict=True):
            for at in range(len(word) + 2):
                counts[f"^{word}"[at:]][tag] += 1
    best = {part: tags.most_common(1)[0][0] for part, tags in counts.items()}
    return lambda word: next(best[part] for at in range(len(word) + 2) if (part := f"^{word}"[at:]) in best)


def test_what_is_learned_from_a_language_serves_its_relatives_more_than_strangers():
    """A tagger that knows nothing but words and endings: 97, 72 and 35 % right on itself, relatives and strangers."""
    latin = [language for language in NAMES if FAMILY.groups()[language] != "kepa"]
    scores = {}
    for source in latin:
        tag_of = tagger_of(source)
        for target in latin:
            words = [pair for s in said(target) for pair in zip(s.words, s.upos, strict=True)]
            scores[source, target] = float(np.mean([tag_of(word) == tag for word, tag in words]))
    itself = [score for (one, other), score in scores.items() if one == other]
    pairs = [pair for pair in scores if pair[0] != pair[1]]
    relatives = [scores[pair] for pair in pairs if FAMILY.groups()[pair[0]] == FAMILY.groups()[pair[1]]]
    strangers = [scores[pair] for pair in pairs if FAMILY.groups()[pair[0]] != FAMILY.groups()[pair[1]]]
    assert np.mean(itself) > np.mean(relatives) + 0.05 > np.mean(strangers) + 0.15
    assert rank_correlation([FAMILY.distance(*pair) for pair in pairs], [scores[pair] for pair in pairs]) < -0.6


def test_the_same_word_is_of_another_class_in_another_language():
    counts: dict[str, dict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    for language in NAMES:
        for sentence in said(language, "train")[:1000]:
            for word, tag in zip(sentence.words, sentence.upos, strict=True):
                counts[word.lower()][language][tag] += 1
    usual = [{tags.most_common(1)[0][0] for tags in by.values()} for by in counts.values()]
    assert sum(len(tags) > 1 for tags in usual) > 60
    total = sum(tags.total() for by in counts.values() for tags in by.values())
    told = sum(tags.most_common(1)[0][1] for by in counts.values() for tags in by.values())
    blind = sum(sum(by.values(), Counter()).most_common(1)[0][1] for by in counts.values())
    assert (total - blind) / total > 2 * (total - told) / total  # who ignores the language errs twice as often


def test_the_same_suffix_and_the_same_particle_mean_something_else_in_another_branch():
    for kind, names in (("suffix", SUFFIXES), ("word", WORDS)):
        uses: dict[str, set[str]] = defaultdict(set)
        for language in NAMES:
            for form, use in zip(FAMILY.state(language).lexicon[kind], names, strict=True):
                uses[form].add(use)
        assert sum(len(found) > 1 for found in uses.values()) >= 8
    suffixes = [dict(zip(FAMILY.state(x).lexicon["suffix"], SUFFIXES, strict=True)) for x in NAMES]
    assert any(a.get(form) == "plural" and b.get(form) == "object" for a in suffixes for b in suffixes for form in a)


def test_the_order_of_subject_and_object_is_opposed_where_nothing_else_tells_them():
    share = {}
    for language in NAMES:
        if FAMILY.state(language).grammar.case == "order":
            first = [
                sentence.relations.index("nsubj") < sentence.relations.index("obj")
                for sentence in said(language, "train")
                if {"nsubj", "obj"} <= set(sentence.relations) and "ccomp" not in sentence.relations
            ]
            share[language] = np.mean(first)
    assert {0.0, 1.0} <= set(share.values())


def test_names_lead_to_records_of_every_kind():
    corpus = resolve("synthetic:neno/test[10:20]")
    assert (corpus.task, corpus.language, corpus.split) == ("pos", "neno", "test")
    assert (corpus.licence, corpus.non_commercial) == ("CC0-1.0", False)
    sentences = said("neno")[10:20]
    assert list(corpus.records("tags")) == [Tagged(s.words, s.upos) for s in sentences]
    assert list(corpus.records("tree")) == [Tree(s.words, s.heads, s.relations) for s in sentences]
    assert list(corpus.records("text")) == [Text(s.text) for s in sentences]
    entities = resolve("synthetic:neno/test#ner[10:20]")
    assert entities.task == "ner"
    assert list(entities.records("tags")) == [Tagged(s.words, s.entities) for s in sentences]
    assert resolve("synthetic:neno/test").sha256 == corpus.sha256 != resolve("synthetic:neno/dev").sha256


def test_translations_mean_the_same_in_both_directions():
    forth, back = resolve("synthetic:boza-kepa/test"), resolve("synthetic:kepa-boza/test")
    pairs = [Bitext(a.text, b.text) for a, b in zip(said("boza"), said("kepa"), strict=True)]
    assert (forth.task, forth.language, forth.languages) == ("mt", None, ("boza", "kepa"))
    assert list(forth.records("bitext")) == list(back.records("bitext", direction=("boza", "kepa"))) == pairs
    assert list(back.records("bitext")) == [Bitext(pair.target, pair.source) for pair in pairs]
    assert forth.sha256 == back.sha256 != resolve("synthetic:boza-neno/test").sha256


@pytest.mark.parametrize(
    ("name", "kind", "what"),
    [
        ("synthetic:bozza/train", "tags", "no language 'bozza'. Did you mean 'boza'? Known: boza, kepa"),
        ("synthetic:boza", "tags", "which split? Known: train, dev, test. Write synthetic:LANGUAGE/SPLIT."),
        ("synthetic:boza/tset", "tags", "which split? Did you mean 'test'?"),
        ("synthetic:boza-boza/train", "bitext", "one language is needed, or two for translations."),
        ("synthetic:boza-kepa-neno/train", "bitext", "one language is needed, or two for translations."),
        ("synthetic:boza/train#pos", "tags", "only #ner can follow"),
        ("synthetic:boza-kepa/train#ner", "tags", "only #ner can follow"),
        ("synthetic:boza/test[:201]", "tags", "there are fewer examples than the slice asks for."),
        ("synthetic:boza/test", "bitext", "no records of kind 'bitext'. Known: tags, tree, text."),
        ("synthetic:boza-kepa/test", "tags", "no records of kind 'tags'. Known: bitext."),
        ("synthetci:boza/test", "tags", "unknown collection 'synthetci'. Did you mean 'synthetic'?"),
    ],
)
def test_mistakes_are_explained(name, kind, what):
    with pytest.raises(DataError) as caught:
        list(resolve(name).records(kind))
    assert str(caught.value).startswith(name.partition("[")[0])
    assert what in str(caught.value)


def test_mistakes_in_families_are_explained():
    with pytest.raises(DataError, match="synthetic: a family has 1 to 100 languages, not 0"):
        Family(languages=0)
    with pytest.raises(DataError, match=r"synthetic:xyz: no such language\. Known: boza"):
        FAMILY.sentence("xyz", "test", 0)


def test_our_check_finds_nothing_to_worry_about():
    uses = []
    for task, end in (("pos", ""), ("ner", "#ner"), ("dep", ""), ("mlm", "")):
        for language in ("kepa", "nina", "togu"):
            for split, role in ROLES.items():
                uses.append(CorpusRole(task, language, role, resolve(f"synthetic:{language}/{split}{end}")))
    for pair in ("kepa-nina", "nina-togu"):
        for split, role in ROLES.items():
            uses.append(CorpusRole("mt", pair.replace("-", "/"), role, resolve(f"synthetic:{pair}/{split}")))
    uses.append(CorpusRole("mt", "kepa/togu", "test", resolve("synthetic:kepa-togu/test")))  # zero-shot
    report = check_corpora(uses)
    assert {issue.severity for issue in report.issues} <= {"note"}
    assert all(facts.duplicates <= 0.01 * facts.sentences for facts in report.corpora)


def test_the_command_checks_them_without_a_data_root(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("POLYLOOM_DATA", str(tmp_path / "none"))
    names = ["synthetic:boza/train", "synthetic:boza/test", "synthetic:boza-kepa/dev"]
    monkeypatch.setattr(sys, "argv", ["polyloom", "data", "check", "--strict", *names])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert "synthetic:boza/train" in capsys.readouterr().out
