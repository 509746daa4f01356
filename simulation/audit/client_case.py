"""A case for any ClientApp, with the messages and the data sets that the library proposes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from flwr.clientapp import ClientApp

from .cases import Case, Claim
from .data import AS_GIVEN, Rows, pairs, server_messages
from .declared import GaussianRelease
from .one_run import Loss, OneRun
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
    loss: Loss | None = None,
    about: str = "",
) -> Case:
    """The case of an app that trains a model on rows.

    app(rows, seed): the ClientApp of a client that holds these rows, in the form of `rows`. model: the arrays of a
    model, of which the server sends extreme versions. rows, label: see `pairs`. claim: its relation is that of the data
    sets. config: of every request. numpy_client: whether the app has a NumPyClient. only: names of `server_messages` to
    send, by default all. loss(model, rows): the losses (n,) of a model of the form of `model` at rows, for audits of
    a single run (`canaries`). The rest: see `Case`.
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
        loss and OneRun(client(app, plans[AS_GIVEN]), model, rows, loss),
    )
