"""What ``plan`` answers beside its plans."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memx_tui import cli
from tests.cli.test_limits import SMALL, cluster


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert cli.run(["plan", "--json", *SMALL, *arguments]) == 0
    out: dict[str, Any] = json.loads(capsys.readouterr().out)
    return out


def test_sensitivity_as_table_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inputs = ["--cluster", cluster(tmp_path, "a100-sxm-80g, count: 2", "a100-sxm-80g, count: 2")]
    inputs += ["--model", "llama3.2-1b"]
    result = planned(capsys, *inputs, "--sensitivity")
    changes = result["sensitivity"]["changes"]
    assert [c["kind"] for c in changes] == ["memory", "link", "link", "node"]
    best = result["plans"][0]
    assert result["sensitivity"]["phi"] == best["phi"]
    for change in changes:
        assert change["phi_change"] <= 1e-12 and change["phi"] == change["plan"]["phi"]
        assert change["phi"] == pytest.approx(best["phi"] * (1 + change["phi_change"]))
    assert sum(len(s["ranks"]) for s in changes[-1]["plan"]["stages"]) <= 6
    assert "sensitivity" not in planned(capsys, *inputs)
    assert cli.run(["plan", *SMALL, *inputs, "--sensitivity"]) == 0
    text = capsys.readouterr().out
    assert "What a little more would buy" in text and "one more node like n0" in text
