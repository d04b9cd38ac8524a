"""The command line: parse, call, print. Verbs are imported only when called, so that help is quick."""

from viewspan.cli.app import main

__all__ = ["main"]
