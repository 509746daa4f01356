"""Graphs of clients: built with networkx, checked, and described by the numbers that decide the speed of consensus.

A graph is what algorithms and the relay need of it: for each client its neighbours, ascending. It is public.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np

from .arrays import Array, Mask
from .errors import SettingError, cause, require
from .randomness import stream
from .settings import Setting, above, at_least, between, check_settings, make

if TYPE_CHECKING:
    from scipy import sparse

Neighbours = tuple[tuple[int, ...], ...]

_DENSE = 128  # nodes
_TRIES = 10_000  # draws of a random graph until one is connected
_GEOMETRIC_TRIES = 200  # each takes longer


def _nx() -> Any:
    """networkx, which is slow to import, and needed where a graph is built or described."""
    import networkx

    return networkx


class Spectrum(NamedTuple):
    """What a graph says of consensus on it: degrees, and the smallest positive and the largest eigenvalue of the
    Laplacian D - A; edges and diameter."""

    edges: int
    least_degree: int
    mean_degree: float
    largest_degree: int
    diameter: int
    connectivity: float
    largest: float


Degree = Annotated[
    float, Setting("neighbours of a client, on average for random graphs", above(0), "clients")
]
GraphSeed = Annotated[int, Setting("seed of random graphs", at_least(0), bits=64)]


@dataclass(frozen=True)
class Topology(ABC):
    """A graph with its settings. Random graphs are drawn from (seed, "graph") until one is connected."""

    name: str

    def build(self, num_clients: int) -> Neighbours:
        """The graph of these clients.

        Raises SettingError for numbers that make no sense, a file that cannot be read, and a graph that is not
        connected or has other nodes than 0..num_clients - 1, or an edge from a node to itself.
        """
        check_settings(self)
        require(num_clients >= 2, f"a graph needs at least 2 clients; got {num_clients}")
        return neighbours_of(self.graph(num_clients), num_clients)

    @abstractmethod
    def graph(self, n: int) -> Any:
        """The graph of n clients, for networkx."""


@dataclass(frozen=True)
class ErdosRenyi(Topology):
    """Every edge with the same probability; degree is the mean."""

    name: str = "erdos-renyi"
    degree: Degree = 3.0
    seed: GraphSeed = 0

    def graph(self, n: int) -> Any:
        """The first connected one."""
        degree = self.degree
        require(
            degree <= n - 1,
            f"topology.degree must be above 0 and at most clients.count - 1 = {n - 1}; got {degree:g}",
        )
        lonely = n * np.exp(
            -degree
        )  # expected number of nodes without a neighbour; e^-lonely: chance of none
        require(
            lonely < 7,
            f"a random graph of {n} clients is hardly ever connected with degree {degree:g}: raise topology.degree",
        )
        return _random(
            lambda s: _nx().fast_gnp_random_graph(n, degree / (n - 1), seed=s), self.seed, "random graph"
        )


@dataclass(frozen=True)
class Regular(Topology):
    """Everybody has the same degree."""

    name: str = "regular"
    degree: Degree = 3.0
    seed: GraphSeed = 0

    def graph(self, n: int) -> Any:
        """The first connected one."""
        degree = self.degree
        whole = degree == int(degree) and degree < n and int(degree) * n % 2 == 0
        require(
            whole,
            f"a regular graph of {n} clients needs an integer topology.degree below {n} with degree * {n} even; got "
            f"{degree:g}",
        )
        return _random(
            lambda s: _nx().random_regular_graph(int(degree), n, seed=s), self.seed, "regular graph"
        )


@dataclass(frozen=True)
class SmallWorld(Topology):
    """A ring whose clients know `degree` others, with a share `rewiring` of its edges moved."""

    name: str = "small-world"
    degree: Degree = 3.0
    rewiring: Annotated[float, Setting("share of the ring's edges that are moved", between(0, 1))] = 0.1
    seed: GraphSeed = 0

    def graph(self, n: int) -> Any:
        """The first connected one."""
        even = self.degree % 2 == 0 and self.degree < n
        require(
            even, f"a small world of {n} clients needs an even topology.degree below {n}; got {self.degree:g}"
        )
        degree = int(self.degree)
        draw = lambda s: _nx().watts_strogatz_graph(n, degree, self.rewiring, seed=s)  # noqa: E731
        return _random(draw, self.seed, "small-world graph")


@dataclass(frozen=True)
class RandomGeometric(Topology):
    """Clients lie uniformly in a square and are neighbours within a radius; degree is the mean."""

    name: str = "random-geometric"
    degree: Degree = 3.0
    seed: GraphSeed = 0

    def graph(self, n: int) -> Any:
        """The first connected one."""
        from scipy.optimize import brentq

        degree, most = self.degree, _closer(1.0) * (n - 1)
        require(
            degree <= most,
            f"topology.degree of a random geometric graph of {n} clients must be above 0 and at most {most:.4g}; got "
            f"{degree:g}",
        )
        radius = brentq(lambda r: _closer(r) * (n - 1) - degree, 0.0, 1.0)
        graph = (
            f"random geometric graph of {n} clients with degree {degree:g}"  # half of them are with ln(n) + 2
        )
        return _random(
            lambda s: _nx().random_geometric_graph(n, radius, seed=s), self.seed, graph, _GEOMETRIC_TRIES
        )


@dataclass(frozen=True)
class Fixed(Topology):
    """A graph that the number of clients decides."""

    def graph(self, n: int) -> Any:
        """The graph of this name."""
        return _FIXED[self.name](n)


@dataclass(frozen=True)
class FromFile(Topology):
    """file:PATH, an edge list with one `i j` per line (what follows, such as a weight, is passed over)."""

    def graph(self, n: int) -> Any:
        """The graph in the file."""
        return _read(Path(self.name.removeprefix(FILE)))


def _random(draw: Callable[[int], Any], seed: int, told: str, tries: int = _TRIES) -> Any:
    """The first connected graph of those drawn from (seed, "graph")."""
    numbers = stream(seed, "graph").integers(2**31, size=tries)
    graph = next((g for g in map(draw, map(int, numbers)) if _nx().is_connected(g)), None)
    require(graph is not None, f"no {told} of {tries:,} was connected: raise topology.degree")
    return graph


def _closer(radius: float) -> float:
    """Probability that two uniform points of the unit square are within a radius of at most 1."""
    return math.pi * radius**2 - 8 / 3 * radius**3 + radius**4 / 2


def _lattice(n: int, least: int, name: str, periodic: bool) -> Any:
    """Rows by columns, as square as n allows; clients are numbered row by row."""
    rows = max((side for side in range(least, math.isqrt(n) + 1) if n % side == 0), default=0)
    require(
        rows > 0,
        f"a {name} needs clients.count = rows * columns with at least {least} of each, such as {least * least} or "
        f"{least * (least + 1)}; got {n}",
    )
    graph = _nx().grid_2d_graph(rows, n // rows, periodic=periodic)
    return _nx().convert_node_labels_to_integers(graph, ordering="sorted")


_FIXED: dict[str, Callable[[int], Any]] = {
    "ring": lambda n: _nx().cycle_graph(n) if n > 2 else _nx().path_graph(n),
    "grid": lambda n: _lattice(n, 2, "grid", periodic=False),
    "torus": lambda n: _lattice(n, 3, "torus", periodic=True),
    "path": lambda n: _nx().path_graph(n),
    "star": lambda n: _nx().star_graph(n - 1),
    "complete": lambda n: _nx().complete_graph(n),
}
FILE = "file:"
TOPOLOGIES: dict[str, type[Topology]] = {
    **{entry.name: entry for entry in (ErdosRenyi, Regular, SmallWorld, RandomGeometric)},
    **dict.fromkeys(_FIXED, Fixed),
    f"{FILE}PATH": FromFile,
}


def make_graph(name: str, num_clients: int, **settings: float) -> Neighbours:
    """The graph called `name`, one of TOPOLOGIES, with its settings; SettingError as `Topology.build`."""
    kind = f"{FILE}PATH" if name.startswith(FILE) else name
    known = {**TOPOLOGIES, name: TOPOLOGIES[kind]} if kind in TOPOLOGIES else TOPOLOGIES
    topology: Topology = make(known, "topology", name, settings)
    return topology.build(num_clients)


def neighbours_of(graph: Any, num_clients: int) -> Neighbours:
    """Neighbours by client of a networkx graph; SettingError unless it is one for these clients."""
    require(
        set(graph) == set(range(num_clients)),
        f"the graph must have the nodes 0 to {num_clients - 1} for clients.count = {num_clients}; it has "
        f"{len(graph)} nodes from {min(graph, default='none')} to {max(graph, default='none')}",
    )
    loops = sorted(node for node, _ in _nx().selfloop_edges(graph))
    require(not loops, f"the graph must have no edge from a node to itself; node {loops[:1]} has one")
    parts = sorted(map(sorted, _nx().connected_components(graph)))
    require(
        len(parts) == 1,
        f"the graph must be connected; it has {len(parts)} parts, and {parts[-1][0]} cannot be reached from 0",
    )
    return tuple(tuple(sorted(graph[node])) for node in range(num_clients))


def _read(path: Path) -> Any:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"topology: {path} cannot be read as an edge list ({cause(error)})") from None
    words = ((number, line.split("#")[0].split()) for number, line in enumerate(lines, 1))
    return _nx().Graph([_edge(path, number, found) for number, found in words if found])


def _edge(path: Path, number: int, words: Sequence[str]) -> tuple[int, int]:
    try:
        i, j = map(int, words[:2])
        return i, j
    except ValueError:
        raise SettingError(
            f"topology: {path} cannot be read as an edge list, 'i j' per line (line {number} is "
            f"'{shorten(' '.join(words), 40)}')"
        ) from None


def adjacency(neighbours: Neighbours) -> "sparse.csr_array":
    """The matrix A (N, N), 1 where two clients are neighbours."""
    from scipy.sparse import csr_array

    ends = np.cumsum([0, *map(len, neighbours)])
    columns = np.array([other for others in neighbours for other in others], dtype=np.int64)
    size = len(neighbours)
    return csr_array((np.ones(len(columns)), columns, ends), shape=(size, size))


def degrees(neighbours: Neighbours) -> Array:
    """Number of neighbours of each client (N,)."""
    return np.array([float(len(others)) for others in neighbours])


def compact(matrix: "sparse.csr_array") -> "sparse.csr_array | Array":
    """The matrix in the form whose products cost less."""
    return matrix.toarray() if matrix.shape[0] <= _DENSE else matrix


def sums(matrix: "sparse.csr_array | Array", x: Array) -> Array:
    """sum_l matrix[k, l] x_l for x (..., N, d)."""
    if x.ndim == 2 or isinstance(matrix, np.ndarray):
        return matrix @ x  # type: ignore[no-any-return]
    flat = np.moveaxis(x, -2, 0)
    return np.moveaxis((matrix @ flat.reshape(len(flat), -1)).reshape(flat.shape), 0, -2)


def connected(neighbours: Neighbours, alive: Mask) -> bool:
    """Whether the clients that are alive (N,), two or more, reach each other over the others that are."""
    from scipy.sparse.csgraph import connected_components

    left = adjacency(neighbours)[alive][:, alive]
    return left.shape[0] > 1 and connected_components(left, directed=False)[0] == 1


def spectrum(neighbours: Neighbours) -> Spectrum:
    """The graph's numbers."""
    matrix = adjacency(neighbours).toarray()
    counts = degrees(neighbours)
    values = np.linalg.eigvalsh(np.diag(counts) - matrix)
    return Spectrum(
        int(counts.sum()) // 2, int(counts.min()), float(counts.mean()), int(counts.max()),
        _nx().diameter(_nx().from_numpy_array(matrix)), float(values[1]), float(values[-1]),
    )  # fmt: skip


def suggested_rho(neighbours: Neighbours, curvature: float) -> float:
    """rho with 2 rho (mean degree) = curvature: the penalty then pulls as strongly as a loss of that curvature."""
    return curvature / (2 * spectrum(neighbours).mean_degree)


def drawing(neighbours: Neighbours, seed: int = 0) -> Array:
    """Places (N, 2) of the nodes in a drawing."""
    graph = _nx().from_numpy_array(adjacency(neighbours).toarray())
    places = _nx().spring_layout(graph, seed=seed)
    return np.array([places[node] for node in range(len(neighbours))])
