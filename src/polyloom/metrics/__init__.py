"""Scores of predictions: counts per sentence, what follows from their sums, and how certain that is."""

from polyloom.metrics.attachment import attachment_parts as attachment_parts
from polyloom.metrics.score import METRICS as METRICS
from polyloom.metrics.score import Metric as Metric
from polyloom.metrics.score import Score as Score
from polyloom.metrics.score import signature as signature
from polyloom.metrics.significance import bootstrap_interval as bootstrap_interval
from polyloom.metrics.significance import paired_bootstrap as paired_bootstrap
from polyloom.metrics.spans import repair_bio as repair_bio
from polyloom.metrics.spans import span_parts as span_parts
from polyloom.metrics.tags import tag_parts as tag_parts
from polyloom.metrics.translation import bleu_parts as bleu_parts
from polyloom.metrics.translation import chrf_parts as chrf_parts
