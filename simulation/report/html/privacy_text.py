"""The sentences of the privacy statement. docs/guarantee.md and docs/sums.md say why they are true."""

from typing import NamedTuple

from twinflower.data.sets import OWN
from twinflower.privacy.unit import GROUP, RECORD, SITE, Unit

from ...settings import Config


class Words(NamedTuple):
    """What depends on the unit that a run protects; k is the number of records of a group.

    one: the unit. protected: it, and what is done with it. given: what an attacker looks for. beyond: what is not
    covered about people with several records.
    """

    one: str
    protected: str
    given: str
    beyond: str


_WORDS = {
    RECORD: Words(
        "a record",
        "Every record of every site; a record is one row of a site's data. If it were replaced by any other record",
        "a given record", "People with several records: for k records of one person, mu is k times as large.",
    ),
    GROUP: Words(
        "{k} records",
        "Any {k} records of a site together, such as those of one person; a record is one row of a site's data. If "
        "they were replaced by any other records",
        "{k} given records", "People with more than {k} records at a site.",
    ),
    SITE: Words(
        "all records", "All records of a site together. If they were replaced by any others, equally many",
        "a given set of all its records", "The number of a site's records, which is public.",
    ),
}  # fmt: skip


def rows_of(config: Config) -> str:
    """What a run trains on, in words: the name of its data set, or that the rows are the sites' own."""
    return "the sites' own rows" if config.data.name == OWN else config.data.name


def words_for(unit: Unit) -> Words:
    """The words for what a run protects."""
    return Words(*(text.format(k=unit.size) for text in _WORDS[unit.kind]))


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
NO_GUARANTEE = "Noise is added, but no bound holds for what a site sends in all rounds together."
NOISY = {
    "public-state": "to the result of the local steps, before anything is carried to the next round",
    "gradient": "to every gradient, before it is used",
    "as-published": "to the message only, as the paper does",
}
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
CHECK = "The command twinflower privacy config.toml computes the planned cost from the settings again."
