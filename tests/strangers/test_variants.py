"""Random hostile variants of all files: no traceback, no hang, little memory."""

import json
import os
import subprocess
import sys

import pytest

MEGABYTES = 1024.0
COUNT = 200


@pytest.mark.nightly
def test_no_variant_ends_in_a_traceback(theirs, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "tests.strangers.run_variants", theirs, str(COUNT)],
        env=os.environ | {"POLYLOOM_CACHE": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    variants = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(variants) == COUNT, done.stderr
    refused = [v for v in variants if v["code"] == 1]
    seconds, megabytes = (max(v[key] for v in variants) for key in ("seconds", "megabytes"))
    worked = sum(v["code"] == 0 for v in variants)
    print(f"{len(refused)} refused, {worked} worked; at most {seconds:.1f} s, {megabytes:.0f} MB")
    assert [v for v in variants if v["code"] not in (0, 1) or "Traceback" in v["said"]] == []
    assert [v for v in refused if "polyloom: " not in v["said"]] == []
    assert megabytes < MEGABYTES
    assert len(refused) > COUNT / 4
