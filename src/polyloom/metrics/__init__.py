"""Score predictions: sufficient statistics per sentence, metrics of their sums, and significance tests."""

from polyloom.metrics.answers import answer_statistics as answer_statistics
from polyloom.metrics.attachment import attachment_statistics as attachment_statistics
from polyloom.metrics.bleu import bleu_statistics as bleu_statistics
from polyloom.metrics.bleu import chrf_statistics as chrf_statistics
from polyloom.metrics.score import METRICS as METRICS
from polyloom.metrics.score import Metric as Metric
from polyloom.metrics.score import Score as Score
from polyloom.metrics.score import register_metric as register_metric
from polyloom.metrics.score import signature as signature
from polyloom.metrics.significance import bootstrap_interval as bootstrap_interval
from polyloom.metrics.significance import paired_bootstrap as paired_bootstrap
from polyloom.metrics.spans import chunk_statistics as chunk_statistics
from polyloom.metrics.spans import repair_bio as repair_bio
from polyloom.metrics.spans import span_statistics as span_statistics
from polyloom.metrics.tags import tag_statistics as tag_statistics
