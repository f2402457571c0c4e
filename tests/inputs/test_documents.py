"""Reading YAML and JSON safely, and writing files whole."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memx_engine.errors import InputError, OutputError
from memx_engine.inputs.documents import (
    dump_yaml,
    node_from_value,
    parse_document,
    read_document,
    read_text,
    write_text_atomically,
)
from memx_engine.inputs.nodes import Node

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**12), 10**12)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(
        st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp"), exclude_characters="\ufeff\ufffe\uffff"), max_size=20
    ),
    lambda children: (
        st.lists(children, max_size=4) | st.dictionaries(st.text("abcxyz_-", min_size=1), children, max_size=4)
    ),
    max_leaves=20,
)


def root_of(text: str, name: str = "file.yaml") -> Node:
    root, _ = parse_document(text, name)
    assert root is not None
    return root


def error_of(text: str, name: str = "file.yaml") -> InputError:
    with pytest.raises(InputError) as caught:
        parse_document(text, name)
    return caught.value


def test_values_know_their_line_and_path() -> None:
    root = root_of("a: 1\nlist:\n  - {x: 2}\n  - x: three\n")
    node = root.child("list").items()[1].child("x")  # type: ignore[union-attr]  # present above
    assert node is not None
    assert node.where == "file.yaml:4: list[1].x"
    assert root.to_value() == {"a": 1, "list": [{"x": 2}, {"x": "three"}]}


def test_words_that_yaml_1_1_turns_into_flags_stay_text() -> None:
    assert root_of("a: on\nb: no\nc: 1:30\nd: 1e3\ne: null\nf: 'true'").to_value() == {
        "a": "on",
        "b": "no",
        "c": "1:30",
        "d": 1000.0,
        "e": None,
        "f": "true",
    }


@given(st.dictionaries(st.text("abcxyz_-", min_size=1), PLAIN, max_size=5))
def test_what_is_dumped_reads_back(document: dict[str, object]) -> None:
    assert root_of(dump_yaml(document)).to_value() == document


@given(st.dictionaries(st.text("abcxyz_-", min_size=1), PLAIN, max_size=5))
def test_json_reads_as_the_json_module_reads_it(document: dict[str, object]) -> None:
    text = json.dumps(document, indent="\t")
    assert root_of(text, "config.json").to_value() == json.loads(text)


def test_json_names_the_line_of_a_value() -> None:
    root = root_of('{\n\t"a": [1,\n\t2],\n\t"b": {"c": "x"}\n}', "config.json")
    assert root.child("b").child("c").where == "config.json:4: b.c"  # type: ignore[union-attr]  # present above
    assert root.child("a").items()[1].line == 3  # type: ignore[union-attr]  # present above


@pytest.mark.parametrize(
    ("text", "line"),
    [("a: !!python/object/apply:os.system ['true']", 1), ("a: 1\nb: !custom 2", 2), ("!!map\na: 1", 1), ("a: ! x", 1)],
)
def test_tags_are_refused(text: str, line: int) -> None:
    error = error_of(text)
    assert "YAML tags" in error.message
    assert error.where.startswith(f"file.yaml:{line}")


def test_alias_bomb_is_refused_at_its_first_anchor() -> None:
    bomb = "a: &a [x, x]\n" + "".join(
        f"{chr(98 + i)}: &{chr(98 + i)} [*{chr(97 + i)}, *{chr(97 + i)}]\n" for i in range(20)
    )
    error = error_of(bomb)
    assert "anchors and aliases are not accepted" in error.message
    assert error.where.startswith("file.yaml:1")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("# only a comment\n", "empty"),
        ("a: [1, 2", "ends too early"),
        ("a: {b: 1,", "ends too early"),
        ('a: "open', "ends too early"),
        ("a: b: c", "not readable YAML"),
        ("a:\n\t- 1", "tab"),
        ("a: 1\n---\nb: 2", "second document"),
        ("a: 1\nb: 2\na: 3", "given twice (first on line 1)"),
        ("? [1, 2]\n: 3", "key must be plain text"),
        ("[" * 60 + "]" * 60, "nested"),
        ("a: \x00", "not readable YAML"),
    ],
)
def test_broken_yaml_gets_one_clear_message(text: str, message: str) -> None:
    assert message in error_of(text).message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ('{"a": 1', "ends too early"),
        ('{"a": [1, 2}', "expected ',' or ']'"),
        ('{"a": 1,}', "quoted key"),
        ("{a: 1}", "quoted key"),
        ('{"a" 1}', "expected ':'"),
        ('{"a": nul}', "expected a value"),
        ('{"a": "x}', "not readable JSON"),
        ('{"a": 1} x', "after the end"),
        ('{"a": 1,\n"a": 2}', "given twice (first on line 1)"),
        ("[" * 5000, "nested"),
    ],
)
def test_broken_json_gets_one_clear_message(text: str, message: str) -> None:
    assert message in error_of(text, "config.json").message


def test_truncated_file_names_its_line() -> None:
    assert error_of("a: 1\nb:\n  - {c: 1,\n").where.startswith("file.yaml:")


def test_collecting_keeps_every_problem() -> None:
    root, problems = parse_document("a: x\nb: 99\nc: 1\nd: 2", collect=True)
    assert root is not None
    root.expect_mapping(("a", "b", "c"))
    assert root.integer("a", low=1, high=9) == 1
    assert root.integer("b", low=1, high=9) == 1
    assert root.integer("missing", low=3, high=9) == 3
    assert [(p.line, p.key) for p in problems.found] == [(4, "d"), (1, "a"), (2, "b"), (1, "missing")]


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("n: 240GB", "the unit is part of the key"),
        ("n: '240'", "remove the quotes"),
        ("n: -1", "allowed: between 0 and 1,000 GB"),
        ("n: 1e9", "allowed: between 0 and 1,000 GB"),
        ("n: .inf", "give a bare number of GB"),
        ("n: .nan", "give a bare number of GB"),
        ("n: true", "give a bare number of GB"),
        ("n: [1]", "give a bare number of GB"),
    ],
)
def test_numbers_say_what_is_allowed(text: str, hint: str) -> None:
    with pytest.raises(InputError) as caught:
        root_of(text).number("n", low=0, high=1000, unit="GB")
    assert hint in caught.value.hint
    assert caught.value.where == "file.yaml:1: n"


def test_whole_numbers_refuse_fractions() -> None:
    with pytest.raises(InputError, match="whole number"):
        root_of("n: 1.5").integer("n", low=0, high=9)
    assert root_of("n: 2.0").integer("n", low=0, high=9) == 2


def test_unknown_key_names_the_nearest() -> None:
    with pytest.raises(InputError) as caught:
        root_of("memory_gb: 1").expect_mapping(("memory_gib", "count"))
    assert caught.value.where == "file.yaml:1: memory_gb"
    assert caught.value.hint == "did you mean memory_gib?"


def test_plain_values_can_be_checked_like_files() -> None:
    with pytest.raises(InputError) as caught:
        node_from_value({"a": {"b": "x"}}, "plan.yaml: cluster").child("a").integer("b", low=0, high=1)  # type: ignore[union-attr]  # present above
    assert caught.value.where == "plan.yaml: cluster: a.b"


class TestFiles:
    def test_large_file_is_refused_before_it_is_parsed(self, tmp_path: Path) -> None:
        path = tmp_path / "large.yaml"
        with open(path, "wb") as file:
            file.truncate(50_000_000)
        with pytest.raises(InputError, match="larger than 8 MiB"):
            read_document(str(path))

    def test_missing_file_and_directory(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="no such file") as caught:
            read_text(str(tmp_path / "none.yaml"))
        assert caught.value.where == str(tmp_path / "none.yaml")
        with pytest.raises(InputError, match="directory"):
            read_text(str(tmp_path))
        with pytest.raises(InputError, match="cannot be read"):
            read_text("a\0b")

    def test_text_in_another_encoding_names_the_line(self, tmp_path: Path) -> None:
        path = tmp_path / "latin.yaml"
        path.write_bytes("a: 1\nb: ärger\n".encode("latin-1"))
        with pytest.raises(InputError, match="not UTF-8") as caught:
            read_text(str(path))
        assert caught.value.where == f"{path}:2"

    def test_empty_file(self, tmp_path: Path) -> None:
        path = tmp_path / "empty.yaml"
        path.write_text(" \n")
        with pytest.raises(InputError, match="empty"):
            read_document(str(path))

    def test_byte_order_mark_is_no_part_of_the_text(self, tmp_path: Path) -> None:
        path = tmp_path / "bom.yaml"
        path.write_bytes(b"\xef\xbb\xbfa: 1")
        assert read_document(str(path)).to_value() == {"a": 1}

    def test_standard_input(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"a": 1}')))
        assert read_document("-").to_value() == {"a": 1}
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a: [")))
        with pytest.raises(InputError) as caught:
            read_document("-")
        assert caught.value.where.startswith("<stdin>:1")


class TestWriting:
    def test_refuses_to_replace_without_force(self, tmp_path: Path) -> None:
        path = tmp_path / "plan.yaml"
        write_text_atomically(path, "one")
        with pytest.raises(OutputError, match="exists") as caught:
            write_text_atomically(path, "two")
        assert "--force" in caught.value.hint
        assert path.read_text() == "one"
        write_text_atomically(path, "two", force=True)
        assert path.read_text() == "two"
        assert os.listdir(tmp_path) == ["plan.yaml"]

    @pytest.mark.parametrize("name", ["missing/plan.yaml", ".", "a\0b"])
    def test_unwritable_place_is_one_message(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(OutputError):
            write_text_atomically(f"{tmp_path}/{name}", "text", force=True)
        assert os.listdir(tmp_path) == []

    def test_failed_write_leaves_the_old_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "plan.yaml"
        path.write_text("old")

        def full(_: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OutputError, match="No space left"):
            write_text_atomically(path, "new", force=True)
        assert path.read_text() == "old"
        assert os.listdir(tmp_path) == ["plan.yaml"]
