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

from polyloom.data.tokenization.tokenizer import load_tokenizer
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


def m2m100(directory, kind="bpe", change=lambda tokenizer: tokenizer):
    model, scored = learnt(kind)
    tokenizer = ["<s>", "<pad>", "</s>", "<unk>", *change([piece for piece, _ in scored[3:]][::-1])]
    (directory / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(tokenizer)}))
    (directory / "sentencepiece.bpe.model").write_bytes(model)
    M2M100Tokenizer(directory / "vocab.json", directory / "sentencepiece.bpe.model").save_pretrained(directory)


def m2m100_of_two_minds(directory):
    """Ids and SentencePiece model of a real one were made apart: some pieces have no id, some ids no piece."""
    m2m100(directory, "unigram", change=lambda tokenizer: [*tokenizer[:20], "neverseen", *tokenizer[23:]])


def marian(directory, **settings):
    """Each side is cut by a model of its own; the ids are those of all pieces of both."""
    (source, tokenizer), (target, others) = learnt("unigram"), learnt("unigram", vocab_size=85)
    shared = dict.fromkeys(piece for piece, _ in (*tokenizer[3:], *others[3:]))
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
    tokenizer = load_tokenizer(tmp_path)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Recommended: pip install sacremoses")
        return tokenizer, AutoTokenizer.from_pretrained(tmp_path)


def test_text_is_cut_as_transformers_cuts_it(both):
    tokenizer, judge = both
    assert tokenizer.text(TEXTS) == [judge(text, add_special_tokens=False)["input_ids"] for text in TEXTS]
    assert [tokenizer.single(ids) for ids in tokenizer.text(TEXTS)] == [judge(text)["input_ids"] for text in TEXTS]
    assert tokenizer.pair(*tokenizer.text(["the cat", "Katze"]))[0] == judge("the cat", "Katze")["input_ids"]
    assert (tokenizer.pad_id, tokenizer.unk_id) == (judge.pad_token_id, judge.unk_token_id)
    assert (tokenizer.bos_id, tokenizer.eos_id) == (judge.bos_token_id, judge.eos_token_id)


def test_words_are_cut_as_in_running_text(both):
    tokenizer, _ = both
    texts = [" ".join(text.split()) for text in TEXTS]
    words = tokenizer.words([text.split() for text in texts])
    assert [one.ids for one in words] == tokenizer.text(texts)
    assert [len(one.counts) for one in words] == [len(text.split()) for text in texts]
    assert all(sum(one.counts) == len(one.ids) for one in words)


def test_text_comes_back_without_special_tokens(both, kind):
    tokenizer, judge = both
    token = tokenizer.language_id(TOKENS[kind][0][0]) if TOKENS[kind][0] else tokenizer.pad_id
    whole = 0
    for line in LINES[:200]:
        (ids,) = tokenizer.text([line])
        generated = [tokenizer.eos_id, token, *ids, tokenizer.eos_id, tokenizer.pad_id, tokenizer.pad_id]
        assert tokenizer.decode(generated) == tokenizer.decode(ids) == judge.decode(ids, skip_special_tokens=True)
        if tokenizer.unk_id not in ids:
            whole += 1
            assert tokenizer.decode(generated) == line
    assert whole == 200 or kind == "two"
    assert tokenizer.decode([tokenizer.eos_id, tokenizer.unk_id]) == tokenizer.decode([]) == ""


def test_languages_are_found_by_the_names_a_recipe_may_have(both, kind):
    tokenizer, judge = both
    names, token, others = TOKENS[kind]
    assert [tokenizer.language_id(name) for name in names] == [judge.convert_tokens_to_ids(token) for _ in names]
    assert tokenizer.unk_id not in [tokenizer.language_id(name) for name in names]
    assert [tokenizer.language_id(name) for name in others] == [None] * len(others)
    assert all(tokenizer.language_id(name) < tokenizer.vocab_size for name in names)


def test_language_tokens_never_come_out_of_text(both, kind):
    tokenizer, _ = both
    _, token, _ = TOKENS[kind]
    forbidden = {*tokenizer.special_ids, *(tokenizer.language_id(name) for name in TOKENS[kind][0])} - {
        tokenizer.unk_id
    }
    for text in (f"the {token} cat", f"{token}", f"the{token}cat </s>", ">>de<<", "<mask> <extra_id_0>"):
        assert forbidden.isdisjoint(tokenizer.text([text])[0])
        assert forbidden.isdisjoint(tokenizer.words([text.split()])[0].ids)


def test_the_fingerprint_is_that_of_the_vocabulary(both, kind, tmp_path):
    (tmp_path / "again").mkdir()
    (tmp_path / "other").mkdir()
    KINDS[kind](tmp_path / "again")
    KINDS["mbart" if kind != "mbart" else "mt5"](tmp_path / "other")
    assert both[0].fingerprint == load_tokenizer(tmp_path / "again").fingerprint
    assert both[0].fingerprint != load_tokenizer(tmp_path / "other").fingerprint


def test_tokens_in_the_way_of_marian_are_found_among_ordinary_pieces(tmp_path):
    special = [(piece, 0.0) for piece in ("<pad>", "</s>", "<unk>", ">>deu<<", ">>fra<<")]
    T5Tokenizer(vocab=[*special, *learnt("unigram")[1][3:]]).save_pretrained(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    assert (tokenizer.language_id("deu"), tokenizer.language_id("fra")) == (3, 4)
    (ids,) = tokenizer.text(["the >>deu<< cat>>fra<<"])
    assert not {3, 4} & set(ids)
    assert tokenizer.decode([3, *ids, 4]) == tokenizer.decode(ids)


def test_translations_are_cut_as_transformers_cuts_them(both, kind):
    tokenizer, judge = both
    judge.tgt_lang = TOKENS[kind][1] if kind not in ("m2m100", "two") else "de"
    expected = [judge(text_target=text, add_special_tokens=False)["input_ids"] for text in LINES]
    assert tokenizer.targets(LINES) == expected
    assert tokenizer.targets(LINES) == tokenizer.text(LINES) or kind == "marian"
    assert tokenizer.text(LINES) == [judge(text, add_special_tokens=False)["input_ids"] for text in LINES], "still"


def test_marian_cuts_and_joins_each_side_in_its_own_way(tmp_path):
    marian(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.text(LINES) != tokenizer.targets(LINES)
    assert [tokenizer.decode(ids) for ids in tokenizer.targets(LINES)] == LINES
    assert tokenizer.targets(["the >>deu<< cat </s>"])[0].count(tokenizer.unk_id) >= 1
    assert {tokenizer.eos_id, tokenizer.language_id("deu")}.isdisjoint(tokenizer.targets([">>deu<< the cat </s>"])[0])
    (tmp_path / "other").mkdir()
    marian(tmp_path / "other")
    (tmp_path / "other" / "target.spm").write_bytes((tmp_path / "source.spm").read_bytes())
    assert load_tokenizer(tmp_path / "other").fingerprint != tokenizer.fingerprint


def test_a_text_has_the_token_of_its_language_where_its_tokenizer_has_it(both, kind):
    tokenizer, judge = both
    assert tokenizer.ends_in_language == (kind == "mbart")
    names, token, _ = TOKENS[kind]
    if kind in ("mt5", "marian"):
        return
    before, after = tokenizer.around(tokenizer.language_id(names[0]))
    judge.src_lang = {"m2m100": "de", "two": "de"}.get(kind, token)
    assert [*before, *tokenizer.text(["the cat"])[0], *after] == judge("the cat")["input_ids"]


def test_marian_with_two_vocabularies_is_refused(tmp_path):
    marian(tmp_path)
    (tmp_path / "target_vocab.json").write_text((tmp_path / "vocab.json").read_text())
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings | {"separate_vocabs": True}))
    with pytest.raises(PolyloomError, match="a vocabulary for each side"):
        load_tokenizer(tmp_path)
