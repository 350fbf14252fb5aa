"""Steps of training and their batches: what they cost, with many languages in a batch or a bank, or translating."""

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import transformers
import typer
from tests.tiny_run import tiny_recipe

from benchmarks.corpora import random_rows, write_bitext, write_corpus
from benchmarks.measure import (
    WARMUP,
    Json,
    Rounds,
    Times,
    Tiny,
    command,
    in_fresh_process,
    interleave,
    make_app,
    memory,
    ratios,
    report,
    use_one_thread,
    write_results,
)
from polyloom.backbones import backbone_from_config, load_backbone
from polyloom.checkpoint import backbone_identity, describe_model, trained_parameters, write_checkpoint
from polyloom.conditions import Condition
from polyloom.config import load_recipe
from polyloom.config.recipe import PRESETS
from polyloom.data.blocks import Columns
from polyloom.data.catalog import Corpus, resolve
from polyloom.data.dataset_writer import write_packed
from polyloom.data.mixture import MixtureConfig
from polyloom.data.records import Bitext
from polyloom.data.tokenization.tokenizer import Tokenizer, load_tokenizer
from polyloom.data.tokenization.vocabulary import VocabularyConfig, train_vocabulary
from polyloom.io.files import read_lines
from polyloom.methods.base import MethodConfig, Stage
from polyloom.methods.full import DenseConfig, FullConfig
from polyloom.methods.hyper_adapters import HyperAdaptersConfig
from polyloom.methods.hyperx import HyperXConfig
from polyloom.methods.translation_banks import LangAdaptersConfig
from polyloom.model import Model
from polyloom.rundir import RunDir
from polyloom.training.config import OptimConfig, TrainConfig
from polyloom.training.distributed import ProcessGroup
from polyloom.training.loop import ReadAhead, StepBatches, TrainLoop
from polyloom.training.plan import StagePlan, TrainDataset
from polyloom.training.prepare import LINES_PER_RUN, label_sets, prepare_dataset, training_datasets
from polyloom.training.trainer import Trainer
from polyloom.workflows.train import TrainingSetup, prepare_training

app = make_app()
Backbone = Annotated[Path | None, typer.Option("--backbone", help="Folder of a pretrained encoder.")]
Data = Annotated[Path | None, typer.Option("--data", help="Folder with the corpora. Default: POLYLOOM_DATA.")]
CORPORA = {"pos": "ud:en_ewt/train", "mlm": "leipzig:{language}"}
TINY_CORPORA = {"pos": "aa-train.conllu", "mlm": "aa-train.txt"}
MIXED_LANGUAGES = ("bg", "cs", "de", "en", "es", "fi", "fr", "id", "it", "kk", "pl", "te", "tr", "uk", "vi", "yo")
TRANSLATED = ("eng", "deu", "spa", "tur", "fin")
DIRECTIONS = [Condition("mt", *pair) for x in TRANSLATED[1:] for pair in (("eng", x), (x, "eng"))]
BANKS = (50, 5000)  # languages
STEPS_OF_MEMORY = 4
SAVES = 6
BATCH_LANGUAGES = tuple("abcdefgh"[i] * 2 for i in range(8))
BATCH_THREADS = (0, 1, 2, 4)
TINY_MODEL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
BATCH_BACKBONES: Mapping[str, Mapping[str, Any]] = {
    "lm": {"model_type": "llama", "num_key_value_heads": 1, "max_position_embeddings": 1024, **TINY_MODEL},
    "mlm": {"model_type": "bert", "max_position_embeddings": 512, **TINY_MODEL},
    "mt": PRESETS["transformer-mini"],
}
BATCH_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "lm": {"rows_per_batch": 32, "max_length": 1024, "pack_sequences": True},
    "mlm": {"tokens_per_batch": 32_768, "max_length": 512},
    "mlm-512": {"rows_per_batch": 64, "max_length": 512, "pack_sequences": True},
    "mt": {"tokens_per_batch": 32_768, "max_length": 256},
}


# -- one step, and what it is spent on --------------------------------------------------------------------------------


@command(app)
def tagging(
    backbone: Backbone = None, *, data: Data = None, rounds: Rounds = 40, tiny: Tiny = False, file: Json = None
) -> None:
    """What a training step costs, and what it is spent on, on real text and a small pretrained backbone.

        python -m benchmarks.training tagging --backbone DIR --data DIR --json benchmarks/results/training_tagging.json

    Every round takes the same step (same batch, tagging English) once with each variant, in turn; the 20th percentile
    and the minimum over rounds are kept, of wall time on a quiet machine with one thread.

        bare         the backbone alone, forward and backward, everything learning, no optimizer
        full         full fine-tuning, a whole step
        hyperx       Hyper-X: a hypernetwork makes the adapters, a whole step
        stored       adapters of the same shapes, stored; a whole step
    """
    use_one_thread()
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), backbone, data, tiny=tiny)
        stored = Stage("stored", ("adapters", "backbone.norms", "heads"))
        variants: dict[str, tuple[MethodConfig, Stage | None]] = {
            "full": (FullConfig(), None),
            "hyperx": (HyperXConfig(adapter_size=48, norm="before"), None),
            "stored": (LangAdaptersConfig(adapter_size=48, placement="output"), stored),
        }
        loops = {name: tagging_loop(world, config, stage) for name, (config, stage) in variants.items()}
        full, hyperx = loops["full"], loops["hyperx"]
        conditions = hyperx.model.method.encode(["pos/en"])

        def bare(index: int) -> None:
            (batch,) = full.batches(index).micro_batches
            full.model.backbone.hidden(**batch.inputs).sum().backward()  # type: ignore[no-untyped-call]
            full.model.backbone.zero_grad(set_to_none=True)

        def generation(_: int) -> None:
            weights = hyperx.model.method(conditions)
            sums = [tensor.sum() for block in weights.blocks for tensor in block.tensors.values()]
            torch.stack(sums).sum().backward()  # type: ignore[no-untyped-call]
            hyperx.optimizer.zero_grad()

        works: dict[str, Callable[[int], Any]] = {"bare": bare} | {name: loop.take for name, loop in loops.items()}
        works |= {"generation": generation, "data": full.batches}
        times = interleave(works, rounds=rounds, clock=time.perf_counter, warmup=WARMUP)
        steps = [full.batches(index).micro_batches for index in range(WARMUP, WARMUP + rounds)]
        tokens = [sum(batch.num_tokens for batch in batches) for batches in steps]

        def save(number: int) -> None:
            manifest = describe_model(hyperx.model) | {"backbone": backbone_identity(hyperx.model)}
            training = (hyperx.optimizer.state(), dict[str, Any]())
            write_checkpoint(Path(folder) / str(number), trained_parameters(hyperx.model), manifest, training=training)

        saves = interleave({"save": save}, rounds=5, clock=time.perf_counter, warmup=0)["save"]
    step, saving = statistics.median(times["hyperx"]), statistics.median(saves)
    summary = {
        "tokens_per_second": {name: sum(tokens) / sum(times[name]) for name in times if name != "generation"},
        "hyperx / bare": ratios(times["hyperx"], times["bare"]),
        "hyperx / stored (G11 ≤ 1.05)": ratios(times["hyperx"], times["stored"]),
        "hyperx / full (G11 ≤ 0.75)": ratios(times["hyperx"], times["full"]),
        "share of data": ratios(times["data"], times["hyperx"]),
        "share of weight generation": ratios(times["generation"], times["hyperx"]),
        "checkpoint seconds": saving,
        "steps between checkpoints for 1 %": saving / step / 0.01,
        "input pipeline / training": ratios(times["hyperx"], times["data"]),
    }
    raw = {"rounds": rounds, "tokens": tokens, "seconds": times, "checkpoint_seconds": saves}
    report({"summary": summary, "raw": raw}, file, summary=summary)


class World:
    """A pretrained backbone and corpora of tasks, or tiny ones of each.

    Args:
        folder: Where tiny ones are written.
        backbone: Folder of the backbone.
        data: Folder with the corpora.
        tiny: Whether to use tiny ones.
    """

    def __init__(self, folder: Path, backbone: Path | None, data: Path | None, *, tiny: bool) -> None:
        if tiny:
            tiny_recipe(folder)
            backbone = folder / "backbone"
        elif backbone is None:
            raise typer.BadParameter("name the folder of a pretrained encoder, or try --tiny", param_hint="--backbone")
        self.folder, self.backbone, self.data, self.tiny = folder, backbone, data, tiny
        self.tokenizer = load_tokenizer(backbone)
        self.max_length = 32 if tiny else 128

    def corpus(self, task: str, language: str) -> Corpus:
        """Return the training corpus of a task in a language."""
        if self.tiny:
            return resolve(str(self.folder / TINY_CORPORA[task]))
        return resolve(CORPORA[task].format(language=language), root=self.data)


def tagging_loop(world: World, config: MethodConfig, stage: Stage | None) -> TrainLoop:
    """Return a loop that tags English."""
    condition = Condition("pos", "en")
    datasets = {condition: prepare_dataset(condition, [world.corpus("pos", "en")], tokenizer=world.tokenizer)}
    labels = label_sets(datasets)
    torch.manual_seed(0)
    model = Model(load_backbone(world.backbone), config, languages=("en", "de", "sv", "tr"), tasks=labels)
    stage = stage or model.method.stages()[0]
    train = TrainConfig(steps=1000, rows_per_batch=16, max_length=world.max_length, dropout=False)
    chosen = training_datasets(datasets, method=model.method, labels=labels, stage=stage)
    plan = StagePlan(stage, OptimConfig(lr=1e-4), train, MixtureConfig(), chosen)
    return TrainLoop(model, plan, tokenizer=world.tokenizer, process_group=ProcessGroup())


# -- many languages in a batch ----------------------------------------------------------------------------------------


@command(app)
def mixed(
    backbone: Backbone = None, *, data: Data = None, rounds: Rounds = 40, tiny: Tiny = False, file: Json = None
) -> None:
    """What it costs to train on rows of many languages in one batch, against batches of one language.

        python -m benchmarks.training mixed --backbone DIR --data DIR --json benchmarks/results/training_mixed.json

    Steps of Hyper-X on raw text in filled rows, so that every step has as many tokens: batches of 1, 4 and 16
    languages, in turn, round after round; medians of paired ratios, with the 20th and 80th percentile. One thread, a
    quiet machine.
    """
    use_one_thread()
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), backbone, data, tiny=tiny)
        works = {str(count): mixed_loop(world, count).take for count in (1, 4, 16)}
        times = interleave(works, rounds=rounds, clock=time.perf_counter, warmup=WARMUP)
    one = np.array(times["1"])
    throughput = {count: np.quantile(one / steps, [0.5, 0.2, 0.8]).round(3).tolist() for count, steps in times.items()}
    raw = {"rounds": rounds, "seconds": times}
    report({"throughput_against_one_language": throughput, "raw": raw}, file, summary=throughput)


def mixed_loop(world: World, datasets_per_batch: int) -> TrainLoop:
    """Return a loop that learns raw text, sixteen rows at a time."""
    conditions = [Condition("mlm", language) for language in MIXED_LANGUAGES]
    datasets = {
        condition: prepare_dataset(condition, [world.corpus("mlm", condition.languages[0])], tokenizer=world.tokenizer)
        for condition in conditions
    }
    torch.manual_seed(0)
    backbone = load_backbone(world.backbone, dtype=torch.bfloat16, attention="eager")
    config = HyperXConfig(adapter_size=48, projection_size=64)
    model = Model(backbone, config, languages=MIXED_LANGUAGES, tasks={"mlm": None})
    (stage,) = model.method.stages()
    train = TrainConfig(
        steps=1000, rows_per_batch=16, grad_accum_steps=4, max_length=world.max_length, dropout=False,
        pack_sequences=True, mlm_candidates="corpus",
    )  # fmt: skip
    chosen = training_datasets(datasets, method=model.method, labels={}, stage=stage)
    mixture = MixtureConfig(strategy="round-robin", datasets_per_batch=datasets_per_batch)
    plan = StagePlan(stage, OptimConfig(lr=1e-4), train, mixture, chosen)
    return TrainLoop(model, plan, tokenizer=world.tokenizer, process_group=ProcessGroup())


# -- translation ------------------------------------------------------------------------------------------------------


@command(app)
def translation(
    preset: Annotated[str, typer.Option("--preset", help=f"One of {', '.join(PRESETS)}.")] = "transformer-base",
    *,
    data: Data = None,
    rounds: Rounds = 40,
    tiny: Tiny = False,
    file: Json = None,
) -> None:
    """What a step of translation training costs (G11): a hypernetwork against stored adapters and full fine-tuning.

        python -m benchmarks.training translation --data DIR --json benchmarks/results/training_translation.json

    Every round takes the same step (same batch of four directions, 1,024 tokens) once with each variant, in turn;
    ratios of the same step, of wall time on a quiet machine with one thread. Only adapters learn, save with `full`.

        full         everything learns, no adapters
        stored       an adapter per language
        hyper-204    adapters of the same shapes, made by a hypernetwork of width 204; hyper-612: of width 612
    """
    use_one_thread()
    preset = "transformer-mini" if tiny else preset
    adapter_size = 32 if preset == "transformer-mini" else 128
    hyper = Stage("frozen", ("hypernetwork", "embeddings", "heads"))
    variants: dict[str, tuple[MethodConfig, Stage]] = {
        "full": (DenseConfig(), Stage("joint", ("backbone", "heads"))),
        "stored": (LangAdaptersConfig(adapter_size=adapter_size), Stage("frozen", ("adapters", "heads"))),
        "hyper-204": (HyperAdaptersConfig(adapter_size=adapter_size, hidden_size=204), hyper),
        "hyper-612": (HyperAdaptersConfig(adapter_size=adapter_size, hidden_size=612), hyper),
    }
    with tempfile.TemporaryDirectory() as folder:
        if tiny:
            names = write_bitext(Path(folder), 400, "eng", TRANSLATED[1:])
        else:
            names = {language: f"tatoeba-mt:eng-{language}/train[:5000]" for language in TRANSLATED[1:]}
        corpora = {language: resolve(name, root=data) for language, name in names.items()}
        tokenizer = translation_vocabulary(Path(folder), corpora, size=400 if tiny else 8000)
        loops = {
            name: translation_loop(preset, config, stage, corpora=corpora, tokenizer=tokenizer)
            for name, (config, stage) in variants.items()
        }
    tokens = []

    def check(_: int, steps: dict[str, Any]) -> None:
        assert not any(step.skipped for step in steps.values())
        tokens.append(steps["full"].tokens)

    works = {name: loop.take for name, loop in loops.items()}
    times = interleave(works, rounds=rounds, clock=time.perf_counter, warmup=WARMUP, after_round=check)
    learning = {
        name: sum(p.numel() for p in loop.model.parameters() if p.requires_grad) for name, loop in loops.items()
    }
    raw = {"preset": preset, "rounds": rounds, "learning": learning, "tokens": tokens[WARMUP:], "seconds": times}
    pairs = [(name, other) for name in ("hyper-204", "hyper-612") for other in ("stored", "full")]
    summary = {f"{name} / {other}": ratios(times[name], times[other]) for name, other in pairs} | {
        "source tokens per second": {name: sum(tokens[WARMUP:]) / sum(seconds) for name, seconds in times.items()}
    }
    report({"summary": summary, "raw": raw}, file, summary=summary | {"learning": learning})


def translation_vocabulary(folder: Path, corpora: Mapping[str, Corpus], *, size: int) -> Tokenizer:
    """Learn pieces of these languages."""
    texts: dict[str, list[str]] = {language: [] for language in TRANSLATED}
    for language, corpus in corpora.items():
        for record in corpus.records("bitext"):
            assert isinstance(record, Bitext)
            texts["eng"].append(record.source)
            texts[language].append(record.target)
    train_vocabulary(texts, folder / "vocabulary", config=VocabularyConfig(size=size), languages=TRANSLATED)
    return load_tokenizer(str(folder / "vocabulary"))


def translation_loop(
    preset: str, config: MethodConfig, stage: Stage, *, corpora: Mapping[str, Corpus], tokenizer: Tokenizer
) -> TrainLoop:
    """Return a loop that learns all directions, of which a batch has four."""
    datasets = {}
    for condition in DIRECTIONS:
        (other,) = set(condition.languages) - {"eng"}
        datasets[condition] = prepare_dataset(condition, [corpora[other]], tokenizer=tokenizer)
    special = {
        "pad_token_id": tokenizer.pad_id, "eos_token_id": tokenizer.eos_id, "decoder_start_token_id": tokenizer.eos_id,
    }  # fmt: skip
    torch.manual_seed(0)
    backbone = backbone_from_config({**PRESETS[preset], **special, "vocab_size": tokenizer.vocab_size})
    model = Model(backbone, config, languages=TRANSLATED, tasks={"mt": None}, directions=["eng/*", "*/eng"])
    train = TrainConfig(steps=1000, tokens_per_batch=1024, max_length=64, dropout=False, label_smoothing=0.1)
    chosen = training_datasets(datasets, method=model.method, labels={}, stage=stage)
    plan = StagePlan(stage, OptimConfig(lr=1e-4), train, MixtureConfig(datasets_per_batch=4), chosen)
    return TrainLoop(model, plan, tokenizer=tokenizer, process_group=ProcessGroup())


# -- banks of many languages ------------------------------------------------------------------------------------------


@command(app)
def banks(*, rounds: Rounds = 40, tiny: Tiny = False, file: Json = None) -> None:
    """What a step and a checkpoint of MAD-X cost with a bank of 5,000 languages, against one of 50 (G14).

        python -m benchmarks.training banks --json benchmarks/results/training_banks.json

    The backbone has 6 layers, is 384 wide and random; a language has adapters of 24 units and an invertible adapter.
    Steps are taken in turn with each bank, on the same rows of one language: their gradient (forward, backward,
    clipping) and the update. The peak of memory is that of a process of its own, beside the bytes of weights and state
    of the optimizer. Checkpoints are those of a run that saves after every step, each of which changes the row of one
    language: seconds until all is on the disk, and bytes of the files that no earlier checkpoint has. The first one has
    all rows.
    """
    use_one_thread()
    sizes = {"layers": 2, "width": 64} if tiny else {"layers": 6, "width": 384}
    times: dict[str, Times] = {str(count): {"gradient": [], "update": []} for count in BANKS}

    def keep_parts(number: int, steps: dict[str, Any]) -> None:
        for name, step in steps.items():
            if number >= WARMUP:  # the parts of a step are timed by the loop itself
                times[name]["gradient"].append(step.seconds["compute"])
                times[name]["update"].append(step.seconds["update"])

    with tempfile.TemporaryDirectory() as folder:
        steps = {str(count): bank_loop(Path(folder) / str(count), count, sizes).steps() for count in BANKS}
        works = {name: lambda _, events=events: next(events) for name, events in steps.items()}
        interleave(works, rounds=rounds, clock=time.perf_counter, warmup=WARMUP, after_round=keep_parts)
    few, many = times.values()
    results: dict[str, Any] = {"seconds": times}
    for part in few:
        results[f"{part}_{BANKS[1]}_over_{BANKS[0]}"] = ratios(many[part], few[part])["median"]
    whole = [[sum(parts) for parts in zip(*bank.values(), strict=True)] for bank in (many, few)]
    results["step_over_step"] = ratios(*whole)["median"]
    for count in BANKS:
        results[f"megabytes_{count}"] = in_fresh_process(bank_memory, count, sizes)
        results[f"saves_{count}"] = in_fresh_process(bank_saves, count, sizes)
    report(results, file, summary={key: value for key, value in results.items() if key != "seconds"})


def bank_setup(folder: Path, languages: int, sizes: Mapping[str, int]) -> TrainingSetup:
    """Return a run with many languages. Three languages have text; batches have rows of one of them."""
    folder.mkdir(parents=True, exist_ok=True)
    tiny_recipe(folder)
    config = transformers.BertConfig.from_pretrained(folder / "backbone")
    config.update({
        "num_hidden_layers": sizes["layers"], "hidden_size": sizes["width"], "intermediate_size": 4 * sizes["width"],
        "num_attention_heads": sizes["width"] // 32,
    })  # fmt: skip
    transformers.utils.logging.disable_progress_bar()
    transformers.BertForMaskedLM(config).save_pretrained(folder / "backbone")
    recipe = json.loads(tiny_recipe(folder, tasks=("mlm",)).read_text())
    recipe["method"] = {"name": "madx", "adapter_size": 24, "train_head": False}
    recipe["languages"] += [f"l{number}" for number in range(languages - len(recipe["languages"]))]
    recipe["mixture"] = {"datasets_per_batch": 1}
    recipe["train"] = {"steps": 1000, "rows_per_batch": 24, "dropout": False}
    (folder / "large.yaml").write_text(json.dumps(recipe))
    return prepare_training(load_recipe(folder / "large.yaml"))


def bank_loop(folder: Path, languages: int, sizes: Mapping[str, int]) -> TrainLoop:
    """Return the stage of the language adapters."""
    setup = bank_setup(folder, languages, sizes)
    return TrainLoop(setup.model, setup.plans[0], tokenizer=setup.tokenizer, process_group=ProcessGroup())


def bank_memory(languages: int, sizes: Mapping[str, int]) -> dict[str, float]:
    """Take a few steps; return megabytes of the method's weights, the optimizer's state, and the whole process."""
    with tempfile.TemporaryDirectory() as folder:
        loop = bank_loop(Path(folder), languages, sizes)
        before = memory("VmHWM")
        for _, _ in zip(range(STEPS_OF_MEMORY), loop.steps(), strict=False):
            pass
    tensors = {"weights": loop.model.method.parameters(), "state": loop.optimizer.state().values()}
    megabytes = {name: sum(tensor.nbytes for tensor in some) / 1e6 for name, some in tensors.items()}
    return megabytes | {"before_training": before, "peak": memory("VmHWM")}


class TimedSaves(Trainer):
    """Notes the cost of each checkpoint in `costs`."""

    def _save(self, state: Any, *arguments: Any, **options: Any) -> None:
        started = time.perf_counter()
        super()._save(state, *arguments, **options)
        seconds = time.perf_counter() - started
        # Files with one link are new; the others are links to those of the checkpoint before.
        files = [file for file in self.folder.checkpoint(state.total).rglob("*.*") if file.stat().st_nlink == 1]
        cost = {"seconds": seconds, "megabytes": sum(f.stat().st_size for f in files) / 1e6, "files": len(files)}
        self.costs = [*getattr(self, "costs", []), cost]


def bank_saves(languages: int, sizes: Mapping[str, int]) -> list[dict[str, float]]:
    """Train a few steps and save after each; return seconds, megabytes and files that each save wrote."""
    with tempfile.TemporaryDirectory() as folder:
        setup = bank_setup(Path(folder), languages, sizes)
        plan = setup.plans[0]
        plan = replace(plan, train=replace(plan.train, steps=SAVES, save_every=1))
        trainer = TimedSaves(setup.model, [plan], setup.tokenizer, RunDir(Path(folder) / "run"))
        trainer.run()
    costs: list[dict[str, float]] = trainer.costs
    return costs


# -- batches without steps --------------------------------------------------------------------------------------------


@command(app)
def batches(
    kinds: Annotated[list[str] | None, typer.Option("--kind", help="lm, mlm, mlm-512 or mt; default: all.")] = None,
    *,
    rows: Annotated[int, typer.Option(help="Rows of each of eight datasets.")] = 300_000,
    steps: Annotated[int, typer.Option(help="Steps of a round.")] = 20,
    rounds: Rounds = 40,
    tiny: Tiny = False,
    file: Json = None,
) -> None:
    """How many tokens per second the input pipeline makes into batches, without a model that uses them.

        python -m benchmarks.training batches --json benchmarks/results/training_batches.json

    A step's examples are drawn, read, cut or packed, masked, and laid out as tensors by `TrainLoop.batches`, in this
    thread and in 1, 2 and 4 threads of `ReadAhead`, in turn, round after round; medians over rounds, by the clock.

        lm        packed rows of 1,024 tokens, 32 of them, from lines of about 30 tokens
        mlm       32,768 tokens of lines of about 30, with masks
        mlm-512   64 packed rows of 512 tokens, with masks
        mt        32,768 tokens of the longer side of pairs of about 30 tokens
    """
    rows, steps = (3000, 1) if tiny else (rows, steps)
    results: dict[str, Any] = {"rows": rows, "steps": steps, "rounds": rounds, "rates": {}}
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = batch_tokenizer(Path(folder))
        for kind in kinds or BATCH_SETTINGS:
            loop = batch_loop(Path(folder), kind, rows, tokenizer)
            rates: dict[int, list[float]] = {threads: [] for threads in BATCH_THREADS}
            for turn, threads in enumerate(BATCH_THREADS * rounds):
                rates[threads].append(rate(loop, turn * steps, steps, threads))  # no step is made twice
            results["rates"][kind] = rates
            medians = {threads: round(statistics.median(values)) for threads, values in rates.items()}
            print(f"{kind}: tokens per second by threads: {medians}", flush=True)
    write_results(results, file)


def batch_tokenizer(folder: Path) -> Tokenizer:
    """Learn pieces of made-up words, with the tokens that every task needs."""
    write_corpus(folder, 5000)
    texts = {x: [text for _, text in read_lines(folder / f"text.{x}")] for x in ("aa", "bb")}
    config = VocabularyConfig(size=4000, mask=True)
    train_vocabulary(texts, folder / "vocabulary", config=config, languages=BATCH_LANGUAGES)
    return load_tokenizer(str(folder / "vocabulary"))


def batch_loop(folder: Path, kind: str, rows: int, tokenizer: Tokenizer) -> TrainLoop:
    """Return a loop whose batches have eight draws of eight languages."""
    task = kind.partition("-")[0]
    columns: Columns = dict.fromkeys(("source", "target") if task == "mt" else ("tokens",), "ints")
    datasets = []
    for number, language in enumerate(BATCH_LANGUAGES):
        condition = Condition(task, language, BATCH_LANGUAGES[number - 1] if task == "mt" else None)
        dataset = write_packed(
            folder / f"{kind}-{language}", random_rows(rows, len(columns), seed=number, tokens=(10, 3900)),
            columns={**columns, "length": "int"}, meta={"labels": []}, run=1 if task == "mt" else LINES_PER_RUN,
        )  # fmt: skip
        datasets.append(TrainDataset(str(condition), condition, dataset, np.zeros(0, np.int64)))
    special = {"pad_token_id": tokenizer.pad_id, "eos_token_id": tokenizer.eos_id}
    special |= {"decoder_start_token_id": tokenizer.eos_id} if task == "mt" else {}
    backbone = backbone_from_config({**BATCH_BACKBONES[task], **special, "vocab_size": tokenizer.vocab_size})
    method = DenseConfig() if task == "mt" else FullConfig()
    directions = {"directions": ["*/*"]} if task == "mt" else {}
    model = Model(backbone, method, languages=BATCH_LANGUAGES, tasks={task: None}, **directions)
    (stage,) = model.method.stages()
    train = TrainConfig(steps=10**6, **BATCH_SETTINGS[kind])
    plan = StagePlan(stage, OptimConfig(), train, MixtureConfig(datasets_per_batch=8), tuple(datasets))
    return TrainLoop(model, plan, tokenizer=tokenizer, process_group=ProcessGroup())


def tokens_of(batches: StepBatches) -> int:
    """Return the tokens of a step without padding, of the encoder or of the decoder if there is no encoder."""
    return sum(batch.num_tokens for batch in batches.micro_batches)


def rate(loop: TrainLoop, first: int, steps: int, threads: int) -> float:
    """Return the tokens per second of some steps."""
    started = time.perf_counter()
    if threads == 0:
        tokens = sum(tokens_of(loop.batches(step)) for step in range(first, first + steps))
    else:
        with ReadAhead(loop.batches, ahead=threads, stop=first + steps, threads=threads) as batches:
            tokens = sum(tokens_of(batches.get(step)) for step in range(first, first + steps))
    return tokens / (time.perf_counter() - started)


if __name__ == "__main__":
    app()
