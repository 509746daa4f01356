"""Cut off at any moment and taken up again, a run ends with the bits of one that was never cut off."""

import json
import os
import shutil
import signal
import sys
import time
import tomllib
from contextlib import suppress
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from commands import command, command_killed_at
from cuts import Cut, PowerCut, cut_off, equal
from flwr.common.config import flatten_dict, parse_config_args
from numpy.testing import assert_array_equal
from problems import VARIANTS, one_of_each, small

from twinflower.clients.store import FileStore
from twinflower.errors import DataError, SettingError
from twinflower.rounds import rounds
from twinflower.simulation import cli
from twinflower.simulation.app import server_app
from twinflower.simulation.report.figures import redraw
from twinflower.simulation.results.checkpoint import Checkpoints, checkpoint, flatten, restore, unflatten
from twinflower.simulation.results.reading import read_rows, read_summary
from twinflower.simulation.runs.run import Run
from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.runtimes import cohort, inprocess
from twinflower.simulation.runtimes.inprocess import InProcessGrid
from twinflower.simulation.settings import parse, parse_run_config

ROOT = Path(__file__).resolve().parent.parent
ROUNDS = 5


def charges(folder):
    return {path.name: len(path.read_text().splitlines()) for path in Path(folder).glob("*.ledger")}


SPARSE = [
    "fedpdm-private",
    "scaffold",
    "zcdp-nfl-private",
]  # of which every second round has a checkpoint by default


@pytest.mark.parametrize(
    ("variant", "every"),
    [pytest.param(*v.values, 1, marks=v.marks) for v in one_of_each(VARIANTS, "privacy.mode")]
    + [pytest.param(v, 2, marks=() if v in SPARSE else pytest.mark.slow) for v in VARIANTS],
)
def test_a_run_that_was_cut_off_goes_on_to_the_same_bits(tmp_path, variant, every):
    """Cut in the second, third and fifth round, once with the client's work done and once without."""
    setup = small(variant, checkpoint_every=every)
    whole = setup.with_state_dir(tmp_path / "whole")
    expected = inprocess.train(whole, checkpoints=Checkpoints(tmp_path / "whole", every))
    k, mine, checkpoints = (
        setup.config.clients.sampled,
        setup.with_state_dir(tmp_path),
        Checkpoints(tmp_path, every),
    )
    for number, after in ((k + 2, True), (2 * k + 1, False), (5 * k, True)):
        done = max(checkpoints.rounds(), default=0)
        answered = sum(len(setup.config.asked(round_)) for round_ in range(1, done + 1))
        assert cut_off(mine, tmp_path, number - answered, after, every)
    equal(inprocess.train(mine, checkpoints=checkpoints), expected)
    assert charges(tmp_path) == charges(tmp_path / "whole")


@pytest.mark.parametrize("variant", ["fedpdm-private", "ldp-private", "zcdp-nfl-private"])
def test_killed_between_a_charge_and_its_reply_the_round_is_done_again(tmp_path, monkeypatch, variant):
    setup = small(variant, rounds=ROUNDS)
    assert setup.plan is not None
    whole = inprocess.train(setup.with_state_dir(tmp_path / "whole"))
    left, save = [2 * setup.config.clients.sampled + 2], FileStore.save

    def dies(self, *words):
        left[0] -= 1
        if left[0] == 0:
            raise PowerCut
        save(self, *words)

    setup, checkpoints = setup.with_state_dir(tmp_path / "cut"), Checkpoints(tmp_path, 1)
    monkeypatch.setattr(FileStore, "save", dies)
    with pytest.raises(PowerCut):
        inprocess.train(setup, checkpoints=checkpoints)
    equal(inprocess.train(setup, checkpoints=checkpoints), whole)
    assert charges(tmp_path / "cut") == charges(tmp_path / "whole")


@pytest.mark.parametrize("stacked", [1, 2])
@pytest.mark.parametrize("variant", ["bsdp-rand-k", "scaffold-gradient", "fedpdm-memory-warm"])
def test_a_cohort_goes_on_to_the_same_bits(tmp_path, monkeypatch, variant, stacked):
    setups = [small(variant, seed=seed) for seed in range(stacked)]
    expected = cohort.train(setups)
    done = []

    def watched(last):
        def noting(*words, **keys):
            for at in rounds(*words, **keys):
                if at.round == last:
                    raise PowerCut
                done.append(at.round)
                yield at

        return noting

    with monkeypatch.context() as patch, pytest.raises(PowerCut):
        patch.setattr(cohort, "rounds", watched(4))
        cohort.train(setups, checkpoints=Checkpoints(tmp_path, 2))
    done.clear()
    monkeypatch.setattr(cohort, "rounds", watched(None))
    for one, other in zip(cohort.train(setups, checkpoints=Checkpoints(tmp_path, 2)), expected, strict=True):
        equal(one, other)
    assert done == [3, 4, 5]


def test_a_damaged_checkpoint_falls_back_with_a_warning(tmp_path, capsys):
    setup = small("feddyn").with_state_dir(tmp_path)
    expected = inprocess.train(small("feddyn").with_state_dir(tmp_path / "whole"))
    assert cut_off(setup, tmp_path, 14, True, 1)
    newest = tmp_path / "checkpoints" / "round-4.npz"
    newest.write_bytes(newest.read_bytes()[:-30])
    equal(inprocess.train(setup, checkpoints=Checkpoints(tmp_path, 1)), expected)
    assert "round-4.npz is damaged; going on from the checkpoint before it" in capsys.readouterr().out


def test_no_readable_checkpoint_is_one_sentence(tmp_path):
    assert cut_off(small("feddyn").with_state_dir(tmp_path), tmp_path, 14, True, 1)
    for path in (tmp_path / "checkpoints").iterdir():
        path.write_bytes(b"")
    with pytest.raises(DataError, match="no checkpoint in .* is readable"):
        Checkpoints(tmp_path, 1).newest()


@pytest.mark.parametrize("at", range(1, 6))
def test_stopped_at_any_write_of_a_checkpoint_the_one_before_is_there(tmp_path, monkeypatch, at):
    setup = small("fedpdm-memory-warm").with_state_dir(tmp_path)
    assert cut_off(setup, tmp_path, 8, True, 1)  # checkpoints of rounds 1 and 2
    left = [at]
    with monkeypatch.context() as patch:
        for owner, name in ((os, "open"), (os, "fsync"), (Path, "replace"), (Path, "unlink")):
            real = getattr(owner, name)

            def call(*args, real=real, **kwargs):
                frames = sys._getframe(1).f_code.co_name, sys._getframe(2).f_code.co_name
                left[0] -= "write_whole" in frames[:1] and frames[1] == "save" and "npz" in str(args[0])
                left[0] -= frames[0] == "save" and "npz" in str(args[0])
                if left[0] <= 0:
                    raise PowerCut
                return real(*args, **kwargs)

            patch.setattr(owner, name, call)
        with suppress(PowerCut):
            inprocess.train(setup, checkpoints=Checkpoints(tmp_path, 1))
    found, warnings = Checkpoints(tmp_path, 1).newest()
    assert found.info["round"] >= 2
    assert warnings == []
    equal(
        inprocess.train(setup, checkpoints=Checkpoints(tmp_path, 1)),
        inprocess.train(small("fedpdm-memory-warm")),
    )


@pytest.mark.parametrize(
    ("info", "version"),
    [({"round": 1, "session": "s"}, "0.2 or older"), ({"format": 3}, "of a later version")],
)
def test_a_checkpoint_in_another_format_is_one_sentence(tmp_path, info, version):
    setup = small("fedpdm", checkpoint_every=1)
    (tmp_path / "checkpoints").mkdir()
    content = np.frombuffer(json.dumps(info).encode(), np.uint8)
    np.savez(tmp_path / "checkpoints" / "round-1.npz", info=content)
    for train in (inprocess.train, lambda setup, **keys: cohort.train([setup], **keys)):
        with pytest.raises(
            DataError, match=f"written by Twinflower {version}, .* start anew in another folder"
        ):
            train(setup, checkpoints=Checkpoints(tmp_path, 1))


@pytest.mark.parametrize("runtime", ["inprocess", "cohort"])
def test_the_time_of_a_run_that_goes_on_includes_what_came_before(tmp_path, runtime):
    """In its summary as in its rows."""
    setup, points = small("fedpdm").with_state_dir(tmp_path), Checkpoints(tmp_path, 1)

    def train(progress):
        if runtime == "inprocess":
            return inprocess.train(setup, progress, points)
        return cohort.train([setup], progress, points)[0]

    def stop(row):
        time.sleep(0.05)
        if row["round"] == 4:
            raise PowerCut

    with pytest.raises(PowerCut):
        train(stop)
    result = train(None)
    assert result.summary()["seconds"] >= result.rows[-1]["seconds"] > 3 * 0.05


FROM_SETTINGS = {"setup", "runtime", "progress", "seed_index", "states", "first", "settled"}
AT_THE_END = {"began", "ended_at", "model", "points", "failure", "missing", "unreleased"}


def test_a_checkpoint_holds_all_of_a_run_that_does_not_follow_from_its_settings(tmp_path):
    """Whoever adds a field to a run meets this test; the clients' states on arrays are tested with whole runs."""
    setup, points = (
        small("fedpdm-memory-warm", evaluation__held_out=0.3, evaluation__bins=6),
        Checkpoints(tmp_path, 1),
    )
    run = inprocess.train(setup)
    points.save(run.round, checkpoint([run]))
    config = setup.config
    start = setup.algorithm.init_server(setup.start, config.clients.count, np.array(config.seed, np.uint64))
    again = Run(setup=setup, runtime="inprocess", server=start, met=False)
    restore(points.newest()[0], [again], None)
    names, others = {field.name for field in fields(Run)}, FROM_SETTINGS | AT_THE_END
    assert others <= names
    for name in names - others:
        one, other = getattr(run, name), getattr(again, name)
        assert one or name in ("ranges", "sites")  # of private ranges, and of sites with names
        np.testing.assert_equal(other, one, err_msg=name)


def test_a_state_is_a_tree(tmp_path):
    for variant in VARIANTS:
        setup = small(variant)
        server = setup.algorithm.init_server(setup.start, 8, np.array(3, np.uint64))
        again = unflatten(server, [np.array(leaf) for leaf in flatten(server)])
        assert type(again) is type(server)
        np.testing.assert_equal(flatten(again), flatten(server))
    with pytest.raises(SettingError, match="another algorithm or other settings"):
        unflatten(server, flatten(server)[:-1])


@pytest.mark.parametrize("runtime", ["inprocess", "cohort"])
def test_the_command_line_resumes_a_killed_run(tmp_path, runtime):
    keys = ["--set", "rounds=8", "--set", "clients.count=5", "--runtime", runtime]
    words = ["run", "experiments/digits.toml", *keys]
    assert command(*words, "--out", str(tmp_path / "whole")).returncode == 0
    cut = command_killed_at(2, *words, "--set", "checkpoint-every=3", "--out", str(tmp_path / "cut"))
    assert cut.returncode == -9
    assert not (tmp_path / "cut" / "summary.json").exists()
    other = {"inprocess": "cohort", "cohort": "inprocess"}[runtime]
    wrong = command("run", "--resume", str(tmp_path / "cut"), "--runtime", other)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert f"began on runtime {runtime}: leave out --runtime" in wrong.stderr
    done = command("run", "--resume", str(tmp_path / "cut"))
    assert done.returncode == 0, done.stderr
    drop = lambda rows: [{k: v for k, v in row.items() if k != "seconds"} for row in rows]  # noqa: E731
    np.testing.assert_equal(drop(read_rows(tmp_path / "cut")), drop(read_rows(tmp_path / "whole")))
    models = [np.load(tmp_path / name / "model.npz")["x"] for name in ("cut", "whole")]
    assert_array_equal(*models)
    assert read_summary(tmp_path / "cut")["finished"]
    lines = (tmp_path / "cut" / "rounds.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == list(range(1, 9))
    assert not list((tmp_path / "cut" / "checkpoints").iterdir())
    assert not (tmp_path / "cut" / "runtime").exists()
    assert json.loads((tmp_path / "cut" / "summary.json").read_text())["runtime"] == runtime
    again = command("run", "--resume", str(tmp_path / "cut"), "--runtime", runtime)
    assert (again.returncode, again.stdout) == (2, "")
    assert "has ended already" in again.stderr


@pytest.mark.parametrize(
    ("runtime", "algorithm", "other"),
    [("inprocess", "fedpdm", "fedpdm.rho = 0.1"), ("cohort", "proxskip", "proxskip.step-size = 0.3")],
)
def test_a_cut_off_experiment_runs_what_is_left(tmp_path, runtime, algorithm, other):
    """ProxSkip's seeds draw their own numbers of steps, so on arrays, too, they run one by one."""
    text = f"""
[run]
algorithm = "{algorithm}"
rounds = 4
[run.clients]
count = 4
[run.output]
checkpoint-every = 1
[[curve]]
label = "a"
[[curve]]
label = "b"
{other}
"""
    (tmp_path / "two.toml").write_text("seeds = [0, 1]\n" + text)
    words = ["run", str(tmp_path / "two.toml"), "--runtime", runtime]
    assert command(*words, "--out", str(tmp_path / "whole")).returncode == 0
    assert command_killed_at(11, *words, "--out", str(tmp_path / "cut")).returncode == -9  # in b's first run
    assert list((tmp_path / "cut" / "b" / "seed-0" / "checkpoints").iterdir())
    done = command("run", "--resume", str(tmp_path / "cut"))
    assert done.returncode == 0, done.stderr
    for place in ("a/seed-0", "a/seed-1", "b/seed-0", "b/seed-1"):
        models = [np.load(tmp_path / name / place / "model.npz")["x"] for name in ("cut", "whole")]
        assert_array_equal(*models)
    assert (tmp_path / "cut" / "figure.png").exists()


def test_a_checkpoint_of_another_runtime_is_one_sentence(tmp_path):
    setup = small("fedpdm", checkpoint_every=1)
    both = {"one": inprocess.train, "all": lambda s, checkpoints: cohort.train([s], None, checkpoints)}
    for name, run in both.items():
        run(setup, checkpoints=Checkpoints(tmp_path / name, 1))
    for name, run in both.items():
        with pytest.raises(SettingError, match="resume the run on that"):
            run(setup, checkpoints=Checkpoints(tmp_path / ("one" if name == "all" else "all"), 1))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["run"],
            "run takes either an experiment's file, as in: twinflower run experiments/digits.toml, or --resume FOLDER",
        ),
        (["run", "experiments/digits.toml", "--resume", "."], "run takes either"),
        (["run", "--resume", "tests"], "tests holds neither experiment.toml nor config.toml"),
        (["run", "--resume", ".", "--seeds", "1"], "leave out --set, --seeds, --curve and --out"),
    ],
)
def test_mistakes_are_one_sentence(words, sentence):
    done = command(*words)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_only_the_same_run_is_resumed():
    config = small("fedpdm").config
    elsewhere = {
        "output.dir": "x",
        "output.state-dir": "y",
        "output.checkpoint-every": 4,
        "server.round-timeout": 3.0,
    }
    assert not config.changed(config.put(elsewhere).items())
    assert config.changed(config.put({"seed": 1}).items())
    assert config.changed(config.put({"fedpdm.rho": 0.6}).items())


def test_flwr_run_goes_on_from_the_file_it_leaves(tmp_path, capsys):
    """resume.toml is a whole run config, so that the nodes get the same settings."""
    folder = tmp_path / "run"
    paths = {"output.dir": str(folder), "output.state-dir": str(tmp_path / "state")}
    config = small("scaffold", rounds=6, checkpoint_every=2).config.put(paths)
    with pytest.raises(PowerCut):
        server_app._run(Cut(prepare(config), 3 * 3 + 1, False), config)
    file = folder / "resume.toml"
    assert f"flwr run . CONNECTION --stream --run-config {file}\n" in capsys.readouterr().out
    with pytest.raises(SettingError, match=f"was started by flwr run: go on with .* --run-config {file}"):
        resume(folder)
    main = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    again = parse_run_config(flatten_dict(main) | parse_config_args([str(file)]))
    assert again == config.put({"output.resume-from": str(folder)})
    with pytest.raises(SettingError, match=f"has other settings: go on with --run-config {file}"):
        server_app._run(InProcessGrid(prepare(again)), again.put({"seed": 1}))
    capsys.readouterr()
    server_app._run(InProcessGrid(prepare(again)), again)
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == f"this run was cut off, and goes on from its last checkpoint in {folder}"
    assert "resumed after round 2" in lines
    whole = inprocess.train(small("scaffold", rounds=6))
    assert_array_equal(np.load(folder / "model.npz")["x"], whole.model)
    assert not file.exists()
    stored = parse(tomllib.loads((folder / "config.toml").read_text()))
    assert stored.output.resume_from == ""  # it can be run anew


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A private run of four clients that was killed at its second checkpoint."""
    folder = tmp_path_factory.mktemp("killed") / "run"
    keys = ["--set", "rounds=6", "--set", "clients.count=4", "--set", "checkpoint-every=2"]
    keys += ["--runtime", "inprocess"]
    cut = command_killed_at(2, "run", "experiments/digits.toml", *keys, "--out", str(folder))
    assert cut.returncode == -9
    return folder


def resume(folder):
    return cli.run(resume=folder)


def test_a_copy_goes_on_by_itself(killed, tmp_path):
    for name in ("one", "two"):
        shutil.copytree(killed, tmp_path / name)
        resume(tmp_path / name)
    assert_array_equal(*(np.load(tmp_path / name / "model.npz")["x"] for name in ("one", "two")))


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda run: shutil.rmtree(run / "state"), "state of client 0 is not in .*start anew"),
        (lambda run: shutil.rmtree(run / "checkpoints"), "holds clients' states and no checkpoint"),
        (lambda run: edit(run, "rho = 0.05", "rho = 0.06"), "began with fedpdm.rho = 0.05, and now has 0.06"),
        (lambda run: edit(run, "rounds = 6", "rounds = 1"), "began with rounds = 6, and now has 1"),
        (lambda run: scribble(run / "state"), "is damaged"),
    ],
)
def test_a_run_whose_folder_is_not_as_it_was_is_not_resumed(killed, tmp_path, damage, sentence):
    run = tmp_path / "run"
    shutil.copytree(killed, run)
    damage(run)
    with pytest.raises((SettingError, DataError), match=sentence):
        resume(run)
    assert not (run / "summary.json").exists()


def edit(run, old, new):
    text = (run / "config.toml").read_text()
    assert old in text
    (run / "config.toml").write_text(text.replace(old, new))


def scribble(state):
    for path in state.rglob("*.round"):
        data = bytearray(path.read_bytes())
        data[-40] ^= 1
        path.write_bytes(bytes(data))


def test_an_interrupted_run_says_how_to_go_on(tmp_path):
    words = ["run", "experiments/digits.toml", "--set", "rounds=6", "--set", "clients.count=4"]
    out = ["--out", str(tmp_path / "run")]
    done = command_killed_at(2, *words, "--set", "checkpoint-every=2", *out, how=signal.SIGINT)
    assert done.returncode == 130
    assert done.stderr == f"error: interrupted; go on with: twinflower run --resume {tmp_path / 'run'}\n"
    with pytest.raises(SettingError, match="its run has not ended, --resume goes on with it"):
        redraw(tmp_path / "run")
    resume(tmp_path / "run")
    assert read_summary(tmp_path / "run")["finished"]


def test_a_deployed_run_is_not_resumed_here(tmp_path):
    keys = """
[data]
name = "own"
num-features = 3
num-classes = 2
file = "/site/rows.npz"
[clients]
count = 2
[partition]
name = "sizes"
sizes = "9, 9"
"""
    (tmp_path / "config.toml").write_text(keys)
    with pytest.raises(SettingError, match="the rows of data own are at deployed nodes only"):
        resume(tmp_path)
