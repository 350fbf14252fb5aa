"""Wrong conditions, rows and uses are refused with words that help; nothing is ever mixed up."""

import threading

import pytest
import torch

from polyloom.backbones import FAMILIES, Family, backbone_from_config, register_family
from polyloom.conditions import Condition, Inventory
from polyloom.errors import BackboneError, BusyError, ConditionError, ConfigError, PolyloomError, RowError
from polyloom.methods import METHODS
from tests.contracts.tiny import CONFIGS, ROWS, logits, tiny_backbone, tiny_inputs, tiny_model


def test_conditions_are_written_with_slashes():
    assert Condition.parse("pos/tr") == Condition("pos", "tr")
    assert Condition.parse("mt/en/zho_Hans") == Condition("mt", "en", "zho_Hans")
    assert str(Condition("mt", "en", "tr")) == "mt/en/tr"
    assert Condition("mt", "en", "en").languages == ("en",)


@pytest.mark.parametrize("text", ["pos", "pos/", "/tr", "a/b/c/d", "pos/t r", "pos/../x", "pos/tr\n", "", "pos/no/"])
def test_malformed_conditions_say_what_is_expected(text):
    with pytest.raises(ConditionError, match="pos/tr"):
        Condition.parse(text)


@pytest.mark.parametrize("method", METHODS)
def test_unknown_names_get_a_suggestion(method):
    model = tiny_model(method, "bert")
    with pytest.raises(ConditionError, match=r"unknown language 'tur'.*Did you mean 'tr'"):
        model.method.encode(["pos/en/tur"])
    with pytest.raises(ConditionError, match=r"condition poss/en/tr: unknown task 'poss'.*Did you mean 'pos'"):
        model.method.encode(["poss/en/tr"])
    with pytest.raises(ConditionError, match="one condition per row"):
        model.method.encode([])


@pytest.mark.parametrize("method", ["badx", "pair-adapters"])
def test_methods_with_pairs_serve_the_pairs_they_have(method):
    model = tiny_model(method, "bert")
    assert model.method.encode(["pos/tr"]).pair_K == model.method.encode(["pos/en/tr"]).pair_K
    with pytest.raises(ConditionError, match="unknown direction 'tr/en'"):
        model.method.encode(["pos/tr/en"])
    model.method.add_direction("sw", "tr")
    with pytest.raises(ConditionError, match=r"2 stored pairs end in 'tr' \(en/tr, sw/tr\)"):
        model.method.encode(["pos/tr"])


def test_psf_says_whom_it_cannot_serve():
    model = tiny_model("psf", "bert", labelled=("pos/en", "ner/tr"))
    model.method.encode(["ner/en", "pos/tr"])
    with pytest.raises(ConditionError, match=r"without any labelled data, and 'yo' has none.*en, tr"):
        model.method.encode(["pos/yo"])
    unlabelled = Inventory.of(["en"], ["mlm"])
    with pytest.raises(ConfigError, match="no label set"):
        METHODS["psf"](METHODS["psf"].config_type(), shape=model.backbone.shape, inventory=unlabelled)


def test_directions_are_expanded_and_checked():
    assert Inventory.of(["en", "tr", "sw"], ["mt"], ["en/*", "*/en", "tr/sw"]).directions == (
        "en/tr", "en/sw", "tr/en", "sw/en", "tr/sw",
    )  # fmt: skip
    with pytest.raises(ConditionError, match=r"unknown language 'swa'.*Did you mean 'sw'"):
        Inventory.of(["en", "sw"], ["mt"], ["en/swa"])
    with pytest.raises(ConditionError, match="'en' exists already"):
        tiny_model("madx", "bert").method.add_language("en")


def test_rows_and_conditions_must_agree():
    model, inputs = tiny_model("madx", "bert"), tiny_inputs("bert")
    with pytest.raises(RowError, match="7 rows of input, but 6 conditions"):
        model(inputs, ROWS[:-1])
    with model.backbone.using(model.weights(ROWS[:3]), num_rows=3), pytest.raises(RowError, match=r"for 3 rows"):
        model.backbone(**inputs)


def test_ready_weights_must_be_those_of_the_rows():
    model, inputs = tiny_model("hyperx", "bert"), tiny_inputs("bert")
    for rows, words in ((["pos/en"], "1 sets for 7 rows of 6 conditions"), (ROWS[:3], "3 sets for 7 rows")):
        with pytest.raises(RowError, match=words):
            model(inputs, ROWS, weights=model.weights(rows))
    model(inputs, ["pos/en"] * 7, weights=model.weights(["pos/en"]))


def test_invertible_adapters_are_refused_where_they_cannot_be_undone():
    """Such a DeBERTa's "output embeddings" are a dense layer inside its head."""
    backbone = backbone_from_config({"model_type": "deberta-v2", "legacy": False} | CONFIGS["deberta-v2"])
    model, inputs = tiny_model("madx", "deberta-v2", backbone=backbone), tiny_inputs("deberta-v2")
    with pytest.raises(BackboneError, match=r"cannot be undone.*invertible: false"):
        model(inputs, ROWS)
    logits(tiny_model("madx", "deberta-v2", backbone=backbone, invertible=False), inputs, ROWS)


def test_an_error_inside_leaves_the_backbone_usable_and_bare():
    model, inputs = tiny_model("madx", "bert"), tiny_inputs("bert")
    with torch.no_grad():
        bare = model.backbone(**inputs).logits
        with pytest.raises(IndexError):
            model(inputs | {"input_ids": inputs["input_ids"] + 1000}, ROWS)
        assert torch.equal(model.backbone(**inputs).logits, bare)
        logits(model, inputs, ROWS)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_second_thread_is_refused_and_the_first_is_right(family):
    model, inputs = tiny_model("hyperx", family), tiny_inputs(family)
    inside, go_on = threading.Event(), threading.Event()
    result: list[torch.Tensor] = []

    def pause(*_):
        inside.set()
        go_on.wait(30)

    with torch.no_grad():
        expected = logits(model, inputs, ROWS)
        layers = model.backbone.model.base_model.get_submodule(next(iter(FAMILIES[family].stacks.values())))
        handle = layers[0].register_forward_hook(pause)

        def first():
            with torch.no_grad():
                result.append(logits(model, inputs, ROWS))

        thread = threading.Thread(target=first)
        thread.start()
        assert inside.wait(30)
        with pytest.raises(BusyError, match="already in use"):
            model(inputs, ROWS[::-1])
        with pytest.raises(BusyError, match="already in use"):
            model.backbone.model(**inputs)  # not even a bare pass gets another thread's weights
        go_on.set()
        thread.join()
        handle.remove()
    assert torch.equal(result[0], expected)


def test_recomputation_in_a_backward_pass_is_refused_while_another_thread_is_inside():
    model = tiny_model("hyperx", "bert", backbone=tiny_backbone("bert"))
    model.backbone.enable_gradient_checkpointing()
    inputs, inside, go_on = tiny_inputs("bert"), threading.Event(), threading.Event()
    result: list[torch.Tensor] = []
    loss = logits(model.train(), inputs, ROWS).square().mean()

    def pause(*_):
        inside.set()
        go_on.wait(30)

    def first():
        with torch.no_grad():
            result.append(logits(model.eval(), inputs, ROWS[::-1]))

    handle = model.backbone.model.base_model.encoder.layer[0].register_forward_hook(pause)
    thread = threading.Thread(target=first)
    thread.start()
    assert inside.wait(30)
    with pytest.raises(BusyError, match="already in use"):
        loss.backward()
    go_on.set()
    thread.join()
    handle.remove()
    with torch.no_grad():
        assert torch.equal(result[0], logits(model, inputs, ROWS[::-1]))


def test_eight_threads_never_get_another_ones_rows():
    model, inputs = tiny_model("madx", "bert"), tiny_inputs("bert", num_rows=1)
    with torch.no_grad():
        expected = {row: logits(model, inputs, [row]) for row in set(ROWS)}
    wrong, refused = [], []

    def work(row: str) -> None:
        for _ in range(60):
            try:
                with torch.no_grad():
                    if not torch.equal(logits(model, inputs, [row]), expected[row]):
                        wrong.append(row)
            except BusyError:
                refused.append(row)

    threads = [threading.Thread(target=work, args=(ROWS[i % 6],)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(refused) < 8 * 60


def test_an_unknown_family_says_how_to_describe_it():
    with pytest.raises(BackboneError, match=r"no family for model type 'electra'.*register_family\('electra'"):
        backbone_from_config({"model_type": "electra"})


def test_a_user_can_describe_a_further_family_with_one_entry():
    register_family("electra", FAMILIES["bert"], tiny=CONFIGS["bert"] | {"embedding_size": 16})
    try:
        model, inputs = tiny_model("madx", "electra"), tiny_inputs("electra")
        with torch.no_grad():
            mixed = logits(model, inputs, ROWS)
            alone = logits(model, {n: t[2:3] for n, t in inputs.items()}, ROWS[2:3])
        torch.testing.assert_close(mixed[2:3], alone, rtol=0, atol=1e-5)
        with pytest.raises(PolyloomError, match="registered already"):
            register_family("electra", FAMILIES["bert"])
    finally:
        del FAMILIES["electra"]


def test_a_wrong_path_in_a_family_says_what_is_there():
    broken = Family(stacks={"encoder": "encoder.layers"}, output="output.dropout", projections={})
    from polyloom.backbones import Backbone

    with pytest.raises(BackboneError, match=r"has no 'layers'.*It has: layer"):
        Backbone(tiny_model("full", "bert").backbone.model, broken)


@pytest.mark.parametrize("key", ["hiden_size", "auto_map", "_attn_implementation_internal"])
def test_unknown_config_keys_are_refused(key):
    with pytest.raises(BackboneError, match=f"backbone.config.{key}"):
        backbone_from_config({"model_type": "bert", key: 8})


def test_a_placement_the_family_lacks_says_why():
    with pytest.raises(BackboneError, match=r"m2m_100 has no placement 'norm'.*Known: layer, output.*Pre-norm"):
        tiny_model("madx", "m2m_100", placement="norm")
    with pytest.raises(ConfigError, match=r"placement: a lora block has no such setting.*has it: bottleneck"):
        tiny_model("madx", "bert", block="lora", placement="layer")
