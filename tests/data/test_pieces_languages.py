"""Tokens of languages and text back, with the tokenizers of translation models as Transformers makes them."""

import io
import json
import warnings

import pytest
import sentencepiece
from transformers import (
    AutoTokenizer,
    M2M100Tokenizer,
    MarianTokenizer,
    MBart50Tokenizer,
    MBartTokenizer,
    NllbTokenizer,
    T5Tokenizer,
)
from transformers.convert_slow_tokenizer import generate_merges

from polyloom.data.pieces import load_pieces
from polyloom.errors import PolyloomError

ANIMALS = ["cat", "dog", "owl", "Katze", "Straße", "мышь", "猫", "กา"]
LINES = [f"the {one} sees {n} {other}s." for n in range(30) for one in ANIMALS for other in ANIMALS]
TEXTS = [
    "the cat sees 3 dogs.",
    "Katze",
    "the  мышь  sees",
    "猫 กา",
    " a b ",
    ".",
    "０１２ ﬁ",
    "zebra Žž 犬!",
    "aaaaaaa 0000",
]


def learnt(kind, **ids):
    """A small SentencePiece model, and its pieces with their scores."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES), model_writer=model, model_type=kind, minloglevel=2, **{"vocab_size": 75} | ids
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    return model.getvalue(), [(processor.id_to_piece(i), processor.get_score(i)) for i in range(len(processor))]


def nllb(directory):
    _, scored = learnt("bpe")
    vocab = {piece: i for i, piece in enumerate(["<s>", "<pad>", "</s>", "<unk>", *(p for p, _ in scored[3:])])}
    NllbTokenizer(vocab=vocab, merges=generate_merges(vocab, scored[3:])).save_pretrained(directory)


def mbart(directory):
    special = [(piece, 0.0) for piece in ("<s>", "<pad>", "</s>", "<unk>")]
    MBartTokenizer(vocab=[*special, *learnt("unigram")[1][3:]]).save_pretrained(directory)


def mbart50(directory):
    MBart50Tokenizer(vocab=learnt("unigram")[1]).save_pretrained(directory)


def mt5(directory):
    T5Tokenizer(vocab=learnt("unigram", pad_id=0, eos_id=1, unk_id=2, bos_id=-1)[1]).save_pretrained(directory)


def m2m100(directory, kind="bpe", change=lambda pieces: pieces):
    model, scored = learnt(kind)
    pieces = ["<s>", "<pad>", "</s>", "<unk>", *change([piece for piece, _ in scored[3:]][::-1])]
    (directory / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}))
    (directory / "sentencepiece.bpe.model").write_bytes(model)
    M2M100Tokenizer(directory / "vocab.json", directory / "sentencepiece.bpe.model").save_pretrained(directory)


def m2m100_of_two_minds(directory):
    """Ids and SentencePiece model of a real one were made apart: some pieces have no id, some ids no piece."""
    m2m100(directory, "unigram", change=lambda pieces: [*pieces[:20], "neverseen", *pieces[23:]])


def marian(directory, **settings):
    """Each side is cut by a model of its own; the ids are those of all pieces of both."""
    (source, pieces), (target, others) = learnt("unigram"), learnt("unigram", vocab_size=85)
    shared = dict.fromkeys(piece for piece, _ in (*pieces[3:], *others[3:]))
    names = ["</s>", "<unk>", *shared, ">>deu<<", ">>fra<<", ">>eng<<", "<pad>"]
    (directory / "source.spm").write_bytes(source)
    (directory / "target.spm").write_bytes(target)
    (directory / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(names)}))
    files = [str(directory / name) for name in ("source.spm", "target.spm", "vocab.json")]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Recommended: pip install sacremoses")
        MarianTokenizer(*files, **settings).save_pretrained(directory)


KINDS = {"nllb": nllb, "mbart": mbart, "mbart50": mbart50, "mt5": mt5, "m2m100": m2m100, "two": m2m100_of_two_minds}
KINDS |= {"marian": marian}
# What a recipe may call German, what the token is, and what must not be found.
TOKENS = {
    "nllb": (("deu_Latn", "deu"), "deu_Latn", ("de", "zho", "xyz_Latn")),
    "mbart": (("de", "de_DE"), "de_DE", ("deu", "d", "sw")),
    "mbart50": (("de", "de_DE"), "de_DE", ("deu", "xx")),
    "mt5": ((), None, ("de", "extra", "extra_id_0")),
    "m2m100": (("de",), "__de__", ("deu", "__de__", "de_DE")),
    "two": (("de",), "__de__", ("deu",)),
    "marian": (("deu",), ">>deu<<", ("de", ">>deu<<", "ita")),
}


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def both(kind, tmp_path):
    """Our pieces, and Transformers' own tokenizer."""
    KINDS[kind](tmp_path)
    pieces = load_pieces(tmp_path)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Recommended: pip install sacremoses")
        return pieces, AutoTokenizer.from_pretrained(tmp_path)


def test_text_is_cut_as_transformers_cuts_it(both):
    pieces, judge = both
    assert pieces.text(TEXTS) == [judge(text, add_special_tokens=False)["input_ids"] for text in TEXTS]
    assert [pieces.single(ids) for ids in pieces.text(TEXTS)] == [judge(text)["input_ids"] for text in TEXTS]
    assert pieces.pair(*pieces.text(["the cat", "Katze"]))[0] == judge("the cat", "Katze")["input_ids"]
    assert (pieces.pad_id, pieces.unk_id) == (judge.pad_token_id, judge.unk_token_id)
    assert (pieces.bos_id, pieces.eos_id) == (judge.bos_token_id, judge.eos_token_id)


def test_words_are_cut_as_in_running_text(both):
    pieces, _ = both
    texts = [" ".join(text.split()) for text in TEXTS]
    words = pieces.words([text.split() for text in texts])
    assert [one.ids for one in words] == pieces.text(texts)
    assert [len(one.counts) for one in words] == [len(text.split()) for text in texts]
    assert all(sum(one.counts) == len(one.ids) for one in words)


def test_text_comes_back_without_special_tokens(both, kind):
    pieces, judge = both
    token = pieces.language_id(TOKENS[kind][0][0]) if TOKENS[kind][0] else pieces.pad_id
    whole = 0
    for line in LINES[:200]:
        (ids,) = pieces.text([line])
        generated = [pieces.eos_id, token, *ids, pieces.eos_id, pieces.pad_id, pieces.pad_id]
        assert pieces.decode(generated) == pieces.decode(ids) == judge.decode(ids, skip_special_tokens=True)
        if pieces.unk_id not in ids:
            whole += 1
            assert pieces.decode(generated) == line
    assert whole == 200 or kind == "two"
    assert pieces.decode([pieces.eos_id, pieces.unk_id]) == pieces.decode([]) == ""


def test_languages_are_found_by_the_names_a_recipe_may_have(both, kind):
    pieces, judge = both
    names, token, others = TOKENS[kind]
    assert [pieces.language_id(name) for name in names] == [judge.convert_tokens_to_ids(token) for _ in names]
    assert pieces.unk_id not in [pieces.language_id(name) for name in names]
    assert [pieces.language_id(name) for name in others] == [None] * len(others)
    assert all(pieces.language_id(name) < pieces.vocab_size for name in names)


def test_language_tokens_never_come_out_of_text(both, kind):
    pieces, _ = both
    _, token, _ = TOKENS[kind]
    forbidden = {*pieces.special_ids, *(pieces.language_id(name) for name in TOKENS[kind][0])} - {pieces.unk_id}
    for text in (f"the {token} cat", f"{token}", f"the{token}cat </s>", ">>de<<", "<mask> <extra_id_0>"):
        assert forbidden.isdisjoint(pieces.text([text])[0])
        assert forbidden.isdisjoint(pieces.words([text.split()])[0].ids)


def test_the_fingerprint_is_that_of_the_vocabulary(both, kind, tmp_path):
    (tmp_path / "again").mkdir()
    (tmp_path / "other").mkdir()
    KINDS[kind](tmp_path / "again")
    KINDS["mbart" if kind != "mbart" else "mt5"](tmp_path / "other")
    assert both[0].fingerprint == load_pieces(tmp_path / "again").fingerprint
    assert both[0].fingerprint != load_pieces(tmp_path / "other").fingerprint


def test_tokens_in_the_way_of_marian_are_found_among_ordinary_pieces(tmp_path):
    special = [(piece, 0.0) for piece in ("<pad>", "</s>", "<unk>", ">>deu<<", ">>fra<<")]
    T5Tokenizer(vocab=[*special, *learnt("unigram")[1][3:]]).save_pretrained(tmp_path)
    pieces = load_pieces(tmp_path)
    assert (pieces.language_id("deu"), pieces.language_id("fra")) == (3, 4)
    (ids,) = pieces.text(["the >>deu<< cat>>fra<<"])
    assert not {3, 4} & set(ids)
    assert pieces.decode([3, *ids, 4]) == pieces.decode(ids)


def test_translations_are_cut_as_transformers_cuts_them(both, kind):
    pieces, judge = both
    judge.tgt_lang = TOKENS[kind][1] if kind not in ("m2m100", "two") else "de"
    expected = [judge(text_target=text, add_special_tokens=False)["input_ids"] for text in LINES]
    assert pieces.targets(LINES) == expected
    assert pieces.targets(LINES) == pieces.text(LINES) or kind == "marian"
    assert pieces.text(LINES) == [judge(text, add_special_tokens=False)["input_ids"] for text in LINES], "still"


def test_marian_cuts_and_joins_each_side_in_its_own_way(tmp_path):
    marian(tmp_path)
    pieces = load_pieces(tmp_path)
    assert pieces.text(LINES) != pieces.targets(LINES)
    assert [pieces.decode(ids) for ids in pieces.targets(LINES)] == LINES
    assert pieces.targets(["the >>deu<< cat </s>"])[0].count(pieces.unk_id) >= 1
    assert {pieces.eos_id, pieces.language_id("deu")}.isdisjoint(pieces.targets([">>deu<< the cat </s>"])[0])
    (tmp_path / "other").mkdir()
    marian(tmp_path / "other")
    (tmp_path / "other" / "target.spm").write_bytes((tmp_path / "source.spm").read_bytes())
    assert load_pieces(tmp_path / "other").fingerprint != pieces.fingerprint


def test_a_text_has_the_token_of_its_language_where_its_tokenizer_has_it(both, kind):
    pieces, judge = both
    assert pieces.ends_in_language == (kind == "mbart")
    names, token, _ = TOKENS[kind]
    if kind in ("mt5", "marian"):
        return
    before, after = pieces.around(pieces.language_id(names[0]))
    judge.src_lang = {"m2m100": "de", "two": "de"}.get(kind, token)
    assert [*before, *pieces.text(["the cat"])[0], *after] == judge("the cat")["input_ids"]


def test_marian_with_two_vocabularies_is_refused(tmp_path):
    marian(tmp_path)
    (tmp_path / "target_vocab.json").write_text((tmp_path / "vocab.json").read_text())
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings | {"separate_vocabs": True}))
    with pytest.raises(PolyloomError, match="a vocabulary for each side"):
        load_pieces(tmp_path)
