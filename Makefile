# The experiments of the result pages. Finished runs are not repeated; interrupted runs resume.
# POLYLOOM_DATA names the folder of the corpora; BACKBONE=DIR replaces the backbone of experiments/plans/methods.yaml.
EXPERIMENTS = tuning transfer conditioning short language-stage bilingual ablations few-shot mt-table mt-analysis head start

results: ## run them all (hours), one run per core at a time
	python -m experiments run $(EXPERIMENTS) $(if $(BACKBONE),--backbone $(BACKBONE))
	python -m experiments layers runs/transfer/hyperx-multi-0 runs/transfer/madx-0
	python -m experiments sources runs/mt-table/*-[0-9]
	python -m experiments magnitudes runs/mt-analysis/*plain-* runs/mt-analysis/*rescaled-*
	python -m experiments add-languages

page: ## draw tables and figures into the docs
	python -m experiments draw

.PHONY: results page
