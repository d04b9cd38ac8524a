"""`viewspan predict` and `viewspan theory`: what the loss will prefer, and why, without training."""

from __future__ import annotations

import json as json_lines
import sys
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from viewspan.cli import terminal

if TYPE_CHECKING:
    from viewspan.theory import Prediction

MATCHED = "1/temperature"  # the κ that the theorems ask for
_POINTS = tuple(i / 10 for i in range(11))


def predict(
    *,
    dim: Annotated[int, Parameter(help="d, ambient dimension: latents lie on S^(d-1).")] = 3,
    n_fixed: Annotated[int, Parameter(help="m, held coordinates, 0 (full support) to d.")] = 1,
    kappa: Annotated[
        str,
        Parameter(
            help="κ ≥ 0, concentration of the positives (no unit): a number, a fraction such as 10/3, or the words "
            "1/temperature."
        ),
    ] = MATCHED,
    temperature: Annotated[float, Parameter(help="τ > 0 of the loss (no unit).")] = 0.3,
    rho: Annotated[float, Parameter(help="ρ in [0, 1], share of negatives on the anchor's fibre.")] = 0.0,
    convention: Annotated[
        Literal["ambient", "subsphere"] | None,
        Parameter(
            help="Law on the fibre, needed where 0 < n-fixed < dim: ambient is Eq. (6), subsphere Algorithm 13."
        ),
    ] = None,
    sweep: Annotated[Literal["rho"] | None, Parameter(help="rho: eleven points from 0 to 1.")] = None,
    json: Annotated[bool, Parameter(help="Print one JSON document.")] = False,
) -> int:
    """What InfoNCE will prefer under a pair law, by quadrature. Losses are L∞ = lim (L − log M), in nats.

    APE is the definition's, in [0, 2]; the published tables hold half of it.
    """
    from viewspan import checks

    tau = checks.number("temperature", temperature, low=0, open_low=True)
    law = _law(dim, n_fixed, _concentration(kappa, tau), convention)
    if law.kappa != 1 / tau and abs(law.kappa * tau - 1) < 0.01:
        print(
            f"viewspan: kappa {kappa} is near 1/temperature and not equal to it; --kappa {MATCHED} is exact",
            file=sys.stderr,
        )
    if sweep is None:
        from viewspan import theory

        one = theory.predict(law, temperature=tau, rho=rho)
        if json:
            _print_json(one.to_json())
        else:
            _print_one(one)
        return 0
    if rho != 0:
        raise ValueError(f"rho must be left out with --sweep rho, got {rho:g}")
    rows = _sweep(law, tau)
    if json:
        _print_json({"rows": [{**p.to_json(), "published": beside} for p, beside in rows]})
    else:
        _print_sweep(rows)
    return 0


def theory(*, json: Annotated[bool, Parameter(help="Print one JSON document.")] = False) -> int:
    """Every certificate of the theory: numbers by quadrature and a verdict. Exit code 1 if one fails."""
    from viewspan.theory.certificates import run_all

    found = run_all()
    if json:
        _print_json({"certificates": [certificate.to_json() for certificate in found]})
        return 0 if all(c.verdict for c in found) else 1
    from rich.table import Table

    table = Table(show_lines=True)
    for name in ("certificate", "reference", "verdict", "numbers", "what it says"):
        table.add_column(name, overflow="fold", no_wrap=name == "verdict")
    for c in found:
        numbers = "\n".join(f"{name} {value:.6g}" for name, value in c.numbers.items())
        table.add_row(c.name, c.reference, "holds" if c.verdict else "FAILS", numbers, c.sentence)
    terminal.console(unattended_width=140).print(table)
    return 0 if all(c.verdict for c in found) else 1


def _law(dim: int, n_fixed: int, kappa: float, convention: str | None) -> Any:
    from viewspan import checks, pairs

    checks.integer("dim", dim, low=2)
    checks.integer("n_fixed", n_fixed, low=0, high=dim)
    if n_fixed == 0:
        if convention is not None:
            raise ValueError(
                f"convention must be left out with n_fixed 0, where nothing is held, got {convention!r}"
            )
        return pairs.FullSupport(dim=dim, kappa=kappa)
    if n_fixed == dim:
        return pairs.FixedLatents(dim=dim, kappa=kappa, n_fixed=dim, convention=convention or "ambient")  # type: ignore[arg-type]
    if convention is None:
        raise ValueError(
            "convention must be given where some coordinates are held, ambient (Eq. (6)) or subsphere "
            "(Algorithm 13): they are different laws"
        )
    return pairs.FixedLatents(dim=dim, kappa=kappa, n_fixed=n_fixed, convention=convention)  # type: ignore[arg-type]


def _concentration(kappa: str, tau: float) -> float:
    """κ as it was written; only the words 1/temperature are 1/τ."""
    from viewspan import checks

    if kappa == MATCHED:
        return 1 / tau
    above, slash, below = kappa.partition("/")
    try:
        value = float(above) / (float(below) if slash else 1.0)
    except (ValueError, ZeroDivisionError):
        raise ValueError(
            f"kappa must be a number, a fraction such as 10/3, or {MATCHED}, got {kappa!r}"
        ) from None
    return checks.number("kappa", value, low=0)


def _sweep(law: Any, tau: float) -> list[tuple[Prediction, dict[str, float] | None]]:
    import math

    from viewspan import experiments, theory

    same = (law.dim, getattr(law, "n_fixed", 0), getattr(law, "convention", None)) == (3, 1, "subsphere")
    same = same and math.isclose(tau, 0.3) and math.isclose(law.kappa * tau, 1)
    numbers = experiments.published() if same else {}
    names = {"r2": "table8_rho_r2", "ape": "table10_rho_ape", "loss": "table11_rho_loss"}
    column = "identity/inverse"
    rows: list[tuple[Prediction, dict[str, float] | None]] = []
    for i, rho in enumerate(_POINTS):
        one = theory.predict(law, temperature=tau, rho=rho)
        beside = {key: numbers[name][i][column] for key, name in names.items()} if same else None
        if beside is not None:
            m = beside["m"] = numbers["table11_m"][column]
            beside["predicted_loss"] = one.loss_minus_log_m("squeeze", m=m) + math.log(m)  # type: ignore[operator]
            beside["predicted_half_ape"] = (one.squeeze.ape or 0.0) / 2
        rows.append((one, beside))
    return rows


def _print_json(document: object) -> None:
    from viewspan import records

    print(json_lines.dumps(records.jsonable(document), allow_nan=False))


def _lam(p: Prediction) -> str:
    if p.squeeze.limit is not None:
        return {"great_subspheres": "∞ (great subspheres)", "held_only": "0 (held only)"}[p.squeeze.limit]
    return "–" if p.squeeze.lam is None else f"{p.squeeze.lam:.4f}"


def _number(value: float | None, digits: int = 4) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _print_one(p: Prediction) -> None:
    from rich.table import Table

    held = "full support" if p.n_fixed == 0 else f"{p.n_fixed} of {p.dim} coordinates held, {p.convention}"
    table = Table()
    table.add_column("L∞ = lim (L − log M), nats")
    table.add_column("value", justify="right")
    table.add_row("orthogonal map", _number(p.orthogonal_loss))
    if p.floor is not None:
        table.add_row("floor of any map, any pairs", _number(p.floor))
    table.add_row("no map is below", _number(p.lower_bound))
    table.add_row("best squeeze (u, λv)", _number(p.squeeze.loss))
    table.add_row("  λ*", _lam(p))
    table.add_row("  R²", _number(p.squeeze.r2))
    table.add_row("  APE, in [0, 2]", _number(p.squeeze.ape))
    table.add_row("incentive to distort, nats", _number(p.incentive_nats))
    table.add_row("incentive to distort, bits", _number(p.incentive_bits))
    table.add_row("largest quadrature error", f"{p.error:.1e}")
    console = terminal.console(unattended_width=120)
    console.print(
        f"d = {p.dim}, {held}, κ = {p.kappa:g}, τ = {p.temperature:g}, ρ = {p.rho:g}", highlight=False
    )
    console.print(table)
    console.print(f"The incentive is {p.bound}.", highlight=False)
    answer = {
        True: "Orthogonal maps are minimisers",
        False: "Orthogonal maps are not minimisers",
        None: "Unknown",
    }
    why = (
        f": {p.theorem}."
        if p.theorem
        else " whether orthogonal maps are minimisers."
        if p.rival is None
        else "."
    )
    console.print(answer[p.orthogonal_is_minimiser] + why, highlight=False)


def _print_sweep(rows: list[tuple[Prediction, dict[str, float] | None]]) -> None:
    from rich.table import Table

    table = Table()
    for name in ("ρ", "λ*", "L∞ orthogonal", "L∞ at λ*", "R²", "APE/2"):
        table.add_column(name, justify="right")
    published = rows[0][1]
    if published is not None:
        for name in ("Table 8 R²", "Table 10 APE", f"L at M = {published['m']}", "Table 11 L"):
            table.add_column(name, justify="right")
    for p, beside in rows:
        half = None if p.squeeze.ape is None else p.squeeze.ape / 2
        cells = [f"{p.rho:.1f}", _lam(p), _number(p.orthogonal_loss), _number(p.squeeze.loss)]
        cells += [_number(p.squeeze.r2, 5), _number(half, 5)]
        if beside is not None:
            cells += [f"{beside['r2']:.3f}", f"{beside['ape']:.3f}"]
            cells += [f"{beside['predicted_loss']:.3f}", f"{beside['loss']:.2f}"]
        table.add_row(*cells)
    terminal.console(unattended_width=140).print(table)
