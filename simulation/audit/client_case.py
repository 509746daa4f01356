"""A case for any ClientApp, with the messages and the data sets that the library proposes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from flwr.clientapp import ClientApp

from .cases import Case, Claim
from .data import Rows, pairs, server_messages
from .declared import GaussianRelease
from .recorder import Arrays, client, numpy_request, request


def client_case(
    name: str,
    app: Callable[[Any, int], ClientApp],
    model: Arrays,
    rows: Rows,
    claim: Claim,
    rounds: int = 1,
    declared: Sequence[GaussianRelease] = (),
    *,
    label: str = "label",
    config: Mapping[str, Any] | None = None,
    numpy_client: bool = False,
    only: Iterable[str] = (),
    public: Iterable[str] = (),
    about: str = "",
) -> Case:
    """The case of an app that trains a model on rows.

    app(rows, seed): the ClientApp of a client that holds these rows, in the form of `rows`. model: the arrays of a
    model, of which the server sends extreme versions. rows, label: see `pairs`. claim: its relation is that of the data
    sets. config: of every request. numpy_client: whether the app has a NumPyClient. only: names of `server_messages` to
    send, by default all. The rest: see `Case`.
    """
    make = numpy_request if numpy_client else request
    plans = server_messages(model, rounds, config, make)
    return Case(
        name,
        {how: client(app, plans[how]) for how in list(only) or plans},
        pairs(rows, label, claim.relation),
        claim,
        declared,
        frozenset(public),
        about,
    )
