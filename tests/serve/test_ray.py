"""Many machines: replicas on a real Ray cluster of two nodes, one of them killed, all of them updated, under load."""

import asyncio
import contextlib
import hashlib
import http.client
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from polyloom.config.parse import parse_settings
from polyloom.errors import ConfigError, UnavailableError
from polyloom.serve.models import ServedModel
from polyloom.serve.web.server import ServerSettings
from polyloom.workflows.train import train
from tests.serve.conftest import TASKS
from tests.serve.forked import forked_models
from tests.serve.test_engine import random_rows
from tests.shared import free_port
from tests.tiny_run import tiny_recipe

DEPLOY = Path(__file__).parents[2] / "deploy"
BIN = Path(sys.executable).parent


class Cluster:
    """Two nodes of one processor each, on this machine, and the application of deploy/ray.yaml on them."""

    def __init__(self, folder: Path, run: Path) -> None:
        from ray.cluster_utils import Cluster as Nodes

        self.port, dashboard = free_port(), free_port()
        self.dashboard = f"http://127.0.0.1:{dashboard}"
        self.file = folder / "ray.yaml"
        self.config = yaml.safe_load((DEPLOY / "ray.yaml").read_text())
        (self.application,) = self.config["applications"]
        (self.deployment,) = self.application["deployments"]
        self.config["proxy_location"] = "HeadOnly"  # both nodes have the same address here
        self.config["http_options"] = {"host": "127.0.0.1", "port": self.port}
        self.application["args"] = {"runs": [str(run)], "threads": 1, "allow_path": [str(folder.parent)]}
        self.deployment["autoscaling_config"] |= {
            "max_replicas": 2, "target_ongoing_requests": 2, "upscale_delay_s": 1, "downscale_delay_s": 600,
        }  # fmt: skip
        node = {"num_cpus": 1, "include_dashboard": True, "dashboard_port": dashboard, "object_store_memory": 80 << 20}
        self.nodes = Nodes(initialize_head=True, head_node_args=node)
        self.nodes.add_node(num_cpus=1, object_store_memory=80 << 20)

    def deploy(self) -> None:
        self.file.write_text(yaml.safe_dump(self.config))
        subprocess.run([BIN / "serve", "deploy", "-a", self.dashboard, self.file], check=True, capture_output=True)

    def status(self):
        with urllib.request.urlopen(f"{self.dashboard}/api/serve/applications/", timeout=60) as found:
            return json.load(found)["applications"].get("polyloom", {})

    def wait_for(self, replicas: int) -> None:
        """Wait until the application runs with as many replicas."""
        while True:
            found = self.status()
            states = [one["state"] for one in found.get("deployments", {}).get("polyloom", {}).get("replicas", ())]
            if found.get("status") == "RUNNING" and states == ["RUNNING"] * replicas:
                return
            time.sleep(1)

    def processes(self) -> list[int]:
        """Find the processes of the replicas."""
        found = subprocess.run(["pgrep", "-f", "^ray::.*ServeReplica:polyloom"], check=False, capture_output=True)
        return list(map(int, found.stdout.split()))

    def kill_replica(self) -> None:
        """Kill a replica, and wait until another one runs in its place."""
        killed, *others = self.processes()
        os.kill(killed, signal.SIGKILL)
        while len(set(self.processes()) - {killed}) <= len(others):
            time.sleep(0.5)


class Callers:
    """Threads that ask one row after the other, and compare every answer with that of the run that made it."""

    def __init__(self, port, runs, count=4):
        self.port, self.rows = port, random_rows(60)
        conditions, values = zip(*self.rows, strict=True)
        self.expected = {
            version: [json.loads(json.dumps(vars(one))) for one in run.predict(list(values), conditions)]
            for version, run in runs.items()
        }
        self.right: Counter[str] = Counter()  # by version
        self.wrong: list[object] = []
        self.failed: list[tuple[float, object]] = []
        self.ended = threading.Event()
        self.threads = [threading.Thread(target=self.ask, args=(number,)) for number in range(count)]
        for thread in self.threads:
            thread.start()

    def result_of(self, condition, value):
        body = json.dumps({"rows": [{"condition": condition, "input": list(value)}]})
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)) as connection:
            connection.request("POST", "/v1/predict", body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            content = response.read()
        return json.loads(content)["results"][0] if response.status == 200 else {"error": content}

    def ask(self, number):
        draw = random.Random(number)
        while not self.ended.is_set():
            index = draw.randrange(len(self.rows))
            condition, value = self.rows[index]
            try:
                result = self.result_of(condition, value)
            except (OSError, http.client.HTTPException) as error:
                result = {"error": repr(error)}
            if "error" in result:
                self.failed.append((time.monotonic(), result["error"]))
                time.sleep(0.2)
                continue
            found, wanted = result["prediction"], dict(self.expected[result["version"]][index])
            for name in ("score", "scores"):
                if name in wanted and found.pop(name) != pytest.approx(wanted.pop(name), abs=1e-4):
                    found[name] = "differs"
            if found == wanted:
                self.right[result["version"]] += 1
            else:
                self.wrong.append((condition, result))

    def wait_for_answers(self, count: int, version: str) -> None:
        """Wait until further questions were answered by a version."""
        goal = self.right[version] + count
        while self.right[version] < goal:
            time.sleep(0.05)

    def stop(self) -> None:
        self.ended.set()
        for thread in self.threads:
            thread.join()


@pytest.fixture
def cluster(run, tmp_path, monkeypatch):
    """A cluster on which one replica runs."""
    pytest.importorskip("ray")
    for name, value in {
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",
    }.items():
        monkeypatch.setenv(name, value)
    shutil.copytree(run.path, tmp_path / "served")
    started = Cluster(tmp_path, tmp_path / "served")
    try:
        started.deploy()
        started.wait_for(1)
        yield started
    finally:
        started.nodes.shutdown()


async def request(app, path, **body):
    """Send JSON to an application without a server, and return what it answers."""
    content, sent = [json.dumps(body).encode()], []

    async def receive():
        if not content:
            await asyncio.Event().wait()  # the caller does not hang up
        return {"type": "http.request", "body": content.pop(), "more_body": False}

    async def send(event):
        sent.append(event)

    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "root_path": "", "scheme": "http"}
    headers = [(b"content-type", b"application/json"), (b"authorization", b"Bearer master")]
    await app(scope | {"headers": headers, "http_version": "1.1"}, receive, send)
    return json.loads(b"".join(event.get("body", b"") for event in sent))


@pytest.mark.filterwarnings("ignore")  # of Ray itself
def test_a_replica_without_a_cluster_answers_as_the_run_and_loads_it_again(run, tmp_path):
    """What Ray calls of the deployment in deploy/ray.yaml. On a cluster, the same is tested nightly."""
    pytest.importorskip("ray")
    from polyloom.serve.ray import Replica, app

    (application,) = yaml.safe_load((DEPLOY / "ray.yaml").read_text())["applications"]
    path = shutil.copytree(run.path, tmp_path / "served")
    keys = tmp_path / "keys"
    keys.write_text(f"{hashlib.sha256(b'master').hexdigest()} boss admin\n")
    settings = {"runs": [str(path)], "threads": 1, "limits": {"timeout": 600.0}, "keys": str(keys)}
    deployed = app(application["args"] | settings)._bound_deployment
    assert [deployed.name] == [one["name"] for one in application["deployments"]]
    kind: Any = Replica.__mro__[1]  # without what Ray adds on a node

    class Here(kind):  # type: ignore[misc]
        def __del__(self):
            """Ray waits for that of a replica."""

    rows = random_rows(20)
    expected = run.predict([value for _, value in rows], [condition for condition, _ in rows])

    async def main():
        replica = Here.__new__(Here)
        await kind.__init__(replica, *deployed.init_args)
        try:
            models, routes = replica._context.models, replica.__serve_build_asgi_app__()
            for version, starts in ((1, 1), (1, 1), (2, 2)):
                await replica.reconfigure({"version": version})
                assert models.starts == starts, "another version is loaded, the same is not loaded again"
            await replica.check_health()
            body = [{"condition": condition, "input": list(value)} for condition, value in rows]
            answered = await request(routes, "/v1/predict", rows=body)
            refused = await request(routes, "/v1/reload")
        finally:
            await kind.__del__(replica)
        with pytest.raises(UnavailableError):
            await replica.check_health()
        return answered["results"], refused

    with forked_models():
        results, refused = asyncio.run(main())
    for result, prediction in zip(results, expected, strict=True):
        wanted, found = json.loads(json.dumps(vars(prediction))), result["prediction"]
        for name in {"score", "scores"} & wanted.keys():
            assert found.pop(name) == pytest.approx(wanted.pop(name), abs=1e-4)
        assert found == wanted
    assert "user_config" in refused["detail"], "one of several replicas is not loaded again alone"


@pytest.mark.timing  # alone: a cluster beside other tests waits for itself
def test_a_replica_answers_as_the_run(run, cluster):
    version = ServedModel(run).version
    callers = Callers(cluster.port, {version: run})
    try:
        callers.wait_for_answers(100, version)
    finally:
        callers.stop()
    assert not callers.failed
    assert not callers.wrong


@pytest.mark.nightly
@pytest.mark.timing
def test_replicas_are_added_killed_and_updated_without_a_wrong_answer(folder, run, cluster, tmp_path, capsys):
    """Autoscaling from one to two; `kill -9` of one; a new version of the run in both, without a failed request."""
    grown = train(tiny_recipe(folder, tasks=TASKS, train={"steps": 220}), tmp_path / "grown")
    with contextlib.ExitStack() as stack:
        versions = [ServedModel(one).version for one in (run, grown)]
        old, new = versions
        callers = Callers(cluster.port, dict(zip(versions, (run, grown), strict=True)))
        stack.callback(callers.stop)

        cluster.wait_for(2)  # since requests wait
        callers.wait_for_answers(50, old)
        assert not callers.failed

        killed = time.monotonic()
        cluster.kill_replica()
        cluster.wait_for(2)
        callers.wait_for_answers(50, old)
        failed = list(callers.failed)
        recovered = max((moment for moment, _ in failed), default=killed) - killed

        (tmp_path / "served").rename(tmp_path / "gone")
        (tmp_path / "grown").rename(tmp_path / "served")
        cluster.deployment["user_config"] = {"version": 2}
        cluster.deploy()
        callers.wait_for_answers(50, new)
        cluster.wait_for(2)
        before = callers.right[old]
        callers.wait_for_answers(100, new)
        assert callers.right[old] == before  # no replica has the old version any more
        callers.stop()
        assert callers.failed == failed  # none by the update
    assert not callers.wrong
    with capsys.disabled():
        right = sum(callers.right.values())
        print(f"\nreplica killed: {len(failed)} failed within {recovered:.1f} s, {right} right, none wrong")


def test_mistakes_in_the_file_are_reported():
    with pytest.raises(ConfigError, match=r"limits\.max_waitin: unknown key\. Did you mean 'max_waiting'"):
        parse_settings(ServerSettings, {"runs": ["runs/first"], "limits": {"max_waitin": 3}}, source="args")
    with pytest.raises(ConfigError, match=r"args\.run: unknown key\. Did you mean 'runs'"):
        parse_settings(ServerSettings, {"run": ["runs/first"]}, source="args")


def test_kuberay_has_the_same_application():
    embedded = yaml.safe_load((DEPLOY / "kuberay.yaml").read_text())["spec"]["serveConfigV2"]
    assert yaml.safe_load(embedded) == yaml.safe_load((DEPLOY / "ray.yaml").read_text())
