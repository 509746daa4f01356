"""The server side shared by all algorithms with a central server, on Flower's Message-API `Strategy`.

In every round the strategy samples partitions with the run's own seeded generator, sends one message to the node of
each, and checks every reply. It passes the valid replies, in ascending partition order, to the algorithm's
`server_update`. A missing or invalid reply is logged and left out; each algorithm documents how it handles a missing
client. The messages have the format of Flower's NumPyClient (fitins / fitres), so any NumPyClient can take part.
`roster` knows which node is which client's, `replies` which replies are valid, and `evaluation` reads what sites say
about a model.
"""

import math
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from logging import INFO, WARNING
from typing import Any, ClassVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from numpy.typing import NDArray

from twinflower.algorithms.abilities import Closes, NeedsEveryClient
from twinflower.algorithms.algorithm import Algorithm, stack, unstack
from twinflower.arrays import DOUBLE, Index, all_finite
from twinflower.clients.records import record_of
from twinflower.errors import AbsentError, RunError, require
from twinflower.models.evaluation import estimated, pooled
from twinflower.randomness import FIRST_ROUNDS, participants
from twinflower.wire import from_npy

from .evaluation_messages import evaluation_requests, evaluations
from .nodes import meet
from .ranges import Agreement
from .replies import NO_REPLY, Asked, Inspector, Valid, reply_of
from .roster import Roster
from .rounds import Round, Snapshot, incomplete, mean_of, too_few_replies


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
        require(
            first_round in FIRST_ROUNDS,
            f"first-round must be one of {', '.join(FIRST_ROUNDS)}; got '{first_round}'",
        )
        self.algorithm = algorithm
        self.num_clients = num_clients
        self.clients_per_round = clients_per_round
        self.seed = seed
        self.node_timeout = node_timeout
        self.retries = retries
        self.min_replies = min_replies
        self.void_rounds = void_rounds
        self.first_round = first_round
        self.evaluates = evaluates
        self.loss_bound = loss_bound
        self.held_out = held_out
        self.site_metrics: dict[str, float] = {}
        self.settled: int | None = None
        self.agreement: Agreement | None = None
        self._ranges = b""
        self.server: Any = None
        self.rounds: list[Round] = []
        self.roster = Roster({})
        self.inspector = Inspector(algorithm, 0, DOUBLE, "", max_norm)
        self._asked: dict[int, Asked] = {}
        self._first = 0
        self._void = 0
        self._began = 0.0
        self._snapshot: Snapshot | None = None
        self._send: Callable[[list[Message]], Iterable[Message]] = _nowhere
        self._grid: Grid | None = None

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
        self._grid, self._send = grid, partial(grid.send_and_receive, timeout=timeout)
        self.begin(meet(grid, self.num_clients, self.node_timeout), start)
        if self.agreement and not self._ranges:
            asked = self._send, self.roster.nodes, self.session, self.retries + 1, self.min_replies
            self._ranges = self.agreement.reach(*asked)
        if not self._first and self.evaluates(0):
            self.aggregate_evaluate(
                0, self._send(self.configure_evaluate(0, initial_arrays, ConfigRecord(), grid))
            )
        result = super().start(grid, initial_arrays, num_rounds - self._first, timeout, *args, **kwargs)
        if isinstance(self.algorithm, Closes):
            self._close(num_rounds + 1)
        return result

    def begin(self, nodes: dict[int, int], start: NDArray[np.float64]) -> None:
        """Discard earlier rounds and start a new training, or restore the one given to `resume`.

        nodes: partition -> node. start (d,): the public starting point, whose type is that of all messages.
        """
        self.num_clients, self.roster = len(nodes), Roster(nodes)
        self._check_sample()
        self.rounds.clear()
        self._first, self._ranges = 0, b""
        self.server = self.algorithm.init_server(start, self.num_clients, np.array(self.seed, np.uint64))
        entries = int(self.algorithm.model(self.server).shape[-1])
        self.inspector = Inspector(
            self.algorithm, entries, start.dtype, secrets.token_hex(8), self.inspector.max_norm
        )
        if self._snapshot:
            self._restore(self._snapshot)

    @property
    def session(self) -> str:
        """The name of the training session."""
        return self.inspector.session

    def resume(self, snapshot: Snapshot) -> None:
        """Make the next `start` continue from this snapshot."""
        self._snapshot = snapshot

    def snapshot(self) -> Snapshot:
        """The state that `resume` needs; may be called after any round."""
        return Snapshot(
            self.done, self.session, self.server, list(self.rounds), dict(self.inspector.born), self._ranges
        )

    @property
    def done(self) -> int:
        """The number of the last completed round, 0 before the first."""
        return self.rounds[-1].round if self.rounds else self._first

    def _restore(self, snapshot: Snapshot) -> None:
        self._first, self.server, self._ranges = snapshot.round, snapshot.server, snapshot.ranges
        self.rounds.extend(snapshot.rounds)
        self.inspector.session, self.inspector.born = snapshot.session, dict(snapshot.born)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return one message to the node of every sampled partition."""
        self._began = time.perf_counter()
        self.roster.update(grid)
        server_round += self._first
        k = self.clients_per_round or self.num_clients
        clients = participants(self.seed, server_round, self.num_clients, k, self.first_round)
        return self._requests(server_round, clients, {**config, **self._stamp(server_round)})

    def _stamp(self, server_round: int) -> dict[str, Any]:
        """The fields of every request: round, session, and the last settled round, whose replies may be deleted.

        Without checkpoints a round is settled when the next one begins. Private ranges are part of every request.
        """
        settled = server_round - 1 if self.settled is None else self.settled
        ranges = {"ranges": self._ranges} if self._ranges else {}
        return {"round": server_round, "session": self.session, "settled": settled, **ranges}

    def _requests(self, server_round: int, clients: Index, config: Mapping[str, Any]) -> list[Message]:
        """Return the messages to the nodes of clients (K,), and record them in `_asked`."""
        inboxes = unstack(self.algorithm.broadcast(self.server, server_round, clients), len(clients))
        nodes = self.roster.nodes
        self._asked = {nodes[c]: Asked(int(c), i) for c, i in zip(clients, inboxes, strict=True)}
        return self._messages(self._asked, server_round, config)

    def _messages(self, nodes: Iterable[int], server_round: int, config: Mapping[str, Any]) -> list[Message]:
        """The messages to these nodes; inboxes that hold the same array objects are encoded only once."""
        records: dict[tuple[int, ...], ArrayRecord] = {}
        return [
            Message(
                self._content(self._asked[node].inbox, config, records),
                node,
                "train",
                group_id=str(server_round),
            )
            for node in nodes
        ]

    def _content(
        self, inbox: Any, config: Mapping[str, Any], records: dict[tuple[int, ...], ArrayRecord]
    ) -> RecordDict:
        same = tuple(map(id, inbox))  # _asked keeps the arrays alive, so no id is reused
        if same not in records:
            records[same] = record_of(self.algorithm.inbox.pack(inbox, self.inspector.entries))
        return RecordDict({"fitins.parameters": records[same], "fitins.config": ConfigRecord(dict(config))})

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check the replies, update the server state with the valid ones, and return the model."""
        server_round += self._first
        good, rejected = self.inspector.sorted(replies, self._asked, set(self._asked), server_round)
        if isinstance(self.algorithm, NeedsEveryClient):
            self._ask_again(server_round, good, rejected)
        for client, reason in sorted(rejected.items()):
            log(WARNING, "round %s: client %s left out: %s", server_round, client, reason)
        clients = sorted(good)
        self.rounds.append(self._account(server_round, [good[c][1] for c in clients], rejected))
        if isinstance(self.algorithm, NeedsEveryClient) and rejected:
            raise AbsentError(incomplete(server_round, rejected, self.algorithm.name, self.retries))
        if self._enough(server_round, len(good), rejected):
            uploads = stack([good[c][0] for c in clients])
            self.server = self.algorithm.server_update(self.server, uploads, np.array(clients), server_round)
        model = self.algorithm.model(self.server)
        if not all_finite(model):
            raise RunError(f"the model diverged in round {server_round}: lower step-size")
        self.rounds[-1] = self.rounds[-1]._replace(seconds=time.perf_counter() - self._began)
        return record_of([model]), None

    def _enough(self, server_round: int, good: int, rejected: dict[int, str]) -> bool:
        """Whether there are at least min_replies valid replies; RunError after too many rounds in a row without."""
        if good >= self.min_replies:
            self._void = 0
            return True
        self._void += 1
        if self._void > self.void_rounds:
            raise RunError(too_few_replies(server_round, good, rejected, self.min_replies))
        log(
            WARNING,
            "round %s: %s good replies, fewer than server.min-replies: it changes nothing",
            server_round,
            good,
        )
        return False

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return one message to every node in a round that is evaluated at the sites, else none."""
        round_ = server_round + self._first
        if not self.evaluates(round_):
            return []
        return evaluation_requests(self.roster.nodes.values(), arrays, round_, self.session)

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

    def _check_sample(self) -> None:
        require(
            0 <= self.clients_per_round <= self.num_clients,
            f"clients.per-round must be at most the number of clients, {self.num_clients}; "
            f"got {self.clients_per_round}",
        )

    def _ask_again(self, server_round: int, good: Valid, rejected: dict[int, str]) -> None:
        """Repeat the request to rejected clients up to `retries` times; updates good and rejected."""
        config = self._stamp(server_round)
        for _ in range(self.retries):
            if not rejected:
                return
            if self._grid:
                silent = {client for client, reason in rejected.items() if reason == NO_REPLY}
                self.roster.find(self._grid, silent, self.node_timeout)
                self._asked = {self.roster.nodes[asked.client]: asked for asked in self._asked.values()}
            log(WARNING, "round %s: asking clients %s again", server_round, sorted(rejected))
            nodes = {self.roster.nodes[client] for client in rejected}
            replies = self._send(self._messages(sorted(nodes), server_round, config))
            more, reasons = self.inspector.sorted(replies, self._asked, nodes, server_round)
            good |= more
            rejected.clear()
            rejected |= reasons

    def _close(self, server_round: int) -> None:
        """Send all clients the inbox after the last round; a client that misses it lacks only its last point."""
        config = {**self._stamp(server_round), "closing": True}
        asked = self._requests(server_round, np.arange(self.num_clients), config)
        done = {reply.node for reply in map(reply_of, self._send(asked)) if not reply.error}
        for node, client in self._asked.items():
            if node not in done:
                log(WARNING, "client %s did not get the last point", client.client)

    def _account(self, server_round: int, metrics: list[dict[str, Any]], rejected: dict[int, str]) -> Round:
        layouts = self.algorithm.upload, self.algorithm.inbox
        up, down = (layout.bits(self.inspector.entries, self.inspector.dtype) for layout in layouts)
        asked, accepted = tuple(a.client for a in self._asked.values()), len(metrics)
        steps, stopped = mean_of(metrics, "local-steps"), mean_of(metrics, "stopped")
        return Round(
            server_round,
            asked,
            accepted,
            dict(sorted(rejected.items())),
            up * accepted,
            down * len(asked),
            steps,
            stopped,
        )


def _nowhere(messages: list[Message]) -> Iterable[Message]:
    raise RunError("the strategy has no grid yet: call start")
