"""A deployed site: its node config, the runs it takes part in, and the error messages it sends to the server.

A site does not trust the run's settings. It opens only the files named in its own node config. Error messages never
reveal their contents: the server receives either a sentence that depends only on the run's settings and the site's
policy, or one of a few fixed sentences. Details go to the site's own log. In a run without privacy, at a site that
takes part in such runs, the fixed sentence also says what kind of error it is (`DataError.reason`).

A node with lifetime-epsilon, max-epsilon, max-epsilon-alone, min-noise-multiplier or a data-file takes part in private
runs only, unless allow-non-private is true. A key that `Site` does not have is refused, because it may be a misspelt
policy.

Whether a file matches num-features and num-classes, or a schema, depends on every record in it. A private site
therefore compares the run's numbers, or the digest of its schema, with its own before it opens the file. Otherwise a
server could choose them and learn from the refusals, for example, the largest index or whether one record has another
class.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from twinflower.data.schema_file import read_schema
from twinflower.data.sets import OWN, TABLES, WITHOUT_FILES, OwnData, TableData
from twinflower.errors import SettingError, require
from twinflower.flower_messages import PLACES, SITE_NAME
from twinflower.privacy.unit import KINDS, RECORD, Unit
from twinflower.queries import QueryPolicy
from twinflower.settings import (
    PROBABILITY,
    Rule,
    Setting,
    Value,
    above,
    alike,
    at_least,
    kebab,
    one_of,
    settings_of,
    snake,
)

from ..settings import PATHS, Config, parse_run_config

_ALIASES = {"data-path": "data-file"}  # Flower's name for the data of a deployed node
_DEFAULT_DELTA = 1e-4
_POLICY = ("lifetime-epsilon", "max-epsilon", "max-epsilon-alone", "min-noise-multiplier")


_NAME = Rule(
    "1 to 64 letters, digits, dots, hyphens and underscores", lambda v: bool(SITE_NAME.fullmatch(v or "-"))
)
_ABSOLUTE = Rule(
    "an absolute path, or a restart elsewhere begins anew",
    lambda v: not v or Path(v).expanduser().is_absolute(),
)


@dataclass(frozen=True)
class _Node:
    """The keys that concern all runs. schema_digest, schema_group: of the schema, empty without one."""

    partition_id: Annotated[int, Setting("which client it is, if the server does not number it", at_least(0))]
    num_partitions: Annotated[int, Setting("of how many", at_least(1))]
    site: Annotated[
        str, Setting("its name, by which the server numbers a node without partition-id", _NAME)
    ] = ""
    data_dir: Annotated[str, Setting("folder of the known data sets' files")] = ""
    data_file: Annotated[
        str, Setting("the site's own rows; such a node takes part only in runs with data.name = own")
    ] = ""
    num_features: Annotated[
        int | None,
        Setting("features of the data-file, needed if the node takes part only in private runs", at_least(1)),
    ] = None
    num_classes: Annotated[
        int | None,
        Setting(
            "classes of the data-file, needed if the node takes part only in private runs",
            Rule("at least 0 (0 = the labels are numbers)", lambda v: v >= 0),
        ),
    ] = None
    schema: Annotated[str, Setting("in place of these two, the schema of a data-file that is a table")] = ""
    schema_digest: str = ""
    schema_group: str = ""
    state_dir: Annotated[
        str,
        Setting(
            "folder of its ledgers, default ~/.twinflower; if set, also of duals and replies, to go on after a restart",
            _ABSOLUTE,
        ),
    ] = ""
    lifetime_epsilon: Annotated[
        float | None,
        Setting(
            "total budget of all runs, needed for private ones; runs of sums count as against server and other sites",
            above(0),
        ),
    ] = None
    lifetime_delta: Annotated[float, Setting("delta of the lifetime budget", PROBABILITY)] = _DEFAULT_DELTA
    max_epsilon: Annotated[float | None, Setting("largest budget that one run may plan", above(0))] = None
    max_epsilon_alone: Annotated[
        float | None,
        Setting("the same against the server and all other sites together, at max-delta", above(0)),
    ] = None
    max_delta: Annotated[float, Setting("delta of max-epsilon", PROBABILITY)] = _DEFAULT_DELTA
    min_noise_multiplier: Annotated[
        float | None,
        Setting("least sigma / sensitivity", at_least(0)),
    ] = None
    identity_key: Annotated[
        str, Setting("file of its Ed25519 key (`twinflower identity FILE`), needed for runs of sums")
    ] = ""
    peers_file: Annotated[
        str, Setting("public keys of all sites by number, its own included, needed for runs of sums")
    ] = ""
    max_honest: Annotated[
        int | None,
        Setting(
            "largest number of honest sites, itself included, that a run of sums may assume", at_least(1)
        ),
    ] = None
    protects: Annotated[
        str,
        Setting(
            "what its lifetime budget protects, as in a run's [privacy]; a run must protect at least as much",
            one_of(KINDS),
        ),
    ] = RECORD
    group_size: Annotated[
        int,
        Setting(
            "most rows of one person; with a schema's group column, no value of it may have more", at_least(0)
        ),
    ] = 0
    allow_non_private: Annotated[bool, Setting("runs without privacy may use the data-file")] = False


@dataclass(frozen=True)
class Site(QueryPolicy, _Node):
    """A validated node config. None: the key was not given.

    It sends matrices, counts and sums without noise only in runs without privacy.
    """

    ignore_keys: Annotated[str, Setting("comma-separated keys of other apps on the same node")] = field(
        default="", compare=False
    )

    @property
    def name(self) -> str:
        """Its name, or the number in its node config."""
        return self.site or str(self.partition_id)

    @property
    def promises(self) -> list[str]:
        """Keys of the node config that restrict the site to private runs; empty if there are none."""
        policy = [key for key in _POLICY if getattr(self, snake(key)) is not None]
        return policy + ["data-file"] * (bool(self.data_file) and not self.allow_non_private)

    def check_privacy(self, private: bool) -> None:
        """Raise SettingError for a run without privacy if the site takes part only in private runs."""
        if not private and self.promises:
            raise SettingError(
                f"this site takes part in private runs only ({', '.join(self.promises)}); the run has none"
            )

    @cached_property
    def unit(self) -> Unit:
        """What the site's lifetime budget protects."""
        return Unit(self.protects, self.group_size)

    def check_unit(self, run: Unit) -> None:
        """Raise SettingError if a run protects less than the site does."""
        if not run.covers(self.unit):
            raise SettingError(
                f"this site's node config has {self.unit.setting}, and the run has {run.setting}: set "
                "privacy.protects and privacy.group-size to protect at least as much"
            )

    def check_sums(self, honest: int, lost: int) -> None:
        """Raise SettingError if the run's noise assumes more honest sites than this site's policy allows, or if a site
        that may be asked to open shares has no disk to remember for which sum it did."""
        require(
            self.max_honest is not None,
            "a run with privacy.trust = sum needs identity-key, peers-file and max-honest in every site's node config",
        )
        if not honest <= (self.max_honest or 0):
            raise SettingError(
                f"this site's policy counts on at most {self.max_honest} honest sites; the run has "
                f"privacy.honest-sites {honest}"
            )
        require(
            not lost or bool(self.state_dir),
            "a run with privacy.lost-sites needs state-dir in every site's node config: a site must remember, also "
            "after a restart, which sum of a round it has opened",
        )

    def config(self, run: Mapping[str, Any]) -> Config:
        """The run's configuration with all paths replaced by the site's own, and without downloads.

        Raises SettingError for a run that this site does not take part in.
        """
        config, count = parse_run_config(run), self.num_partitions
        self._check_dataset(config.data.name)  # before any code looks for files that the run names
        config = config.with_clients(count)
        if config.clients.count != count:
            raise SettingError(f"clients.count is {config.clients.count}, but there are {count} nodes")
        self._check_shape(config.data)
        require(
            not config.objective.name.startswith("torch:"),
            "a deployed site runs no Python file that a run names: put the PyTorch module into an app of your own, "
            "around twinflower.torch.ModuleObjective",
        )
        self.check_privacy(config.privacy.mode != "none")
        own: dict[str, Value] = dict.fromkeys(PATHS, "")
        own |= {"data.dir": self.data_dir, "data.file": self.data_file, "data.schema": self.schema}
        own |= {"data.download": False}
        known = config.items()
        return config.put({key: value for key, value in own.items() if key in known})

    def _check_dataset(self, dataset: str) -> None:
        require(
            not dataset.startswith("libsvm:") and dataset != TABLES,
            "a deployed site opens no file that a run names: give its rows as data-file in the node config, and run "
            "with data.name = own",
        )
        if dataset not in (*WITHOUT_FILES, OWN) and not self.data_dir:
            raise SettingError(
                f"a run of the dataset {dataset} needs the folder of its files, data-dir, in the node config"
            )
        require(
            dataset != OWN or bool(self.data_file),
            'a run with data.name = own needs --node-config "data-file=PATH" on every node',
        )
        if dataset != OWN and self.data_file:
            raise SettingError(
                f"a node with a data-file takes part in runs with data.name = own only; got {dataset}"
            )

    def _check_shape(self, data: Any) -> None:
        """Raise SettingError if the run's columns or classes differ from those of the node config."""
        asked = data.schema_digest if isinstance(data, OwnData | TableData) else ""
        require(
            bool(self.schema) or not asked,
            'a run with data.schema-digest needs --node-config "schema=PATH" on every node: the file all sites share',
        )
        if asked != self.schema_digest:
            raise SettingError(
                f"this site's schema has the digest {self.schema_digest}; the run has {asked or 'none'}: all sites "
                "need the same schema"
            )
        for key in ("num_features", "num_classes") if self.data_file else ():
            mine, asked = getattr(self, key), getattr(data, key)
            if mine not in (None, asked):
                raise SettingError(
                    f"this site's rows have {kebab(key)} {mine} by its node config; the run has {asked}"
                )


_KEYS = settings_of(Site)


def read_site(node: Mapping[str, Any]) -> Site:
    """Read and validate a node config; SettingError for unknown keys, wrong types and invalid values."""
    ignored = {word.strip() for word in str(node.get("ignore-keys", "")).split(",")}
    own = _renamed({key: value for key, value in node.items() if key not in ignored - _KEYS.keys()})
    for key in own.keys() - _KEYS.keys():
        raise SettingError(_unknown(key))
    site = _checked(
        {snake(key): _KEYS[key].checked(value, f"node config {key}") for key, value in own.items()}
    )
    if not site.partition_id < site.num_partitions:
        raise SettingError(
            f"node config partition-id must be below num-partitions = {site.num_partitions}; got {site.partition_id}"
        )
    _check_promises(site)
    return site


def _renamed(node: dict[str, Any]) -> dict[str, Any]:
    """The node config under our names of the keys; SettingError if a key is given under both of its names."""
    for alias, key in _ALIASES.items():
        if {alias, key} <= node.keys():
            raise SettingError(
                f"node config {alias} and {key} mean the same: give one of them; got {node.get(alias)} and "
                f"{node.get(key)}"
            )
    return {_ALIASES.get(key, key): value for key, value in node.items()}


def _check_promises(site: Site) -> None:
    """Raise SettingError for a policy that is contradictory or incomplete."""
    _ = site.unit  # SettingError for a group-size without a group
    policy = [key for key in site.promises if key != "data-file"]
    if site.allow_non_private and policy:
        raise SettingError(
            f"node config allow-non-private contradicts {', '.join(policy)}: a run without privacy exceeds any "
            "budget; remove one or the other"
        )
    _check_rows(site)
    sums = [bool(site.identity_key), bool(site.peers_file), site.max_honest is not None]
    require(
        all(sums) or not any(sums),
        "node config identity-key, peers-file and max-honest belong together: who the site is, which sites it accepts, "
        "and how many of them it counts on",
    )
    _check_alone(site)


def _check_rows(site: Site) -> None:
    """Raise SettingError if it is not said once what the records are, and whose."""
    shape = (site.num_features, site.num_classes)
    require(
        "data-file" not in site.promises or bool(site.schema) or None not in shape,
        "node config num-features and num-classes (0 = the labels are numbers), or schema, are needed with data-file: "
        "a run could otherwise ask which columns and classes the records have",
    )
    require(
        not site.schema or (shape == (None, None) and bool(site.data_file)),
        "node config schema says which features and classes a data-file has: it needs data-file, and num-features and "
        "num-classes are left out",
    )
    if site.schema_group and site.unit.rows == 1 and "data-file" in site.promises:
        raise SettingError(
            f"node config schema names a group column, '{site.schema_group}': it needs protects = group and "
            "group-size, the largest number of rows of one person, or protects = site"
        )


def _check_alone(site: Site) -> None:
    """Raise SettingError for a key that has no effect without another one."""
    for delta, *epsilons in (
        ("lifetime-delta", "lifetime-epsilon"),
        ("max-delta", "max-epsilon", "max-epsilon-alone"),
    ):
        given = any(getattr(site, snake(epsilon)) is not None for epsilon in epsilons)
        if getattr(site, snake(delta)) != _DEFAULT_DELTA and not given:
            raise SettingError(
                f"node config {delta} needs {' or '.join(epsilons)}: by itself it limits nothing"
            )
    for name, key in settings_of(QueryPolicy).items():
        needed = key.setting.needs
        if needed and key.value_in(site) != key.default and getattr(site, snake(needed)) is None:
            raise SettingError(f"node config {name} needs {needed}: without it the site sends no such sums")


def _checked(values: dict[str, Any]) -> Site:
    require(
        {"partition_id", "num_partitions"} <= values.keys(),
        'a node needs --node-config "partition-id=I num-partitions=N", or a name, "site=NAME", and neither of the two',
    )
    schema = values.get("schema", "")
    if not schema:
        return Site(**values)
    known = read_schema(schema)
    return Site(**values, schema_digest=known.digest, schema_group=known.group)


def _unknown(key: str) -> str:
    hint = alike(kebab(key).lower(), _KEYS) or f"; known keys: {', '.join(_KEYS)}"
    return (
        f"'{key}' is not a key of this app's node config{hint} (a key of another app on this node goes into "
        f'ignore-keys="{key}")'
    )


def simulated(node: Mapping[str, Any]) -> bool:
    """Whether this process is a worker of Flower's simulation engine: Ray runs, and the node config holds no other keys
    than the partition.

    Neither condition can be caused by a message or by a run's settings.
    """
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized()) and set(node) == set(PLACES)
