"""The server side shared by all algorithms with a central server, on Flower's Message-API `Strategy`.

In every round the strategy samples partitions with the run's own seeded generator, sends one message to the node of
each, and checks every reply. It passes the valid replies, in ascending partition order, to the algorithm's
`server_update`. A missing or invalid reply is logged and left out; each algorithm documents how it handles a missing
client. The messages have the format of Flower's NumPyClient (fitins / fitres), so any NumPyClient can take part.
`roster` knows which node is which client's, `requests` what was asked, `replies` which replies are valid; `exchange`
repeats requests, `rounds` keeps statistics, and `evaluation_replies` reads what sites say about a model.
"""

import math
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from logging import INFO, WARNING
from typing import Any, ClassVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from numpy.typing import NDArray

from twinflower.algorithms.abilities import Closes, NeedsEveryClient
from twinflower.algorithms.algorithm import Algorithm, stack, unstack
from twinflower.arrays import Index, all_finite
from twinflower.clients.records import record_of
from twinflower.errors import AbsentError, RunError, require
from twinflower.models.evaluation import estimated, pooled
from twinflower.randomness import FIRST_ROUNDS, participants
from twinflower.settings import check_choice
from twinflower.wire import from_npy

from .evaluation_replies import evaluations
from .exchange import Exchange
from .nodes import meet
from .ranges import Agreement
from .replies import Inspector, fit_results, sort_replies
from .requests import Requests, evaluate_request
from .roster import Roster
from .rounds import Quorum, Round, Snapshot, incomplete


class StarStrategy(Strategy):
    """Base of all strategies; a subclass sets its `algorithm_class` and documents its server side.

    algorithm: the algorithm with its settings. num_clients: the number N of partitions 0..N-1, or 0 for the number that
    the nodes report. clients_per_round: how many clients are sampled, 0 for all. seed: of the sampling and of public
    randomness. node_timeout: seconds to wait for nodes at the start, and for a missing node before a request is
    repeated. retries: how often a request is repeated to a client in a round that needs all clients
    (`NeedsEveryClient`); the client replies with its stored bytes.
    min_replies: a round with fewer valid replies leaves the model unchanged. void_rounds: how many such rounds may
    occur in a row. max_norm: the largest Euclidean norm of an array accepted from a client. first_round: "all" sends
    requests to all clients in round 1 and to clients_per_round of them from round 2 on; "sampled" samples round 1 like
    the others. evaluates: in which rounds, from 0, all clients evaluate the model on their held-out rows; the result of
    the last of these rounds is in `site_metrics`. loss_bound: of private clients that release clipped losses
    (`twinflower.models.evaluation.estimated`), 0 for those that release counts. held_out: how many rows each client
    holds out, if this is known; a client that reports another number is left out.
    """

    algorithm_class: ClassVar[type[Algorithm]]
    exchange: Exchange
    requests: Requests
    inspector: Inspector
    quorum: Quorum

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
        evaluates: Callable[[int], bool] = lambda round_: False,
        loss_bound: float = 0.0,
        held_out: Sequence[int] = (),
    ) -> None:
        require(
            type(algorithm) is self.algorithm_class,
            f"{type(self).__name__} needs a {self.algorithm_class.__name__} algorithm; got {type(algorithm).__name__}",
        )
        check_choice("first-round", first_round, FIRST_ROUNDS)
        self.algorithm = algorithm
        self.num_clients = num_clients
        self.clients_per_round = clients_per_round
        self.seed = seed
        self.node_timeout = node_timeout
        self.retries = retries
        self.min_replies = min_replies
        self.void_rounds = void_rounds
        self.max_norm = max_norm
        self.first_round = first_round
        self.evaluates = evaluates
        self.loss_bound = loss_bound
        self.held_out = held_out
        self.site_metrics: dict[str, float] = {}
        self.settled: int | None = None
        self.agreement: Agreement | None = None
        self.session = ""
        self.server: Any = None
        self.rounds: list[Round] = []
        self.roster = Roster({})
        self._ranges = b""
        self._first = 0
        self._began = 0.0
        self._snapshot: Snapshot | None = None

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
        **kwargs: Any,
    ) -> Result:
        """Run the rounds, like Flower's `Strategy.start`; initial_arrays holds the public starting point (d,).

        After `resume` the run continues with the round after the snapshot, and Flower counts its rounds from there. All
        nodes report their partitions at the start; a node that returns under a new id is recognised by its partition.

        Raises RunError if nodes are missing, if too few replies of a round are valid, or if the model diverges.
        """
        (start,) = (from_npy(array.data) for array in initial_arrays.values())
        self.begin(meet(grid, self.num_clients, self.node_timeout), start)
        self.exchange = Exchange(self.roster, grid, timeout, self.node_timeout, self.retries)
        if self.agreement and not self._ranges:
            self._ranges = self.agreement.reach(self.exchange, self.session, self.min_replies)
        if not self._first and self.evaluates(0):
            requests = self.configure_evaluate(0, initial_arrays, ConfigRecord(), grid)
            self.aggregate_evaluate(0, grid.send_and_receive(requests, timeout=timeout))
        result = super().start(grid, initial_arrays, num_rounds - self._first, timeout, *args, **kwargs)
        if isinstance(self.algorithm, Closes):
            self._close(num_rounds + 1)
        return result

    def begin(self, nodes: dict[int, int], start: NDArray[np.float64]) -> None:
        """Discard earlier rounds and start a new training, or restore the one given to `resume`.

        nodes: partition -> node. start (d,): the public starting point, whose type is that of all messages.
        """
        self.num_clients, self.roster = len(nodes), Roster(nodes)
        require(
            0 <= self.clients_per_round <= self.num_clients,
            f"clients.per-round must be at most the number of clients, {self.num_clients}; "
            f"got {self.clients_per_round}",
        )
        server = self.algorithm.init_server(start, self.num_clients, np.array(self.seed, np.uint64))
        entries = int(self.algorithm.model(server).shape[-1])
        at = self._snapshot or Snapshot(0, secrets.token_hex(8), server, [], {})
        self._first, self.session, self.server, self._ranges = at.round, at.session, at.server, at.ranges
        self.rounds[:] = at.rounds
        self.inspector = Inspector(
            self.algorithm, entries, start.dtype, self.session, self.max_norm, dict(at.born)
        )
        self.quorum = Quorum(self.min_replies, self.void_rounds)

    def resume(self, snapshot: Snapshot) -> None:
        """Make the next `start` continue from this snapshot."""
        self._snapshot = snapshot

    def snapshot(self) -> Snapshot:
        """The state that `resume` needs; may be called after any round."""
        done = self.rounds[-1].round if self.rounds else self._first
        return Snapshot(
            done, self.session, self.server, list(self.rounds), dict(self.inspector.born), self._ranges
        )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return one message to the node of every sampled partition."""
        self._began = time.perf_counter()
        self.roster.update(grid)
        round_ = server_round + self._first
        k = self.clients_per_round or self.num_clients
        return self._ask(
            round_, participants(self.seed, round_, self.num_clients, k, self.first_round), config
        )

    def _ask(self, round_: int, clients: Index, config: Mapping[str, Any]) -> list[Message]:
        """Return the messages to the nodes of clients (K,); `requests` records what they ask."""
        inboxes = unstack(self.algorithm.broadcast(self.server, round_, clients), len(clients))
        self.requests = Requests(
            self.algorithm,
            self.inspector,
            round_,
            {**config, **self._stamp(round_)},
            dict(zip(clients.tolist(), inboxes, strict=True)),
        )
        return [self.requests.message(c, self.roster.nodes[c]) for c in self.requests.inboxes]

    def _stamp(self, round_: int) -> dict[str, Any]:
        """The fields of every request: round, session, and the last settled round, whose replies may be deleted.

        Without checkpoints a round is settled when the next one begins. Private ranges are part of every request.
        """
        settled = round_ - 1 if self.settled is None else self.settled
        ranges = {"ranges": self._ranges} if self._ranges else {}
        return {"round": round_, "session": self.session, "settled": settled, **ranges}

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check the replies, update the server state with the valid ones, and return the model."""
        round_, asked = server_round + self._first, self.requests
        needs_all = isinstance(self.algorithm, NeedsEveryClient)
        good, rejected = sort_replies(replies, self.roster.clients(asked.inboxes), asked.read, round_)
        if needs_all and rejected:
            good, rejected = self.exchange.ask_again(good, rejected, asked.message, asked.read, round_)
        for client, reason in sorted(rejected.items()):
            log(WARNING, "round %s: client %s left out: %s", round_, client, reason)
        clients = sorted(good)
        self.rounds.append(asked.statistics([good[c] for c in clients], rejected))
        if needs_all and rejected:
            raise AbsentError(incomplete(round_, rejected, self.algorithm.name, self.retries))
        if self.quorum.reached(round_, len(good), rejected):
            uploads = stack([good[c].values for c in clients])
            self.server = self.algorithm.server_update(self.server, uploads, np.array(clients), round_)
        model = self.algorithm.model(self.server)
        if not all_finite(model):
            raise RunError(f"the model diverged in round {round_}: lower step-size")
        self.rounds[-1] = self.rounds[-1]._replace(seconds=time.perf_counter() - self._began)
        return record_of([model]), None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return one message to every node in a round that is evaluated at the sites, else none."""
        round_ = server_round + self._first
        if not self.evaluates(round_):
            return []
        return [evaluate_request(node, arrays, round_, self.session) for node in self.roster.nodes.values()]

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return the weighted means of the sites' metrics (`twinflower.models.evaluation.pooled`, `estimated` in a
        private run); None for a round that is not evaluated at the sites."""
        round_ = server_round + self._first
        if not self.evaluates(round_):
            return None
        private = self.algorithm.privacy != "none"
        sites, rejected = evaluations(replies, self.roster.nodes, round_, private, self.held_out)
        for client, reason in sorted(rejected.items()):
            log(WARNING, "round %s: client %s is not in the evaluation: %s", round_, client, reason)
        self.site_metrics = estimated(sites, self.loss_bound) if private else pooled(sites)
        return MetricRecord(dict(self.site_metrics))

    def _close(self, round_: int) -> None:
        """Send all clients the inbox after the last round; a client that misses it lacks only its last point."""
        self._ask(round_, np.arange(self.num_clients), {"closing": True})

        def read(client: int, reply: Message) -> object:
            return fit_results(reply, round_, self.session)

        _, missing = self.exchange.ask(self.requests.inboxes, self.requests.message, read, round_)
        for client in sorted(missing):
            log(WARNING, "client %s did not get the last point", client)
