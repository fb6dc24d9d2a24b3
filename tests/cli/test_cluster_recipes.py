"""The files of configs/cluster do what they say, with the variables that schedulers set."""

import json
import os
import subprocess

import pytest
import yaml

from jaxscore.cli import ray_engine, shards
from tests.cli.conftest import QWEN
from tests.conftest import ROOT

FOLDER = ROOT / "configs/cluster"
N = {
    "slurm_array.sh": 8,
    "kubernetes_job.yaml": 8,
    "skypilot.yaml": 8,
    "tpu_pod.sh": 4,
    "xpk.sh": 8,
}
RAY = "ray_tpu.sh"
STAND_INS = """
tries=0
jaxscore() { printf '%s\\n' "$@" > "$SEEN"; }
exec() { "$@"; }
ray() { printf '%s ' "$@" >> "$SEEN.ray"; if [ "${*: -1}" = --block ]; then return 1; fi; }
sleep() { :; }
timeout() { [ "$((tries += 1))" = 3 ]; }
xpk() { while [ "$1" != --command ]; do shift; done; eval "$2"; }
"""


def script(name: str) -> str:
    """The shell text that a worker runs."""
    text = (FOLDER / name).read_text()
    if name == "kubernetes_job.yaml":
        spec = yaml.safe_load(text)["spec"]
        [container] = spec["template"]["spec"]["containers"]
        values = {entry["name"]: entry["value"] for entry in container["env"]}
        assert int(values["JOB_COMPLETIONS"]) == spec["completions"] == N[name]
        return f"export JOB_COMPLETIONS={values['JOB_COMPLETIONS']}\n{container['args'][0]}"
    return yaml.safe_load(text)["run"] if name == "skypilot.yaml" else text


def variables(name: str, k: int) -> dict[str, str]:
    """What the scheduler sets for worker k."""
    return {
        "slurm_array.sh": {
            "SLURM_ARRAY_TASK_ID": f"{k}", "SLURM_ARRAY_TASK_COUNT": "8",
            "SLURM_ARRAY_TASK_MIN": "0", "SLURM_ARRAY_TASK_STEP": "1",
        },
        "kubernetes_job.yaml": {"JOB_COMPLETION_INDEX": f"{k}", "JOB_COMPLETIONS": "8"},
        "skypilot.yaml": {"SHARD": f"{k}/8"},
        "tpu_pod.sh": {"WORKER": f"{k}"},
        "xpk.sh": {"MEGASCALE_SLICE_ID": f"{k}"},
    }[name]  # fmt: skip


def test_every_file_is_tried():
    assert {path.name for path in FOLDER.iterdir()} == {"README.md", RAY, *N}


@pytest.mark.parametrize("name", N)
def test_worker_of_a_recipe_scores_its_files(name, run, tmp_path, monkeypatch):
    data, out, seen = tmp_path / "in", tmp_path / "out", tmp_path / "words"
    data.mkdir()
    for k in range(N[name]):
        (data / f"{k}.jsonl").write_text('{"continuation": "one two"}\n')
    own = variables(name, 2)
    environment = os.environ | own | {
        "MODEL": QWEN, "INPUT": f"{data}/", "OUTPUT": f"{out}/", "SEEN": str(seen), "XPK": "xpk",
    }  # fmt: skip
    subprocess.run(["bash", "-euc", STAND_INS + script(name)], env=environment, check=True)
    for variable, value in own.items():
        monkeypatch.setenv(variable, value)
    ran = run(*seen.read_text().splitlines(), "--quiet", "--no-html")
    assert (ran.code, ran.err) == (0, "")
    assert [path.name for path in out.glob("*.jsonl")] == ["2.jsonl"]
    [listing] = out.glob("_shards-*.json")
    assert len(json.loads(listing.read_text())) == N[name]


def test_first_host_of_ray_scores_every_file_and_the_others_join(run, tmp_path, monkeypatch):
    data, out, seen = tmp_path / "in", tmp_path / "out", tmp_path / "words"
    data.mkdir()
    for k in range(2):
        (data / f"{k}.jsonl").write_text('{"continuation": "one two"}\n')
    environment = os.environ | {
        "MODEL": QWEN, "INPUT": f"{data}/", "OUTPUT": f"{out}/", "SEEN": str(seen), "HEAD": "h",
    }  # fmt: skip
    command = ["bash", "-euc", STAND_INS + script(RAY)]
    # --block fails when the first host is done, and is not tried again.
    subprocess.run(command, env=environment | {"WORKER": "1"}, check=True, timeout=60)
    joined = (tmp_path / "words.ray").read_text()
    assert joined == 'stop --force start --address=h:6379 --resources={"TPU": 4} --block '
    assert not seen.exists()
    subprocess.run(command, env=environment | {"WORKER": "0"}, check=True)
    started = (tmp_path / "words.ray").read_text().removeprefix(joined)
    assert started == ('stop --force start --head --port=6379 --resources={"TPU": 4} stop --force ')
    words = seen.read_text().splitlines()
    assert words[-4:] == ["--engine", "ray", "--actors", "16"]
    monkeypatch.setattr(ray_engine, "outcomes", shards._outcomes)  # in place of Ray's actors
    ran = run(*words, "--quiet", "--no-html")
    assert (ran.code, ran.err) == (0, "")
    assert sorted(path.name for path in out.glob("*.jsonl")) == ["0.jsonl", "1.jsonl"]


def test_scripts_are_valid_shell():
    for path in FOLDER.glob("*.sh"):
        subprocess.run(["bash", "-n", path], check=True)
