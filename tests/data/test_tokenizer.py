"""Tokenizers: special tokens as the tokenizer itself adds them, and pieces for every word of real sentences."""

import json
import lzma

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import AutoTokenizer, ByT5Tokenizer, PreTrainedTokenizerFast

from polyloom.data.tokenization.tokenizer import load_hf_tokenizer, load_tokenizer
from polyloom.errors import PolyloomError
from tests.shared import DATA, needs_data

PUD = [f"UD_{name}-PUD/{code}_pud" for name, code in [("Arabic", "ar"), ("Chinese", "zh"), ("Japanese", "ja"),
       ("Hindi", "hi"), ("Turkish", "tr"), ("Thai", "th"), ("Korean", "ko")]]  # fmt: skip
LETTERS = "abcdefghijklmnopqrstuvwxyz"
NAMES = {"pad": "<pad>", "unk": "<unk>", "mask": "<mask>"}


def save(directory, tokenizer, **settings):
    tokens = {f"{role}_token": settings.pop(role, name) for role, name in NAMES.items()}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **tokens, **settings).save_pretrained(directory)
    return directory


def bert_like(directory, **settings):
    vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    tokenizer = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(vocab)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    names = {"pad": "[PAD]", "unk": "[UNK]", "mask": "[MASK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    return save(directory, tokenizer, **names, model_input_names=inputs, **settings)


def roberta_like(directory):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *alphabet, "Ġa", "Ġb"]
    merges = [("Ġ", "a"), ("Ġ", "b")]
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(vocab)}, merges, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    return save(directory, tokenizer, cls_token="<s>", sep_token="</s>")


def unigram(letters):
    vocab = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "▁", *letters, *(f"▁{letter}" for letter in "abc")]
    scores = [0.0 if piece.startswith("<") else -1.0 - len(piece) / 10 for piece in vocab]
    tokenizer = Tokenizer(models.Unigram(list(zip(vocab, scores, strict=True)), unk_id=3))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    return tokenizer


def xlmr_like(directory):
    tokenizer = unigram(LETTERS + "猫")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return save(directory, tokenizer, cls_token="<s>", sep_token="</s>", eos_token="</s>")


def t5_like(directory):
    tokenizer = unigram(LETTERS)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 2)]
    )
    return save(directory, tokenizer, eos_token="</s>")


KINDS = {"bert": bert_like, "roberta": roberta_like, "xlmr": xlmr_like, "t5": t5_like}


@pytest.fixture(params=[*KINDS, "real"])
def directory(request, tmp_path):
    if request.param == "real":
        return request.getfixturevalue("pretrained")
    return KINDS[request.param](tmp_path)


def sentences(treebank):
    """Words of a treebank, with ranges and empty nodes left out."""
    with lzma.open(DATA / "ud" / f"{treebank}-ud-test.conllu.xz", "rt", encoding="utf-8") as file:
        for block in file.read().split("\n\n"):
            rows = [line.split("\t") for line in block.splitlines() if line[:1].isdigit()]
            if rows:
                yield [row[1] for row in rows if row[0].isdigit()]


def test_special_tokens_are_those_the_tokenizer_adds_itself(directory):
    tokenizer, judge = load_tokenizer(directory), AutoTokenizer.from_pretrained(directory)
    for first, second in [("a cab", "b"), ("x y z", "a b c"), ("b", "deaf bee"), ("", "a")]:
        a, b = tokenizer.text([first, second])
        assert tokenizer.single(a) == judge(first)["input_ids"]
        expected = judge(first, second, return_token_type_ids=True)
        assert tokenizer.pair(a, b) == (expected["input_ids"], expected["token_type_ids"])
    assert tokenizer.num_special(pair=False) == judge.num_special_tokens_to_add()
    assert tokenizer.num_special(pair=True) == judge.num_special_tokens_to_add(pair=True)
    a = tokenizer.text(["a"])[0]
    assert tokenizer.single(a)[tokenizer.num_before :][: len(a)] == a
    assert tokenizer.uses_types == ("token_type_ids" in judge("a"))
    assert (tokenizer.pad_id, tokenizer.mask_id, tokenizer.unk_id) == (
        judge.pad_token_id,
        judge.mask_token_id,
        judge.unk_token_id,
    )
    assert set(tokenizer.special_ids) == set(judge.all_special_ids)
    assert tokenizer.vocab_size == len(judge)


def test_words_are_cut_as_in_running_text(directory):
    """RoBERTa's pieces know whether a space came before; a list of words must not lose it."""
    tokenizer = load_tokenizer(directory)
    texts = ["a b c", "cab abc b", "deaf bees ab"]
    assert [words.ids for words in tokenizer.words([text.split() for text in texts])] == tokenizer.text(texts)


def test_every_word_has_a_piece_whatever_it_is_made_of(directory):
    tokenizer = load_tokenizer(directory)
    odd = ["a", "\u200b", "", "\ufeff", " ", "\u00a0", "\u00ad", "\x00", "猫", "b c", "\U0001f984", "c"]
    (words,) = tokenizer.words([odd])
    assert len(words.counts) == len(words.reads) == len(odd)
    assert sum(words.counts) == len(words.ids)
    assert all(0 <= read < count for read, count in zip(words.reads, words.counts, strict=True))
    for i, word in enumerate(odd[1:], 1):  # each word as it would be next to any other
        start = sum(words.counts[:i])
        alone = tokenizer.words([["a", word]])[0]
        assert words.ids[start : start + words.counts[i]] == alone.ids[alone.counts[0] :]


def test_a_word_without_pieces_is_unknown(tmp_path):
    tokenizer = load_tokenizer(bert_like(tmp_path))
    words = tokenizer.words([["a", "\u200b", "", "b"], [], [""]])
    assert [w.counts for w in words] == [[1, 1, 1, 1], [], [1]]
    assert words[0].ids[1:3] == [tokenizer.unk_id] * 2
    assert words[1].ids == []


@pytest.mark.parametrize("kind", ["xlmr", "roberta"])
def test_a_bare_word_mark_is_not_read_unless_it_is_all_there_is(tmp_path, kind):
    tokenizer = load_tokenizer(KINDS[kind](tmp_path))
    (words,) = tokenizer.words([["a", "b", "猫", "z"]])
    assert words.reads == [0, 0, 1, 1], "▁b and Ġb are pieces, ▁猫 and Ġz are not"
    (words,) = tokenizer.words([["a", " "]])
    assert words.reads[1] == 0


def test_special_tokens_never_come_out_of_text(directory):
    """Unigram vocabularies hold `</s>` as an ordinary piece, too."""
    tokenizer = load_tokenizer(directory)
    judge = AutoTokenizer.from_pretrained(directory)
    forbidden = set(tokenizer.special_ids) - {tokenizer.unk_id}
    for token in judge.all_special_tokens:
        text = f"a {token} b{token}c"
        assert forbidden.isdisjoint(tokenizer.text([text])[0])
        (words,) = tokenizer.words([text.split()])
        assert forbidden.isdisjoint(words.ids)
        assert len(words.counts) == 3


def test_nothing_is_cut_or_padded_because_the_file_says_so(tmp_path):
    bert_like(tmp_path)
    file = tmp_path / "tokenizer.json"
    settings = json.loads(file.read_text())
    settings["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    settings["padding"] = {"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
                           "pad_type_id": 0, "pad_token": "[PAD]"}  # fmt: skip
    before = load_tokenizer(tmp_path)
    file.write_text(json.dumps(settings))
    after = load_tokenizer(tmp_path)
    assert [len(ids) for ids in after.text(["a b", "a b c d e f"])] == [2, 6]
    assert after.words([["a"] * 6])[0].counts == [1] * 6
    assert after.single([7]) == before.single([7])
    assert after.fingerprint == before.fingerprint, "it says how text is cut, not how batches are made"


def test_the_fingerprint_tells_tokenizers_apart_and_is_the_same_each_time(directory, tmp_path):
    tokenizer = load_tokenizer(directory)
    assert tokenizer.fingerprint == load_tokenizer(directory).fingerprint
    (tmp_path / "other").mkdir()
    other = bert_like(tmp_path / "other", additional_special_tokens=["[NEW]"])
    assert load_tokenizer(other).fingerprint != tokenizer.fingerprint


def test_the_identity_covers_special_tokens_and_type_ids_too(directory, tmp_path):
    one = load_tokenizer(directory)
    assert one.identity == load_tokenizer(directory).identity != one.fingerprint
    load_hf_tokenizer(directory).save_pretrained(tmp_path / "saved")
    assert load_tokenizer(tmp_path / "saved").identity == one.identity
    other = load_tokenizer(bert_like(tmp_path / "other"))
    file = tmp_path / "other" / "tokenizer_config.json"
    settings = json.loads(file.read_text())
    for change in ({"model_input_names": ["input_ids", "attention_mask"]}, {"pad_token": "[SEP]"}):
        file.write_text(json.dumps(settings | change))
        changed = load_tokenizer(tmp_path / "other")
        assert changed.fingerprint == other.fingerprint
        assert changed.identity != other.identity


def test_the_unknown_rate_is_the_share_of_unknown_pieces(tmp_path):
    tokenizer = load_tokenizer(bert_like(tmp_path))
    assert tokenizer.unknown_rate(tokenizer.text(["a b ж г"])[0]) == 0.5
    assert tokenizer.unknown_rate([]) == 0.0


@pytest.mark.parametrize("treebank", PUD)
@needs_data
def test_real_treebanks_keep_every_word(pretrained, treebank):
    tokenizer, judge = load_tokenizer(pretrained), AutoTokenizer.from_pretrained(pretrained)
    trees = list(sentences(treebank))[:300]
    expected = judge(trees, is_split_into_words=True, add_special_tokens=False)
    marks = {judge.convert_tokens_to_ids("▁")}
    for i, (words, tree) in enumerate(zip(tokenizer.words(trees), trees, strict=True)):
        assert words.ids == expected["input_ids"][i]
        assert len(words.counts) == len(tree)
        assert min(words.counts) >= 1
        owners = [word for word, count in enumerate(words.counts) for _ in range(count)]
        assert owners == expected.word_ids(i)
        starts = [owners.index(word) for word in range(len(tree))]
        for start, count, read in zip(starts, words.counts, words.reads, strict=True):
            assert words.ids[start + read] not in marks or set(words.ids[start : start + count]) == marks
    if "Chinese" in treebank or "Japanese" in treebank:
        reads = [read for words in tokenizer.words(trees) for read in words.reads]
        assert sum(reads) > 0.1 * len(reads), "first pieces alone would read nothing here"


def test_a_tokenizer_that_is_not_there_says_what_to_do(tmp_path):
    with pytest.raises(PolyloomError, match=r"backbone.name: the tokenizer of 'no/such-model' cannot be read"):
        load_tokenizer("no/such-model")
    with pytest.raises(PolyloomError, match=r"give a directory with tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_a_slow_tokenizer_is_refused(tmp_path):
    ByT5Tokenizer().save_pretrained(tmp_path)
    with pytest.raises(PolyloomError, match=r"only a slow tokenizer \(ByT5Tokenizer\).*Choose a model"):
        load_tokenizer(tmp_path)


def test_a_tokenizer_without_padding_is_refused(tmp_path):
    roberta_like(tmp_path)
    file = tmp_path / "tokenizer_config.json"
    settings = {key: value for key, value in json.loads(file.read_text()).items() if key != "pad_token"}
    file.write_text(json.dumps(settings))
    with pytest.raises(PolyloomError, match="the tokenizer has no pad_token"):
        load_tokenizer(tmp_path)
