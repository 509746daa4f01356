"""Communication graphs of clients: construction with networkx, validation, and spectral properties.

A graph is stored as `Neighbours`: for each client the numbers of its neighbours, ascending. The graph is public.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np

from .. import special
from ..arrays import Array, Mask
from ..decimals import whole
from ..errors import SettingError, cause
from ..randomness import stream
from ..settings import Setting, above, at_least, between, check_settings, make

if TYPE_CHECKING:
    from scipy import sparse

Neighbours = tuple[tuple[int, ...], ...]

_DENSE = 128  # nodes
_TRIES = 10_000  # draws of a random graph until one is connected
_GEOMETRIC_TRIES = 200  # fewer, because each draw takes longer


def _nx() -> Any:
    """Import networkx; it is slow to import, and only needed to build or describe a graph."""
    import networkx

    return networkx


class Spectrum(NamedTuple):
    """The properties of a graph that determine the speed of consensus.

    edges and diameter are counted in edges, degrees in neighbours. connectivity and largest are the smallest positive
    and the largest eigenvalue of the Laplacian D - A.
    """

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
    """A family of graphs with its settings. Random graphs are drawn from (seed, "graph") until one is connected."""

    name: str

    def build(self, num_clients: int) -> Neighbours:
        """The neighbours of each of num_clients clients.

        Raises SettingError for invalid settings, for a file that cannot be read, and for a graph that is not connected,
        whose nodes are not 0..num_clients - 1, or that has an edge from a node to itself.
        """
        check_settings(self)
        if not num_clients >= 2:
            raise SettingError(f"a graph needs at least 2 clients; got {num_clients}")
        return neighbours_of(self.graph(num_clients), num_clients)

    @abstractmethod
    def graph(self, n: int) -> Any:
        """The networkx graph of n clients."""


@dataclass(frozen=True)
class ErdosRenyi(Topology):
    """An Erdos-Renyi graph: every edge is present with the same probability; `degree` is the expected degree."""

    name: str = "erdos-renyi"
    degree: Degree = 3.0
    seed: GraphSeed = 0

    def graph(self, n: int) -> Any:
        """The first connected graph among the random draws."""
        degree = self.degree
        if not degree <= n - 1:
            raise SettingError(
                f"topology.degree must be above 0 and at most clients.count - 1 = {n - 1}; got {degree:g}"
            )
        lonely = n * np.exp(
            -degree
        )  # expected isolated nodes; there are none with probability about e^-lonely
        if not lonely < 7:
            raise SettingError(
                f"a random graph of {n} clients is hardly ever connected with degree {degree:g}: raise topology.degree"
            )
        return _random(
            lambda s: _nx().fast_gnp_random_graph(n, degree / (n - 1), seed=s), self.seed, "random graph"
        )


@dataclass(frozen=True)
class Regular(Topology):
    """A random regular graph: all clients have the same degree."""

    name: str = "regular"
    degree: Degree = 3.0
    seed: GraphSeed = 0

    def graph(self, n: int) -> Any:
        """The first connected graph among the random draws."""
        degree = self.degree
        if degree != int(degree) or degree >= n or int(degree) * n % 2:
            raise SettingError(
                f"a regular graph of {n} clients needs an integer topology.degree below {n} with degree * {n} even; "
                f"got {degree:g}"
            )
        return _random(
            lambda s: _nx().random_regular_graph(int(degree), n, seed=s), self.seed, "regular graph"
        )


@dataclass(frozen=True)
class SmallWorld(Topology):
    """A Watts-Strogatz graph: a ring in which each client has `degree` nearest neighbours, partly rewired at random.

    rewiring is the probability that an edge is moved.
    """

    name: str = "small-world"
    degree: Degree = 3.0
    rewiring: Annotated[float, Setting("share of the ring's edges that are moved", between(0, 1))] = 0.1
    seed: GraphSeed = 0

    def graph(self, n: int) -> Any:
        """The first connected graph among the random draws."""
        if self.degree % 2 or self.degree >= n:
            raise SettingError(
                f"a small world of {n} clients needs an even topology.degree below {n}; got {self.degree:g}"
            )
        degree = int(self.degree)
        draw = lambda s: _nx().watts_strogatz_graph(n, degree, self.rewiring, seed=s)  # noqa: E731
        return _random(draw, self.seed, "small-world graph")


@dataclass(frozen=True)
class RandomGeometric(Topology):
    """A random geometric graph: clients are uniform points in the unit square and neighbours within a radius.

    The radius is chosen so that `degree` is the expected degree.
    """

    name: str = "random-geometric"
    degree: Degree = 3.0
    seed: GraphSeed = 0

    def graph(self, n: int) -> Any:
        """The first connected graph among the random draws."""
        degree, most = self.degree, _closer(1.0) * (n - 1)
        if not degree <= most:
            raise SettingError(
                f"topology.degree of a random geometric graph of {n} clients must be above 0 and at most {most:.4g}; "
                f"got {degree:g}"
            )
        radius = special.root(lambda r: _closer(r) * (n - 1) - degree, 0.0, 1.0, xtol=2e-12)
        # about half of these graphs are connected for a degree of ln(n) + 2
        graph = f"random geometric graph of {n} clients with degree {degree:g}"
        return _random(
            lambda s: _nx().random_geometric_graph(n, radius, seed=s), self.seed, graph, _GEOMETRIC_TRIES
        )


@dataclass(frozen=True)
class Fixed(Topology):
    """A graph that is determined by its name and the number of clients, such as a ring."""

    def graph(self, n: int) -> Any:
        """The graph of this name for n clients."""
        return _FIXED[self.name](n)


@dataclass(frozen=True)
class FromFile(Topology):
    """The graph in file:PATH, an edge list with one `i j` per line; further columns, such as a weight, are ignored."""

    def graph(self, n: int) -> Any:
        """The graph in the file."""
        return _read(Path(self.name.removeprefix(FILE)))


def _random(draw: Callable[[int], Any], seed: int, described: str, tries: int = _TRIES) -> Any:
    """The first connected graph among `tries` draws from (seed, "graph"); SettingError if there is none."""
    numbers = stream(seed, "graph").integers(2**31, size=tries)
    graph = next((g for g in map(draw, map(int, numbers)) if _nx().is_connected(g)), None)
    if graph is None:
        raise SettingError(f"no {described} of {tries:,} was connected: raise topology.degree")
    return graph


def _closer(radius: float) -> float:
    """Probability that two uniform points of the unit square are at most `radius` <= 1 apart."""
    return math.pi * radius**2 - 8 / 3 * radius**3 + radius**4 / 2


def _lattice(n: int, least: int, name: str, periodic: bool) -> Any:
    """The grid of n = rows * columns nodes that is closest to a square, with nodes numbered row by row."""
    rows = max((side for side in range(least, math.isqrt(n) + 1) if n % side == 0), default=0)
    if not rows > 0:
        raise SettingError(
            f"a {name} needs clients.count = rows * columns with at least {least} of each, such as {least * least} or "
            f"{least * (least + 1)}; got {n}"
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
    """The graph called `name` (one of TOPOLOGIES) with its settings; raises SettingError like `Topology.build`."""
    kind = f"{FILE}PATH" if name.startswith(FILE) else name
    known = {**TOPOLOGIES, name: TOPOLOGIES[kind]} if kind in TOPOLOGIES else TOPOLOGIES
    topology: Topology = make(known, "topology", name, settings)
    return topology.build(num_clients)


def neighbours_of(graph: Any, num_clients: int) -> Neighbours:
    """The neighbours of each client in a networkx graph.

    Raises SettingError unless the graph is connected, has no loops, and has the nodes 0..num_clients - 1.
    """
    if set(graph) != set(range(num_clients)):
        raise SettingError(
            f"the graph must have the nodes 0 to {num_clients - 1} for clients.count = {num_clients}; it has "
            f"{len(graph)} nodes from {min(graph, default='none')} to {max(graph, default='none')}"
        )
    loops = sorted(node for node, _ in _nx().selfloop_edges(graph))
    if loops:
        raise SettingError(f"the graph must have no edge from a node to itself; node {loops[:1]} has one")
    parts = sorted(map(sorted, _nx().connected_components(graph)))
    if len(parts) != 1:
        raise SettingError(
            f"the graph must be connected; it has {len(parts)} parts, and {parts[-1][0]} cannot be reached from 0"
        )
    return tuple(tuple(sorted(graph[node])) for node in range(num_clients))


def _read(path: Path) -> Any:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"topology: {path} cannot be read as an edge list ({cause(error)})") from None
    numbered = ((i, line.split("#")[0].split()) for i, line in enumerate(lines, 1))
    return _nx().Graph([_edge(path, i, words) for i, words in numbered if words])


def _edge(path: Path, line_number: int, words: Sequence[str]) -> tuple[int, int]:
    try:
        i, j = map(whole, words[:2])
        return i, j
    except ValueError:
        raise SettingError(
            f"topology: {path} cannot be read as an edge list, 'i j' per line (line {line_number} is "
            f"'{shorten(' '.join(words), 40)}')"
        ) from None


def adjacency(neighbours: Neighbours) -> "sparse.csr_array":
    """The sparse adjacency matrix A (N, N): 1 where two clients are neighbours, else 0."""
    from scipy.sparse import csr_array

    ends = np.cumsum([0, *map(len, neighbours)])
    columns = np.array([other for others in neighbours for other in others], dtype=np.int64)
    size = len(neighbours)
    return csr_array((np.ones(len(columns)), columns, ends), shape=(size, size))


def degrees(neighbours: Neighbours) -> Array:
    """Number of neighbours of each client (N,)."""
    return np.array([float(len(others)) for others in neighbours])


def compact(matrix: "sparse.csr_array") -> "sparse.csr_array | Array":
    """The matrix as a dense array if it is small enough for dense products to be faster."""
    return matrix.toarray() if matrix.shape[0] <= _DENSE else matrix


def sums(matrix: "sparse.csr_array | Array", x: Array) -> Array:
    """sum_l matrix[k, l] x_l for every client k, (..., N, d), with x (..., N, d); sums are double in any precision."""
    if x.ndim == 2 or isinstance(matrix, np.ndarray):
        return (matrix @ x).astype(x.dtype, copy=False)  # type: ignore[no-any-return]
    flat = np.moveaxis(x, -2, 0)
    mixed = (matrix @ flat.reshape(len(flat), -1)).reshape(flat.shape)
    return np.moveaxis(mixed, 0, -2).astype(x.dtype, copy=False)  # type: ignore[no-any-return]


def connected(neighbours: Neighbours, alive: Mask) -> bool:
    """Whether the subgraph of the clients in the mask `alive` (N,) has at least two nodes and is connected."""
    from scipy.sparse.csgraph import connected_components

    left = adjacency(neighbours)[alive][:, alive]
    return left.shape[0] > 1 and connected_components(left, directed=False)[0] == 1


def spectrum(neighbours: Neighbours) -> Spectrum:
    """The `Spectrum` of a graph, from the eigenvalues of its dense Laplacian."""
    matrix = adjacency(neighbours).toarray()
    counts = degrees(neighbours)
    values = np.linalg.eigvalsh(np.diag(counts) - matrix)
    return Spectrum(
        int(counts.sum()) // 2, int(counts.min()), float(counts.mean()), int(counts.max()),
        _nx().diameter(_nx().from_numpy_array(matrix)), float(values[1]), float(values[-1]),
    )  # fmt: skip


def drawing(neighbours: Neighbours) -> Array:
    """Positions (N, 2) of the nodes in a drawing, by a spring layout."""
    graph = _nx().from_numpy_array(adjacency(neighbours).toarray())
    positions = _nx().spring_layout(graph, seed=0)
    return np.array([positions[node] for node in range(len(neighbours))])
