"""A run: its settings, where its training stands, its metrics so far, and how it ended."""

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from twinflower.algorithms.algorithm import Stop
from twinflower.algorithms.newton_path import NewtonPath, PathPoint
from twinflower.arrays import Array
from twinflower.data.dataset import ARRAYS
from twinflower.known_objectives import SURVIVAL
from twinflower.models.model import undetermined
from twinflower.models.trained import Trained, trained
from twinflower.privacy.plan import COUNTS, EVALUATION, Plan
from twinflower.problems.interfaces import NamedModel
from twinflower.problems.regularisers import Support
from twinflower.queries import QUERIES
from twinflower.queries.information import Sums
from twinflower.rounds import REFUSED, Training

from ..settings import Config
from ..settings.columns import SITE_COLUMNS
from . import facts
from .advice import warnings
from .ended import asked_and_lost, check_progress, ended, left_out, risen, unreleased
from .facts import described
from .method import derived_step
from .privacy import accounts, spent
from .setup import PreparedRun

_MOST_SCORES = 1000  # clients whose scores are computed

Progress = Callable[[dict[str, Any]], None]


@dataclass(kw_only=True)
class Run(Training):
    """One run under one seed, from its start to its end. What its next rounds follow from is in a checkpoint.

    setup: its settings and rows, with what the clients have agreed on before round 1. runtime: where it runs. progress:
    called with each new row. seed_index: for seeds that are stacked, and so share the states of server and clients, its
    place among them; None for a run alone.

    rows: of metrics.csv; bits and participants are totals since the start. answers: what clients have answered about
    models, by the name of the question (`twinflower.queries`). began: in seconds of `time.perf_counter`, later by the
    time of an interruption.

    When it has ended (`ended_at`, on the same clock): model (d,), None if it failed; points (N, d), the clients' own
    models, for methods whose server knows them (`Algorithm.client_models`); failure, one sentence; missing, why a
    question about the final model has no answer; unreleased, the deployed clients that did not hear of the end although
    they may have reserved budget for more. The class has more than 15 methods because observers, checkpoints and the
    files of a run all ask it.
    """

    setup: PreparedRun
    runtime: str
    progress: Progress | None = None
    seed_index: int | None = None
    rows: list[dict[str, Any]] = field(default_factory=list)
    answers: dict[str, Any] = field(default_factory=dict)
    began: float = field(default_factory=time.perf_counter)
    ended_at: float | None = None
    model: Array | None = None
    points: Array | None = None
    failure: str = ""
    missing: str = ""
    unreleased: list[int] = field(default_factory=list)

    @property
    def every_answer(self) -> dict[str, Any]:
        """What clients have answered before round 1 and about models, by the name of the question."""
        return {**self.setup.answers, **self.answers}

    @property
    def information(self) -> Sums | None:
        """The sums of all clients from which standard errors follow, if the run asks for them and they are known."""
        return self.answers.get("information")

    def take(self, found: Mapping[str, Any]) -> dict[str, float]:
        """Keep what clients have answered after a round; return the columns of metrics.csv that follow."""
        columns: dict[str, float] = {}
        for query in self.setup.model_queries:
            answer = found.get(query.name)
            if answer is not None:
                self.answers[query.name] = query.answers.kept(self.answers.get(query.name), answer)
            columns |= query.answers.row(answer)
        return columns

    @property
    def seconds(self) -> float:
        """The time since the start of the run, without interruptions."""
        return (time.perf_counter() if self.ended_at is None else self.ended_at) - self.began

    @property
    def stop(self) -> Stop | None:
        """Why the algorithm has ended the run before its last planned round; None if it goes on."""
        return self.setup.algorithm.stops(self.server) if self.rounds else None

    @property
    def early(self) -> str:
        """Why the run ended before its last planned round, as a sentence; empty if it did not."""
        return ended(self.setup, self.stop, self.round)

    @property
    def path(self) -> list[PathPoint]:
        """The models of all weights of a penalty, of a method that computes them and has ended."""
        return self.setup.algorithm.path(self.server, self.round)

    def of_seed(self, array: Array) -> Array:
        """This run's part of an array that stacked seeds share."""
        return array if self.seed_index is None else array[self.seed_index]  # type: ignore[no-any-return]

    @property
    def x(self) -> Array:
        """The model (d,) after the last round."""
        return self.of_seed(self.setup.algorithm.model(self.server))

    @property
    def client_points(self) -> Array | None:
        """The clients' own models (N, d) after the last round; None if the server does not know them."""
        points = self.setup.method.client_models(self.setup.own(self.server))
        return None if points is None else self.of_seed(points)

    def wants(self, round_: int) -> bool:
        """Whether this round is evaluated: the start, the first `early` rounds, each `every`-th one, the last (also
        of a run that the algorithm ends, `stop`), and those after which the clients of a private run evaluate."""
        config = self.setup.config
        return (
            round_ <= config.evaluation.early
            or round_ % config.evaluation.every == 0
            or round_ == config.rounds
            or self.stop is not None
            or (
                self.setup.plan is not None
                and any(round_ in own.question.rounds for own in self.setup.model_queries)
            )
        )

    def so_far(self, round_: int) -> dict[str, Any]:
        """The columns of a row that do not depend on the model, as they are right after the round; local_steps and
        stopped (the share of client rounds in which the stopping rule fired) are means since the last row."""
        since = self.rounds[int(self.rows[-1]["round"]) :] if self.rows else []
        per_upload = self.setup.algorithm.upload.paper_bits(self.setup.objective.d)
        accepted = sum(r.accepted for r in self.rounds)
        return {
            "round": round_,
            "uplink_bits": sum(r.uplink_bits for r in self.rounds),
            "downlink_bits": sum(r.downlink_bits for r in self.rounds),
            "paper_uplink_bits": per_upload * accepted,
            "local_steps": float(np.mean([r.local_steps for r in since])) if since else 0.0,
            "stopped": float(np.mean([r.stopped for r in since])) if since else 0.0,
            "participants": accepted,
            "rejected": sum(len(r.rejected) for r in self.rounds),
            "seconds": self.seconds,
        }

    def add(self, so_far: Mapping[str, Any], x: Array, others: Mapping[str, Any] | None = None) -> None:
        """Evaluate the model x (d,) and add a row with these columns `so_far` and others; RunError if it diverges."""
        central = self.setup.central
        row = {"round": so_far["round"], **central.evaluate(x), **so_far, **(others or {})}
        if not central.has_score:  # the clients' evaluation is the only one
            row["test_accuracy"] = row.get("held_out_accuracy", np.nan)
        if self.setup.config.evaluation.reference:
            row |= central.beside_optimum(x, row["objective"])
        check_progress(self.setup, row, x, self.rows)
        self.rows.append(row)
        if self.progress:
            self.progress(row)

    # --- what it comes to

    def privacy(self) -> dict[str, Any] | None:
        """The privacy actually spent, None without privacy. A client is charged for every round it was sampled in."""
        if self.setup.plan is None:
            return None
        return spent(_so_far(self, self.setup.plan), seeded=self.runtime != "deployment")

    def clients(self) -> Iterator[dict[str, Any]]:
        """The rows of clients.csv, one for each client that was asked to train or to evaluate: its rows, in how many
        rounds it was asked to train, how many of its replies were used, and what it spent (`accounts`)."""
        plan, sizes = self.setup.plan and _so_far(self, self.setup.plan), self.setup.partition.sizes
        asked, lost = asked_and_lost(self.rounds, len(sizes))
        columns: dict[str, Any] = {"rows": sizes, "asked": asked, "used": asked - lost}
        columns |= accounts(plan) if plan else {}
        evaluated = plan.releases.weights(EVALUATION) if plan else 0.0
        for client in np.flatnonzero(asked + evaluated):
            yield {"client": client, **{name: column[client] for name, column in columns.items()}}

    def warnings(self) -> list[str]:
        """Warnings about settings that are probably not intended, clients left out, and an objective that rose."""
        stopped = [self.early] if self.stop and self.stop.warns else []
        missed = left_out(self.rounds, self.setup.partition.sizes, self.runtime == "deployment", self.sites)
        missed += unreleased(self.unreleased, self.session, self.sites)
        absent = [f"there are no standard errors: {self.missing}"] if self.missing else []
        texts = [*warnings(self.setup), *stopped, *_cut_off(self), *missed, *self.risen, *absent]
        return [f"warning: {text}" for text in [*texts, *_undetermined(self)]]

    @property
    def risen(self) -> list[str]:
        """A warning about an objective that rose. Under a constraint it may: the start need not satisfy it."""
        return risen(self.rows, self.setup.plan is not None and not self.setup.method.constrained)

    def summary(self) -> dict[str, Any]:
        """The content of summary.json."""
        config, answers, last = self.setup.config, self.every_answer, self.rows[-1] if self.rows else {}
        accuracy = last.get("test_accuracy")
        return {
            "algorithm": config.algorithm,
            "dataset": config.data.name,
            "runtime": self.runtime,
            "seed": config.seed,
            "rounds": last.get("round", 0),
            "ended": self.early or None,
            "finished": self.model is not None,
            "failure": self.failure or None,
            "test_accuracy": finite(accuracy),
            "test_accuracy_from": "server" if self.setup.central.has_score else "clients",
            "regression": not self.setup.dataset.num_classes,
            "survival": config.objective.name in SURVIVAL,
            "outcome": facts.outcome(self.setup) or None,
            "majority_baseline": self.setup.central.baseline(),
            **{column: finite(last[column]) for column in SITE_COLUMNS if column in last},
            "objective": finite(last.get("objective")),
            "optimality": finite(last.get("optimality")),
            "nonzeros": last.get("nonzeros"),
            "parameters": self.setup.objective.d,
            "uplink_bits": last.get("uplink_bits"),
            "downlink_bits": last.get("downlink_bits"),
            "paper_uplink_bits": last.get("paper_uplink_bits"),
            "stopping_rule_fired": _mean_over_rounds(self.rows, "stopped"),
            "bounds_met": _satisfied(self, last),
            "warnings": self.warnings(),
            "sites": self.sites or None,
            "rejected_replies": last.get("rejected"),
            "privacy": self.privacy(),
            "step_size": derived_step(config, self.setup.method),
            **{
                key: own
                for kind in QUERIES
                for key, own in kind.reported.summarised(answers.get(kind.name)).items()
            },
            "partition": described(self.setup),
            "facts": facts.known(self.setup).document,
            "site_names": list(self.setup.dataset.site_names) or None,
            "site_scores": _site_scores(self),
            "standardised": self.setup.dataset.standardised,
            "seconds": self.seconds,
            "client_updates_per_second": last.get("participants", 0) / max(self.seconds, 1e-9),
        }


def _so_far(run: Run, plan: Plan) -> Plan:
    """The plan of what was released so far, the tuning before the run included. A client that is left out may have
    released its reply all the same, but not one that refuses."""
    asked = ((done.round, [c for c in done.asked if done.rejected.get(c) != REFUSED]) for done in run.rounds)
    plan = plan.so_far(asked)
    return plan if run.met else replace(plan, releases=plan.releases.without(COUNTS, EVALUATION))


def _undetermined(run: Run) -> list[str]:
    """A sentence that names the coefficients of the trained model that exact sums do not determine, if any; none for an
    estimator's rows, whose columns it knows."""
    if run.model is None or run.information is None or run.setup.config.data.name == ARRAYS:
        return []
    known = trained_model(run.setup, run.model, None, run.information)
    return [text] if known and (text := undetermined(known)) else []


def _cut_off(run: Run) -> list[str]:
    """A warning about a method that ends when it has converged, and had no round left for that."""
    method = run.setup.method
    if run.model is None or run.stop or run.setup.plan or not method.ends_early:
        return []
    path = " and there is no path" if isinstance(method, NewtonPath) else ""
    return [f"{method.name} has not converged after {run.round} rounds{path}: raise rounds"]


def _satisfied(run: Run, metrics: dict[str, Any]) -> bool | None:
    """Whether the last row satisfies the constraints; None for a run without constraints or without a model."""
    algorithm = run.setup.method
    if run.model is None or not algorithm.constrained:
        return None
    return algorithm.satisfied(metrics)


def _site_scores(run: Run) -> list[float | None] | None:
    """Accuracy or R^2 of the final model, or of its own, on the rows that each client trained on.

    None where no exact number may be released, which is in a private run; and without a model or rows, or for many
    clients.
    """
    setup, x, count = run.setup, run.model, run.setup.config.clients.count
    if x is None or not setup.may_count or count > _MOST_SCORES:
        return None
    models = run.points if setup.method.personal else [x] * count
    assert models is not None  # its server knows them
    return [finite(float(setup.objective.score(own, setup.shards.rows(i)))) for i, own in enumerate(models)]


def own_columns(run: Run, server: Any) -> dict[str, float]:
    """The method's own metrics of a server state and its model, and the distances of the clients' points to each other
    and to x*.

    consensus: mean_i ||xbar - x_i||^2, xbar the mean of the x_i. With `evaluation.reference = true`, where x* is the
    optimum over all rows: distance, ||xbar - x*||^2 / ||x*||^2 (with the server's model in place of xbar if the x_i are
    unknown); optimality, which is consensus + distance (Zhang 2023); and node_error, mean_i ||x_i - x*||^2 / ||x*||^2.
    """
    setup, algorithm = run.setup, run.setup.method
    server = setup.own(server)
    row = {name: float(run.of_seed(value)) for name, value in algorithm.server_metrics(server).items()}
    model, points = run.of_seed(algorithm.model(server)), algorithm.client_models(server)
    x = model.astype(np.float64, copy=False)
    if points is not None:
        points = run.of_seed(points).astype(np.float64, copy=False)
        x = points.mean(0)
        row["consensus"] = float(((points - x) ** 2).sum(-1).mean())
    row |= setup.central.assess(model)
    if setup.config.evaluation.reference:
        best = setup.central.optimum
        size = float(best @ best)
        row["distance"] = float(((x - best) ** 2).sum()) / size
        row["optimality"] = row.get("consensus", 0.0) + row["distance"]
        if points is not None:
            row["node_error"] = float(((points - best) ** 2).sum(-1).mean()) / size
    return row


def finite(value: float | None) -> float | None:
    """The number, or None (null in JSON) if it is not finite."""
    return value if value is not None and np.isfinite(value) else None


def _mean_over_rounds(rows: list[dict[str, Any]], column: str) -> float | None:
    spans = np.diff([row["round"] for row in rows])
    return finite(float(np.average([row[column] for row in rows[1:]], weights=spans))) if len(spans) else None


def trained_model(
    setup: PreparedRun, x: Array, privacy: Mapping[str, Any] | None, information: Sums | None = None
) -> Trained | None:
    """The point x (d,) as a model that can predict; None for a PyTorch module, which is saved as model.pt instead."""
    config, data, h = setup.config, setup.dataset, setup.regulariser
    if isinstance(setup.objective, NamedModel):
        return None
    return trained(
        x, config.objective.name, setup.inputs, form=config.objective.form, classes=data.class_names,
        origin={
            **origin(config, privacy), "seed": config.seed, "run": config.digest, "likelihood": _likelihood(config),
            **({"outcome": known} if (known := facts.outcome(setup)) else {}), **_digests(setup),
        }, information=information,
        selected=h.entries if isinstance(h, Support) else (), facts=facts.known(setup),
    )  # fmt: skip


def _likelihood(config: Config) -> str:
    """A digest of the settings by which two models can have likelihoods that are not comparable."""
    kept = {key: value for key, value in config.items().items() if key.startswith("objective.")}
    return hashlib.sha256(repr(sorted(kept.items())).encode()).hexdigest()


def _digests(setup: PreparedRun) -> dict[str, Any]:
    """Digests of the labels and the columns that were trained on, by which other rows are noticed. Each is 16 bits, so
    that a model shows little more than its exact coefficients do to somebody who knows all rows but one. Not in a
    private run, and not without the rows or a schema."""
    data, rows = setup.dataset, np.sort(setup.partition.rows)
    if not setup.may_count or data.schema is None or not setup.inputs.factor:
        return {}
    blocks = data.schema.blocks(data.features[rows].astype(np.float64) / setup.inputs.factor)
    columns = {name: _digest(block) for name, block in blocks.items()}
    return {"labels": _digest(data.labels[rows]), "columns": columns}


def _digest(values: Any) -> str:
    """That of numbers in [-1, 1], counts or times, to the digits that single precision has."""
    return hashlib.sha256((np.round(np.float64(values), 4) + 0.0).tobytes()).hexdigest()[:4]


def origin(config: Config, privacy: Mapping[str, Any] | None) -> dict[str, Any]:
    """How a model was trained, for information, without the seed and all from which it could be found."""
    return {
        "algorithm": config.algorithm, "data": config.data.name, "rounds": config.rounds,
        "privacy": privacy["guarantee"] if privacy else "none",
    }  # fmt: skip
