"""EleutherAI's lm-eval with a run, every task of lm-eval under a condition of its own.

lm-eval does not tell a model the language of its tasks, and their names are no rule: `xnli_sw`, `belebele_swh_Latn`,
and `afrimgsm_translate_swa_prompt_1`, whose questions are translated from Swahili. So the caller says it, and a task
without a condition is an error.
"""

import json
import warnings
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs

from polyloom.conditions import Condition
from polyloom.errors import ConditionError, PolyloomError, PolyloomWarning
from polyloom.inference.generate import continue_prompts
from polyloom.inference.predictor import TOKENS, group_by_length
from polyloom.model import nonfinite_error
from polyloom.tasks.lm import around_texts
from polyloom.workflows.run import Run, load

SAMPLING = ("temperature", "top_p", "top_k", "min_p")  # settings that greedy search does not have


class Row(NamedTuple):
    """Tokens of which the last `scored` are scored."""

    condition: Condition
    tokens: list[int]
    scored: int


@register_model("polyloom")
class PolyloomLM(LM):  # type: ignore[misc]
    """A run as a model of lm-eval; requests of any conditions share batches.

    Args:
        run: Folder of a run or of exported adapters, or a repository of adapters on the Hub.
        batch_size: Not used, lm-eval always gives it. A batch has up to 4,096 tokens.
        max_batch_size: Not used either.
        device: Such as ``cpu``. By default a GPU if there is one.
        **conditions: The condition of each task of lm-eval, such as ``xnli_sw="lm/sw"``. A name may be a pattern, such
            as ``*_sw``.
    """

    def __init__(
        self,
        run: str,
        *,
        batch_size: Any = None,  # noqa: ARG002
        max_batch_size: Any = None,  # noqa: ARG002
        device: str | None = None,
        **conditions: str,
    ) -> None:
        super().__init__()
        if str(device).startswith("cuda") and not torch.cuda.is_available():
            device = None  # lm-eval's default
        loaded = load(run, device=device)
        self.conditions = {pattern: _checked(Condition.parse(name), loaded) for pattern, name in conditions.items()}
        loaded.loaded.trained_parts.warn(self.conditions.values())
        loaded.model.eval()
        self.predictor = loaded.predictor
        self.begin, _ = around_texts(self.predictor.tokenizer)

    def set_cache_hook(self, cache_hook: Any) -> None:  # noqa: ARG002
        """Refuse lm-eval's cache of answers, where two languages with the same prompt are one."""
        raise PolyloomError("--use_cache: lm-eval's cache does not know conditions. Leave it out.")

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        """Score what follows a context: the log-probability, and whether greedy search would write it."""
        # One token more than the model reads: the last one is only predicted.
        rows, room, cut = [], self.predictor.max_length + 1, 0
        for request, condition in zip(requests, self._conditions(requests), strict=True):
            context, following = self._encode_pair(*request.args)
            if not 0 < len(following) < room:
                raise PolyloomError(
                    f"{request.task_name}: a continuation of {len(following)} tokens. Between 1 and {room - 1} can be "
                    "scored."
                )
            tokens = [self.begin, *context, *following]
            cut += len(tokens) > room
            rows.append(Row(condition, tokens[-room:], len(following)))
        self._warn_of_cuts(cut)
        return self._score(rows)

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        """Score whole texts. A long one takes several rows, each of which begins with the last token of the former."""
        rows, owners = [], []
        for number, (request, condition) in enumerate(zip(requests, self._conditions(requests), strict=True)):
            (ids,) = self.predictor.tokenizer.text(list(request.args))
            # Every token is scored once; the first of a row is only read.
            for start in range(0, len(ids), self.predictor.max_length):
                tokens = [self.begin, *ids][start : start + self.predictor.max_length + 1]
                rows.append(Row(condition, tokens, len(tokens) - 1))
                owners.append(number)
        totals = [0.0] * len(requests)
        for owner, (log, _) in zip(owners, self._score(rows), strict=True):
            totals[owner] += log
        return totals

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """Continue contexts up to one of the texts that end them; requests with the same settings share batches."""
        tokenizer, groups, cut = self.predictor.tokenizer, dict[str, list[int]](), 0
        prompts = []
        for place, (request, condition) in enumerate(zip(requests, self._conditions(requests), strict=True)):
            context, settings = request.args
            options = dict(normalize_gen_kwargs(settings))  # lm-eval's settings, translated for `continue_prompts`
            options["max_new_tokens"] = options.pop("max_gen_toks")
            options["until"] = [text for text in options["until"] if text]
            if not options["do_sample"]:
                options = {key: value for key, value in options.items() if key not in SAMPLING}
            groups.setdefault(json.dumps(options, sort_keys=True), []).append(place)
            tokens, room = [self.begin, *tokenizer.text([context])[0]], self.predictor.max_length
            room -= options["max_new_tokens"]
            cut += len(tokens) > room
            prompts.append((condition, tokens[-room:] if room > 0 else tokens))
        texts: dict[int, str] = {}
        for key, places in groups.items():
            options = json.loads(key)
            generated = continue_prompts(self.predictor, [prompts[place] for place in places], **options)
            for place, ids in zip(places, generated, strict=True):
                text = tokenizer.decode(ids)
                for end in options["until"]:
                    text = text.split(end, maxsplit=1)[0]
                texts[place] = text
        self._warn_of_cuts(cut)
        return [texts[place] for place in range(len(requests))]

    def _conditions(self, requests: Sequence[Any]) -> list[Condition]:
        """Return the condition of each request, or raise an error that names a task without one."""
        by_task: dict[str, Condition] = {}
        for name in dict.fromkeys(str(request.task_name) for request in requests):  # requests without task have None
            # Several patterns may match if they stand for the same condition.
            matching = sorted({c for pattern, c in self.conditions.items() if fnmatchcase(name, pattern)})
            if len(matching) != 1:
                names = f"{len(matching)} conditions ({', '.join(map(str, matching))})" if matching else "no condition"
                raise ConditionError(
                    f"lm-eval's task {name!r} has {names}; it needs one. Name it: --model_args {name}=TASK/LANGUAGE"
                )
            by_task[name] = matching[0]
        return [by_task[str(request.task_name)] for request in requests]

    def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Return the tokens of a context and of what follows it, which has the white space between them.

        They are tokenized together, as in running text; apart only if a token would hold the end of one and the
        beginning of the other.
        """
        stripped = context.rstrip()
        following = context[len(stripped) :] + continuation
        before, after, together = self.predictor.tokenizer.text([stripped, following, stripped + following])
        return before, together[len(before) :] if together[: len(before)] == before else after

    def _warn_of_cuts(self, cut: int) -> None:
        if cut:
            lost = f"{cut} contexts of lm-eval lost their beginning"
            room = f"a row has {self.predictor.max_length} tokens, with what is scored or generated"
            warnings.warn(f"{lost}: {room}.", PolyloomWarning, stacklevel=2)

    def _score(self, rows: Sequence[Row]) -> list[tuple[float, bool]]:
        """Score rows of any conditions, in batches of similar length."""
        scores: dict[int, tuple[float, bool]] = {}
        for group in group_by_length([len(row.tokens) for row in rows], tokens=TOKENS):
            scores |= zip(group, self._score_batch([rows[place] for place in group]), strict=True)
        return [scores[place] for place in range(len(rows))]

    @torch.inference_mode()
    def _score_batch(self, rows: Sequence[Row]) -> list[tuple[float, bool]]:
        """Score rows in one forward pass: B rows of T tokens, of which N in all are scored, with V in the vocabulary.

        Padding follows the tokens, where a causal model does not look, so there is no attention mask.
        """
        model, conditions = self.predictor.model, [row.condition for row in rows]
        ids_BT = torch.full((len(rows), max(len(row.tokens) for row in rows) - 1), self.predictor.tokenizer.pad_id)
        labels_BT = torch.full_like(ids_BT, -1)
        for i, (_, tokens, scored) in enumerate(rows):  # labels are the tokens one place further on
            ids_BT[i, : len(tokens) - 1] = torch.tensor(tokens[:-1])
            labels_BT[i, len(tokens) - 1 - scored : len(tokens) - 1] = torch.tensor(tokens[-scored:])
        ids_BT, labels_BT = (tensor.to(model.backbone.model.device) for tensor in (ids_BT, labels_BT))
        positions_BT = torch.arange(ids_BT.shape[1], device=ids_BT.device).expand_as(ids_BT)
        weights = self.predictor.cache.rows(conditions)
        with model.backbone.using(weights, num_rows=len(rows)):
            hidden_BTD = model.backbone.hidden(input_ids=ids_BT, position_ids=positions_BT).float()

        # Logits of the vocabulary are by far the largest tensor, so they are computed for scored tokens only.
        real_BT = labels_BT >= 0
        row_N, labels_N = real_BT.nonzero()[:, 0], labels_BT[real_BT]
        logits_NV = model.head_inputs(hidden_BTD, weights).vocabulary(hidden_BTD[real_BT], row_N, None).float()
        logs_N = -F.cross_entropy(logits_NV, labels_N, reduction="none").double()

        # Log-probabilities are added up in float64; a row is greedy if no token would have been another one.
        logs_B = torch.zeros(len(rows), dtype=logs_N.dtype, device=logs_N.device).index_add(0, row_N, logs_N)
        others_B = torch.zeros_like(logs_B).index_add(0, row_N, (logits_NV.argmax(-1) != labels_N).double())
        for condition, is_finite in zip(conditions, logs_B.isfinite().tolist(), strict=True):
            if not is_finite:
                raise nonfinite_error(condition)
        return list(zip(logs_B.tolist(), (others_B == 0).tolist(), strict=True))


def _checked(condition: Condition, run: Run) -> Condition:
    """Raise unless a condition is one that lm-eval's texts can be scored under."""
    task = run.model.task(condition.task)
    run.model.method.require_supported(condition)
    if not task.uses_lm_head or task.kind == "conversation":
        raise ConditionError(
            f"{condition}: lm-eval asks for plain text and its likelihood, which {task.name} is not trained on."
        )
    return condition
