"""The privacy statement of a run: what is protected, against whom, by how much, and what is not.

It is the section "Privacy" of a report, and in Markdown a page of its own. docs/guarantee.md and, for secure
aggregation, docs/sums.md say why its sentences are true.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from twinflower.data.sets import OWN, OwnData
from twinflower.privacy import best_guess, detection, gdp_epsilon
from twinflower.privacy.unit import GROUP, RECORD, SITE

from ...runs.privacy import large_delta
from ..document import Section, Table
from ..study import Case, CurveRuns, Site, StoredRun, Study, rows_of
from .ledger import lifetime, read_books
from .provenance import proofs, shared
from .sites import grouped, named

_FALSE_ALARMS = (0.01, 0.05, 0.1)
_MOST_GROUPS = 20  # of sites in the table of what was charged

# --- the sentences


class Words(NamedTuple):
    """What depends on the unit that a run protects; k is the number of records of a group.

    one: the unit. protected: it, and what is done with it. beyond: what is not covered about people with several
    records.
    """

    one: str
    protected: str
    beyond: str


_WORDS = {
    RECORD: Words(
        "a record",
        "Every record of every site; a record is one row of a site's data. If it were replaced by any other record",
        "People with several records: for k records of one person, mu is k times as large.",
    ),
    GROUP: Words(
        "{k} records",
        "Any {k} records of a site together, such as those of one person; a record is one row of a site's data. If "
        "they were replaced by any other records",
        "People with more than {k} records at a site.",
    ),
    SITE: Words(
        "all records", "All records of a site together. If they were replaced by any others, equally many",
        "The number of a site's records, which is public.",
    ),
}  # fmt: skip


HEADLINE = (
    "Suppose that there are two equally likely candidates for {one} of a site. A blind guess at the right one is right "
    "in 50% of the cases; with all that the site sends, the best guess is right in {guesses}."
)
HEADLINE_NONE = "This run has no privacy guarantee: no noise is added."
HEADLINE_OPEN = "This run adds noise, but nothing is guaranteed."
NO_PRIVACY = (
    "Nothing is guaranteed, because no noise is added: what a site sends is an exact function of its records, and "
    "records can sometimes be reconstructed from it. At deployed sites the records themselves stay where they are."
)
ONLY_SUMS = (
    "Nothing is guaranteed, because no noise is added: the sums over the records of all sites are exact, and records "
    "can sometimes be reconstructed from such sums. What a single site sends is masked: the server learns the sums "
    "over all sites, and nothing else about one of them unless all other sites help it."
)
NO_GUARANTEE = "Noise is added, but no bound holds for what a site sends in all rounds together."
NOISY = {
    "public-state": "to the result of the local steps, before anything is carried to the next round",
    "gradient": "to every gradient, before it is used",
    "as-published": "to the message only, as the paper does",
}
LATER = ", and partly taken back in the next {} steps (a bandwidth of {}{}), so that less of it is left in the model"
FEWER = "; at sites with fewer batches down to {}"
PROTECTED = (
    "{protected}, all that the site sends, in all rounds together, would look nearly the same: how nearly is bounded "
    "below. For that, noise is added {where}."
)
PUBLISHED = (
    "The papers' proof of this form covers one round only. The bound here is the worst case over all rounds."
)
ANYBODY = (
    "Against anybody who sees every message of the site, such as the server, and against everybody who gets the "
    "model. This attacker may know all other records, all settings, and who took part; the server may choose what it "
    "sends in order to learn more. Nothing is assumed about the other sites."
)
SUMS = (
    "There are two bounds. The first is against {first}. It rests on at least {honest} sites, this one among them, "
    "whose noise nobody else knows, and on masks, hence on cryptography, so that nobody sees more than sums over the "
    "sites. The second is against everybody but the site itself, and rests on neither. Both attackers may know "
    "all other records, all settings, and who took part, and the server may choose what it sends in order to learn "
    "more."
)
TOTAL = (
    "This is the total of the site with the largest cost, over all rounds of the run together. Other sites are "
    "protected at least as well."
)
TUNING = "The tuning before the run is a part of this total: without the run, mu is {mu:.4g}."
EVALUATED = (
    "The evaluation on rows that a site holds out is a part of this total: alone, its mu is {mu:.4g}. {how}."
)
IN_PARALLEL = "A record is either trained on or held out, and pays for one of the two"
IN_ADDITION = "What is protected can be partly trained on and partly held out, and pays for both"
CHANCES = (
    "The guarantee is Gaussian differential privacy with this mu, of which (epsilon, delta) is one consequence and "
    "the following chances are others. They are those of the best possible attacker, who knows everything "
    "else, beside what guessing without any message achieves."
)
SEED = (
    "Whoever knows the seed: this was a simulation. All records were on one machine, and the noise came from the seed"
    " among the settings. The bounds hold against those who do not know the seed."
)
SEED_PLANNED = (
    "Whoever knows the seed, if this run is a simulation: its noise comes from the seed among the settings. Deployed "
    "sites draw their noise in secret."
)
EVALUATION = (
    "Central evaluation: objective and accuracy, or R^2, are computed without noise, on all rows in one place, for "
    "research. So are the numbers of rows and labels per site."
)
OWN_ROWS = "The rows that the server evaluates on: objective and accuracy, or R^2, are computed on them without noise."
EARLY = (
    "The end of the run, which did not finish: a site charges a round before it computes it, so its own ledger may "
    "hold one round more than is listed here."
)
ALWAYS = (
    "People with records at several sites: the costs at these sites add up, as squares of mu.",
    "What was chosen by looking at the records without a charge, such as a step size that was tried out or the "
    "ranges of a schema.",
    "Other runs on the same records: their costs add up, as squares of mu.",
    (
        "What is public: how many records a site has, the settings, who takes part and when, the columns, the classes"
        " or the range of the labels, and the bound on a record."
    ),
    (
        "What holds for people in general: if the model shows that a habit goes with a disease, that can be learned "
        "about a person whose record is not in the data."
    ),
)
AT_SITES = (
    "Timing: how long a site needs for a round may depend on its records.",
    "The program: sites run the code that the server sends, unless they install and check it themselves.",
)
PLANNED = "What the plan charges to each site:"
SIMULATED = (
    "What this run charged to each site. The ledgers of simulated sites end with the run, unless output.state-dir "
    "keeps them."
)
DEPLOYED = (
    "What this run charged to each site, by the public participation. The ledger itself, with the budget of a site's "
    "data over all runs, is on the site's disk; the command twinflower ledger shows it."
)

# --- the statement


class Chance(NamedTuple):
    """An attacker's task, and the largest probability of success without and with the messages, in [0, 1]."""

    task: str
    blind: float
    informed: float


class Odds(NamedTuple):
    """The chances of one attacker, named in `against`, and the bound that they follow from, in symbols."""

    against: str
    bound: str
    chances: Sequence[Chance]

    @property
    def table(self) -> Table:
        """The chances as rows, with bars from the first to the second probability."""
        rows = [(task, f"{blind:.0%}", f"{informed:.1%}") for task, blind, informed in self.chances]
        bars = [(blind, informed) for _, blind, informed in self.chances]
        title = f"Against {self.against}: {self.bound}"
        return Table(
            ("to find out", "by guessing", "with the messages, at most"), rows, title=title, bars=bars
        )


def privacy(study: Study) -> list[Section]:
    """The statement on a run; on several the headline of each curve, and the statements, equal ones once."""
    if study.run:
        return [Section("Privacy", parts=statement(Case.of_run(study.run)))]
    cases = {curve.name: Case.of_run(_worst(curve)) for curve in study.curves if curve.runs}
    found = shared((name, repr(statement(case))) for name, case in cases.items())
    groups = [(", ".join(names), cases[names[0]]) for names in found.values()]
    points = [f"{names}: {headline(case)}" for names, case in groups]
    folded = [Section(f"Statement for {names}", parts=statement(case)) for names, case in groups]
    return [Section("Privacy", points=points, folded=folded)] if groups else []


def _worst(curve: CurveRuns) -> StoredRun:
    """The curve's run that spent the most, or that has no guarantee."""

    def cost(run: StoredRun) -> float:
        privacy = run.summary["privacy"]
        return -1.0 if privacy is None else math.inf if privacy["mu"] is None else privacy["mu"]

    return max(curve.runs, key=cost)


def statement(case: Case) -> list[Section]:
    """The statement, without what only a page of its own says (`page`)."""
    if case.privacy is None:
        return [Section("What is protected", [ONLY_SUMS if case.config.privacy.exact_sums else NO_PRIVACY])]
    if case.privacy["mu"] is None:
        return [Section("What is protected", [NO_GUARANTEE, _sentence(case.privacy)])]
    return [
        _protected(case, case.privacy),
        _against(case, case.privacy),
        _bounds(case, case.privacy),
        Section("What is not covered", points=list(_gaps(case))),
        _charged(case, case.privacy),
    ]


def headline(case: Case) -> str:
    """The statement in one or two sentences."""
    if case.privacy is None:
        return HEADLINE_NONE
    if case.privacy["mu"] is None:
        return HEADLINE_OPEN
    guesses = [
        f"at most {one.chances[0].informed:.1%} of the cases for {one.against}"
        for one in odds(case, case.privacy)
    ]
    return HEADLINE.format(one=_words(case).one, guesses=", and in ".join(guesses))


def _words(case: Case) -> Words:
    unit = case.config.privacy.unit
    return Words(*(text.format(k=unit.size) for text in _WORDS[unit.kind]))


def _sentence(privacy: Mapping[str, Any]) -> str:
    return f"The sentence that the run reports: {privacy['guarantee']}."


def _protected(case: Case, privacy: Mapping[str, Any]) -> Section:
    where = NOISY.get(str(privacy["mode"]), "to what a site sends")
    where += _taken_back(privacy.get("bandwidth", 1), privacy.get("bandwidth_smallest", 1))
    flaw = [PUBLISHED] if privacy["mode"] == "as-published" else []
    return Section(
        "What is protected",
        [PROTECTED.format(protected=_words(case).protected, where=where), *flaw],
    )


def _taken_back(most: int, least: int) -> str:
    """A clause about noise whose bandwidths are between these; empty for independent noise."""
    return LATER.format(most - 1, most, FEWER.format(least) if least < most else "") if most > 1 else ""


def _against(case: Case, privacy: Mapping[str, Any]) -> Section:
    if privacy.get("trust") != "sum":
        return Section("Against whom", [ANYBODY])
    first = odds(case, privacy)[0].against
    return Section("Against whom", [SUMS.format(first=first, honest=privacy["honest_sites"])])


def odds(case: Case, privacy: Mapping[str, Any]) -> list[Odds]:
    """The bound against every attacker that the run has one for."""
    if privacy.get("trust") != "sum":
        return [_odds(case, "whoever sees all messages", privacy, "")]
    first = str(privacy.get("attacker", "the server and some of the other clients")).replace("client", "site")
    return [_odds(case, first, privacy, ""), _odds(case, "everybody else together", privacy, "_alone")]


def _odds(case: Case, against: str, privacy: Mapping[str, Any], end: str) -> Odds:
    epsilon, mu = privacy[f"epsilon{end}"], privacy[f"mu{end}"]
    words = _words(case)
    guess = Chance(f"the right one of two equally likely candidates for {words.one}", 0.5, best_guess(mu))
    found = [
        Chance(
            f"whether the site holds a given record, with {rate:.0%} false alarms", rate, detection(mu, rate)
        )
        for rate in _FALSE_ALARMS
    ]
    return Odds(
        against, f"epsilon = {epsilon:.4g} at delta = {privacy['delta']:g}; mu = {mu:.4g}", [guess, *found]
    )


def _bounds(case: Case, privacy: Mapping[str, Any]) -> Section:
    claim = privacy["claimed_epsilon"]
    claimed = [] if claim is None else [f"By the paper's own accounting, epsilon is {claim:.4g}."]
    tuning = privacy.get("mu_tuning")
    tuned = [TUNING.format(mu=tuning)] if tuning else []
    rows = [float(site["rows"] or 0) for site in case.sites]
    remarks = [f"Note that {text}." for text in large_delta(privacy["delta"], rows, case.config.privacy.unit)]
    texts = [TOTAL, *remarks, *tuned, *_evaluated(case, privacy), *claimed, CHANCES]
    return Section("By how much", texts, tables=[one.table for one in odds(case, privacy)])


def _evaluated(case: Case, privacy: Mapping[str, Any]) -> list[str]:
    """What the evaluation on held-out rows costs; empty without one."""
    mu, how = privacy.get("mu_evaluation"), IN_PARALLEL
    if case.config.privacy.unit.parts == 2:
        how = IN_ADDITION
    return [EVALUATED.format(mu=mu, how=how)] if mu else []


def _gaps(case: Case) -> Iterator[str]:
    if case.standardised:
        yield "The scaling of the columns: it used statistics of all rows, without noise."
    if not case.deployed:
        yield SEED_PLANNED if case.planned else SEED
    if not (isinstance(case.config.data, OwnData) and not case.config.data.file):
        yield OWN_ROWS if case.config.data.name == OWN else EVALUATION
    if not case.complete:
        yield EARLY
    yield _words(case).beyond
    yield from ALWAYS
    if case.deployed or case.planned:
        yield from AT_SITES


# --- what was charged


def _charged(case: Case, privacy: Mapping[str, Any]) -> Section:
    if not case.sites:
        return Section("The ledger of each site", ["This run did not record what each site spent."])
    run = DEPLOYED if case.deployed else SIMULATED
    source = PLANNED if case.planned else run
    return Section("The ledger of each site", [source], tables=[_ledger(case.sites, float(privacy["delta"]))])


def _ledger(sites: Sequence[Site], delta: float) -> Table:
    """Sites with equal charges in one row, the largest charges first."""
    groups = grouped(sites, ("mu", "mu_alone", "asked"))
    rows = [(*named(group), *_charges(key, delta)) for key, group in groups]
    headings = (
        "site",
        "records",
        "rounds",
        "mu",
        "epsilon",
        "best guess",
        "epsilon, against everybody else",
    )
    columns = 7 if any(key[1] for key, _ in groups) else 6
    table = Table(headings[:columns], [row[:columns] for row in rows])
    return table.first(_MOST_GROUPS, "{more} more rows, with smaller charges, are in clients.csv.")


def _charges(charges: tuple[float, ...], delta: float) -> tuple[str, ...]:
    mu, alone, rounds = charges
    epsilons = [f"{gdp_epsilon(each, delta):.4g}" for each in (mu, alone)]
    return f"{rounds:.0f}", f"{mu:.4g}", epsilons[0], f"{best_guess(mu):.1%}", epsilons[1]


# --- a page of its own


def page(case: Case, path: Path, ledgers: Path | None = None) -> tuple[str, list[Section]]:
    """Title and sections of a statement. path: the folder of the run, or the file of its settings.

    ledgers: the folder of a site's ledgers, which are then shown, too; see `read_books`.
    """
    title = f"Privacy statement: {case.config.algorithm} on {rows_of(case.config)}"
    known = [lifetime(read_books(ledgers.expanduser()))] if ledgers else []
    return title, [Section("In short", [headline(case)]), *statement(case), *known, proofs(path, case.config)]
