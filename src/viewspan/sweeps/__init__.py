"""Run many cells once each, on any number of workers and machines that share one folder of records.

What a cell computes is not known here: a worker maps settings to a record.
"""

from viewspan.sweeps.cells import Cell, Outcome, Worker
from viewspan.sweeps.sweep import SweepResult, parse_shard, run, take_shard

__all__ = ["Cell", "Outcome", "SweepResult", "Worker", "parse_shard", "run", "take_shard"]
