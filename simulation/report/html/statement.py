"""The privacy statement of a run: what is protected, against whom, by how much, and what is not.

It is the section "Privacy" of a report, and with `markdown` of `render` a page of its own. The sources of what it
says: docs/guarantee.md and, for sums, docs/sums.md.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from twinflower.data.sets import OWN, OwnData
from twinflower.privacy import best_guess, detection, gdp_epsilon
from twinflower.privacy.counts import paid_twice

from ...results.reading import digest, digests, flat, read_environment
from ...results.writing import environment
from ...runs.privacy import large_delta
from ...settings import Config
from ..ledger_report import HEADINGS as BOOK_HEADINGS
from ..ledger_report import accounts as lifetimes
from ..ledger_report import read_books
from . import privacy_text
from .case import Case
from .parts import Chance, Odds, Section, Table
from .sites import Site, grouped, named

_FALSE_ALARMS = (0.01, 0.05, 0.1)
_MOST_GROUPS = 20  # of sites in the table of what was charged


def statement(case: Case) -> list[Section]:
    """The statement, without what only a page of its own says (`page`)."""
    if case.privacy is None:
        return [Section("What is protected", [privacy_text.NO_PRIVACY])]
    if case.privacy["mu"] is None:
        return [Section("What is protected", [privacy_text.NO_GUARANTEE, _sentence(case.privacy)])]
    parts = (
        _protected(case, case.privacy),
        _against(case, case.privacy),
        _bounds(case, case.privacy),
        _uncovered(case),
    )
    return [*parts, _charged(case, case.privacy)]


def headline(case: Case) -> str:
    """The statement in one or two sentences."""
    if case.privacy is None:
        return privacy_text.HEADLINE_NONE
    if case.privacy["mu"] is None:
        return privacy_text.HEADLINE_OPEN
    guesses = [
        f"at most {one.chances[0].informed:.1%} of the cases for {one.against}"
        for one in odds(case, case.privacy)
    ]
    return privacy_text.HEADLINE.format(one=_words(case).one, guesses=", and in ".join(guesses))


def _words(case: Case) -> privacy_text.Words:
    return privacy_text.words_for(case.config.privacy.unit)


def _sentence(privacy: Mapping[str, Any]) -> str:
    return f"The sentence that the run reports: {privacy['guarantee']}."


def _protected(case: Case, privacy: Mapping[str, Any]) -> Section:
    where = privacy_text.NOISY.get(str(privacy["mode"]), "to what a site sends")
    flaw = [privacy_text.PUBLISHED] if privacy["mode"] == "as-published" else []
    return Section(
        "What is protected",
        [privacy_text.PROTECTED.format(protected=_words(case).protected, where=where), *flaw],
    )


def _against(case: Case, privacy: Mapping[str, Any]) -> Section:
    if privacy.get("trust") != "sum":
        return Section("Against whom", [privacy_text.ANYBODY])
    first = odds(case, privacy)[0].against
    return Section("Against whom", [privacy_text.SUMS.format(first=first, honest=privacy["honest_sites"])])


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
    tuned = [privacy_text.TUNING.format(mu=tuning)] if tuning else []
    rows = [float(site["rows"] or 0) for site in case.sites]
    remarks = [f"Note that {text}." for text in large_delta(privacy["delta"], rows, case.config.privacy.unit)]
    texts = [privacy_text.TOTAL, *remarks, *tuned, *_evaluated(case, privacy), *claimed, privacy_text.CHANCES]
    return Section("By how much", texts, odds=odds(case, privacy))


def _evaluated(case: Case, privacy: Mapping[str, Any]) -> list[str]:
    """What the evaluation on held-out rows costs; empty without one."""
    mu, how = privacy.get("mu_evaluation"), privacy_text.IN_PARALLEL
    if paid_twice(case.config.privacy.unit) == 2:
        how = privacy_text.IN_ADDITION
    return [privacy_text.EVALUATED.format(mu=mu, how=how)] if mu else []


def _uncovered(case: Case) -> Section:
    return Section("What is not covered", points=list(_gaps(case)))


def _gaps(case: Case) -> Iterator[str]:
    if case.standardised:
        yield "The scaling of the columns: it used statistics of all rows, without noise."
    if not case.deployed:
        yield privacy_text.SEED_PLANNED if case.planned else privacy_text.SEED
    if not (isinstance(case.config.data, OwnData) and not case.config.data.file):
        yield privacy_text.OWN_ROWS if case.config.data.name == OWN else privacy_text.EVALUATION
    if not case.complete:
        yield privacy_text.EARLY
    yield _words(case).beyond
    yield from privacy_text.ALWAYS
    if case.deployed or case.planned:
        yield from privacy_text.AT_SITES


# --- what was charged


def _charged(case: Case, privacy: Mapping[str, Any]) -> Section:
    if not case.sites:
        return Section("The ledger of each site", ["This run did not record what each site spent."])
    run = privacy_text.DEPLOYED if case.deployed else privacy_text.SIMULATED
    source = privacy_text.PLANNED if case.planned else run
    return Section("The ledger of each site", [source], tables=[_ledger(case.sites, float(privacy["delta"]))])


def _ledger(sites: Sequence[Site], delta: float) -> Table:
    """Sites with equal charges in one row, the largest charges first."""
    groups = grouped(sites, ("mu", "mu_alone", "asked"))
    rows = [(*named(group), *_charges(key, delta)) for key, group in groups[:_MOST_GROUPS]]
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
    more = len(groups) - len(rows)
    remark = f"{more} more rows, with smaller charges, are in clients.csv." if more else ""
    return Table(headings[:columns], [row[:columns] for row in rows], remark)


def _charges(charges: tuple[float, ...], delta: float) -> tuple[str, ...]:
    mu, alone, rounds = charges
    epsilons = [f"{gdp_epsilon(each, delta):.4g}" for each in (mu, alone)]
    return f"{rounds:.0f}", f"{mu:.4g}", epsilons[0], f"{best_guess(mu):.1%}", epsilons[1]


# --- a page of its own


def page(case: Case, path: Path, ledgers: Path | None = None) -> tuple[str, list[Section]]:
    """Title and sections of a statement. path: the folder of the run, or the file of its settings.

    ledgers: the folder of a site's ledgers, which are then shown, too; see `read_books`.
    """
    title = f"Privacy statement: {case.config.algorithm} on {privacy_text.rows_of(case.config)}"
    known = [_lifetime(ledgers)] if ledgers else []
    return title, [Section("In short", [headline(case)]), *statement(case), *known, proofs(path, case.config)]


def _lifetime(folder: Path) -> Section:
    table = Table(BOOK_HEADINGS, lifetimes(read_books(folder.expanduser())))
    return Section("The lifetime budget of a site", tables=[table])


def proofs(path: Path, config: Config) -> Section:
    """By what a report can be checked: versions, and digests of the settings and the files."""
    inside = path.is_dir()
    versions = read_environment(path) if inside else flat(environment())
    files = digests(path) if inside else [(path.name, digest(path))]
    return Section(
        "Versions and digests",
        [privacy_text.CHECK],
        tables=[
            Table(("made with", ""), versions),
            Table(("SHA-256 of", ""), [("the settings", config.result_digest), *files], codes=True),
        ],
    )
