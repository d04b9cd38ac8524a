"""A module imports only from lower layers; files of one folder may import one another."""

import ast
from pathlib import Path

import viewspan

ROOT = Path(viewspan.__file__).parent
TIERS = (
    {"checks"},
    {"runtime", "sphere", "records"},
    {"pairs", "processes", "losses", "metrics", "sweeps"},
    {"encoders"},  # inverse encoders are shaped like the processes they undo
    {"theory", "diagnosis", "training", "images", "testing"},
    {"auditing", "vision"},
    {"experiments"},
    {"report"},
    {"cli"},
)
LAYERS = {name: layer for layer, names in enumerate(TIERS) for name in names}
TOP = {"__init__", "__main__"}


def unit(path: Path) -> str:
    """The first name under the package: a module or a folder."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported_units(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if (
            isinstance(node, ast.ImportFrom)
            and node.level == 0
            and (node.module or "").split(".")[0] == "viewspan"
        ):
            parts = (node.module or "").split(".")
            found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("viewspan.")}
        elif isinstance(node, ast.ImportFrom) and node.level > 0:
            raise AssertionError(f"{path}: relative import; write the full name")
    return found - {"__version__"}


def test_modules_import_only_from_lower_layers() -> None:
    faults = []
    for path in sorted(ROOT.rglob("*.py")):
        here = unit(path)
        if here in TOP:
            continue
        assert here in LAYERS, f"{path} has no layer"
        for there in imported_units(path):
            if there != here and LAYERS[there] >= LAYERS[here]:
                faults.append(
                    f"{path.relative_to(ROOT)} (layer {LAYERS[here]}) imports {there} (layer {LAYERS[there]})"
                )
    assert not faults, "\n".join(faults)


def test_the_report_meets_no_model_and_no_tensor() -> None:
    for path in (ROOT / "report").rglob("*.py"):
        assert imported_units(path) <= {"records", "report", "checks"}, path
        assert "torch" not in path.read_text(), path
