"""Recipes: all mistakes at once, the way back, the schema."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from polyloom.config import Recipe, load_recipe, parse_recipe, recipe_schema, resolved
from polyloom.config.build import empty_backbone
from polyloom.errors import BackboneError, ConfigError
from polyloom.io.yaml import dump_yaml, parse_yaml, read_settings
from polyloom.methods import METHODS
from polyloom.methods.hyper_adapters import HyperAdaptersConfig
from polyloom.methods.hyperx import HyperXConfig
from polyloom.training.config import OptimConfig

ROOT = Path(__file__).parents[2]
RECIPES = sorted((ROOT / "src/polyloom/recipes").rglob("*.yaml"))
GOOD = """
backbone: {config: {model_type: bert, vocab_size: 50, hidden_size: 16, num_hidden_layers: 2, num_attention_heads: 2,
  intermediate_size: 32}}
method: {name: hyperx, adapter_size: 4}
languages: [en, no]
tasks: {mlm: {}, pos: {labels: 17}}
optim: {lr: 3e-4}
"""


def settings(**changes: Any) -> dict[str, Any]:
    good: dict[str, Any] = parse_yaml(GOOD, source="good")
    return good | changes


def mistakes(**changes: Any) -> list[str]:
    with pytest.raises(ConfigError) as error:
        parse_recipe(settings(**changes))
    return list(error.value.mistakes)


def test_norwegian_and_floats_are_read_right() -> None:
    recipe = parse_recipe(settings())
    assert recipe.languages == ("en", "no")
    assert recipe.optim == OptimConfig(lr=3e-4)
    assert recipe.method == HyperXConfig(adapter_size=4)


WRONG = """
backbone:
  config: {model_type: bert, vocab_sise: 1000, hiden_size: 64}
method:
  name: hyperx
  adaptor_size: 3
  projection_size: 0
  hidden_size: -1
  norm: befor
  placement: outptu
languages: [en, no, en, "t r"]
tasks:
  pso: {}
  pos: {lables: 17}
  ner: {labels: many}
directions: [en/*, en/de, en]
optim: {lr: 3e-4, shedule: linear, warmup_steps: -1}
mixture: {temperature: .inf}
train: {steps: 1.5}
traning: {}
"""
EXPECTED = [
    r"traning: unknown key\. Did you mean 'train'\? Known: backbone, method",
    r"backbone\.config\.vocab_sise: .*Did you mean 'vocab_size'\?",
    r"backbone\.config\.hiden_size: .*Did you mean 'hidden_size'\?",
    r"method\.adaptor_size: unknown key\. Did you mean 'adapter_size'\?",
    r"method\.projection_size: 0 is not positive",
    r"method\.hidden_size: -1 is not positive",
    r"method\.norm: 'befor' is not a choice\. Did you mean 'before'\?",
    r"method\.placement: 'outptu' is not a choice\. Did you mean 'output'\? Known: layer, output, norm",
    r"languages: 'en' is listed 2 times",
    r"languages: 't r' is not a name",
    r"tasks\.pso: unknown task\. Did you mean 'pos'\?",
    r"tasks\.pos\.lables: unknown key\. Did you mean 'labels'\?",
    r"tasks\.ner\.labels: should be a whole number or a list, found the text 'many'",
    r"directions: 'en/de': unknown language 'de'\. Known: en, no",
    r"directions: 'en' is no direction",
    r"optim\.shedule: unknown key\. Did you mean 'schedule'\?",
    r"optim\.warmup_steps: .*-1",
    r"mixture\.temperature: .*inf",
    r"train\.steps: should be a whole number, found the number 1\.5",
]


def check_all(found: Iterable[str], expected: Iterable[str]) -> None:
    found, expected = list(found), list(expected)
    unmatched = [pattern for pattern in expected if not any(re.match(pattern, mistake) for mistake in found)]
    assert not unmatched, "\n".join(found)
    assert len(found) == len(expected)


def test_all_mistakes_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as error:
        parse_recipe(parse_yaml(WRONG, source="wrong"))
    check_all(error.value.mistakes, EXPECTED)
    assert not any("lr" in mistake.partition(":")[0] for mistake in error.value.mistakes)


def test_an_unknown_method_hides_no_other_mistake() -> None:
    text = WRONG.replace("name: hyperx", "name: hyperxx")
    with pytest.raises(ConfigError) as error:
        parse_recipe(parse_yaml(text, source="wrong"))
    check_all(error.value.mistakes, [r"method\.name: unknown method 'hyperxx'\. Did you mean 'hyperx'\?", *EXPECTED])


def test_everything_missing_is_named() -> None:
    with pytest.raises(ConfigError) as error:
        parse_recipe({})
    check_all(error.value.mistakes, ["backbone: missing", "method: missing", "languages: missing", "tasks: missing"])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"languages": []}, "languages: empty"),
        ({"tasks": {}}, "tasks: empty"),
        ({"languages": "en"}, "languages: should be a list, found the text 'en'. Such as `languages: [en"),
        ({"languages": ["en", 1]}, "languages.1: should be text, found the number 1"),
        ({"languages": None}, "languages: should be a list, found nothing"),
        ({"tasks": {"pos": None}}, "tasks.pos: should be a mapping, found nothing"),
        ({"tasks": ["pos"]}, "tasks: should be a mapping, found a list"),
        ({"method": "hyperx"}, "method: should be a mapping, found the text 'hyperx'. Such as"),
        ({"method": {"adapter_size": 3}}, "method.name: missing"),
        ({"method": {"name": ["x"]}}, "method.name: unknown method ['x']"),
        (
            {"method": {"name": "hyper-adapters", "encoder_inputs": ["target", "sorce"]}},
            "method.encoder_inputs.1: 'sorce'",
        ),
        ({"method": {"name": "madx", "placement": "norm", "block": "lora"}}, "method.placement: a lora block has no"),
        ({"method": {"name": "psf"}, "tasks": {"mlm": {}}}, "tasks: psf generates classifiers"),
        ({"tasks": {"pos": {"labels": ["A", 3]}}}, "tasks.pos.labels.1: should be text, found the number 3"),
        ({"tasks": {"pos": {"labels": ["A", "A"]}}}, "tasks.pos.labels: 'A' is listed twice"),
        ({"tasks": {"pos": {"labels": []}}}, "tasks.pos.labels: empty"),
        (
            {"tasks": {"pos": {"labels": 0}}},
            "tasks.pos.labels: should be greater than or equal to 1 or a list",
        ),
        ({"tasks": {"pos": {"labels": 1.5}}}, "tasks.pos.labels: should be a whole number or a list, found"),
        ({"tasks": {"pos": {"arc_size": 3}}}, "tasks.pos.arc_size: unknown key. Known: labels"),
        ({"tasks": {"dep": {"arcsize": 3}}}, "tasks.dep.arcsize: unknown key. Did you mean 'arc_size'?"),
        ({"tasks": {"mlm": {"mask_probability": 1}}}, "tasks.mlm.mask_probability: should be less than 1"),
        ({"tasks": {"mt": {"language_tokens": "tarket"}}}, "tasks.mt.language_tokens: 'tarket' is not a choice"),
        ({"optim": None}, "optim: should be a mapping, found nothing"),
        ({"optim": {"lr": True}}, "optim.lr: should be a number, found the true/false true"),
        ({"optim": {"lr": 0}}, "optim.lr: should be greater than 0"),
        ({"optim": {"betas": [0.9]}}, "optim.betas.1: missing"),
        ({"train": {"max_length": 1}}, "train.max_length: should be greater than or equal to 8, found"),
        ({"train": {"rows_per_batch": 1e12}}, "train.rows_per_batch: should be less than or equal to 1000000, found"),
        ({"train": {"tokens_per_batch": 10**12}}, "train.tokens_per_batch: should be less than or equal to 100000000"),
        ({"train": {"seed": 2**64}}, "train.seed: should be less than 9223372036854775808, found"),
        ({"train": {"seed": 2**63}}, "train.seed: should be less than 9223372036854775808, found"),
        ({"train": {"seed": -1}}, "train.seed: should be greater than or equal to 0, found"),
        ({"backbone": {}}, "backbone: neither name nor config"),
        ({"backbone": {"nam": "x"}}, "backbone.nam: unknown key. Did you mean 'name'?"),
        ({"backbone": {"config": {"hidden_size": 3}}}, "backbone.config: model_type is missing"),
        (
            {"backbone": {"config": {"model_type": "brt"}}},
            "backbone: no family for model type 'brt'. Did you mean 'bert'?",
        ),
        ({"backbone": {"config": {"model_type": "bert", "hidden_size": "x"}}}, "backbone.config: "),
        (
            {"backbone": {"config": {"model_type": "bert", "auto_map": {"AutoModel": "x.Y"}}}},
            "backbone.config.auto_map:",
        ),
    ],
)
def test_mistakes_say_what_is_wrong(changes: dict[str, Any], expected: str) -> None:
    found = mistakes(**changes)
    assert found[0].startswith(expected)
    assert len(found) == 1 or "backbone" in changes


def test_a_method_that_does_not_fit_the_backbone_is_a_mistake() -> None:
    config = {"model_type": "m2m_100", "vocab_size": 50, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1}
    (found,) = mistakes(backbone={"config": config}, method={"name": "madx", "placement": "norm"})
    assert "norm" in found
    assert found.startswith("method")


@pytest.mark.parametrize("text", ["x\u2028y", "x\u0085y", "x\u2029", " \u2028 ", "true\u2028", "a\x85 b " * 30])
def test_characters_that_some_take_for_line_ends_come_back(text: str) -> None:
    assert parse_yaml(dump_yaml({"a": text, text: [text]}), source="x") == {"a": text, text: [text]}
    with pytest.raises(ConfigError, match=r"x:2: the character U\+0085, which would be lost"):
        parse_yaml("b: 1\na: x\x85y", source="x")


def test_whole_numbers_may_be_written_with_an_exponent() -> None:
    steps = parse_recipe(settings(train={"steps": 1e5})).train.steps
    assert (steps, type(steps)) == (100_000, int)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_recipes_are_right_and_come_back_equal(path: Path, tmp_path: Path) -> None:
    recipe = load_recipe(path)
    shown = tmp_path / "shown.yaml"
    shown.write_text(dump_yaml(resolved(recipe)))
    assert load_recipe(shown) == recipe
    # What PyYAML alone makes of it must not matter, but any YAML 1.2 reader must see the same keys.
    assert yaml.safe_load(shown.read_text()).keys() == resolved(recipe).keys()


def test_every_method_has_a_recipe() -> None:
    assert {load_recipe(path).method.name for path in RECIPES} == set(METHODS)


def test_overrides_change_a_recipe() -> None:
    path = ROOT / "src/polyloom/recipes/hyper-adapters/ml50-base.yaml"
    recipe = load_recipe(path, ["method.hidden_size=204", "optim.lr=5e-5"])
    assert recipe.method == HyperAdaptersConfig(hidden_size=204, adapter_size=128, init="default")
    assert recipe.optim.lr == 5e-5
    assert len(recipe.languages) == 51
    assert len(recipe.inventory().directions) == 100


def test_a_star_stands_for_every_language_that_the_condition_does_not_name() -> None:
    data = {
        "train": {"mlm/*": ["wikipedia/*.txt", "more/*.txt"], "pos/en": "en.conllu", "mlm/yo": "own.txt"},
        "validation": {"pos/en/*": "dev.conllu"},
        "test": {"pos/*": "ud:*_x/test"},
    }
    recipe = parse_recipe(settings(languages=["en", "tr", "yo"], tasks={"mlm": {}, "pos": {}}, data=data))
    assert recipe.data.train == {
        "pos/en": ("en.conllu",),
        "mlm/yo": ("own.txt",),
        "mlm/en": ("wikipedia/en.txt", "more/en.txt"),
        "mlm/tr": ("wikipedia/tr.txt", "more/tr.txt"),
    }
    assert recipe.data.validation == {"pos/en/tr": ("dev.conllu",), "pos/en/yo": ("dev.conllu",)}
    assert recipe.data.test == {f"pos/{name}": (f"ud:{name}_x/test",) for name in ("en", "tr", "yo")}
    assert parse_recipe(resolved(recipe)) == recipe


def test_nothing_in_the_place_of_a_pattern_leaves_it_out() -> None:
    def train(data: dict[str, Any]) -> set[str]:
        sections = {"languages": ["en", "tr"], "tasks": {"mlm": {}, "pos": {}}, "data": {"train": data}}
        return set(parse_recipe(settings(**sections)).data.train)

    assert train({"mlm/*": "*.txt", "pos/en": "x.conllu", "mlm/tr": None}) == {"mlm/en", "pos/en"}
    assert train({"mlm/*": None, "pos/en": "x.conllu"}) == {"pos/en"}
    with pytest.raises(ConfigError, match="pos/en"):
        train({"mlm/*": "*.txt", "pos/en": None})


def test_steps_and_epochs_exclude_each_other() -> None:
    assert parse_recipe(settings(train={"epochs": 20})).train.epochs == 20
    with pytest.raises(ConfigError, match=r"train\.epochs: set either this or train\.steps"):
        parse_recipe(settings(train={"epochs": 20, "steps": 5}))


def test_every_task_has_settings_of_its_own() -> None:
    tasks = {"pos": {"labels": ["X", "Y"]}, "dep": {"arc_size": 40, "labels": 3}, "mlm": {"mask_probability": 0.4}}
    recipe = parse_recipe(settings(tasks=tasks))
    assert recipe.tasks["pos"].label_names == ("X", "Y")
    assert dict(recipe.inventory().tasks) == {"pos": 2, "dep": 3, "mlm": None}
    assert recipe.inventory().raw_text == ("mlm",)
    shown = resolved(recipe)["tasks"]
    parser = {"arc_size": 40, "label_size": 100, "dropout": 0.33}
    assert shown["dep"] == {"labels": 3, "weight": 1.0, "metrics": [], **parser}
    assert shown["pos"] == {"labels": ["X", "Y"], "weight": 1.0, "metrics": []}
    assert parse_recipe(resolved(recipe)) == recipe


def keys_fit(value: Any, schema: Any, definitions: Any) -> bool:
    """Whether a mapping's keys are those its schema names, at any depth."""
    schema = definitions[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    if "oneOf" in schema:
        (schema,) = [choice for choice in schema["oneOf"] if choice["properties"]["name"]["const"] == value["name"]]
    if not isinstance(value, dict) or schema.get("additionalProperties") is True or "anyOf" in schema:
        return True
    inner = schema.get("properties", {})
    more = schema.get("additionalProperties", False)
    required = set(schema.get("required", ()))
    return required <= value.keys() and all(
        (key in inner or more is not False) and keys_fit(item, inner.get(key, more), definitions)
        for key, item in value.items()
    )


def test_the_schema_describes_every_recipe() -> None:
    schema = recipe_schema()
    assert len(schema["properties"]["method"]["oneOf"]) == len(METHODS)
    for path in RECIPES:
        assert keys_fit(read_settings(path), schema, schema["$defs"]), path
    assert not keys_fit(settings(method={"name": "hyperx", "adaptor_size": 3}), schema, schema["$defs"])
    assert "MethodConfig" not in str(schema["$defs"].keys())


def test_the_schema_validates_every_recipe() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(recipe_schema())
    for path in RECIPES:
        validator.validate(read_settings(path))


def undescribed(place: str, schema: dict[str, Any]) -> list[str]:
    """List the properties of a schema, at any depth, that say nothing about themselves."""
    names = []
    for key, value in schema.get("properties", {}).items():
        names += [] if "description" in value else [f"{place}.{key}"]
        names += undescribed(f"{place}.{key}", value)
    for choice in schema.get("oneOf", []):
        names += undescribed(f"{place}.{choice['properties']['name']['const']}", choice)
    return names


def test_the_schema_says_what_every_setting_is() -> None:
    schema = recipe_schema()
    names = undescribed("recipe", schema) + undescribed("recipe.method", schema["properties"]["method"])
    names += [name for kind, part in schema["$defs"].items() for name in undescribed(kind, part)]
    assert not names


def test_a_backbone_is_built_from_its_config() -> None:
    recipe = parse_recipe(settings())
    assert empty_backbone(recipe.backbone).shape.width == 16


def test_a_backbone_by_name_needs_no_weights_to_plan(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert", "hidden_size": 32, "num_attention_heads": 2}')
    recipe = parse_recipe(settings(backbone={"name": str(tmp_path)}))
    backbone = empty_backbone(recipe.backbone)
    assert backbone.shape.width == 32
    assert all(parameter.is_meta for parameter in backbone.parameters())


def test_a_backbone_that_cannot_be_found_says_so(tmp_path: Path) -> None:
    recipe = parse_recipe(settings(backbone={"name": str(tmp_path / "nothing")}))
    with pytest.raises(BackboneError, match=r"backbone\.name: .*backbone\.config"):
        empty_backbone(recipe.backbone)


def test_a_recipe_is_frozen() -> None:
    recipe = parse_recipe(settings())
    assert isinstance(recipe, Recipe)
    with pytest.raises(AttributeError):
        recipe.languages = ()  # type: ignore[misc]
