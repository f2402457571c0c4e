"""Every bad input that the contract lists, driven through the command line.

Each gets one clear message that names file, line and key, the right exit code, and no traceback.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from memx_tui import cli

CLUSTER = """\
schema: memx/cluster/v1
name: small
nodes:
  - name: one
    gpus: [{type: a100-sxm-80g, count: 4}]
  - name: two
    gpus: [{type: a100-sxm-80g, count: 4}]
"""
# Llama-2-7B's shape (https://huggingface.co/meta-llama/Llama-2-7b-hf/blob/main/config.json).
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str], code: int = 2) -> str:
    """Run, check the manners of a refusal, and return the message."""
    got = cli.run(arguments)
    captured = capsys.readouterr()
    assert got == code, captured.err
    assert captured.out == ""
    assert "Traceback" not in captured.err and "internal error" not in captured.err
    assert captured.err.startswith("memx-tui")
    assert sum(line.startswith("memx-tui") for line in captured.err.splitlines()) == 1, captured.err
    return captured.err


def plan(cluster: Path | str, *more: str) -> list[str]:
    return ["plan", "--cluster", str(cluster), "--model", "llama2-7b", *more]


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("change", "place", "words"),
    [
        (("count: 4}]\n  - name: two", "coutn: 4}]\n  - name: two"), "cluster.yaml:5: ", "count"),
        (("name: small", "nmae: small"), "cluster.yaml:2: ", "name"),
        (("count: 4}]\n  - name: two", "count: -4}]\n  - name: two"), "cluster.yaml:5: ", "-4"),
        (("count: 4}]\n  - name: two", "count: four}]\n  - name: two"), "cluster.yaml:5: ", "four"),
        (("count: 4}]\n  - name: two", "count: 4000000000}]\n  - name: two"), "cluster.yaml:5: ", "4000000000"),
        (("count: 4}]\n  - name: two", "count: 4, memory_gib: 80 GB}]\n  - name: two"), "cluster.yaml:5: ", ""),
        (("name: two", "name: one"), "cluster.yaml:6: ", "one"),
        (
            ("{type: a100-sxm-80g, count: 4}]\n  - name: two", "{type: a100-smx-80g, count: 4}]\n  - name: two"),
            "cluster.yaml:5: ",
            "a100-sxm-80g",
        ),
        (("memx/cluster/v1", "memx/cluster/v9"), "cluster.yaml:1: ", "memx/cluster/v1"),
        (("name: small", "name: !!python/object/apply:os.system [ls]"), "cluster.yaml:2", "tag"),
        (("name: small", "name: &x small\ntitle: *x"), "cluster.yaml:", ""),
        (("name: small\n", "name: small\nname: large\n"), "cluster.yaml:3", "name"),
    ],
)
def test_a_cluster_file_with_one_mistake(
    change: tuple[str, str], place: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = CLUSTER.replace(*change)
    assert text != CLUSTER
    message = refused(plan(write(tmp_path / "cluster.yaml", text)), capsys)
    assert f"{tmp_path}/{place}" in message
    assert words in message


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   \n",
        "# only a comment\n",
        CLUSTER[: CLUSTER.index("80g, count")],
        "- a\n- b\n",
        "{",
        "\x00\x01",
        "just words",
    ],
)
def test_an_empty_truncated_or_alien_cluster_file(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "cluster.yaml" in refused(plan(write(tmp_path / "cluster.yaml", text)), capsys)


def test_a_bomb_of_aliases_is_refused_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    start = time.monotonic()
    message = refused(plan(write(tmp_path / "bomb.yaml", "\n".join(lines))), capsys)
    assert time.monotonic() - start < 5
    assert "bomb.yaml:" in message


def test_deep_nesting_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "deep.yaml" in refused(plan(write(tmp_path / "deep.yaml", "[" * 100_000)), capsys)
    config = write(tmp_path / "config.json", "[" * 100_000)
    assert "config.json" in refused(["plan", "--cluster", "paper-20gpu", "--model", str(config)], capsys)


@pytest.mark.parametrize("name", ["huge.yaml", "huge.json"])
def test_a_file_of_50_mb_is_refused_without_reading_it(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    huge = tmp_path / name
    with huge.open("wb") as stream:
        stream.truncate(50 * 10**6)
    start = time.monotonic()
    arguments = plan(huge) if name.endswith("yaml") else ["plan", "--cluster", "paper-20gpu", "--model", str(huge)]
    message = refused(arguments, capsys)
    assert time.monotonic() - start < 5
    assert name in message and ("MiB" in message or "MB" in message or "KiB" in message)


def test_a_missing_file_and_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no/such.yaml" in refused(plan(tmp_path / "no/such.yaml"), capsys)
    assert str(tmp_path) in refused(plan(tmp_path), capsys)
    assert "paper-20gpu" in refused(plan("paper-20gp"), capsys)


def test_missing_inputs_name_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert "paper-20gpu" in refused(["plan", "--model", "llama2-7b"], capsys)
    assert "llama2-7b" in refused(["plan", "--cluster", "paper-20gpu"], capsys)
    assert "llama2-7b" in refused(["plan", "--cluster", "paper-20gpu", "--model", "lama2-7b"], capsys)


def test_standard_input_serves_one_option(capsys: pytest.CaptureFixture[str]) -> None:
    message = refused(["plan", "--cluster", "-", "--model", "-"], capsys)
    assert "--cluster and --model" in message


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "mixtral", "num_local_experts": 8}, "mixture-of-experts"),
        ({"model_type": "t5"}, "t5"),
        ({"model_type": "resnet"}, "resnet"),
        ({"num_local_experts": 8}, "expert"),
        ({"hidden_size": None}, "hidden_size"),
        ({"num_hidden_layers": -2}, "num_hidden_layers"),
        ({"num_hidden_layers": 1.5}, "num_hidden_layers"),
        ({"num_attention_heads": "many"}, "num_attention_heads"),
        ({"hidden_size": 10**15}, "hidden_size"),
        ({"model_type": None}, "model_type"),
    ],
)
def test_a_config_json_that_cannot_be_used(
    change: dict[str, Any], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write(tmp_path / "config.json", json.dumps(CONFIG | change, indent=1))
    message = refused(["plan", "--cluster", "paper-20gpu", "--model", str(config)], capsys)
    assert "config.json" in message and words in message


@pytest.mark.parametrize("text", ["", "{", '{"model_type": "llama",', "[]", "null", "{}", '{"a": 1} trailing'])
def test_an_empty_or_truncated_config_json(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write(tmp_path / "config.json", text)
    assert "config.json" in refused(["plan", "--cluster", "paper-20gpu", "--model", str(config)], capsys)


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ("0.5,0.5,0.5", "sum to 1"),
        ("-0.2,0.6,0.6", "non-negative"),
        ("nan,0.5,0.5", "weights"),
        ("0.5,0.5", "weights"),
        ("balanced", "heterogeneous"),
        ("", "weights"),
    ],
)
def test_weights_that_are_none(weights: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    message = refused(plan("paper-20gpu", "--weights", weights), capsys)
    assert "--weights" in message and words in message


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--global-batch", "0"], "global"),
        (["--global-batch", "-8"], "global"),
        (["--seq-len", "0"], "seq"),
        (["--seq-len", "1000000000"], "seq"),
        (["--tp", "5"], "5"),
    ],
)
def test_a_job_that_cannot_be(flags: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    got = cli.run(plan("paper-20gpu", *flags))
    captured = capsys.readouterr()
    assert got in (2, 3) and captured.out == ""
    assert words in captured.err and "Traceback" not in captured.err


def test_a_batch_that_does_not_divide_says_what_would(capsys: pytest.CaptureFixture[str]) -> None:
    got = cli.run(plan("paper-20gpu", "--global-batch", "7", "--mbs", "2"))
    captured = capsys.readouterr()
    assert got in (2, 3) and captured.out == ""
    assert "7" in captured.err and "Traceback" not in captured.err
    assert (
        cli.run(
            ["explain", "--cluster", "a800x8", "--model", "llama3-8b", "--global-batch", "510"]
            + ["--tp", "1", "--pp", "1", "--dp", "8", "--mbs", "4"]
        )
        == 0
    )
    assert "INVALID" in capsys.readouterr().out


def test_a_job_file_with_an_unknown_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = write(tmp_path / "job.yaml", "schema: memx/job/v1\nglobal_bach: 64\n")
    message = refused(plan("paper-20gpu", "--job", str(job)), capsys)
    assert "job.yaml:2: " in message and "global_batch" in message


def test_nothing_feasible_is_3_with_what_binds_and_what_would_help(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = CLUSTER.replace("a100-sxm-80g", "t4").replace("count: 4", "count: 1")
    message = refused(plan(write(tmp_path / "cluster.yaml", text)), capsys, code=3)
    assert "GiB" in message
    assert len(message.splitlines()) >= 2, "a hint says what would fit"


def test_an_output_that_cannot_be_written_is_refused_before_the_search(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    existing = write(tmp_path / "plan.yaml", "mine\n")
    assert "--force" in refused(plan("thousand-gpus", "-o", str(existing)), capsys)
    assert existing.read_text() == "mine\n"
    assert "folder" in refused(plan("thousand-gpus", "-o", str(tmp_path)), capsys)
    assert "does not exist" in refused(plan("thousand-gpus", "-o", str(tmp_path / "no/plan.yaml")), capsys)
    assert "nothing can be written in /proc" in refused(plan("thousand-gpus", "-o", "/proc/plan.yaml"), capsys)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    assert "nothing can be written" in refused(plan("paper-20gpu", "-o", str(locked / "plan.yaml")), capsys)
    assert "cannot be created" in refused(plan("paper-20gpu", "--workspace", str(locked / "w")), capsys)


def test_a_workspace_that_is_a_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "w", "")
    assert "--workspace" in refused(plan("paper-20gpu", "--workspace", str(file)), capsys)
    assert "--workspace" in refused(plan("paper-20gpu", "--workspace", str(file / "below")), capsys)


@pytest.mark.parametrize("verb", ["show", "explain"])
@pytest.mark.parametrize("text", ["", "schema: memx/plan/v1\n", "schema: memx/cluster/v1\n", "{", "a: !x 1"])
def test_a_plan_file_that_is_none(verb: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "plan.yaml", text)
    assert "plan.yaml" in refused([verb, str(file)], capsys)


def test_a_pick_beyond_what_was_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--pick" in refused(plan("a800x8", "--tp", "8", "--pick", "9999"), capsys)
