"""The names of the files in the folder of a run or an experiment.

No other module spells them out, except that the questions to the sites name the files of their answers (`ANSWERS`).

A folder holds

    config.toml, experiment.toml           the configuration, written before the first round
    title.txt                              the title of a run's experiment file, if it has one
    metrics.csv, rounds.jsonl              the evaluated rounds; the participants of every round
    summary.json, environment.json         the results and the versions; a run with a summary has ended
    clients.csv                            what each client took part in and spent
    path.csv                               the errors and models by weight of the penalty, if the weight was chosen so
    survival.csv, information.npz ...      the answers of sites (`ANSWERS`), which `twinflower.queries` describes
    model.npz, model.pt, figure.png        the model, a PyTorch module in its own format, and the figure
    report.html                            the report, one page that needs no other file
    LABEL/seed-N/                          the runs of an experiment with several runs
    checkpoints/, state/, resume.toml      the data for resuming, only until a run has ended
    cut-off.txt                            why a run was cut off, or stands still, until it goes on
    resumed.txt                            the rounds after which it was resumed, if it was
    runtime, .run.lock, .command.lock      only while a command works in the folder
    logs/                                  the logs of a deployment's processes
"""

from twinflower.queries import QUERIES

CONFIG, EXPERIMENT, TITLE = "config.toml", "experiment.toml", "title.txt"
METRICS, ROUNDS, CLIENTS, PATH = "metrics.csv", "rounds.jsonl", "clients.csv", "path.csv"
SUMMARY, ENVIRONMENT = "summary.json", "environment.json"
MODEL, MODULE, FIGURE, REPORT = "model.npz", "model.pt", "figure.png", "report.html"
CHECKPOINTS, STATE, RESUME, RUNTIME, LOGS = "checkpoints", "state", "resume.toml", "runtime", "logs"
CAUSE, RESUMED = "cut-off.txt", "resumed.txt"
ANSWERS = [name for query in QUERIES for name in query.reported.known_files]
DIGESTED = (
    EXPERIMENT, CONFIG, SUMMARY, METRICS, CLIENTS, PATH, ROUNDS, ENVIRONMENT, MODEL, *ANSWERS, MODULE,
)  # fmt: skip
