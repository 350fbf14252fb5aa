"""Six directions in one beam-search batch, encoder and decoder each with their own language; nothing is downloaded.

python examples/translate.py
"""

import torch

import polyloom as pl

# Random weights, so the "translations" are noise; the point is that each row gets its own, and gets it right.
backbone = pl.backbone_from_config(
    {"model_type": "m2m_100", "vocab_size": 500, "d_model": 64, "encoder_layers": 2, "decoder_layers": 2,
     "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
     "init_std": 0.2, "tie_word_embeddings": False},
)  # fmt: skip
model = pl.Model(
    backbone,
    pl.HyperAdaptersConfig(adapter_size=16, hidden_size=64),
    languages=["en", "de", "nl", "tr", "az", "kk"],
    tasks=["mt"],
).eval()

rows = ["mt/en/de", "mt/de/en", "mt/en/tr", "mt/tr/az", "mt/kk/en", "mt/nl/kk"]
inputs = {"input_ids": torch.randint(4, 500, (6, 10)), "attention_mask": torch.ones(6, 10, dtype=torch.long)}

together = model.generate(inputs, rows, num_beams=5, max_new_tokens=8)
for i, row in enumerate(rows):
    alone = model.generate(
        {key: value[i : i + 1] for key, value in inputs.items()}, [row], num_beams=5, max_new_tokens=8
    )
    same = together[i, : alone.shape[1]].tolist() == alone[0].tolist()
    print(f"{row}: {together[i].tolist()}  {'as alone' if same else 'DIFFERENT'}")
    assert same
