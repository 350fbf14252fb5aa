"""What other people's programs say: runs in their virtual environment, reads a request, writes answers, both JSON.

``treebanks``: pairs of CoNLL-U files, judged by the CoNLL 2018 evaluation (udtools). ``tags``: corpora of gold and
predicted tags, judged by seqeval. ``matrices``: scores of arcs, given to ufal.chu_liu_edmonds. ``answers``: gold and
predicted answers, judged by Transformers.
"""

import json
import sys
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any


def judge_treebanks(pair: list[str]) -> dict[str, list[Any]]:
    """Correct words, all words and F1 by metric."""
    udeval = import_module("udtools.udeval")
    scores = udeval.evaluate(*map(udeval.load_conllu_file, pair))
    return {name: [scores[name].correct, scores[name].gold_total, scores[name].f1] for name in ("UPOS", "UAS", "LAS")}


def judge_tags(corpus: dict[str, list[list[str]]]) -> dict[str, Any]:
    """F1, precision and recall over the corpus, and the entities of every sentence."""
    seqeval = import_module("seqeval.metrics")
    get_entities = import_module("seqeval.metrics.sequence_labeling").get_entities
    scores = [
        getattr(seqeval, f"{name}_score")(corpus["gold"], corpus["predicted"]) for name in ("f1", "precision", "recall")
    ]
    return {"scores": scores} | {side: [get_entities(tags) for tags in corpus[side]] for side in corpus}


def judge_matrix(rows: list[list[float]]) -> dict[str, Any]:
    """The best tree with any number of roots, and the score of the best with one, all choices of it tried."""
    numpy, solve = import_module("numpy"), import_module("ufal.chu_liu_edmonds").chu_liu_edmonds
    scores = numpy.array(rows)
    heads, total = solve(scores)
    single = []
    for root in range(1, len(scores)):
        only = scores.copy()
        only[:, 0] = numpy.nan  # the way to say that an arc is not there
        only[root, 0] = scores[root, 0]
        single.append(solve(only)[1])
    return {"heads": heads[1:], "total": total, "single": max(single)}


def judge_answer(pair: list[str]) -> list[Any]:
    """Exact match and F1 of a gold and a predicted answer, and what is left of the gold one."""
    judge = import_module("transformers.data.metrics.squad_metrics")
    return [judge.compute_exact(*pair), judge.compute_f1(*pair), judge.normalize_answer(pair[0])]


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # seqeval's, of scores that are 0 / 0
    judges = {"treebanks": judge_treebanks, "tags": judge_tags, "matrices": judge_matrix, "answers": judge_answer}
    request = json.loads(Path(sys.argv[1]).read_text())
    answers = {kind: [judges[kind](case) for case in cases] for kind, cases in request.items()}  # type: ignore[operator]
    Path(sys.argv[2]).write_text(json.dumps(answers))
