"""What the commands print, under any encoding: signs that a terminal or a file cannot hold are spelled out.

Two steps. `console` spells signs out before a table is laid out, so that its columns stay aligned; `readable_streams`
does so for whatever reaches standard output or standard error by another way.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import sys
import unicodedata
from collections.abc import Iterator
from typing import Any

import rich.console
from rich.text import Text

SPELLED = {
    "−": "-", "–": "-", "—": "-", "‐": "-", "×": "x", "±": "+/-", "·": "*", "•": "*", "…": "...", "∞": "inf",
    "→": "->", "←": "<-", "≥": ">=", "≤": "<=", "≠": "!=", "≈": "~", "∈": "in", "√": "sqrt", "²": "^2", "³": "^3",
    "⁺": "+", "⁻": "-", "⟨": "<", "⟩": ">", "‖": "||", "′": "'", "‘": "'", "’": "'", "“": '"', "”": '"', "ℓ": "l",
    "°": "deg", "∘": "o", "§": "section ",
}  # fmt: skip


def spelled(sign: str) -> str:
    """One character in ASCII: known signs, names of Greek letters, letters without accents, lines of boxes."""
    if sign in SPELLED:
        return SPELLED[sign]
    name = unicodedata.name(sign, "")
    if name.startswith("GREEK ") and " LETTER " in name:
        letter = name.split(" LETTER ")[1].split()[0].replace("LAMDA", "LAMBDA")
        return letter.capitalize() if " CAPITAL " in name else letter.lower()
    if name.startswith("BOX DRAWINGS"):
        across = any(word in name for word in ("HORIZONTAL", "LEFT", "RIGHT"))
        down = any(word in name for word in ("VERTICAL", "UP", "DOWN"))
        return "+" if across and down else "|" if down else "-"
    plain = unicodedata.normalize("NFKD", sign).encode("ascii", "ignore").decode()
    if plain:
        return plain
    code = ord(sign)
    if 0xDC80 <= code <= 0xDCFF:  # a byte of a file's name that the locale cannot read
        return f"\\x{code - 0xDC00:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _spell(error: UnicodeError) -> tuple[str, int]:
    """An error handler of encodings."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(spelled, error.object[error.start : error.end])), error.end


codecs.register_error("viewspan.spelled", _spell)


@contextlib.contextmanager
def readable_streams() -> Iterator[None]:
    """Standard output and error never fail on a character inside the block."""
    changed = [s for s in (sys.stdout, sys.stderr) if isinstance(s, io.TextIOWrapper)]
    before = [stream.errors for stream in changed]
    for stream in changed:
        stream.reconfigure(errors="viewspan.spelled")
    try:
        yield
    finally:
        for stream, errors in zip(changed, before):
            with contextlib.suppress(ValueError, OSError):  # closed by the other end
                stream.reconfigure(errors=errors)


def drop_output() -> None:
    """Throw away what standard output could not take, so that Python does not try again at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


class _Console(rich.console.Console):
    """A console that spells out what its file cannot hold before anything is measured."""

    def render_str(self, text: str, **how: Any) -> Text:
        try:
            text = text.encode(self.encoding, "viewspan.spelled").decode(self.encoding)
        except LookupError:  # an encoding that Python does not know
            text = text.encode("ascii", "viewspan.spelled").decode()
        return super().render_str(text, **how)

    def on_broken_pipe(self) -> None:
        raise  # called while the BrokenPipeError is handled


def console(*, unattended_width: int | None = None, **options: Any) -> rich.console.Console:
    """A console for results (or with `stderr=True` for what goes on), readable under any encoding.

    Args:
        unattended_width: columns where standard output is no terminal; None leaves rich's 80.
        options: as rich.console.Console takes them.
    """
    width = None if sys.stdout is not None and sys.stdout.isatty() else unattended_width
    return _Console(width=width, **options)
