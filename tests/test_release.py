"""What can be checked here of files that only others run: workflows, packages, images."""

import io
import re
import runpy
import shlex
import subprocess
import tarfile
import tomllib
import zipfile
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from polyloom.checkpoint import FORMAT as CHECKPOINT_FORMAT
from polyloom.data.encoded import FORMAT as DATASET_FORMAT
from tests.conftest import pytest_collection_modifyitems

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
ACTIONS = [*WORKFLOWS, *sorted((ROOT / ".github" / "actions").glob("*/action.yml"))]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def read(path):
    # YAML 1.1 takes the key `on` for true; GitHub reads YAML 1.2.
    content = yaml.safe_load(path.read_text())
    return {"on" if key is True else key: value for key, value in content.items()}


def steps(path):
    content = read(path)
    jobs = [content["runs"]] if "runs" in content else content["jobs"].values()
    return [step for job in jobs for step in job["steps"]]


def test_actions_of_others_are_pinned_by_hash_and_their_version_is_named():
    wrong = []
    for path in ACTIONS:
        used = re.findall(r"^\s*(?:- )?uses: (.+)$", path.read_text(), flags=re.MULTILINE)
        assert len(used) == sum("uses" in step for step in steps(path)), path
        for action in used:
            own = action.startswith("./") and (ROOT / action / "action.yml").is_file()
            if not own and not re.fullmatch(r"[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action):
                wrong.append(f"{path.name}: {action}")
    assert not wrong, "\n".join(wrong)


def test_every_script_that_a_workflow_runs_exists():
    lines = [(path, line) for path in ACTIONS for step in steps(path) for line in step.get("run", "").splitlines()]
    wrong, scripts = [], 0
    for path, line in lines:
        for word in shlex.split(line, comments=True):
            if word.startswith(".ci/"):
                scripts += 1
                if not (ROOT / word).is_file() or not (ROOT / word).stat().st_mode & 0o111:
                    wrong.append(f"{path.name}: {word}: no program")
            elif word.startswith("tests/") and not (ROOT / word).is_dir():
                wrong.append(f"{path.name}: {word}: no folder")
    assert scripts > 3
    assert not wrong, "\n".join(wrong)


def test_workflows_may_only_read_unless_a_job_needs_more():
    wrong = []
    for path in WORKFLOWS:
        content = read(path)
        if content["permissions"] != {"contents": "read"}:
            wrong.append(f"{path.name}: {content['permissions']}")
        wrong += [f"{path.name}: {text}" for text in ("secrets.", "pull_request_target") if text in path.read_text()]
        for name, job in content["jobs"].items():
            if "timeout-minutes" not in job:
                wrong.append(f"{path.name}: {name}: without an end")
            written = {scope for scope, access in job.get("permissions", {}).items() if access == "write"}
            if not written <= {"id-token", "attestations", "pages"}:
                wrong.append(f"{path.name}: {name}: may write {', '.join(written)}")
            # A job that can sign or publish runs nothing of the checkout.
            if written and any("actions/checkout" in step.get("uses", "") for step in job["steps"]):
                wrong.append(f"{path.name}: {name}: may write, and has the checkout")
    assert WORKFLOWS
    assert not wrong, "\n".join(wrong)


def test_ci_runs_every_python_that_the_package_names():
    named = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", line)]
    assert PROJECT["requires-python"] == f">={named[0]}"
    assert read(ROOT / ".github/workflows/ci.yml")["jobs"]["unit"]["strategy"]["matrix"]["python"] == named
    assert f"for python in {' '.join(named)}; do" in (ROOT / ".ci/release").read_text()


def test_shards_of_contracts_are_whole():
    shards = read(ROOT / ".github/workflows/ci.yml")["jobs"]["contracts"]["strategy"]["matrix"]["shard"]
    assert shards == [f"{k}/{len(shards)}" for k in range(1, len(shards) + 1)]


def test_shards_together_are_all_tests_once():
    def shard(text):
        config = SimpleNamespace(getoption=lambda _: text, hook=SimpleNamespace(pytest_deselected=lambda items: None))
        items = list(range(11))
        pytest_collection_modifyitems(config, items)
        return items

    shards = [shard(f"{k}/4") for k in (1, 2, 3, 4)]
    assert sorted(chain(*shards)) == shard(None) == list(range(11))
    assert {len(items) for items in shards} == {2, 3}


def test_versions_agree():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]


def test_locked_tools_have_hashes_and_are_those_that_are_listed():
    lock = (ROOT / ".ci" / "tools.lock").read_text()
    entries = re.split(r"\n(?=\S)", lock.strip())
    locked = {entry.partition("==")[0] for entry in entries if not entry.startswith("#")}
    assert all("--hash=sha256:" in entry for entry in entries if not entry.startswith("#"))
    listed = (ROOT / ".ci" / "tools.in").read_text().splitlines()
    assert {line for line in listed if not line.startswith("#")} <= locked


def test_nothing_is_published_from_a_machine():
    done = subprocess.run([ROOT / ".ci/release"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "release.yml publishes" in done.stderr


def test_the_image_runs_without_rights_and_ends_by_sigterm():
    lines = (ROOT / "deploy/Containerfile").read_text()
    instructions = dict(re.findall(r"^([A-Z]+) (.+)$", lines, flags=re.MULTILINE))
    assert instructions["USER"] == "10001:10001"
    assert instructions["STOPSIGNAL"] == "SIGTERM"
    assert instructions["ENTRYPOINT"].startswith('["polyloom", "serve"')  # without a shell, which would keep SIGTERM
    assert "/readyz" in lines.partition("HEALTHCHECK")[2]
    deployment, service = yaml.safe_load_all((ROOT / "deploy/kubernetes.yaml").read_text())
    pod = deployment["spec"]["template"]["spec"]
    assert f"{pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}" == instructions["USER"]
    container = pod["containers"][0]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert container["livenessProbe"]["httpGet"]["path"] == "/livez"
    assert service["spec"]["selector"] == deployment["spec"]["template"]["metadata"]["labels"]
    assert str(container["ports"][0]["containerPort"]) == instructions["EXPOSE"]


def test_the_formats_that_are_documented_are_those_of_the_code():
    text = (ROOT / "docs/compatibility.md").read_text()
    assert f"| checkpoint, exported adapter | {CHECKPOINT_FORMAT} |" in text
    assert f"| encoded dataset | {DATASET_FORMAT} |" in text


# Packages that must not be released.


CHECKS = runpy.run_path(str(ROOT / ".ci/check_packages.py"))


def write_wheel(path, **more):
    names = CHECKS["REQUIRED"][".whl"]
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {**dict.fromkeys(names, b""), **more}.items():
            archive.writestr(name, content)
    return path


def write_source(path, **more):
    names = CHECKS["REQUIRED"][".gz"]
    with tarfile.open(path, "w:gz") as archive:
        for name, content in {**dict.fromkeys(names, b""), **more}.items():
            member = tarfile.TarInfo(f"polyloom-1/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


@pytest.mark.parametrize(("write", "name"), [(write_wheel, "a.whl"), (write_source, "a.tar.gz")])
def test_packages_with_results_large_files_or_paths_of_a_machine_are_refused(tmp_path, write, name):
    check = CHECKS["mistakes"]
    path = tmp_path / name
    assert check(write(path), ("/home/me/",)) == []
    for file, content, mistake in [
        ("benchmarks/results/a.json", b"{}", "must not be released"),
        ("polyloom/weights.safetensors", b"", "must not be released"),
        ("polyloom/.env", b"", "must not be released"),
        ("polyloom/large.txt", b" " * (1 << 20) + b" ", "more than"),
        ("polyloom/a.py", b"open('/home/me/corpus')", "names /home/me/"),
    ]:
        assert [mistake in found for found in check(write(path, **{file: content}), ("/home/me/",))] == [True], file


def test_packages_without_what_they_need_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as archive:
        archive.writestr("polyloom/__init__.py", "")
    missing = CHECKS["mistakes"](tmp_path / "a.whl", ())
    assert len(missing) == len(CHECKS["REQUIRED"][".whl"]) - 1
    assert CHECKS["main"](tmp_path) == 1
