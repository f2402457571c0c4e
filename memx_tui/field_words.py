"""Hints of the engine name the command line's flags; in the dashboard the fields that stand for them are named too."""

from __future__ import annotations

import re

from memx_tui.job_form import SPECS, WEIGHTS
from memx_tui.limit_form import LIMIT_FORM
from memx_tui.profile_form import FORM

PROFILE_FIELDS = {
    "--runner": "name",
    "--workspace": "folder",
    "--types": "types",
    "--seed": "seed",
    "--partition": "partition",
    "--account": "account",
    "--gres-name": "gres_names",
    "--slurm-arg": "slurm_arguments",
    "--ssh-host": "ssh_hosts",
    "--ssh-arg": "ssh_arguments",
    "--command": "command",
    "--python": "python",
    "--probe-device": "device",
    "--threads": "threads",
    "--repetitions": "repetitions",
    "--point-timeout": "point_timeout_s",
    "--retries": "retries",
}
"""Flag to the key of its field in the runner's dialog."""
JOB_FIELDS = {
    "--global-batch": "global_batch",
    "--seq-len": "seq_len",
    "--precision": "precision",
    "--optimizer": "optimizer",
    "--attention": "attention",
    "--framework": "framework",
    "--mbs": "micro_batch_sizes",
    "--tp": "tp_sizes",
    "--pp": "pp_sizes",
    "--dp": "dp_sizes",
}
"""Flag to the key of its field in the Cluster screen's training pane."""
LIMIT_FIELDS = {spec.flag: key for key, spec in LIMIT_FORM.items() if spec.flag not in JOB_FIELDS}
"""Flag to the key of its field in the dialog of limits."""

_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


def field_of(flag: str) -> tuple[str, str] | None:
    """The field's label, and how to come to it; None where the dashboard has none."""
    if flag in PROFILE_FIELDS:
        return FORM[PROFILE_FIELDS[flag]].label, "2 Profile, o"
    if flag in JOB_FIELDS:
        return SPECS[JOB_FIELDS[flag]].label, "1 Cluster, training"
    if flag in LIMIT_FIELDS:
        return LIMIT_FORM[LIMIT_FIELDS[flag]].label, "3 Plans, l"
    return (WEIGHTS.label, "1 Cluster, training") if flag == "--weights" else None


def in_fields(text: str, *, places: bool = True) -> str:
    """``text`` with every flag that has a field replaced by the field's name; where the fields are is said once.

    ``name a Python with --python`` becomes ``name a Python with "python" (2 Profile, o)``. What resumes on the command
    line is a key here. ``places``: whether to say where.
    """
    where: list[str] = []

    def named(found: re.Match[str]) -> str:
        field = field_of(found[0])
        if field is None:
            return found[0]
        label, place = field
        where.append(place)
        return f'"{label}"'

    changed = _FLAG.sub(named, text.replace("the same command with --resume", "r on 2 Profile"))
    return f"{changed} ({'; '.join(dict.fromkeys(where))})" if where and places else changed
