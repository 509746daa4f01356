"""Flower's app with clients that misbehave on command, for tests on real SuperNodes.

The node config `faults = "nan@3 slow@5"`, with `ignore-keys = "faults"`, names what happens in which round. `build`
writes the app into a folder; this module is its client side. Noise is seeded, as in a simulation, so that tests can
compare bits.
"""

import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

ROOT = Path(__file__).resolve().parent.parent


def build(folder: Path) -> Path:
    """The project's app with this module as its client app."""
    for name in ("twinflower", "strategies", "clients", "simulation"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / name)
    shutil.copy(__file__, folder / "simulation" / "faulty_app.py")
    text = (ROOT / "pyproject.toml").read_text()
    (folder / "pyproject.toml").write_text(
        text.replace("twinflower.simulation.app.entry:client", "twinflower.simulation.faulty_app:app")
    )
    return folder


def _first(reply: Message, change: Callable[[np.ndarray], np.ndarray]) -> Message:
    arrays = [array.numpy().copy() for array in reply.content["fitres.parameters"].values()]
    record = ArrayRecord()
    for place, array in enumerate([change(arrays[0]), *arrays[1:]]):
        record[str(place)] = Array(array)
    return _with(reply, {"fitres.parameters": record})


def _last(reply: Message, change: Callable[[np.ndarray], np.ndarray]) -> Message:
    arrays = [array.numpy().copy() for array in reply.content["fitres.parameters"].values()]
    record = ArrayRecord()
    for place, array in enumerate([*arrays[:-1], change(arrays[-1])]):
        record[str(place)] = Array(array)
    return _with(reply, {"fitres.parameters": record})


def _with(reply: Message, records: dict) -> Message:
    content = RecordDict({**dict(reply.content.items()), **records})
    return Message(
        content=RecordDict({k: v for k, v in content.items() if v is not None}), metadata=reply.metadata
    )


def _filled(value: float) -> Callable[[np.ndarray], np.ndarray]:
    return lambda array: np.full_like(array, value)


def _stale(reply: Message) -> Message:
    metrics = dict(reply.content["fitres.metrics"])
    return _with(reply, {"fitres.metrics": ConfigRecord({**metrics, "round": metrics["round"] - 1})})


def _dropped(reply: Message) -> Message:
    content = RecordDict({k: v for k, v in reply.content.items() if k != "fitres.parameters"})
    return Message(content=content, metadata=reply.metadata)


AFTER: dict[str, Callable[[Message], Message]] = {
    "nan": lambda reply: _first(reply, _filled(np.nan)),
    "inf": lambda reply: _first(reply, _filled(np.inf)),
    "wrong-shape": lambda reply: _first(reply, lambda array: array[1:]),
    "wrong-dtype": lambda reply: _first(reply, lambda array: array.astype(np.float32)),
    "bad-indices": lambda reply: _last(reply, lambda array: np.full_like(array, 255)),
    "missing-record": _dropped,
    "stale-round": _stale,
}


def misbehave(
    message: Message, context: Context, call_next: Callable[[Message, Context], Message]
) -> Message:
    """A mod that does what the node config says for the round."""
    opening = message.content.get("getpropertiesins.config") or {}
    if message.metadata.message_type != "train" and "survivors" not in opening:
        return call_next(message, context)
    round_ = opening["round"] if opening else message.content["fitins.config"]["round"]
    plan = re.findall(r"(\S+)@(\d+)", str(context.node_config.get("faults", "")))
    (kind, *_) = [*(kind for kind, when in plan if int(when) == round_), ""]
    if kind.startswith("dies"):
        return _dying(kind, bool(opening), lambda: call_next(message, context))
    if kind == "raises":
        raise ValueError("planted")
    if kind == "slow":
        time.sleep(40)
    reply = call_next(message, context)
    if kind == "raises-late":
        raise ValueError("planted, with the work done")
    if kind == "asked-twice":
        again = call_next(message, context)
        first, second = ([a.data for a in r.content["fitres.parameters"].values()] for r in (reply, again))
        assert first == second, "a repeated request got other bytes"
    return AFTER[kind](reply) if kind in AFTER else reply


def _dying(kind: str, opening: bool, reply: Callable[[], Message]) -> Message:
    """The reply of a node that is killed in a round, as by a power failure: before its message or after it is computed,
    or in the same way when it is to open its shares."""
    if opening != ("open" in kind):
        return reply()
    if kind.endswith("-late"):
        reply()
    os.killpg(os.getpgrp(), signal.SIGKILL)
    raise AssertionError("it lives")


def seed_noise(plan_class: Any, name: str, source: Callable[[int, int, int], Any]) -> None:
    """Make the guards of this class's plans draw from (seed 0, client, round) in place of the secret source `name`."""
    secret = plan_class.guard

    def guard(plan: Any, client: int, *args: Any, **own: Any) -> Any:
        return replace(secret(plan, client, *args, **own), **{name: partial(source, 0, client)})

    plan_class.guard = guard


try:
    from twinflower.privacy.mechanism import seeded
    from twinflower.privacy.plan import Plan
    from twinflower.sums.discrete import seeded_words
    from twinflower.sums.plan import SumPlan

    from .app.client_app import client_fn
    from .app.redact_errors import discreet

    seed_noise(Plan, "draws", seeded)
    seed_noise(SumPlan, "words", seeded_words)
    app = ClientApp(client_fn, mods=[misbehave, discreet])
except ImportError:  # imported by a test, for `build`
    pass
