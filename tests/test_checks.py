"""Argument checks: every error names the argument, its value and the rule."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from viewspan import checks, runtime


def test_numbers():
    for value in (0, 0.5, 1, np.float32(0.5), np.int64(1), torch.tensor(0.25)):
        got = checks.number("x", value, low=0, high=1)
        assert isinstance(got, float)
        assert got == float(value)
    for value in (-0.1, 1.1, math.nan, math.inf, -math.inf, 10**400 // 10**380):
        with pytest.raises(ValueError, match=rf"x must be finite and in \[0, 1\], got {value!r}"):
            checks.number("x", value, low=0, high=1)
    with pytest.raises(ValueError, match=r"x must be finite and in \(0, inf\), got 0"):
        checks.number("x", 0, low=0, open_low=True)
    for value in (None, "1", b"1", True, [1.0], 1j, object(), torch.ones(2)):
        with pytest.raises(TypeError, match=r"x must be a number, got"):
            checks.number("x", value)


def test_numbers_too_large_for_a_float():
    with pytest.raises(ValueError, match=r"x must be finite"):
        checks.number("x", 10**400)


def test_integers():
    for value in (0, 5, np.int32(3), torch.tensor(4)):
        got = checks.integer("n", value, low=0, high=5)
        assert type(got) is int
        assert got == int(value)
    for value, options, rule in (
        (-1, {"low": 0}, "n must be at least 0, got -1"),
        (9, {"high": 5}, "n must be at most 5, got 9"),
        (9, {"low": 0, "high": 5}, r"n must be in 0\.\.5, got 9"),
    ):
        with pytest.raises(ValueError, match=rule):
            checks.integer("n", value, **options)
    for value in (1.0, "1", None, True, np.float64(2), torch.ones(2, dtype=torch.long), torch.tensor(1.5)):
        with pytest.raises(TypeError, match=r"n must be an integer, got"):
            checks.integer("n", value)


def test_choices():
    assert checks.choice("kind", "a", ("a", "b")) == "a"
    for value in ("A", "", None, 3, ["a"], "c"):
        with pytest.raises(ValueError, match=r"kind must be one of a, b, got"):
            checks.choice("kind", value, ("b", "a"))


def test_generators():
    here = torch.Generator()
    assert checks.generator(here, torch.device("cpu")) is here
    for value in (None, 0, np.random.default_rng(0)):
        with pytest.raises(TypeError, match=r"generator must be a torch\.Generator, got"):
            checks.generator(value, torch.device("cpu"))
    with pytest.raises(ValueError, match=r"generator must lie on the device cuda, got cpu"):
        checks.generator(here, torch.device("cuda"))


def test_rows():
    x = torch.ones(3, 2)
    assert checks.rows("z", x) is x
    bad = x.clone()
    bad[1, 0] = math.nan
    for value, options, rule in (
        (bad, {}, "z row 1 is not finite"),
        (x, {"dim": 3}, r"z must have shape \(n, 3\), got \(3, 2\)"),
        (x[0], {}, r"z must have shape \(n, d\), got \(2,\)"),
        (x[:, :0], {}, r"z must have shape \(n, d\), got \(3, 0\)"),
        (x[:1], {"min_rows": 2}, "z must have at least 2 rows, got 1"),
    ):
        with pytest.raises(ValueError, match=rule):
            checks.rows("z", value, **options)
    for value in (x.numpy(), x.long(), None):
        with pytest.raises(TypeError, match=r"z must be"):
            checks.rows("z", value)


def test_unit_rows():
    x = torch.nn.functional.normalize(torch.randn(5, 3, generator=torch.Generator().manual_seed(0)), dim=1)
    assert checks.unit_rows("z", x.half()).dtype == torch.float32
    nearly = x.double() * (1 + 5e-5)
    assert (checks.unit_rows("z", nearly).norm(dim=1) - 1).abs().max() < 1e-12
    for scale in (1 + 2e-4, 1 - 2e-4, 0, math.nan, -math.inf):
        bad = x.clone()
        bad[3] *= scale
        with pytest.raises(ValueError, match=r"z row 3 must have length 1, got length"):
            checks.unit_rows("z", bad)
    assert checks.unit_rows("z", x[:0]).shape == (0, 3)
    assert checks.unit_rows("z", x[0]).shape == (3,)
    for value in (torch.tensor(1.0), torch.ones(3, 0)):
        with pytest.raises(ValueError, match=r"z must have shape \(\.\.\., d\)"):
            checks.unit_rows("z", value)


def test_devices_and_precisions():
    assert runtime.device("cpu") == torch.device("cpu")
    assert runtime.device().type in ("cpu", "cuda", "mps")
    with pytest.raises(ValueError, match=r"device must be one of auto, cpu, cuda, mps, got 'gpu'"):
        runtime.device("gpu")
    with pytest.raises(ValueError, match=r"precision must be one of"):
        runtime.precision("half", torch.device("cpu"))
    for name in ("float32", "bfloat16"):
        assert runtime.precision(name, torch.device("cpu")) == name
    assert runtime.precision("auto", torch.device("cpu")) in ("float32", "bfloat16")
    assert runtime.cores() >= 1


def test_threads_are_put_back():
    before = torch.get_num_threads()
    with runtime.threads(1) as n:
        assert n == torch.get_num_threads() == 1
    assert torch.get_num_threads() == before
    with runtime.threads(None) as n:
        assert n == before
    with pytest.raises(ValueError, match=r"threads must be at least 1"), runtime.threads(0):
        pass
    assert torch.get_num_threads() == before


def test_autocast_is_on_for_bfloat16_only():
    a = torch.ones(4, 4)
    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        with runtime.autocast(torch.device("cpu"), name):
            assert (a @ a).dtype == dtype
