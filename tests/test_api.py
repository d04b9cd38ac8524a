"""The front door: five verbs and the submodules, imported only when used."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

import viewspan

HEAVY = ("torch", "kornia", "torchvision", "pandas", "sklearn", "scipy", "matplotlib")


def loaded_after(code: str) -> set[str]:
    """The heavy packages in sys.modules after running `code` in a fresh interpreter."""
    script = f"import sys, json\n{code}\nprint(json.dumps([m for m in {HEAVY!r} if m in sys.modules]), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(json.loads(done.stderr.splitlines()[-1]))


def test_importing_the_package_loads_no_tensor_library():
    assert (
        loaded_after("import viewspan, viewspan.checks, viewspan.records, viewspan.runtime; dir(viewspan)")
        == set()
    )


def test_the_commands_frame_loads_no_tensor_library():
    code = "from viewspan.cli.app import main\ntry:\n    main(['--help'])\nexcept SystemExit:\n    pass"
    assert loaded_after(code) == set()
    code = "from viewspan.cli.app import main\ntry:\n    main(['--version'])\nexcept SystemExit:\n    pass"
    assert loaded_after(code) == set()


def test_dir_lists_the_verbs_and_the_submodules():
    names = dir(viewspan)
    assert set(viewspan.__all__) <= set(names)
    assert "__version__" in names
    assert {"fit", "predict", "score", "diagnose", "audit"} <= set(names)
    for name in ("sphere", "pairs", "processes", "encoders", "losses", "metrics", "training"):
        assert name in names
        assert getattr(viewspan, name) is importlib.import_module(f"viewspan.{name}")


def test_verbs_are_the_functions_of_their_modules():
    from viewspan.metrics import score
    from viewspan.training import fit

    assert viewspan.fit is fit
    assert viewspan.score is score


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"module 'viewspan' has no attribute 'train'"):
        viewspan.train
    assert not hasattr(viewspan, "nothing")


def test_the_version_is_the_packages():
    from importlib.metadata import version

    assert version("viewspan") == viewspan.__version__


def test_the_package_is_typed():
    assert (Path(viewspan.__file__).parent / "py.typed").exists()


def test_no_module_changes_a_global_of_torch():
    code = (
        "import torch\n"
        "def state(): return (torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled(),\n"
        "    torch.are_deterministic_algorithms_enabled(), torch.get_rng_state().sum().item())\n"
        "before = state()\n"
        "from viewspan import encoders, losses, metrics, pairs, processes, sphere, training\n"
        "assert state() == before\n"
    )
    assert "torch" in loaded_after(code)
