# The experiments of docs/results.md. What is finished is not run again; what was interrupted goes on.
# POLYLOOM_DATA says where the corpora are; BACKBONE=DIR takes another backbone than experiments/methods.yaml does.
EXPERIMENTS = tuning transfer conditioning short language-stage bilingual ablations few-shot mt-table mt-analysis

results: ## run them all (hours), one run per core at a time
	python experiments/run.py $(EXPERIMENTS) $(if $(BACKBONE),--backbone $(BACKBONE))
	python experiments/layers.py runs/transfer/hyperx-multi-0 runs/transfer/madx-0
	python experiments/sources.py runs/mt-table/*-[0-9]
	python experiments/magnitudes.py runs/mt-analysis/*plain-* runs/mt-analysis/*rescaled-*
	python experiments/growth.py

page: ## draw tables and figures into the docs
	python experiments/draw.py

.PHONY: results page
