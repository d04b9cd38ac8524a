"""What a run is, on disk: one JSON file a run, written whole or not at all, and one sidecar of arrays.

A record is derived, never typed: settings, seed, versions, commit, device and timings are read off the run.
A finished run is reused when its settings and a digest of the package's source agree. A claim file keeps two
workers off one run; it is renewed while the run lasts, so a dead worker's claim is recognised and taken over.
"""

from viewspan.records.files import FULL, jsonable, settings_digest, unwritable, write_atomic
from viewspan.records.provenance import environment, source_digest
from viewspan.records.record import SCHEMA, Record, RecordError, read, read_all, read_arrays
from viewspan.records.store import Store

__all__ = [
    "FULL",
    "SCHEMA",
    "Record",
    "RecordError",
    "Store",
    "environment",
    "jsonable",
    "read",
    "read_all",
    "read_arrays",
    "settings_digest",
    "source_digest",
    "unwritable",
    "write_atomic",
]
