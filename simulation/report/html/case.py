"""The run that a privacy statement is about, before it starts or after it has ended."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from twinflower.errors import SettingError

from ...results.folder import has_ended
from ...results.reading import read_clients, read_config, read_summary
from ...runs.privacy import accounts, spent
from ...runs.setup import PreparedRun
from ...settings import Config
from .sites import Site


class Case(NamedTuple):
    """The run that a statement is about.

    privacy: the entry of summary.json, None without privacy. sites: rows of clients.csv. planned: whether the run is
    still to come. deployed: whether the noise is secret and the ledgers are at the sites. standardised: whether columns
    were scaled by statistics of the data. complete: whether the run finished.
    """

    config: Config
    privacy: Mapping[str, Any] | None
    sites: Sequence[Site]
    planned: bool = False
    deployed: bool = False
    standardised: bool = False
    complete: bool = True

    @classmethod
    def of_folder(cls, folder: Path) -> "Case":
        """The case of an ended run; SettingError if none has ended in this folder."""
        if not has_ended(folder):
            raise SettingError(f"no run has ended in {folder}: give its config.toml for what it plans")
        summary = read_summary(folder)
        return cls(
            read_config(folder).config, summary["privacy"], read_clients(folder),
            deployed=summary["runtime"] == "deployment", standardised=bool(summary["standardised"]),
            complete=bool(summary["finished"]),
        )  # fmt: skip

    @classmethod
    def of_setup(cls, setup: PreparedRun) -> "Case":
        """The case of a run before it starts, if every client that the plan samples takes part."""
        plan = setup.plan
        if plan is None:
            return cls(setup.config, None, [], planned=True)
        columns = {"rows": setup.partition.sizes, "asked": plan.rounds_in, **accounts(plan, plan.shares)}
        evaluated = plan.evaluation.costs() if plan.evaluation else 0.0
        asked = np.flatnonzero(plan.rounds_in + evaluated).tolist()
        sites = [{"client": c} | {name: float(column[c]) for name, column in columns.items()} for c in asked]
        return cls(
            setup.config, spent(plan, plan.shares, seeded=False), sites, planned=True,
            standardised=setup.dataset.standardised,
        )  # fmt: skip
