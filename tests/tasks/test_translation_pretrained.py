"""Pretrained translation models by name: used as they were trained, with every method.

Directories as a download leaves them, only small: a real configuration and real tokenizer files of each family, saved
by Transformers. The judge is Transformers itself, used as its documentation says.
"""

import json
import warnings
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer

from polyloom.backbones.decoding import Decoding
from polyloom.conditions import Condition
from polyloom.config import Recipe, load_recipe
from polyloom.data.records import Bitext
from polyloom.errors import ConditionError, PolyloomError
from polyloom.methods import METHODS
from polyloom.tasks import TASKS
from polyloom.tasks.base import Example, vocabulary_losses
from polyloom.tasks.batch import Batch, make_batch
from polyloom.tasks.translation import default_language_tokens, default_start_id
from polyloom.workflows.run import Run
from polyloom.workflows.train import TrainingSetup, prepare_training, train_recipe
from tests.contracts.tiny import CONFIGS, SIZES
from tests.covering import covering
from tests.data.test_tokenizer_languages import LINES, m2m100, marian, mbart, mbart50, mt5, nllb

PAIRS = [Bitext(LINES[37 * i], LINES[91 * i + 5]) for i in range(12)]


class Kind(NamedTuple):
    """A family of checkpoints, and how its documentation says it is used.

    Attributes:
        model_type: Of the model.
        tokenizer: Writes the tokenizer's files.
        languages: English, German and French, as a recipe calls them.
        codes: The same, as Transformers calls them.
        labels: Which of Transformers' labels are pieces of the target and its end; the others are the language's.
        search: What `generate` is told, of the number of the target's token.
    """

    model_type: str
    tokenizer: Callable[[Path], None]
    languages: list[str]
    codes: list[str]
    labels: slice = slice(None)
    search: Callable[[int], dict[str, int]] = lambda _: {}


def forced(token: int) -> dict[str, int]:
    return {"forced_bos_token_id": token}


def started(token: int) -> dict[str, int]:
    return {"decoder_start_token_id": token}


SHORT, NLLB, MBART, MARIAN = (
    names.split() for names in ("en de fr", "eng_Latn deu_Latn fra_Latn", "en_XX de_DE fr_XX", "eng deu fra")
)
KINDS = {
    "m2m100": Kind("m2m_100", m2m100, SHORT, SHORT, slice(1, None), forced),
    "nllb": Kind("m2m_100", nllb, NLLB, NLLB, slice(1, None), forced),
    "mbart": Kind("mbart", mbart, MBART, MBART, slice(-1), started),
    "mbart50": Kind("mbart", mbart50, SHORT, MBART, slice(1, None), forced),
    "marian": Kind("marian", marian, MARIAN, MARIAN),
    "mt5": Kind("mt5", mt5, SHORT, SHORT),
    "t5": Kind("t5", mt5, SHORT, SHORT),
}
TOKEN = {"m2m100": "__{}__"}  # of a language, where it is not its code
EAGER = {"m2m100": 3.0, "nllb": 2.0, "mt5": 2.0, "t5": 2.0}  # to come to an end
SERVING = [method for method in METHODS if method != "psf"]


def checkpoint(kind: str, directory: Path) -> Path:
    """What a download of such a model would be."""
    KINDS[kind].tokenizer(directory)
    tokenizer, family = tokenizer_of(directory), KINDS[kind].model_type
    end_id, pad_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    settings = CONFIGS[family] | {"vocab_size": len(tokenizer) + 120, "pad_token_id": pad_id, "eos_token_id": end_id}
    if "t5" in family:
        settings |= {"initializer_factor": 1.5, "decoder_start_token_id": pad_id}
        del settings["tie_word_embeddings" if family == "mt5" else "num_decoder_layers"]
    else:
        start_id = {"mbart": None, "marian": pad_id}.get(kind, end_id)  # mBART-25 has none
        settings |= {"init_std": 0.7, "scale_embedding": True, "max_position_embeddings": 100}
        settings |= {"forced_eos_token_id": end_id, "decoder_start_token_id": start_id}
    if family == "marian":
        settings |= {"decoder_vocab_size": settings["vocab_size"]}
    torch.manual_seed(5)
    model = AutoModelForSeq2SeqLM.from_config(AutoConfig.for_model(family, **settings))
    model.get_input_embeddings().weight.data[end_id] *= EAGER.get(kind, 1.0)
    if (bias := getattr(model, "final_logits_bias", None)) is not None:
        bias.normal_(std=0.3)
        bias[:, len(tokenizer) :] = -9.0
        bias[:, end_id] = 2.0
    search = {"num_beams": 4, "early_stopping": True, "max_length": 60, "eos_token_id": end_id, "pad_token_id": pad_id}
    search |= {"bad_words_ids": [[pad_id]]} if kind == "marian" else {}
    model.generation_config.update(**search)
    model.save_pretrained(directory)
    return directory


def tokenizer_of(directory: Path) -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Recommended: pip install sacremoses")
        return AutoTokenizer.from_pretrained(directory)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    made: dict[str, Path] = {}

    def get(kind: str) -> Path:
        if kind not in made:
            made[kind] = checkpoint(kind, tmp_path_factory.mktemp(kind))
        return made[kind]

    return get


def directions(kind: str) -> list[str]:
    english, german, french = KINDS[kind].languages
    return [f"mt/{english}/{german}", f"mt/{german}/{english}", f"mt/{english}/{french}", f"mt/{french}/{german}"]


def recipe_for(directory: Path, kind: str, folder: Path, method: str = "dense") -> Recipe:
    """The recipe that a user writes: the model's name, and its languages."""
    wanted = {key: size for key, size in SIZES.items() if key in METHODS[method].config_type.__dataclass_fields__}
    data = {}
    for condition in directions(kind):
        path = folder / f"{condition.replace('/', '-')}.tsv"
        path.write_text("".join(f"{pair.source}\t{pair.target}\n" for pair in PAIRS))
        data[condition] = str(path)
    settings = {
        "backbone": {"name": str(directory)},
        "method": {"name": method} | wanted,
        "languages": KINDS[kind].languages,
        "tasks": {"mt": {}},
        "directions": ["*/*"],
        "data": {"train": data},
        "train": {"steps": 3, "tokens_per_batch": 200, "max_length": 90},
    }
    (folder / "recipe.json").write_text(json.dumps(settings))
    return load_recipe(folder / "recipe.json")


@pytest.fixture(scope="module")
def setup(checkpoints, tmp_path_factory):
    def of(kind: str, method: str = "dense") -> TrainingSetup:
        torch.manual_seed(1)
        recipe = recipe_for(checkpoints(kind), kind, tmp_path_factory.mktemp("recipe"), method)
        with pytest.MonkeyPatch.context() as patch:  # the model is built, but not every stage has data here
            patch.setattr("polyloom.workflows.train._plan_stages", lambda *_: [])
            made = prepare_training(recipe)
        torch.manual_seed(2)
        for parameter in made.model.method.parameters():
            parameter.data.normal_(std=0.3)
        made.model.eval()
        return made

    return of


def batch_of(setup: TrainingSetup, pairs: list[tuple[str, Bitext]], *, asked: bool = False) -> Batch:
    rows = TASKS["mt"].encode([pair for _, pair in pairs], setup.tokenizer)
    examples = [
        Example(Condition.parse(condition), {**row, "target": []} if asked else row)
        for (condition, _), row in zip(pairs, rows, strict=True)
    ]
    return make_batch(examples, tasks=setup.model.tasks, tokenizer=setup.tokenizer, max_length=90)


class Judge:
    """Transformers' own model and tokenizer, as documented."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.kind, self.tokenizer = KINDS[kind], tokenizer_of(directory)
        self.model = AutoModelForSeq2SeqLM.from_pretrained(directory).eval()
        self.token = TOKEN.get(kind, "{}")

    def inputs(self, condition: str, pair: Bitext, **more: Any) -> Any:
        _, source, target = condition.split("/")
        codes = dict(zip(self.kind.languages, self.kind.codes, strict=True))
        self.tokenizer.src_lang, self.tokenizer.tgt_lang = codes[source], codes[target]
        self.target_id = self.tokenizer.convert_tokens_to_ids(self.token.format(codes[target]))
        text = f">>{target}<< {pair.source}" if self.kind.model_type == "marian" else pair.source
        return self.tokenizer(text, return_tensors="pt", **more)

    def losses(self, condition: str, pair: Bitext) -> tuple[torch.Tensor, torch.Tensor]:
        """Labels and the loss of each."""
        inputs = self.inputs(condition, pair, text_target=pair.target)
        with torch.no_grad():
            out = self.model(**inputs)
        losses = F.cross_entropy(out.logits[0], inputs["labels"][0], reduction="none")
        torch.testing.assert_close(losses.mean(), out.loss)
        return inputs["labels"][0], losses

    def search(self, condition: str, pair: Bitext, decoding: Decoding) -> list[int]:
        """What `generate` writes, from its first piece to its end."""
        inputs = self.inputs(condition, pair)
        told = self.kind.search(self.target_id)
        limit = int(decoding.limits(inputs["attention_mask"])) + len(told.keys() & {"forced_bos_token_id"})
        ids = self.model.generate(
            **inputs, **told, num_beams=decoding.beams, max_new_tokens=limit, length_penalty=decoding.length_penalty,
            forced_eos_token_id=self.tokenizer.eos_token_id,
        )[0].tolist()  # fmt: skip
        written: list[int] = ids[1 + len(told.keys() & {"forced_bos_token_id"}) :]
        return written[: written.index(self.tokenizer.eos_token_id)]


def cases(kind: str) -> list[tuple[str, Bitext]]:
    """Two pairs in each direction."""
    return [(condition, pair) for i, condition in enumerate(directions(kind)) for pair in PAIRS[2 * i : 2 * i + 2]]


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_that_of_transformers_label_by_label(kind, checkpoints, setup):
    ours, judge = setup(kind), Judge(kind, checkpoints(kind))
    for condition, pair in cases(kind):
        batch = batch_of(ours, [(condition, pair)])
        labels, expected = (found[KINDS[kind].labels] for found in judge.losses(condition, pair))
        data = batch.by_task["mt"]
        assert data.targets["labels_BL"][0].tolist() == labels.tolist()
        with torch.no_grad():
            weights, hidden = ours.model._hidden(batch)
            states = ours.model.head_inputs(hidden, weights)
            losses = vocabulary_losses(states, data)
            torch.testing.assert_close(losses, expected, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(ours.model.losses(batch)["mt"], expected.sum(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("beams", "penalty"), [(1, 1.0), (5, 0.0), (5, 1.0)])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_is_what_transformers_writes(kind, beams, penalty, checkpoints, setup):
    ours, judge = setup(kind), Judge(kind, checkpoints(kind))
    decoding = Decoding(beams=beams, length_penalty=penalty, max_ratio=0.5, max_extra=7)
    batch = batch_of(ours, cases(kind), asked=True)
    written = ours.model.generate_ids(batch, eos_id=ours.tokenizer.eos_id, decoding=decoding)
    expected = [judge.search(condition, pair, decoding) for condition, pair in cases(kind)]
    assert written == expected
    assert len({tuple(ids) for ids in written}) > 2


@pytest.mark.parametrize("case", covering(product(SERVING, sorted(KINDS.keys() - {"t5"})), set, name="-".join))
def test_every_method_learns_and_every_direction_is_written_as_alone(case, setup):
    method, kind = case
    ours, pairs = setup(kind, method), cases(kind)[::2]
    model, batch = ours.model, batch_of(ours, pairs)
    for stage in model.stages():
        model.set_stage(stage)
        model.zero_grad()
        before = model.losses(batch)["mt"]
        before.backward()
        groups = model.groups()
        learning = [parameter for group in stage.trains for parameter in groups[group]]
        own = [parameter for group in stage.trains for parameter in model.method.groups().get(group, [])]
        assert own or method in ("full", "dense")
        assert all(parameter.grad is not None and parameter.grad.any() for parameter in own)
        norm = torch.stack(
            [p.grad.norm() for p in learning if p.grad is not None]
        ).norm()  # Marian's positions are fixed
        torch.optim.SGD(learning, lr=3e-5 / float(norm)).step()
        assert model.losses(batch)["mt"] < before
    for beams in (1, 3):
        write = partial(
            model.generate_ids, eos_id=ours.tokenizer.eos_id, decoding=Decoding(beams=beams, max_ratio=0, max_extra=8)
        )
        together = write(batch_of(ours, pairs, asked=True))
        assert together == [write(batch_of(ours, [pair], asked=True))[0] for pair in pairs]
        assert len({tuple(ids) for ids in together}) > 1 or "-adapters" not in method, "made for translation"


def test_a_method_that_needs_labels_is_refused(setup):
    with pytest.raises(PolyloomError, match="mt has no label set"):
        setup("nllb", "psf")


def test_from_a_name_to_a_translation(checkpoints, tmp_path, capfd):
    """Marian's: each side is cut in its own way. What the run writes is what Transformers writes with its weights."""
    kind, condition = "marian", "mt/fra/deu"
    recipe = recipe_for(checkpoints(kind), kind, tmp_path)
    train_recipe(recipe, tmp_path / "run")
    run = Run.load(tmp_path / "run", device="cpu")
    written = list(run.predictor.predict(PAIRS, Condition.parse(condition)))
    assert "max_length" not in capfd.readouterr().err, "what its generation_config.json says is not the user's concern"
    run.model.backbone.model.save_pretrained(tmp_path)
    marian(tmp_path)
    judge = Judge(kind, tmp_path)
    expected = [judge.search(condition, pair, run.predictor.decoding) for pair in PAIRS]
    silent = {run.predictor.tokenizer.language_id(name) for name in MARIAN}
    texts = [[piece for piece in ids if piece not in silent] for ids in expected]
    assert written == [judge.tokenizer.decode(ids, use_source_tokenizer=False) for ids in texts]
    assert len(set(written)) > 2
    original = Judge(kind, checkpoints(kind)).model.state_dict()
    assert any(not torch.equal(value, original[name]) for name, value in judge.model.state_dict().items())


def test_nllb_as_it_was_at_first_has_its_language_at_the_end(tmp_path):
    checkpoint("nllb", tmp_path)
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"legacy_behaviour": True}))
    ours, judge = prepare_training(recipe_for(tmp_path, "nllb", tmp_path)), Judge("nllb", tmp_path)
    for condition, pair in cases("nllb"):
        inputs = batch_of(ours, [(condition, pair)]).inputs
        assert inputs["input_ids"].tolist() == judge.inputs(condition, pair)["input_ids"].tolist()
        source, target = (ours.tokenizer.language_id(name) for name in condition.split("/")[1:])
        assert inputs["input_ids"][0, -2:].tolist() == [ours.tokenizer.eos_id, source]
        assert inputs["decoder_input_ids"][0, :2].tolist() == [ours.tokenizer.eos_id, target], "as in search"


def test_a_language_without_a_token_is_said_before_anything_is_learnt(checkpoints, tmp_path):
    recipe = recipe_for(checkpoints("nllb"), "nllb", tmp_path)
    (source, *_) = recipe.data.train.values()
    settings = json.loads((tmp_path / "recipe.json").read_text())
    settings |= {"languages": ["eng_Latn", "deu_Latin"], "data": {"train": {"mt/eng_Latn/deu_Latin": source[0]}}}
    (tmp_path / "recipe.json").write_text(json.dumps(settings))
    with pytest.raises(ConditionError, match=r"no token for the language 'deu_Latin'\. Did you mean 'deu_Latn'"):
        prepare_training(load_recipe(tmp_path / "recipe.json"))


def test_marian_for_one_pair_has_no_language_tokens(setup):
    ours = setup("mt5")
    assert default_language_tokens("marian", ours.tokenizer) == "none"
    assert default_language_tokens("marian", setup("marian").tokenizer) == "source"
    with pytest.raises(PolyloomError, match="no decoder_start_token_id"):
        default_start_id("t5", ours.tokenizer, language_tokens="none", start_id=None)
