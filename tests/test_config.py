"""Settings: each place overrides the one before, a wrong key is one line that names file, key and mend, and is exit 2."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from loopstats import cli, config, hook, rule
from loopstats.errors import UsageError


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_later_files_override_earlier_ones(tmp_path: Path) -> None:
    user = write(tmp_path / "user.toml", '[experiment.a]\nsalt = "one"\nshare_bp = 2000\n')
    folder = tmp_path / "project"
    folder.mkdir()
    write(folder / "loopstats.toml", 'maturity_hours = 48\n[experiment.b]\nsalt = "two"\n')
    named = write(tmp_path / "named.toml", '[experiment.a]\nsalt = "three"\n')
    settings = config.load(named, user, folder)
    assert settings.maturity_us == 48 * config.HOUR_US
    assert settings.experiments["a"] == config.Experiment("a", "three", 5000, 200)
    assert settings.experiments["b"].salt_id == rule.salt_id("two")


def test_the_hook_s_experiment_is_known_to_the_batch(tmp_path: Path) -> None:
    path = write(tmp_path / "c.toml", '[hook]\nexperiment = "live"\nsalt = "s3"\nshare_bp = 7000\nn_star = 300\n')
    assert config.load(path).experiments["live"] == config.Experiment("live", "s3", 7000, 300)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("nonsense = 1\n", "nonsense"),
        ("maturity_hours = -1\n", "maturity_hours"),
        ("maturity_hours = true\n", "maturity_hours"),
        ('[tools]\nx = "fly"\n', "tools.x"),
        ("[experiment.e]\nshare_bp = 1\n", "experiment.e.salt"),
        ('[experiment.e]\nsalt = "a|b"\n', "experiment.e.salt"),
        ('[experiment.e]\nsalt = "a"\nshare_bp = 10000\n', "experiment.e.share_bp"),
        ('[experiment.e]\nsalt = "a"\nn_star = 3\n', "experiment.e.n_star"),
        ('[experiment.e]\nsalt = "a"\ncolour = "red"\n', "experiment.e.colour"),
        ("experiment = 3\n", "experiment"),
        ("hook = 3\n", "hook"),
        ("= broken", "TOML"),
    ],
)
def test_a_wrong_key_is_named(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(UsageError, match=named.replace(".", r"\.")):
        config.load(write(tmp_path / "c.toml", text))


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere\.toml"):
        config.load(tmp_path / "nowhere.toml")


def test_what_changes_the_derived_tables_changes_their_digest() -> None:
    plain = config.Settings()
    assert plain.derived_digest == config.Settings().derived_digest
    others = [
        config.Settings(maturity_us=1),
        config.Settings(tool_rows={"x": "read"}),
        config.Settings(experiments={"e": config.Experiment("e", "s")}),
    ]
    assert len({plain.derived_digest, *(other.derived_digest for other in others)}) == 4


Show = Callable[..., tuple[int, str, str]]


@pytest.fixture
def show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Show:
    """`loopstats ... config` in a home and a repository of its own: exit code, stdout, stderr."""
    for name in [name for name in os.environ if name.startswith("LOOPSTATS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    (tmp_path / "home" / "loopstats").mkdir(parents=True)
    (tmp_path / "repository" / ".git").mkdir(parents=True)
    (tmp_path / "repository" / "deep" / "er").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "repository" / "deep" / "er")

    def run(*arguments: str) -> tuple[int, str, str]:
        code = cli.run_command([*arguments, "config"] if "config" not in arguments else list(arguments))
        sys.stdout.flush()
        return code, *capfd.readouterr()

    return run


def shown(told: tuple[int, str, str]) -> dict[str, tuple[str, str]]:
    assert told[0] == 0, told[2]
    return {row["key"]: (row["value"], row["source"]) for row in json.loads(told[1])["rows"]}


def test_each_place_overrides_the_one_before_and_is_named(
    tmp_path: Path, show: Show, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "repository"
    places = [
        ("default", lambda: None),
        (str(tmp_path / "home" / "loopstats" / "loopstats.toml"), None),
        (str(root / "loopstats.toml"), None),
        (str(root / "loopstats.local.toml"), None),
        ("one.toml", None),
        ("LOOPSTATS_TZ", lambda: monkeypatch.setenv("LOOPSTATS_TZ", "Asia/Tokyo")),
        ("--tz", None),
    ]
    flags: list[str] = []
    for number, (place, act) in enumerate(places):
        zone = f"Etc/GMT+{number}"
        if act:
            act()
        elif place == "--tz":
            flags += ["--tz", zone]
        else:
            write(Path(place), f'tz = "{zone}"\n')
            flags += ["--config", place] if place == "one.toml" else []
        value, source = shown(show(*flags, "config", "--json"))["tz"]
        assert source == place
        assert value == {"default": "UTC", "LOOPSTATS_TZ": "Asia/Tokyo"}.get(place, zone)
    found = json.loads(show("config", "--path", "--json", "--config", "one.toml")[1])["rows"]
    assert [(row["file"], row["is_there"]) for row in found] == [(place, True) for place, _ in places[1:5]]


def test_a_projects_file_is_looked_for_up_to_the_repositorys_root_only(
    tmp_path: Path, show: Show, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "loopstats.toml", "maturity_hours = 1\n")
    assert shown(show("config", "--json"))["maturity_hours"] == ("24", "default")
    nearest = write(tmp_path / "repository" / "deep" / "loopstats.local.toml", "maturity_hours = 2\n")
    write(tmp_path / "repository" / "loopstats.toml", "maturity_hours = 3\n")
    assert shown(show("config", "--json"))["maturity_hours"] == ("2", str(nearest))
    # The hook reads the same files, and knows which are a project's: their paths are relative.
    assert hook.config_files({"XDG_CONFIG_HOME": str(tmp_path / "home")}) == ["../loopstats.local.toml"]
    (tmp_path / "repository" / ".git").rmdir()
    assert shown(show("config", "--json"))["maturity_hours"] == ("24", "default")
    here = write(Path("loopstats.toml").absolute(), "maturity_hours = 4\n")
    assert shown(show("config", "--json"))["maturity_hours"] == ("4", str(here))


def test_a_project_may_name_a_lake_below_itself_only(tmp_path: Path, show: Show) -> None:
    root = tmp_path / "repository"
    file = write(root / "loopstats.toml", 'lake = "data/lake"\n')
    assert shown(show("config", "--json"))["lake"] == (str(root / "data" / "lake"), str(file))
    for place in ("..", ".", "/tmp/elsewhere", "~/lake", "a/../../b"):
        write(file, f'lake = "{place}"\n')
        code, out, err = show()
        assert (code, out, err.count("\n")) == (2, "", 1) and "below its own" in err
    file.unlink()
    (root / "link").symlink_to(tmp_path)
    write(file, 'lake = "link/lake"\n')
    assert show()[0] == 2
    own = write(tmp_path / "home" / "loopstats" / "loopstats.toml", 'lake = "/srv/lake"\n')
    file.unlink()
    assert shown(show("config", "--json"))["lake"] == ("/srv/lake", str(own))


@pytest.mark.parametrize("key", [key for key in config.KEYS if key.is_own], ids=lambda key: key.name)
def test_what_is_the_users_own_is_refused_in_a_project(key: config.Key, tmp_path: Path, show: Show) -> None:
    section, name = key.parts
    text = f"[{section}]\n{name} = {key.example}\n"
    write(tmp_path / "repository" / "loopstats.toml", text)
    code, _, err = show()
    assert code == 2 and f"loopstats.toml:2: {key.name}: a project's file may not say this" in err
    (tmp_path / "repository" / "loopstats.toml").rename(tmp_path / "home" / "loopstats" / "loopstats.toml")
    assert show()[0] == 0


def test_what_reaches_beyond_a_project_is_the_users_own() -> None:
    """Where the live side writes, and what a night runs or writes: never by a file that came with a checkout."""
    assert {key.name for key in config.KEYS if key.is_own} == {
        *(f"hook.{name}" for name in ("spool", "texts", "fsync")),
        *(f"nightly.{name}" for name in ("report", "log", "on_fail")),
    }


def test_paths_are_seen_from_the_folder_of_their_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    (tmp_path / "deep").mkdir()
    text = (
        '[ingest]\npaths = ["logs", "~/more", "/srv/x"]\nhomes = false\n[nightly]\nreport = "r.html"\nruns_days = 1\n'
    )
    settings = config.load(write(tmp_path / "deep" / "c.toml", text))
    assert settings.paths == (str(tmp_path / "deep" / "logs"), str(tmp_path / "me" / "more"), "/srv/x")
    assert settings.has_homes is False
    assert settings.nightly == config.Nightly(report=str(tmp_path / "deep" / "r.html"), runs_days=1)


def test_a_salt_is_never_shown(tmp_path: Path, show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "repository" / "loopstats.toml", '[experiment.a]\nsalt = "peppercorn"\n')
    monkeypatch.setenv("LOOPSTATS_EXPERIMENT", '{"experiment": "b", "salt": "peppermint", "share_bp": 7000}')
    for form in ("table", "json", "csv", "md"):
        code, out, err = show("config", "-f", form)
        assert code == 0 and "pepper" not in out + err
    rows = shown(show("config", "--json"))
    assert rows["experiment.a.salt"][0].endswith(rule.salt_id("peppercorn"))
    assert rows["hook.salt"] == (f"hidden, its id is {rule.salt_id('peppermint')}", "LOOPSTATS_EXPERIMENT")
    assert rows["hook.share_bp"] == ("7000", "LOOPSTATS_EXPERIMENT")
    write(tmp_path / "repository" / "loopstats.toml", '[experiment.a]\nsalt = "pepper|mill"\n')
    assert "pepper" not in show()[2]


def test_the_session_s_experiment_is_known_to_the_batch() -> None:
    given = config.gather(environment={"LOOPSTATS_EXPERIMENT": '{"experiment": "b", "salt": "s", "n_star": 300}'})
    assert given.settings().experiments["b"] == config.Experiment("b", "s", 5000, 300)


BAD: list[tuple[bytes, str]] = [
    (b"maturity_hour = 3\n", ":1: maturity_hour: unknown key; did you mean maturity_hours?"),
    (b"\n\nmaturity-hours = 3\n", ":3: maturity-hours: unknown key; did you mean maturity_hours?"),
    (
        b'[experiment.e]\nsalt = "s"\nshare = 3\n',
        ":3: experiment.e.share: unknown key; did you mean experiment.e.share_bp?",
    ),
    (b"share_bp = 3\n", ":1: share_bp: unknown key; did you mean experiment.NAME.share_bp?"),
    (b"[hooks]\n", ":1: hooks: unknown key; did you mean hook?"),
    (b"zzz = 1\n", ":1: zzz: unknown key; `loopstats config` lists all"),
    (b'"a\\u001b[31m" = 1\n', "unknown key"),
    (b'maturity_hours = "3"\n', ":1: maturity_hours: a number of hours from 0 to 8760 is needed, not '3'"),
    (b"maturity_hours = nan\n", ":1: maturity_hours: a number of hours"),
    (b"maturity_hours = [1]\n", ":1: maturity_hours: a number of hours"),
    (b"[maturity_hours]\nx = 1\n", ":1: maturity_hours: a number of hours"),
    (b'tools = "x"\n', ":1: tools: a table is needed: write [tools] with NAME"),
    (b"[hook]\nn_star = 1.5\n", ":2: hook.n_star: a whole number from 10 on is needed, not 1.5"),
    (b"[prices.m]\ninput = 1\n", ":1: prices.m.output: missing"),
    (b'color = "pink"\n', ":1: color: one of auto, always, never is needed"),
    (b'[ingest]\npaths = "logs"\n', ":2: ingest.paths: a list of files and folders is needed, not 'logs'"),
    (b'[ingest]\npaths = [""]\n', ":2: ingest.paths: a list of files and folders is needed"),
    (b'[ingest]\npath = ["logs"]\n', ":2: ingest.path: unknown key; did you mean ingest.paths?"),
    (b"[ingest]\nhomes = 1\n", ":2: ingest.homes: true or false is needed, not 1"),
    (b"[nightly]\nmax_rejects = -1\n", ":2: nightly.max_rejects: a whole number from 0 on is needed, not -1"),
    (b"[nightly]\nstale_days = true\n", ":2: nightly.stale_days: a number of days from 0 (off) to 3650 is needed"),
    (b"[nightly]\nruns_days = 4000\n", ":2: nightly.runs_days: a number of days"),
    (b'[nightly]\non-fail = "x"\n', ":2: nightly.on-fail: unknown key; did you mean nightly.on_fail?"),
    (b"a = \n", "not valid TOML (Invalid value (at line 1, column 5))"),
    (b"a = 1\na = 2\n", "not valid TOML"),
    (b"ok = 1\n\xff\n", ":2: not UTF-8"),
    (b"a = " + b"[" * 100_000, "not valid TOML"),
    (b"a = 1" + b"0" * 5000, "not valid TOML"),
    (b"#" * (1 << 20) + b"\n", "larger than 1 MB"),
]


@pytest.mark.parametrize(("data", "says"), BAD, ids=[says[:40] for _, says in BAD])
def test_a_wrong_file_is_one_line_and_exit_2(data: bytes, says: str, tmp_path: Path, show: Show) -> None:
    file = tmp_path / "repository" / "loopstats.toml"
    file.write_bytes(data)
    code, out, err = show()
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert err.startswith(f"loopstats: {file}") and says in err and len(err) < 400
    assert "\x1b" not in err


def test_what_is_no_file_is_refused(tmp_path: Path, show: Show) -> None:
    file = tmp_path / "repository" / "loopstats.toml"
    file.mkdir()
    code, _, err = show()
    assert (code, err) == (2, f"loopstats: {file}: a folder; a file in TOML is needed\n")
    file.rmdir()
    file.symlink_to("nowhere")
    assert show()[0] == 2
    file.unlink()
    # Reading its first bytes is an I/O error, whoever asks.
    file.symlink_to("/proc/self/mem")
    code, _, err = show()
    assert code == 2 and "cannot be read" in err


def test_a_byte_order_mark_is_no_fault(tmp_path: Path, show: Show) -> None:
    (tmp_path / "repository" / "loopstats.toml").write_bytes(b"\xef\xbb\xbfmaturity_hours = 3\n")
    assert shown(show("config", "--json"))["maturity_hours"][0] == "3"


@pytest.mark.parametrize(
    ("name", "value", "code", "says"),
    [
        ("LOOPSTATS_MATURITY_HOURS", "soon", 2, "LOOPSTATS_MATURITY_HOURS: a number of hours from 0 to 8760 is needed"),
        ("LOOPSTATS_COLOR", "pink", 2, "LOOPSTATS_COLOR: one of auto"),
        ("LOOPSTATS_EXPERIMENT", "{", 2, "LOOPSTATS_EXPERIMENT: not valid JSON"),
        ("LOOPSTATS_EXPERIMENT", '{"salt": 1}', 2, "LOOPSTATS_EXPERIMENT: hook.salt: a text without '|' is needed"),
        ("LOOPSTATS_CONFIG", "nowhere.toml", 2, "nowhere.toml: no such configuration file"),
        ("LOOPSTATS_MATURTY_HOURS", "3", 0, "unknown variable; did you mean LOOPSTATS_MATURITY_HOURS?"),
        ("LOOPSTATS_TZ", "", 0, ""),
    ],
)
def test_the_environment_is_checked_too(
    name: str, value: str, code: int, says: str, show: Show, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    found, _, err = show()
    assert found == code and says in err and err.count("\n") == (1 if says else 0)


@pytest.mark.parametrize("key", config.KEYS, ids=lambda key: key.name)
def test_every_key_takes_its_example_and_refuses_another_type(key: config.Key, tmp_path: Path) -> None:
    path = tuple("any" if part == config.NAME else part for part in key.parts)
    needed = {"experiment": {"salt": '"s"'}, "prices": {"input": "1", "output": "2"}}.get(path[0], {})
    for value, is_right in ((key.example, True), ("[[1]]", False), ("1979-05-27", False)):
        told = {**needed, path[-1]: value} if len(path) == 3 else {path[-1]: value}
        head = f"[{'.'.join(path[:-1])}]\n" if path[:-1] else ""
        file = write(tmp_path / "c.toml", head + "".join(f"{name} = {text}\n" for name, text in told.items()))
        if is_right:
            assert config.gather(file).values[path].source == str(file)
        else:
            with pytest.raises(UsageError, match=f"{path[-1]}: .* is needed"):
                config.gather(file)
