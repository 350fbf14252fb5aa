# A LoRA for every language of a language model. Type these commands in a folder with languages.yaml, text and held-out.

# 1. What it will take: parameters, and memory of a device.
polyloom data check languages.yaml
polyloom plan languages.yaml --devices 1

# 2. Training.
polyloom train languages.yaml -o runs/languages

# 3. Bits per byte of the held-out text.
polyloom evaluate runs/languages

# 4. A language continues a text; then two in one batch.
echo "Habari ya" | polyloom generate runs/languages lm/sw --max-new-tokens 40
python -c 'import polyloom as pl; print(pl.load("runs/languages").generate(["Habari ya", "Ina kwana"], ["lm/sw", "lm/ha"], max_new_tokens=40))'

# 5. One language as files that PEFT and vLLM load.
polyloom export runs/languages lm/yo --format peft -o lora-yo

# 6. A fourth language, from text alone.
polyloom add language runs/languages sn --text text/sn.txt -o runs/with-sn
echo "Mangwanani" | polyloom generate runs/with-sn lm/sn --max-new-tokens 40
