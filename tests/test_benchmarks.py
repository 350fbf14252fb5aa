"""Every benchmark starts, at its smallest size, and writes the keys that its raw results have."""

import json
from importlib import import_module
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tests.metrics.peers import needs_peers
from tests.shared import ROOT, start_benchmark

# Raw results, and the command that writes them.
BENCHMARKS = {
    "forward_overhead": "forward overhead --rounds 2",
    "forward_mixed": "forward mixed",
    "generation": "generation --rounds 2",
    "training_tagging": "training tagging --rounds 2",
    "training_mixed": "training mixed --rounds 2",
    "training_banks": "training banks --rounds 2",
    "training_translation": "training translation --rounds 2",
    "decoding_adapters": "decoding adapters --rounds 2",
    "decoding_ctranslate2": "decoding ctranslate2 --rounds 2",
    "training_batches": "training batches --rounds 2",
    "prepare": "prepare",
    "many_languages": "many_languages",
    "object_storage": "object_storage --rounds 1",
    "serving_engine": "serving engine --rounds 2",
    "serving_replicas": "serving replicas --rounds 1",
    "serving_translation": "serving translation --rounds 1",
    "serving_soak": "serving soak",
    "start": "start --rounds 1",
    "rescaling": "rescaling",
}
NEEDS = {"object_storage": "moto", "serving_engine": "fastapi", "serving_soak": "fastapi", "serving_replicas": "ray"}
PEERS = ("forward_mixed", "decoding_ctranslate2", "serving_engine")
CASES = [pytest.param(name, marks=needs_peers if name in PEERS else ()) for name in BENCHMARKS]
SCRIPTS = sorted({command.split()[0] for command in BENCHMARKS.values()})


def missing(expected: Any, actual: Any, place: str = "") -> list[str]:
    """Return the keys that are not there. Lists are compared as far as both have items."""
    if isinstance(expected, list):
        return [key for pair in zip(expected, actual, strict=False) for key in missing(*pair, place)]
    if not isinstance(expected, dict):
        return []
    if place.endswith("/dropped"):  # the reasons that occur in this corpus
        return []
    if place.endswith(("/shares", "/checks")):  # by functions of the package, which may move
        return [] if actual else [place]
    if place.endswith("/undisturbed") and actual["windows"] < 2:  # others had the machine
        return []
    keys = []
    for name in expected:
        there = name in actual
        keys += missing(expected[name], actual[name], f"{place}/{name}") if there else [f"{place}/{name}"]
    return keys


@pytest.mark.nightly
@pytest.mark.parametrize("name", CASES)
def test_a_tiny_benchmark_writes_every_key(name, tmp_path, monkeypatch):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    output = tmp_path / "results.json"
    start_benchmark(*BENCHMARKS[name].split(), "--tiny", "--json", output)
    results = json.loads(output.read_text(), parse_constant=lambda constant: pytest.fail(f"{constant} is not JSON"))
    raw = ROOT / "benchmarks" / "results" / f"{name}.json"
    if raw.exists():  # a source distribution has no raw results
        assert not missing(json.loads(raw.read_text()), results)


def test_a_missing_key_is_found():
    known = {"summary": {"all": {"windows": 3}}, "runs": [{"a": 1, "b": 2}]}
    assert missing(known, {"summary": {}, "runs": [{"a": 1}, {}]}) == ["/summary/all", "/runs/b"]


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_tells_what_is_measured_and_no_measurement_is_left_out(script):
    pytest.importorskip("fastapi")
    pytest.importorskip("moto")
    app = import_module(f"benchmarks.{script}").app
    commands = [command.callback.__name__ for command in app.registered_commands]
    names = [f"{script} {command}" for command in commands] if len(commands) > 1 else [script]
    for name in names:
        (raw,) = [raw for raw, command in BENCHMARKS.items() if command.partition(" --")[0] == name]
        result = CliRunner().invoke(app, [*name.split()[1:], "--help"])
        assert result.exit_code == 0, result.output
        assert f"python -m benchmarks.{name} " in result.output
        assert f"--json benchmarks/results/{raw}.json" in result.output
    assert isinstance(app, typer.Typer)


def test_every_script_is_started():
    files = {path.stem for path in (ROOT / "benchmarks").glob("*.py")}
    helpers = {"__init__", "measure", "corpora", "traffic"}
    assert files - helpers - {"peer_adapters", "peer_ctranslate2"} == set(SCRIPTS)
