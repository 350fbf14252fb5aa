"""A trained run: predict, translate, evaluate, add languages, export, report."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from polyloom.conditions import Condition, missing_language_error
from polyloom.config import Recipe
from polyloom.config.build import find_corpora
from polyloom.data.catalog import Corpus
from polyloom.errors import ConditionError, ConfigError, suggest
from polyloom.evaluate.matrix import Matrix, Result
from polyloom.evaluate.saved import store
from polyloom.evaluate.scoring import score_corpora
from polyloom.inference.generate import continue_prompts
from polyloom.inference.predictions import Input, Names, make_record, pair_with_conditions
from polyloom.inference.predictor import Predictor
from polyloom.inference.translate import steps, translate, translate_all
from polyloom.io.access import allow_paths
from polyloom.loading import LoadedModel, load_run_dir, load_source
from polyloom.model import Model
from polyloom.rundir import RunDir
from polyloom.tasks.chat import Chat
from polyloom.tasks.lm import CausalLm
from polyloom.tasks.translation import Translation
from polyloom.training.events import OnEvent, Scored, ScoringStarted, Translated
from polyloom.version import versions

if TYPE_CHECKING:
    from polyloom.workflows.add_language import AddLanguageResult
    from polyloom.workflows.export import Format


class Run:
    """A trained run, or exported adapters.

    Args:
        loaded: The model, and where it was loaded from.
    """

    def __init__(self, loaded: LoadedModel) -> None:
        self.loaded = loaded

    @classmethod
    def load(cls, path: str | Path, *, checkpoint: str | None = None, device: str | None = None) -> Self:
        """Load a checkpoint of a run, by default the best one; see `load`."""
        return cls(load_run_dir(path, checkpoint=checkpoint, device=device))

    @property
    def path(self) -> Path:
        """Directory of the run or of the adapters."""
        return self.loaded.path

    @property
    def checkpoint(self) -> Path:
        """The checkpoint that was loaded. Of adapters: their directory."""
        return self.loaded.checkpoint

    @property
    def recipe(self) -> Recipe:
        """The run's recipe. Of adapters: the backbone, the languages and the tasks."""
        return self.loaded.recipe

    @property
    def predictor(self) -> Predictor:
        """The model with its tokenizer, for records and batches."""
        return self.loaded.predictor

    @property
    def model(self) -> Model:
        """The model of the checkpoint, an ordinary `torch.nn.Module`."""
        return self.predictor.model

    @property
    def tokenizer(self) -> Any:
        """The tokenizer of Transformers that the model was trained with."""
        return self.loaded.tokenizer

    @property
    def trained_on(self) -> Sequence[str]:
        """Conditions with training data; the others are zero-shot."""
        return self.loaded.trained_on

    def resolve(self, names: Iterable[str]) -> list[Corpus]:
        """Find corpora of the recipe by their names; raise an error for files that the run may not read."""
        return self.loaded.resolve(names)

    # -- predict ------------------------------------------------------------------------------------------------------

    def predict(self, inputs: Input | list[Input], conditions: Names | Sequence[Names]) -> Any:
        """Predict one input, or a list of inputs of any conditions, which share batches.

        Args:
            inputs: One input, or a list of them. An input is a text. For tasks on words it can also be the words of a
                sentence, for pairs it is a tuple of two texts, for choices one of premise, question and choices, for
                questions one of question and context. Records (`Tagged`, `Pair`, …) are accepted too. A list always
                means several inputs: give the words of one sentence as a tuple.
            conditions: ``task/language`` or ``task/source/target``: one for all inputs, or a list with one each.

        Returns:
            One prediction, or a list of them in the order of the inputs: `TagPrediction`, `ParsePrediction`,
            `LabelPrediction`, `AnswerPrediction`, or the text that was generated. An input that cannot be predicted
            raises an error. Inputs that are longer than the model's maximum and are cut raise a warning.
        """
        pairs = pair_with_conditions(inputs, conditions)
        parsed = {name: self._condition(name) for name in dict.fromkeys(name for _, name in pairs)}
        self.loaded.trained_parts.warn(parsed.values())
        records = []
        for value, name in pairs:
            condition = parsed[name]
            records.append((condition, make_record(value, self.model.task(condition.task), condition)))
        self.predictor.pop_length_warnings()  # of other calls
        predictions = list(self.predictor.predictions(records))
        self._warn_of_cuts()
        return predictions if isinstance(inputs, list) else predictions[0]

    def _warn_of_cuts(self) -> None:
        if cut := self.predictor.pop_length_warnings().get("cut"):
            warnings.warn(cut, stacklevel=3)

    def _condition(self, name: Names) -> Condition:
        """Parse a condition and check that the model supports it."""
        if not isinstance(name, Names) or "/" not in str(name):
            tasks = [task for task, head in self.model.tasks.items() if head.formats() or isinstance(head, Chat)]
            raise missing_language_error(name, tasks=tasks, languages=list(self.model.method.languages))
        condition = Condition.parse(name)
        self.model.task(condition.task)
        self.model.method.require_supported(condition)
        return condition

    def translate(
        self, texts: str | Sequence[str], source: str, target: str, *, pivot: str | None = None, sentences: bool = False
    ) -> Any:
        """Translate a text, or several; the result is a text, or a list of them.

        A text that is longer than the model's maximum is translated sentence by sentence.

        Args:
            texts: One text, or a list of them.
            source: Language of the texts.
            target: Language to translate into.
            pivot: A language to translate into first, and from there into the target. Default: none.
            sentences: Split texts into sentences and translate these one by one. Default: translate texts as they are.
        """
        several = [texts] if isinstance(texts, str) else list(texts)
        condition = Condition(Translation.name, source, target)
        self.model.task(condition.task)
        for step in steps(condition, pivot):
            self.model.method.require_supported(step)
        self.loaded.trained_parts.warn(steps(condition, pivot))
        task = self.model.task(condition.task)
        records = [make_record(text, task, condition) for text in several]
        translations = {place: task.record_kind().empty_prediction(record) for place, record in enumerate(records)}
        places = [place for place, empty in translations.items() if empty is None]
        self.predictor.pop_length_warnings()  # of other calls
        translated = translate(
            self.predictor, [records[place] for place in places], condition, pivot=pivot, sentences=sentences
        )
        translations |= zip(places, translated, strict=True)
        self._warn_of_cuts()
        return translations[0] if isinstance(texts, str) else list(translations.values())

    def generate(self, prompts: Any | list[Any], conditions: Names | Sequence[Names], **options: Any) -> Any:
        """Continue a text, or answer in a conversation, with a decoder; prompts of any conditions share batches.

        Args:
            prompts: One prompt, or a list of them. For `lm` a text that is continued. For `chat` what the user says, or
                a tuple of messages: ``({"role": "user", "content": "…"},)``. A list always means several prompts.
            conditions: ``task/language``: one for all prompts, or a list with one each.
            **options: Settings of Transformers' `generate`, such as ``max_new_tokens``, ``do_sample`` and
                ``temperature``, and the ``seed`` of samples. Default: greedy search, 128 new tokens.

        Returns:
            What was generated, or a list of it in the order of the prompts.
        """
        pairs = pair_with_conditions(prompts, conditions)
        parsed = {name: self._condition(name) for name in dict.fromkeys(name for _, name in pairs)}
        tokenizer, prompt_ids = self.predictor.tokenizer, []
        for prompt, name in pairs:
            condition = parsed[name]
            if not isinstance(task := self.model.task(condition.task), CausalLm):
                raise ConditionError(f"{condition}: {task.name} does not continue texts. `predict` is for it.")
            messages = list(prompt) if isinstance(prompt, tuple) else prompt
            prompt_ids.append((condition, task.prompt_tokens(messages, tokenizer)))
        self.loaded.trained_parts.warn(parsed.values())
        texts = [tokenizer.decode(ids) for ids in continue_prompts(self.predictor, prompt_ids, **options)]
        return texts if isinstance(prompts, list) else texts[0]

    # -- evaluate -----------------------------------------------------------------------------------------------------

    def evaluate(
        self,
        corpora: Mapping[str, str | Sequence[str]] | None = None,
        *,
        split: str = "test",
        tasks: Sequence[str] | None = None,
        languages: Sequence[str] | None = None,
        pivot: str | None = None,
        on_event: OnEvent = lambda _: None,
    ) -> Matrix:
        """Score the run, on the recipe's corpora by default. Conditions that the method does not support are listed.

        Args:
            corpora: Corpora by condition. Default: those of the recipe; their scores are stored in the run's directory,
                where `compare` and `report` find them.
            split: Which corpora of the recipe: ``test`` or ``validation``.
            tasks: Only these tasks of the recipe. Default: all.
            languages: Only these languages of the recipe. Default: all.
            pivot: For translation: a language to translate through. Default: none.
            on_event: Called with progress events.
        """
        if corpora is None:
            own = self.corpora(split, tasks=tasks, languages=languages)
            by_condition = {Condition.parse(name): self.resolve(names) for name, names in own.items()}
        else:  # the caller's own files, which need no permission
            by_condition = {
                Condition.parse(name): find_corpora(self.recipe.data, [names] if isinstance(names, str) else names)
                for name, names in corpora.items()
            }

        refused: dict[Condition, str] = {}
        for condition in by_condition:
            try:
                task = self.model.task(condition.task)
                for step in steps(condition, pivot):
                    self.model.method.require_supported(step)
                    task.check(step, self.predictor.tokenizer)
            except ConditionError as error:
                refused[condition] = str(error)

        # Texts of all conditions are generated together: batches are full, and a search takes hardly longer for it.
        self.predictor.pop_length_warnings()  # of other calls
        records = {}
        for condition, files in by_condition.items():
            if condition not in refused and self.model.task(condition.task).generates:
                task = self.model.task(condition.task)
                records[condition] = [record for corpus in files for record in task.records(corpus, condition)]
        done, total = 0, sum(len(steps(condition, pivot)) * len(sources) for condition, sources in records.items())

        def count(texts: int) -> None:
            nonlocal done
            done += texts
            on_event(Translated(done=done, total=total))

        texts = translate_all(self.predictor, records, pivot=pivot, progress=count)

        results = {}
        for condition, files in by_condition.items():
            if condition in refused:
                continue
            on_event(ScoringStarted(condition=str(condition)))
            scores = score_corpora(self.predictor, condition, files, predictions=texts.get(condition))
            route = steps(condition, pivot)
            results[condition] = Result(
                tuple(scores),
                zero_shot=str(condition) not in self.trained_on,
                cut=sum(self.predictor.cut[step] for step in route),
                split=sum(self.predictor.split[step] for step in route),
            )
            on_event(Scored(condition=str(condition), scores={s.metric.name: s.value for s in scores}))
        about = {
            "path": str(self.path), "checkpoint": self.checkpoint.name, "method": self.recipe.method.name,
            "versions": versions(),
        }  # fmt: skip
        matrix = Matrix(results, refused, about)
        if corpora is None and RunDir(self.path).exists():
            store(matrix, self.path, split, pivot=pivot)
        return matrix

    def corpora(
        self, split: str = "test", *, tasks: Sequence[str] | None = None, languages: Sequence[str] | None = None
    ) -> dict[str, tuple[str, ...]]:
        """Return the recipe's corpora of a split by condition, by default of all tasks and languages."""
        if split not in ("test", "validation"):
            raise ConfigError("evaluate", [f"split: {suggest(split, ('test', 'validation'))}"])
        corpora: dict[str, tuple[str, ...]] = getattr(self.recipe.data, split)
        if not corpora:
            raise ConfigError(str(RunDir(self.path).recipe), [f"data.{split}: no corpora to score."])
        conditions = {name: Condition.parse(name) for name in corpora}
        known_tasks = list(dict.fromkeys(c.task for c in conditions.values()))
        known_languages = list(dict.fromkeys(language for c in conditions.values() for language in c.languages))
        for option, names, known in (("tasks", tasks, known_tasks), ("languages", languages, known_languages)):
            wrong = [name for name in names or () if name not in known]
            if wrong:
                mistakes = [f"{name!r} is not in data.{split} of this run. {suggest(name, known)}" for name in wrong]
                raise ConfigError(option, mistakes)
        selected = {
            name: corpora[name]
            for name, condition in conditions.items()
            if (not tasks or condition.task in tasks) and (not languages or set(condition.languages) & set(languages))
        }
        if not selected:
            raise ConfigError("tasks, languages", [f"data.{split} has none of these tasks in these languages."])
        return selected

    # -- add, export, report ------------------------------------------------------------------------------------------

    def add_language(
        self,
        name: str,
        *,
        text: str | Path | None = None,
        examples: Mapping[str, str] | None = None,
        test: Mapping[str, str] | None = None,
        into: str | Path | None = None,
        **settings: Any,
    ) -> "AddLanguageResult":
        """Add a language by fitting only its new parameters. Predictions in other languages do not change.

        The run with the new language is written to a new directory, and this object then represents it.

        Args:
            name: Code of the language.
            text: File with raw text of the language.
            examples: Labelled corpora by task, such as ``{"pos": "gn.conllu"}``; translations as ``{"mt/en": …}``.
            test: Corpora likewise, scored before and after.
            into: Directory of the new run. Default: that of this run with the language's code behind it.
            **settings: Settings of `AddLanguageConfig`, such as ``steps`` and ``init_from``.
        """
        from polyloom.workflows.add_language import (  # noqa: PLC0415 - training takes a while to import
            AddLanguageConfig,
            NewLanguageData,
            add_language,
        )

        RunDir(self.path).require()
        into = Path(into or f"{self.path}-{name}")
        data = NewLanguageData(None if text is None else str(text), examples or {}, test or {})
        # Adding changes a model, so it has its own copy: if it fails, this run is as it was.
        copy = load_run_dir(self.path, checkpoint=self.checkpoint.name)
        result = add_language(copy, name, into, data=data, settings=AddLanguageConfig(**settings))
        self.loaded = load_run_dir(into)
        return result

    def export(
        self,
        conditions: Names | Sequence[Names],
        into: str | Path,
        *,
        format: "Format" = "polyloom",  # noqa: A002 - what a caller would guess
        backbone: bool = False,
    ) -> list[Path]:
        """Write the adapters of conditions to a new directory, and return the directories of the adapters.

        Args:
            conditions: One condition, whose adapter goes into `into` itself, or several.
            into: A new directory.
            format: ``polyloom``, ``adapterhub``, ``peft``, ``onnx`` or ``onnx-baked``.
            backbone: Also write the backbone with all that was trained in it. Default: no.
        """
        from polyloom.workflows.export import export_run  # noqa: PLC0415 - writers of other formats are only for this

        named = [conditions] if isinstance(conditions, Names) else conditions
        parsed = [self._condition(name) for name in named]
        return export_run(self.loaded, parsed, Path(into), format=format, backbone=backbone)

    def report(
        self, output: str | Path, *others: "str | Path | Run", split: str = "test", num_examples: int = 3
    ) -> Path:
        """Write a page with the scores, examples, training curves and probes of this run.

        Args:
            output: The HTML file.
            *others: Further runs to compare with this one.
            split: Which scores: ``test`` or ``validation``.
            num_examples: Sentences to show of each task.
        """
        from polyloom.workflows.report import write_report  # noqa: PLC0415 - only here

        runs = [self.path, *(other.path if isinstance(other, Run) else Path(other) for other in others)]
        return write_report(runs, Path(output), split=split, num_examples=num_examples)


def load(
    source: str | Path,
    *,
    checkpoint: str | None = None,
    device: str | None = None,
    allow: Iterable[str | Path] = (),
) -> Run:
    """Load a run, an exported adapter, a folder of adapters, or a repository of adapters on the Hub (``owner/name``).

    Args:
        source: A directory, or the name of a repository on the Hugging Face Hub, which is downloaded once.
        checkpoint: Of a run, the name of a checkpoint such as ``step-00000200``. Default: the best one.
        device: Such as ``cpu``. By default a GPU if there is one.
        allow: Files and folders that runs may read, from now on. Default: a run that was not trained by this user on
            this machine reads its own folder and the data root only.
    """
    allow_paths(allow)
    return Run(load_source(source, checkpoint=checkpoint, device=device))
