"""What an audit found, as text, as JSON, and as a page."""

import json
import math
import shlex
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from ..report.document import Fact, Page, Section, Table, html
from .attack import Attack, attack, attack_once
from .cases import Case, Claim
from .declared import Certified, certified
from .features import Leak
from .session import Effort, unreported

NOT_TRIED = (
    "other data sets and server messages than those listed, and a server that chooses its messages by the replies",
    "what several clients, several runs or a colluding client reveal together",
    "how long replies take, logs, files, and memory of the client",
    "the source of the noise: whether a server can predict it, and the last bits of floating-point numbers",
    "with --canaries, what repeated runs show; without, a single training run with many canaries",
)
_TOO_MANY = 10**7  # runs of which nobody is asked to make so many


@dataclass(frozen=True)
class Report:
    """An audited case. certified: None if the app's releases are not declared."""

    case: Case
    attack: Attack
    certified: Certified | None
    effort: Effort
    target: str = "FILE.py:NAME"

    @property
    def alarms(self) -> dict[str, str]:
        """Why the claim does not hold, by kind ("leak", "attack", "declared"); empty if nothing was found against
        it."""
        return dict(_alarms(self))

    @property
    def ratio(self) -> float | None:
        """Attacked over certified mu; None if that is not known, 0 or infinite."""
        if self.certified is None or not self.certified.mu or math.isinf(self.certified.mu):
            return None
        return self.attack.mu / self.certified.mu

    @property
    def verdict(self) -> str:
        """The result in one sentence."""
        if self.alarms:
            return "The claim does not hold."
        if self.attack.void:
            return f"Nothing was audited: {self.attack.void}"
        if self.attack.wanted:
            return f"Inconclusive: an attack was right in every run, {_too_few(self.attack.wanted)}."
        return "No attack exceeded the claim. This is not a proof of privacy."

    def text(self) -> str:
        """The report as text for a terminal."""
        lines = [self.case.name, *([f"  {self.case.about}"] if self.case.about else []), ""]
        lines += [f"  {name:<10} {value}" for name, value in _numbers(self)]
        lines += [
            "",
            f"  {self.verdict}",
            *(f"  - {alarm}" for alarm in self.alarms.values()),
            "",
            "  Evidence:",
        ]
        lines += [f"  - {line}" for line in _evidence(self)]
        lines += [f"  Look at this: {line}" for line in _remarks(self)]
        lines += ["", "  To see it again:", *(f"    {line}" for line in self.script.splitlines())]
        return "\n".join(lines) + "\n"

    @property
    def script(self) -> str:
        """The smallest Python script that shows the finding again; for an audit of one run the command."""
        if self.effort.canaries:
            options = f"--case {shlex.quote(self.case.name)} --canaries {self.effort.canaries}"
            return f"twinflower audit {shlex.quote(self.target)} {options} --seed {self.effort.seed}"
        chosen = self.attack.chosen
        arguments = ", ".join(map(repr, (self.target, self.case.name, chosen.messages, chosen.pair)))
        return f"from twinflower import audit\naudit.demonstrate({arguments})"

    def json(self) -> str:
        """The report as JSON; an infinite number is null, with "unbounded" true beside it."""
        attacked = self.attack
        content = {
            "case": self.case.name,
            "about": self.case.about,
            "claimed": self.case.claim._asdict() | {"mu": self.case.claim.mu},
            "certified": self.certified and _finite(self.certified._asdict()),
            "attacked": _finite({"epsilon": attacked.epsilon, "mu": attacked.mu}),
            "audited": not attacked.void or bool(self.alarms),
            "refuted": bool(self.alarms),
            "inconclusive": bool(attacked.wanted and not self.alarms),
            "wanted_runs": attacked.wanted,
            "alarms": self.alarms,
            "leaks": [leak._asdict() for leak in attacked.leaks],
            "evidence": [_finite(found._asdict()) for found in attacked.evidence],
            "only_if_gaussian": [_finite(found._asdict()) for found in attacked.assumed],
            "remarks": list(_remarks(self)),
            "replayed": attacked.replayed,
            "chosen": _finite(attacked.chosen._asdict()),
            "tried": [_finite(candidate._asdict()) for candidate in attacked.screened],
            "not_tried": NOT_TRIED,
            "effort": asdict(self.effort),
            "script": self.script,
        }
        return json.dumps(content, indent=2, allow_nan=False) + "\n"


def audit_case(
    case: Case,
    effort: Effort | None = None,
    target: str = "FILE.py:NAME",
    progress: Callable[[str], object] = unreported,
) -> Report:
    """Audit a case. target: where the case is found again, for the script of the report. progress: see `attack`."""
    effort = effort or Effort()
    guarantee = certified(case.declared, case.claim.delta) if case.declared else None
    attacked = attack_once(case, effort, progress) if effort.canaries else attack(case, effort, progress)
    return Report(case, attacked, guarantee, effort, target)


def _alarms(report: Report) -> Iterator[tuple[str, str]]:
    attacked, claim = report.attack, report.case.claim
    if attacked.proven:
        yield "leak", f"attacked epsilon {_above(attacked.epsilon, claim)}: {_leaks(report)}"
    elif claim.refuted_by(attacked.epsilon):
        yield "attack", f"attacked epsilon {_above(attacked.epsilon, claim)}"
    if report.certified and claim.refuted_by(report.certified.epsilon):
        yield (
            "declared",
            f"the declared noise guarantees epsilon {_number(report.certified.epsilon)}, not the claimed "
            f"{claim.epsilon:g}",
        )


def _above(epsilon: float, claim: Claim) -> str:
    """Both with as many digits as show which is larger."""
    digits = next((n for n in range(4, 17) if f"{epsilon:.{n}g}" != f"{claim.epsilon:.{n}g}"), 17)
    return f"{epsilon:.{digits}g} is above the claimed {claim.epsilon:.{digits}g}"


def _leaks(report: Report) -> str:
    leaks = report.attack.leaks
    first = min(leaks, key=lambda leak: (leak.round, leak.place != "error"))
    more = len({leak.place for leak in leaks}) - 1
    others = f", and {more} more such place{'s' * (more > 1)}" if more else ""
    return (
        f"in all {report.effort.certain} runs on each data set, {_leak(first)}{others}; new runs confirmed it"
        if report.attack.proven
        else f"in {report.effort.certain} runs on each data set, {_leak(first)}{others}"
        + (f", {_too_few(report.attack.wanted)}" if report.attack.wanted else "")
    )


def _too_few(wanted: int) -> str:
    """Why an attack that is always right does not contradict the claim."""
    if wanted > _TOO_MANY:
        return "which contradicts the claim only in more runs than can be made"
    return f"which contradicts the claim in {wanted:,} runs or more: use --most {wanted}"


def _leak(leak: Leak) -> str:
    place = leak.place if leak.entry is None else f"entry {leak.entry} of {leak.place}"
    return (
        f"{place} in the reply of round {leak.round} is {leak.first} on one, and {leak.second} on the other"
    )


def _numbers(report: Report) -> list[tuple[str, str]]:
    """The three numbers."""
    claim, attacked = report.case.claim, report.attack
    known = report.certified
    return [
        (
            "claimed",
            f"epsilon {claim.epsilon:g} at delta {claim.delta:g}"
            + ("" if claim.mu is None else f", as mu {_number(claim.mu)}")
            + f", neighbours: {claim.relation}",
        ),
        (
            "certified",
            _pair(known.epsilon, known.mu) if known else "unknown: the app's noise is not declared",
        ),
        (
            "attacked",
            "nothing"
            if attacked.void and not report.alarms
            else f"{_pair(attacked.epsilon, attacked.mu)} or more, with confidence {report.effort.confidence:.0%}",
        ),
    ]


def _pair(epsilon: float, mu: float | None) -> str:
    return f"epsilon {_number(epsilon)}" + ("" if mu is None else f", mu {_number(mu)}")


def _number(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else "infinity"


def _evidence(report: Report) -> Iterator[str]:
    attacked = report.attack
    yield f"data sets: {attacked.chosen.pair}; server: {attacked.chosen.messages}"
    for found in attacked.evidence:
        yield f"{found.how}: {_pair(found.epsilon, found.mu)}{', right in every run' * found.perfect}"


def _remarks(report: Report) -> Iterator[str]:
    """What somebody should look at."""
    attacked = report.attack
    for found in attacked.assumed:
        if report.case.claim.refuted_by(found.epsilon):
            yield (
                f"if the noise is Gaussian, which the case does not declare, the claim does not hold: {found.how}: "
                f"{_pair(found.epsilon, found.mu)}"
            )
    known = report.certified and report.certified.mu
    if known is not None and attacked.mu > known:
        yield (
            f"mu {_number(attacked.mu)} was attacked where the declared noise guarantees mu {_number(known)}: the app "
            "does not do what is declared"
        )
    void = [candidate for candidate in attacked.screened if candidate.void]
    if void and not attacked.void:
        yield (
            f"{len(void)} of {len(attacked.screened)} combinations of messages and data sets show nothing, such as "
            f'"{void[0].messages}" with "{void[0].pair}": {void[0].void}'
        )
    if attacked.leaks and not attacked.proven:
        yield _leaks(report)
    if not attacked.replayed:
        yield (
            "the first run had another result when it was made again at the end: noise that the seed does not "
            "determine, or a state that outlives a run"
        )
    for place in attacked.changing:
        yield (
            f"{place} changes from run to run on the same data: it must be noise that the claim covers; a seed or a "
            "key would undo the noise"
        )


def _finite(numbers: dict[str, Any]) -> dict[str, Any]:
    """The numbers for JSON, which has no infinity."""
    endless = any(isinstance(value, float) and math.isinf(value) for value in numbers.values())
    plain = {k: None if isinstance(v, float) and math.isinf(v) else v for k, v in numbers.items()}
    return plain | ({"unbounded": True} if endless else {})


def page(reports: list[Report], title: str) -> Page:
    """All reports of a command as one page."""
    wrong = [report.case.name for report in reports if report.alarms]
    alarm = f"Claims that do not hold: {', '.join(wrong)}." if wrong else ""
    rows = [[r.case.name, *(value for _, value in _numbers(r)), r.verdict] for r in reports]
    summary = Table(("Case", "Claimed", "Certified", "Attacked", "Result"), rows)
    facts = [Fact("cases", str(len(reports))), Fact("claims that do not hold", str(len(wrong)))]
    return Page(
        "Audit of privacy claims",
        title,
        alarm,
        ["An audit can refute a claim of privacy. It cannot prove one."],
        facts,
        [
            Section("Summary", tables=[summary]),
            *map(_section, reports),
            Section("Not tried", points=NOT_TRIED),
        ],
        "Written by twinflower audit.",
    )


def _section(report: Report) -> Section:
    tried = [[c.messages, c.pair, f"{c.strength:.3g}"] for c in report.attack.screened]
    headings = ("Server messages", "Data sets", "Distance in deviations of the noise")
    return Section(
        report.case.name,
        [report.case.about, report.verdict] if report.case.about else [report.verdict],
        [*report.alarms.values(), *_evidence(report), *_remarks(report)],
        tables=[Table(("", ""), [[name, value] for name, value in _numbers(report)])],
        folded=[
            Section("What was tried", tables=[Table(headings, tried)]),
            Section("To see it again", [report.script]),
        ],
    )


def as_html(reports: list[Report], title: str) -> str:
    """All reports of a command as one HTML file."""
    return html(page(reports, title))
