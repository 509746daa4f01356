"""Which clients take part in which round."""

from dataclasses import dataclass, replace

from twinflower.arrays import Index
from twinflower.errors import SettingError
from twinflower.randomness import FIRST_ROUNDS, participants
from twinflower.settings import check_choice


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
