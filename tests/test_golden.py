"""What every command prints with `--json` is what it printed before: see `golden/make.py`, which makes the files anew."""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent / "golden"))
import make

RELATIVE, ABSOLUTE = 2e-3, 2e-4
ONE_IN_A_FEW = {
    "accuracy": 0.17,
    "retrieval": 0.17,
    "probe": 0.17,
    "gain": 0.34,
}  # shares of the pictures' six a class
NUMBER = re.compile(r"[-−]?\d+\.\d+(?:e[-+]?\d+)?")


def differences(before: Any, now: Any, where: str = "") -> list[str]:
    """What two documents do not share: keys, lengths, words exactly; numbers, in words too, within a tolerance."""
    if isinstance(before, dict) and isinstance(now, dict):
        found = [
            f"{where}: {key} is {'missing' if key in before else 'new'}" for key in before.keys() ^ now.keys()
        ]
        for key in before.keys() & now.keys():
            found += differences(before[key], now[key], f"{where}.{key}")
        return found
    if isinstance(before, list) and isinstance(now, list):
        if len(before) != len(now):
            return [f"{where}: {len(before)} entries are now {len(now)}"]
        return [
            text for i, (x, y) in enumerate(zip(before, now)) for text in differences(x, y, f"{where}[{i}]")
        ]
    if isinstance(before, str) and isinstance(now, str):
        if NUMBER.sub("#", before) == NUMBER.sub("#", now):
            pairs = zip(NUMBER.findall(before), NUMBER.findall(now))
            if all(near(number(x), number(y), where, 1.01 * last_place(x)) for x, y in pairs):
                return []
    elif isinstance(before, int | float) and isinstance(now, int | float) and type(before) is not bool:
        if near(before, now, where):
            return []
    elif before == now:
        return []
    return [f"{where}: {before!r} is now {now!r}"]


def number(text: str) -> float:
    return float(text.replace("−", "-"))


def last_place(text: str) -> float:
    return 10.0 ** -len(text.partition("e")[0].partition(".")[2])


def near(before: float, now: float, where: str, least: float = 0.0) -> bool:
    few = max((share for word, share in ONE_IN_A_FEW.items() if word in where), default=0.0)
    return math.isclose(before, now, rel_tol=RELATIVE, abs_tol=max(ABSOLUTE, least, few))


@pytest.mark.parametrize("name", make.DOCUMENTS)
def test_document_is_what_it_was(name: str) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        now = make.make(name)
    finally:
        torch.set_num_threads(threads)
    before = json.loads((make.HERE / f"{name}.json").read_text(encoding="utf-8"))
    assert not differences(before, now)


@pytest.mark.parametrize(
    ("before", "now", "what"),
    [
        ({"a": 1.0}, {"a": 1.01}, ".a: 1.0 is now 1.01"),
        ({"a": 1.0}, {"b": 1.0}, ": a is missing"),
        ({"a": [1]}, {"a": [1, 2]}, ".a: 1 entries are now 2"),
        ({"a": None}, {"a": 0.0}, ".a: None is now 0.0"),
        ({"a": True}, {"a": False}, ".a: True is now False"),
        ("R² 0.50 of isometry", "R² 0.50 of folded", "folded"),
        ("R² 0.50", "R² 0.52", "0.52"),
        ({"r2": 0.5}, {"r2": 0.4}, "0.4"),
    ],
)
def test_differences_are_seen(before: Any, now: Any, what: str) -> None:
    assert any(what in text for text in differences(before, now))


def test_what_another_machine_changes_is_not_seen() -> None:
    assert not differences({"a": 1.0, "b": "R² 0.500"}, {"a": 1.0001, "b": "R² 0.501"})
    assert not differences({"probe_accuracy": 0.5}, {"probe_accuracy": 0.6})
