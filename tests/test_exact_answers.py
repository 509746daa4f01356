"""What a client sends about its rows without noise: for every kind of answer, one question in a round of the run."""

from dataclasses import fields, replace

import pytest
from flwr.app import Context, RecordDict
from numpy.testing import assert_array_equal
from problems import SMALL, small

from twinflower.errors import ReplyError
from twinflower.queries import QUERIES
from twinflower.queries.held_out_question import HeldOutQuestion
from twinflower.queries.model_question import SiteAnswer
from twinflower.queries.query import ModelQuery
from twinflower.simulation.runs.client_factory import client_of
from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.settings import parse

LAST = 5
HELD = {"evaluation.held-out": 0.25}
NUMBERS = {
    "data.name": "diabetes",
    "objective.name": "least-squares",
    "regulariser.name": "none",
    "data.row-norm": 0.0,
}
# a field of `HeldOutQuestion`, or another question -> its value, what is in a request, and the settings of the run
KINDS = {
    "plain": (None, {}, HELD),
    "bins": (None, {"centre": 0.0, "width": 1.0}, HELD | {"evaluation.bins": 10}),
    "errors": (True, {}, HELD),
    "information": (None, {"information": True}, NUMBERS | {"evaluation.standard-errors": True}),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def answering(kind):
    """A client that gives this answer, a model, and a valid request, after the last round."""
    value, asked, keys = KINDS[kind]
    setup = prepare(parse(SMALL | {"algorithm": "fedavg"} | keys))
    client = client_of(setup, 0, Context(1, 1, {}, RecordDict(), {}))
    if value is not None:
        answer = client.answers["evaluation"]
        client.answers["evaluation"] = replace(answer, question=replace(answer.question, **{kind: value}))
    return client, setup.start, asked | {"round": LAST, "session": "one"}


def test_the_table_has_every_kind():
    public = {"rounds", "odds", "bound", "sizes", "least_cell"}
    others = {query.kind.name for query in QUERIES if issubclass(query, ModelQuery)} - {"evaluation"}
    assert {own.name for own in fields(HeldOutQuestion)} - public | {"plain"} | others == set(KINDS)


@every_kind
def test_a_second_question_in_a_round_is_refused_and_the_first_has_its_answer_again(kind):
    client, x, asked = answering(kind)
    first = client.evaluate([x], asked)
    for moved in (x + 1, x + 1e-300, -x - 1e-9):
        with pytest.raises(ReplyError, match="another model was evaluated after this round or a later one"):
            client.evaluate([moved], asked)
    assert client.evaluate([x], asked) == first


@every_kind
def test_earlier_rounds_and_rounds_that_the_run_does_not_have_are_refused(kind):
    client, x, asked = answering(kind)
    for round_, why in ((LAST + 1, "nothing exact"), (-1, "carry its round"), (True, "carry its round")):
        with pytest.raises(ReplyError, match=why):
            client.evaluate([x], asked | {"round": round_})
    with pytest.raises(ReplyError, match="carry its round"):
        client.evaluate([x], {key: value for key, value in asked.items() if key != "round"})
    client.evaluate([x], asked)
    with pytest.raises(ReplyError, match=r"another model was evaluated after this|nothing exact"):
        client.evaluate([x], asked | {"round": LAST - 1})
    with pytest.raises(ReplyError, match="another session"):
        client.evaluate([x], asked | {"session": "two"})


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "information"])
def test_one_model_is_evaluated_after_every_round_from_0_on(kind):
    client, x, asked = answering(kind)
    for round_ in (0, 1, 2, LAST):
        assert client.evaluate([x + round_], asked | {"round": round_})[2]["round"] == round_


def test_a_question_that_is_refused_or_malformed_leaves_nothing_behind():
    client, x, asked = answering("plain")
    with pytest.raises(ReplyError):
        client.evaluate([x[1:]], asked)
    with pytest.raises(ReplyError):
        client.evaluate([x], asked | {"round": LAST + 1})
    assert not client.context.state


def test_a_client_that_does_not_know_the_last_round_answers_one_model_a_round():
    """As in a user's own app, whose client is made without answers."""
    client, x, asked = answering("plain")
    client.answers = {"evaluation": SiteAnswer(HeldOutQuestion())}
    for round_ in (1, 7, 10**6):
        client.evaluate([x + round_], asked | {"round": round_})
        with pytest.raises(ReplyError, match="only one is"):
            client.evaluate([x], asked | {"round": round_})


def test_training_is_the_same_with_evaluations_in_between():
    setup = small("fedavg", evaluation__held_out=0.25)
    plain, asked = (client_of(setup, 0, Context(1, 1, {}, RecordDict(), {})) for _ in range(2))
    for round_ in (1, 2):
        request = {"round": round_, "session": "one"}
        asked.evaluate([setup.start], {**request, "round": round_ - 1})
        assert_array_equal(*(client.fit([setup.start], request)[0][0] for client in (plain, asked)))
