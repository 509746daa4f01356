"""Requests to a client: what their configs hold, and which session a Flower run belongs to."""

import hashlib
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from twinflower.algorithms.algorithm import Algorithm
from twinflower.errors import ReplyError, SettingError

MODEL_ONLY = "model-only"  # key of a request for the client's model without the other parts of its message
_READ = {
    "round",
    "server-round",
    "session",
    "settled",
    "closing",
    "ranges",
    "proximal-mu",
    MODEL_ONLY,
}  # of a server that averages models
_SESSION = "twinflower.session"  # record of context.state
_ANSWERED = "twinflower.answered"  # beginning of the names of records of context.state


class RoundRequest(NamedTuple):
    """The config of a request for a round. session: the training that it belongs to. settled: rounds up to this one
    will not be requested again. closing: whether this is the message after the last round. model_only: whether the
    server averages models and needs nothing else. ranges: of the columns with private ranges, as bytes."""

    round: int
    session: str
    settled: int
    closing: bool
    model_only: bool
    ranges: object


@dataclass(frozen=True)
class RequestReader:
    """Reads the configs of requests to a client; raises ReplyError for one that a strategy would not send.

    algorithm: the client's. state: of Flower's context, in which the session of this Flower run is stored. run: the
    session of requests that name none. first_round: the number of the first round, 0 or 1.
    """

    algorithm: Algorithm
    state: RecordDict
    run: str
    first_round: int = 1

    def read(self, config: Mapping[str, Any]) -> RoundRequest:
        """The request of a round; nothing is stored."""
        round_ = _round_in(config, self.first_round)
        session, settled = self.session(config), config.get("settled", round_ - 1)
        if type(settled) is not int:
            raise ReplyError("the request's 'settled' must be a round number")
        averages = config.get(MODEL_ONLY) is True
        if averages:
            _check_averaging(self.algorithm, config)
        closing = config.get("closing") is True
        return RoundRequest(round_, session, settled, closing, averages, config.get("ranges"))

    def evaluation(self, config: Mapping[str, Any]) -> tuple[int, str]:
        """The round and the session of a question about a model."""
        return _round_in(config, 1), self.session(config)

    def session(self, config: Mapping[str, Any]) -> str:
        """The session of a request. A second one in the same Flower run is refused, because it would get a budget of
        its own."""
        session = config.get("session", self.run)
        if type(session) is not str or not 0 < len(session) <= 64:
            raise ReplyError("the request's session must be a text of 1 to 64 characters")
        if _SESSION in self.state and cast(ConfigRecord, self.state[_SESSION])["session"] != session:
            raise ReplyError("the request belongs to another session than this run's")
        return session

    def once(self, kind: str, config: Mapping[str, Any], asked: bytes, rounds: Container[int]) -> int:
        """The round of a request for exact sums of this kind, which is noted with what is asked, so that one answer of
        a round leaves this Flower run. ReplyError if the round is not one of these, or if another question was answered
        in it, or one in a later round. To be called before the answer is computed: a question may be asked again."""
        round_, digest, name = _round_in(config, 0), hashlib.sha256(asked).hexdigest(), f"{_ANSWERED}-{kind}"
        if round_ not in rounds:
            raise ReplyError(f"nothing exact is sent about the rows after round {round_}")
        session = self.session(config)
        last = self.state[name] if name in self.state else ConfigRecord({"round": -1})
        if round_ < cast(int, last["round"]) or (round_ == last["round"] and digest != last["asked"]):
            raise ReplyError("another model was evaluated after this round or a later one, and only one is")
        self.bind(session)
        self.state[name] = ConfigRecord({"round": round_, "asked": digest})
        return round_

    def bind(self, session: str) -> None:
        """Bind this Flower run to the session; to be called only for a request whose form was checked."""
        if _SESSION not in self.state:
            self.state[_SESSION] = ConfigRecord({"session": session})


def _round_in(config: Mapping[str, Any], first: int) -> int:
    round_ = config.get("round")
    if type(round_) is not int or round_ < first:
        raise ReplyError(f"the request must carry its round, a whole number from {first}; got {round_!r}")
    return round_


def as_asked(ranges: object) -> bytes:
    """The ranges of a request, as part of what it asks; empty without any."""
    return ranges if isinstance(ranges, bytes) else b""


def model_and_config(content: RecordDict) -> tuple[ArrayRecord, ConfigRecord]:
    """The only ArrayRecord and the only ConfigRecord of a request, whatever their names; ReplyError for others."""
    arrays, configs = list(content.array_records.values()), list(content.config_records.values())
    if len(arrays) != 1 or len(configs) != 1:
        raise ReplyError("a request must hold one ArrayRecord, the model, and one ConfigRecord")
    return arrays[0], configs[0]


def model_only(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config of a request of a server that averages models, from the config that Flower's own strategies send."""
    return {**config, "round": config.get("server-round", 0), MODEL_ONLY: True}


def _check_averaging(algorithm: Algorithm, config: Mapping[str, Any]) -> None:
    """Raise ReplyError unless the algorithm's server only averages the clients' models, and the server asks for nothing
    that the client would not do: its settings are those of its algorithm."""
    mu = getattr(algorithm, "mu", 0.0)
    if config.get("proximal-mu", mu) != mu:
        raise ReplyError(
            f"the server sends proximal-mu = {config['proximal-mu']}, and this client is one of {algorithm.name} with "
            f"mu = {mu}: use a FedProx client with the same mu"
        )
    if unread := config.keys() - _READ:
        raise ReplyError(
            f"the server's config has {', '.join(sorted(unread))}, which this client does not read, because its "
            "settings are those of its algorithm: leave them out of train_config"
        )
    if not algorithm.averages_models:
        raise ReplyError(
            f"the server of {algorithm.name} does more than average models, so a strategy that only averages cannot "
            f"take its place: use twinflower.strategies.STRATEGIES['{algorithm.name}'], or a FedAvg client"
        )
    try:
        algorithm.check_average()
    except SettingError as error:
        raise ReplyError(str(error)) from None
