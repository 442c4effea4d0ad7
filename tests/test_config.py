"""Settings: files override each other, a wrong key is an error that names it, and the hook's experiment is known to the batch."""

from __future__ import annotations

from pathlib import Path

import pytest

from loopstats import config, rule
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
