"""A real pretrained multilingual model with a real tokenizer, loaded as from the Hub but from a local directory."""

import pytest
import torch

import polyloom as pl
from polyloom.errors import PolyloomError

SENTENCES = {
    "en": "The cat sat on the mat because it was warm.",
    "tr": "Kedi sıcak olduğu için paspasın üzerine oturdu.",
    "no": "Katten satt på matten fordi det var varmt.",
    "ru": "Кошка сидела на коврике, потому что было тепло.",
    "zh": "猫坐在垫子上，因为很暖和。",
    "yo": "Ológbò náà jókòó sórí ẹní nítorí pé ó gbóná.",
}
ROWS = [f"{task}/{language}" for task, language in zip(["pos", "ner"] * 3, SENTENCES, strict=True)]


@pytest.fixture(scope="module")
def backbone(pretrained):
    return pl.load_backbone(pretrained)


@pytest.fixture(scope="module")
def inputs(pretrained):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(pretrained)
    encoded = tokenizer(list(SENTENCES.values()), padding=True, return_tensors="pt")
    return {name: encoded[name] for name in ("input_ids", "attention_mask")}


def build(backbone, config):
    torch.manual_seed(0)
    return pl.Model(backbone, config, languages=list(SENTENCES), tasks={"pos": 17, "ner": 7}).eval()


def test_loading_gives_the_data_type_asked_for_whatever_the_file_holds(pretrained, backbone):
    assert backbone.model.dtype == torch.float32
    assert pl.load_backbone(pretrained, dtype=torch.bfloat16).model.dtype == torch.bfloat16
    assert pl.load_backbone(pretrained, device="meta").shape == backbone.shape


@pytest.mark.parametrize("config", [pl.MadXConfig(), pl.HyperXConfig()])
def test_real_sentences_of_six_languages_in_one_batch_are_each_as_alone(backbone, inputs, config):
    model = build(backbone, config)
    with torch.no_grad():
        together = model(inputs | {"output_hidden_states": True}, ROWS)
        bare = model.backbone(**inputs).logits
        for i in range(len(ROWS)):
            real = inputs["attention_mask"][i].bool()
            row = {name: tensor[i : i + 1, real] for name, tensor in inputs.items()}  # without any padding
            alone = model(row | {"output_hidden_states": True}, ROWS[i : i + 1])
            mixed_hidden = together.hidden_states[-1][i, real]
            torch.testing.assert_close(mixed_hidden, alone.hidden_states[-1][0], rtol=0, atol=1e-5)
            assert torch.equal(together.logits[i, real].argmax(-1), alone.logits[0].argmax(-1))
    assert (together.logits - bare).abs().max() > 1e-3, "the adapters act"


@pytest.mark.parametrize("config", [pl.MadXConfig(), pl.HyperXConfig(), pl.HyperAdaptersConfig(hidden_size=102)])
def test_a_row_with_weights_made_for_the_whole_batch_is_bitwise_as_alone(backbone, inputs, config):
    """Rows never mix. What differs at all differs because a product of another shape rounds differently."""
    model = build(backbone, config)
    with torch.no_grad():
        weights = model.weights(ROWS)
        together = model(inputs, ROWS, weights=weights).logits
        for i in range(len(ROWS)):
            row = {name: tensor[i : i + 1] for name, tensor in inputs.items()}
            own = weights.for_rows(torch.tensor([i]))
            torch.testing.assert_close(model(row, ROWS[i : i + 1], weights=own).logits[0], together[i], rtol=0, atol=0)
            made_alone = model.weights(ROWS[i : i + 1])
            for one, other in zip(own.blocks, made_alone.blocks, strict=True):
                for name in one.tensors:
                    torch.testing.assert_close(one.tensors[name], other.tensors[name], rtol=0, atol=1e-6)


def test_a_frozen_half_precision_backbone_takes_full_precision_adapters(pretrained, inputs):
    model = build(pl.load_backbone(pretrained, dtype=torch.bfloat16), pl.HyperXConfig(adapter_size=48))
    model(inputs, ROWS).logits.float().square().mean().backward()
    for parameter in model.method.parameters():
        assert parameter.dtype == torch.float32
        assert parameter.grad is not None
        assert torch.isfinite(parameter.grad).all()


def test_a_name_that_cannot_be_found_says_what_to_do():
    with pytest.raises(pl.PolyloomError, match=r"backbone.name: the configuration of 'no/such-model' cannot be read"):
        pl.load_backbone("no/such-model")


def test_a_backbone_without_a_language_modelling_head_is_not_used_for_it(pretrained, tmp_path):
    """Sentence encoders come without one; Transformers would make up a random head and say so in passing."""
    from transformers import AutoModel

    AutoModel.from_pretrained(pretrained).save_pretrained(tmp_path)
    headless = pl.load_backbone(tmp_path)
    pl.Model(headless, pl.HyperXConfig(), languages=["en"], tasks={"pos": ["NOUN", "VERB"]})
    with pytest.raises(PolyloomError, match="without cls"):
        pl.Model(headless, pl.HyperXConfig(), languages=["en"], tasks={"mlm": None})


def test_a_frozen_backbone_in_bf16_trains_what_learns_in_fp32(pretrained, inputs):
    backbone = pl.load_backbone(pretrained, dtype=torch.bfloat16, attention="eager")
    model = pl.Model(
        backbone, pl.HyperXConfig(), languages=SENTENCES, tasks={"pos": ["NOUN", "VERB"], "ner": ["O", "B-X"]}
    )
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert {parameter.dtype for parameter in trained} == {torch.float32}
    weights = model.weights(ROWS)
    with backbone.using(weights, num_rows=len(ROWS)):
        backbone.hidden(**inputs).float().square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in backbone.norm_parameters().values())
    assert all(p.grad is not None for p in model.method.parameters())
    with pytest.raises(PolyloomError, match="must be in fp32"):
        pl.Model(pl.load_backbone(pretrained, dtype=torch.bfloat16), pl.FullConfig(), languages=["en"], tasks=["mlm"])
