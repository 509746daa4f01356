"""The server side shared by all algorithms with a central server, on Flower's Message-API `Strategy`.

In every round the strategy samples partitions with the run's own seeded generator, sends one message to the node of
each, and checks every reply. It passes the valid replies, in ascending partition order, to the algorithm's
`server_update`. A missing or invalid reply is logged and left out; each algorithm documents how it handles a missing
client. The messages have the format of Flower's NumPyClient (fitins / fitres), so any NumPyClient can take part.
`Sampling` says who takes part, `nodes` which node is which client's, and `messages` what was asked, which replies
are valid, and whether there are enough; `questions` repeats requests and asks what the sites find about a model.
"""

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from logging import INFO, WARNING
from typing import Any, ClassVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from numpy.typing import NDArray

from twinflower.algorithms.algorithm import Algorithm, Stop, personal_models, unstack
from twinflower.arrays import Index, all_finite
from twinflower.clients.records import record_of
from twinflower.errors import AbsentError, RunError, SettingError
from twinflower.flower_messages import ENDS
from twinflower.randomness import FIRST_ROUNDS, participants
from twinflower.rounds import Round, Training, who
from twinflower.settings import check_choice
from twinflower.wire import from_npy

from .messages import (
    NO_REPLY,
    Inspector,
    Quorum,
    Requests,
    Upload,
    fit_results,
    properties_request,
    sort_replies,
)
from .nodes import Absences, Roster, meet
from .questions import Agreement, Exchange, SiteEvaluation
from .sites import NumberingGrid


@dataclass(frozen=True)
class Sampling:
    """How many of the clients 0..num_clients-1 take part in a round, and which; see `StarStrategy`.

    num_clients: 0 for the number that the nodes report. clients_per_round: 0 for all. Raises SettingError for an
    unknown first_round.
    """

    num_clients: int = 0
    clients_per_round: int = 0
    seed: int = 0
    first_round: str = "sampled"

    def __post_init__(self) -> None:
        check_choice("first-round", self.first_round, FIRST_ROUNDS)

    def among(self, num_clients: int) -> "Sampling":
        """The same with this number of clients; SettingError if there are fewer than are sampled."""
        if not 0 <= self.clients_per_round <= num_clients:
            raise SettingError(
                f"clients.per-round must be at most the number of clients, {num_clients}; got {self.clients_per_round}"
            )
        return replace(self, num_clients=num_clients)

    def clients(self, round_: int) -> Index:
        """The clients (K,) of a round, in ascending order."""
        count = self.clients_per_round or self.num_clients
        return participants(self.seed, round_, self.num_clients, count, self.first_round)


_GOODBYE = 30.0  # seconds to wait for clients that release what they have reserved


class _Ended(Exception):
    """Leaves Flower's loop over the planned rounds when the algorithm has ended the run."""


class StarStrategy(Strategy):
    """Base of all strategies; a subclass sets its `algorithm_class` and documents its server side.

    algorithm: the algorithm with its settings. num_clients: the number N of partitions 0..N-1, or 0 for the number that
    the nodes report. clients_per_round: how many clients are sampled, 0 for all. seed: of the sampling and of public
    randomness. node_timeout: seconds to wait for nodes at the start, and for a missing node before a request is
    repeated. retries: how often a request is repeated to a client in a round that cannot do without it
    (`Algorithm.needs_every_client`); the client replies with its stored bytes.
    min_replies: a round with fewer valid replies leaves the model unchanged. void_rounds: how many such rounds may
    occur in a row. max_norm: the largest Euclidean norm of an array accepted from a client. first_round: "all" sends
    requests to all clients in round 1 and to clients_per_round of them from round 2 on; "sampled" samples round 1 like
    the others. evaluation: when all clients evaluate the model on their held-out rows, by default never. agreement: the
    request for the clients' counts before round 1, None if they count nothing. The class has more than 15 methods
    because Flower's `Strategy` has six, and the phases of a round are overridden for sums (`SumStrategy`).
    """

    algorithm_class: ClassVar[type[Algorithm]]
    exchange: Exchange
    requests: Requests
    inspector: Inspector

    def __init__(
        self,
        algorithm: Algorithm,
        num_clients: int = 0,
        clients_per_round: int = 0,
        seed: int = 0,
        node_timeout: float = 60.0,
        retries: int = 3,
        min_replies: int = 1,
        void_rounds: int = 0,
        max_norm: float = math.inf,
        first_round: str = "sampled",
        evaluation: SiteEvaluation | None = None,
        agreement: Agreement | None = None,
    ) -> None:
        if not isinstance(algorithm, self.algorithm_class):
            raise SettingError(
                f"{type(self).__name__} needs a {self.algorithm_class.__name__} algorithm; got "
                f"{type(algorithm).__name__}"
            )
        algorithm.check_server()
        self.algorithm = algorithm
        self.sampling = Sampling(num_clients, clients_per_round, seed, first_round)
        self.node_timeout = node_timeout
        self.retries = retries
        self.quorum = Quorum(min_replies, void_rounds)
        self.max_norm = max_norm
        self.evaluation = evaluation or SiteEvaluation()
        self.agreement = agreement
        self.training = Training()
        self.roster = Roster({})
        self.absences = Absences()
        self._asked_at = 0.0  # when the current round began

    @property
    def server(self) -> Any:
        """The algorithm's server state, None before the first start."""
        return self.training.server

    @property
    def rounds(self) -> list[Round]:
        """The statistics of all rounds so far."""
        return self.training.rounds

    @property
    def ended(self) -> Stop | None:
        """Why the algorithm ended the run before its last planned round, None if it did not (`Algorithm.stops`)."""
        return self.algorithm.stops(self.server) if self.rounds else None

    def summary(self) -> None:
        """Log the settings."""
        log(INFO, "\t%s", self.algorithm)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600.0,
        *args: Any,
        training: Training | None = None,
        ends: bool = True,
        **kwargs: Any,
    ) -> Result:
        """Run the rounds, like Flower's `Strategy.start`; initial_arrays holds the public starting point (d,).

        Given a training, it begins that one, or, if it was interrupted, continues with the round after its last, and
        Flower counts its rounds from there; the training is changed in place. All nodes report their partitions at the
        start; a node that returns under a new id is recognised by its partition, or by its name. ends: False if the
        caller asks the sites more after the last round, and calls `release` then.

        A run that the algorithm ends before (`ended`) returns the model alone.

        Raises RunError if nodes are missing, if too few replies of one round, or of all, are valid, or if the model
        diverges.
        """
        (start,) = (from_npy(array.data) for array in initial_arrays.values())
        training = training or Training()
        nodes = meet(grid, self.sampling.num_clients, self.node_timeout, training.session, training.sites)
        training.met = True
        self.begin(nodes, start, training)
        grid = NumberingGrid(grid, self.roster.nodes) if training.sites else grid
        self.exchange = Exchange(self.roster, grid, timeout, self.node_timeout, self.retries)
        self._before_round_1(grid, initial_arrays, timeout)
        left = num_rounds - self.training.first
        try:
            result = super().start(grid, initial_arrays, left, timeout, *args, **kwargs)
        except _Ended:
            result = Result(arrays=record_of([self.algorithm.model(self.server)]))
        self.quorum.require_one(self.rounds)
        if self.algorithm.closes:
            self._close(num_rounds + 1)
        if ends:
            self.release()
        return result

    def release(self, failed: bool = False) -> list[int]:
        """Let clients whose plan is not complete release what they have reserved, because nothing more is asked: those
        that were left out of a round, or all if the run ended early or has failed. Absent ones are not waited for.

        Returns those of them that did not answer.
        """
        missed = {client for done in self.rounds for client in done.rejected}
        clients = set(self.roster.nodes) if failed or self.ended else missed
        if self.algorithm.privacy == "none" or not clients:
            return []
        present = self.roster.update(self.exchange.grid)
        nodes = [node for client, node in self.roster.nodes.items() if client in clients and node in present]
        ended = [properties_request(node, self.training.session, ENDS) for node in nodes]
        replies = self.exchange.grid.send_and_receive(ended, timeout=_GOODBYE)
        done = {reply.metadata.src_node_id for reply in replies if not reply.has_error()}
        return sorted(client for client in clients if self.roster.nodes[client] not in done)

    def begin(
        self, nodes: dict[int, int], start: NDArray[np.float64], training: Training | None = None
    ) -> None:
        """Discard earlier rounds and start a new training, or go on with one, which is changed in place.

        nodes: partition -> node. start (d,): the public starting point, whose type is that of all messages.
        """
        self.training = training or Training()
        self.sampling, self.roster = self.sampling.among(len(nodes)), Roster(nodes, self.training.sites)
        self.training.first, self.training.settled = self.training.round, None
        if self.training.server is None:
            seed = np.array(self.sampling.seed, np.uint64)
            self.training.server = self.algorithm.init_server(start, len(nodes), seed)
        self.inspector = Inspector(
            self.algorithm,
            int(self.algorithm.model(self.server).shape[-1]),
            start.dtype,
            self.training.session,
            self.max_norm,
            self.training.born,
            self.training.sites,
        )
        self.quorum = replace(self.quorum, void=0, sites=self.training.sites)
        self.absences = Absences(self.training.sites)

    def _before_round_1(self, grid: Grid, start: ArrayRecord, timeout: float) -> None:
        """Ask for the clients' counts, and evaluate the start at the sites; a training that goes on has done both."""
        if self.agreement and self.training.ranges is None:
            session, least = self.training.session, self.quorum.min_replies
            self.training.ranges = self.agreement.reach(self.exchange, session, least)
        if not self.training.first:
            requests = self.configure_evaluate(0, start, ConfigRecord(), grid)
            self.aggregate_evaluate(0, grid.send_and_receive(requests, timeout=timeout))

    def settle(self, round_: int) -> None:
        """Allow clients to delete their replies up to this round, from which a run may be resumed.

        Without a call, clients may delete those of all rounds before the current one.
        """
        self.training.settled = round_

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return one message to the node of every sampled partition; `_Ended` if the algorithm has ended the run."""
        if self.ended:
            raise _Ended
        self._asked_at = time.perf_counter()
        self.roster.update(grid, self._silent)
        round_ = self.training.number(server_round)
        return self._ask(round_, self.sampling.clients(round_), config)

    def _ask(self, round_: int, clients: Index, config: Mapping[str, Any]) -> list[Message]:
        """Return the messages to the nodes of clients (K,); `requests` records what they ask."""
        inboxes = unstack(self.algorithm.broadcast(self.server, round_, clients), len(clients))
        self.requests = Requests(
            self.inspector,
            round_,
            {**config, **self.training.stamp(round_)},
            dict(zip(clients.tolist(), inboxes, strict=True)),
        )
        return [self.requests.message(c, self.roster.nodes[c]) for c in self.requests.inboxes]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check the replies, update the server state with the valid ones, and return the model."""
        round_ = self.training.number(server_round)
        good, rejected = self._received(round_, replies)
        self.absences.note(round_, self.requests.inboxes, rejected)
        self.rounds.append(self.requests.statistics([good[c] for c in sorted(good)], rejected))
        if self._needs(rejected):
            raise AbsentError(self._incomplete(round_, rejected))
        if self.quorum.reached(round_, len(good), rejected):
            self.training.update(self.algorithm, round_, self._values(round_, good))
        model = self.algorithm.model(self.server)
        if not all_finite(model):
            raise RunError(f"the model diverged in round {round_}: lower step-size")
        self.rounds[-1] = self.rounds[-1]._replace(seconds=time.perf_counter() - self._asked_at)
        return record_of([model]), None

    def _received(self, round_: int, replies: Iterable[Message]) -> tuple[dict[int, Upload], dict[int, str]]:
        """The valid replies by client, and the reasons for the others; asks again if all clients are needed."""
        asked = self.requests
        good, rejected = sort_replies(replies, self.roster.clients(asked.inboxes), self._read, round_)
        if self._needs(rejected):
            good, rejected = self.exchange.ask_again(good, rejected, asked.message, self._read, round_)
        return good, rejected

    def _read(self, client: int, reply: Message) -> Upload:
        """What a client sent; ReplyError for an invalid reply."""
        return self.requests.read(client, reply)

    def _values(self, round_: int, good: dict[int, Upload]) -> dict[int, Any]:
        """The uploads of the algorithm, by client."""
        return {client: upload.values for client, upload in good.items()}

    @property
    def _silent(self) -> set[int]:
        """The clients that did not reply in the last round although it needed them: another node may take their place
        before Flower notices."""
        last = self.rounds[-1].rejected if self.rounds and self.algorithm.needs_every_client else {}
        return {client for client, reason in last.items() if reason == NO_REPLY}

    def _needs(self, rejected: Mapping[int, str]) -> bool:
        """Whether the method cannot do without these clients."""
        return self.algorithm.needs_every_client and len(rejected) > self.algorithm.most_absent

    def _incomplete(self, round_: int, rejected: Mapping[int, str]) -> str:
        """The sentence for a round that lacks more clients than the method can do without."""
        client, reason = min(rejected.items())
        absent = self.algorithm.most_absent
        needed = f"all but {absent}" if absent else "all"
        return (
            f"round {round_}: {self.algorithm.name} needs {needed} clients, and {len(rejected)} did not answer even "
            f"after {self.retries} more requests: the run stops ({who(client, self.training.sites)}: {reason})"
        )

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return one message to every node in a round that is evaluated at the sites, else none."""
        round_ = self.training.number(server_round)
        own = personal_models(self.algorithm, self.server)
        return self.evaluation.requests(self.roster.nodes, arrays, round_, self.training.session, own)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return what the sites found, None for a round that is not evaluated at the sites."""
        round_, private = self.training.number(server_round), self.algorithm.privacy != "none"
        return self.evaluation.read(replies, self.roster.nodes, round_, private, self.roster.sites)

    def _close(self, round_: int) -> None:
        """Send all clients the inbox after the last round; a client that misses it lacks only its last point."""
        self._ask(round_, np.arange(self.sampling.num_clients), {"closing": True})

        def read(client: int, reply: Message) -> object:
            return fit_results(reply, round_, self.training.session)

        _, missing = self.exchange.ask(self.requests.inboxes, self.requests.message, read, round_)
        for client in sorted(missing):
            log(WARNING, "%s did not get the last point", who(client, self.roster.sites))
