# The studies of docs/results.md. Finished runs are not repeated; interrupted runs resume.
STUDIES = map-tuning family-tuning real-tuning lm-tuning map family adding real lm

results: ## run them all (hours), one run per core at a time
	python -m experiments run $(STUDIES)

page: ## draw tables and figures into the docs
	python -m experiments draw

.PHONY: results page
