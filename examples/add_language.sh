# Add a language to a trained run, from its raw text. `polyloom demo` writes the run and the text.

# 1. A language that the run has never seen.
polyloom add language polyloom-demo/hyper-stack baru --text polyloom-demo/baru.txt --test pos=synthetic:baru/test -o runs/with-baru

# 2. Tags of it, although it has no labels.
head -n 2 polyloom-demo/baru.txt | polyloom predict runs/with-baru pos/baru

# 3. Nothing else has changed.
head -n 2 polyloom-demo/baru.txt | polyloom predict polyloom-demo/hyper-stack pos/boza --scores --format jsonl > before.jsonl
head -n 2 polyloom-demo/baru.txt | polyloom predict runs/with-baru pos/boza --scores --format jsonl > after.jsonl
cmp before.jsonl after.jsonl

# 4. What does the initialisation do?
polyloom add language polyloom-demo/hyper-stack baru --text polyloom-demo/baru.txt --test pos=synthetic:baru/test --init-from mean -o runs/from-mean

# 5. The new language as a file of its own.
polyloom export runs/with-baru pos/baru -o pos-baru
head -n 2 polyloom-demo/baru.txt | polyloom predict pos-baru pos/baru
