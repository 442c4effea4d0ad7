"""Settings: what a person may choose, read from files and validated; rules are not among it.

A room of its own because a wrong key must be an error that names the key and the mend, and because every result is
reproducible only with the settings that made it (`Settings.digest`). Files, each overriding the one before: built in
(the experiment of the packaged sample), the user's `loopstats.toml`, `./loopstats.toml`, `--config FILE`.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from loopstats import rule
from loopstats.errors import UsageError

HOUR_US = 3_600_000_000
DERIVED_VERSION = 1  # raised with every change of what the stages make of the same records
KINDS = frozenset({"edit", "verify", "execute", "communicate", "operate", "research", "read", "plan", "wait"})
DEFAULT_N_STAR = 200
DEFAULT_MATURITY_HOURS = 24
PRICE_LIBRARY = "genai-prices"
HIGHEST_PRICE = 1000


@dataclass(frozen=True)
class Experiment:
    """One experiment: the salt is a secret until it ends, the share is the treated one in basis points."""

    name: str
    salt: str
    share_bp: int = rule.SHARE_BP_DEFAULT
    n_star: int = DEFAULT_N_STAR

    @property
    def salt_id(self) -> str:
        """What the logs carry instead of the salt."""
        return rule.salt_id(self.salt)


class Rates(NamedTuple):
    """What a model's tokens cost, in micro-dollars per million tokens; None where that sort has no price."""

    input: int | None
    output: int | None
    cache_read: int | None
    cache_write: int | None


SAMPLE = Experiment("sample", "loopstats-sample", 5000, 400)


@dataclass(frozen=True)
class Nightly:
    """What `nightly` does where its options say nothing: limits of its gates, report, log, and a command on failure."""

    max_rejects: int | None = None
    stale_days: float = 7
    runs_days: float = 0
    report: str | None = None
    log: str | None = None
    on_fail: str | None = None


@dataclass(frozen=True)
class Settings:
    """Everything that a result depends on beside the lake, the rule and the as-of."""

    experiments: Mapping[str, Experiment] = field(default_factory=lambda: {SAMPLE.name: SAMPLE})
    maturity_us: int = DEFAULT_MATURITY_HOURS * HOUR_US
    tool_rows: Mapping[str, str] = field(default_factory=dict)
    sources: tuple[str, ...] = ()
    prices: Mapping[str, Rates] = field(default_factory=dict)
    paths: tuple[str, ...] = ()
    has_homes: bool = True
    nightly: Nightly = Nightly()

    @property
    def salts(self) -> dict[str, tuple[str, int]]:
        """salt_id -> (salt, treated share in basis points)."""
        return {e.salt_id: (e.salt, e.share_bp) for e in self.experiments.values()}

    @property
    def rule_digest(self) -> str:
        """Digest of the rule with the user's own tool rows."""
        return rule.digest(dict(self.tool_rows))

    @property
    def derived_digest(self) -> str:
        """Digest of what the derived tables depend on; a change makes all of them anew."""
        parts = {
            "version": DERIVED_VERSION,
            "rule": self.rule_digest,
            "maturity_us": self.maturity_us,
            "salts": sorted((e.salt_id, e.share_bp) for e in self.experiments.values()),
            "prices": [version(PRICE_LIBRARY), *sorted(self.prices.items())],
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def load(path: Path | None = None, user_path: Path | None = None, folder: Path | None = None) -> Settings:
    """Settings of the given files; a named `path` must exist, the others may."""
    merged: dict[str, Any] = {}
    used: list[str] = []
    for candidate in (user_path, folder / "loopstats.toml" if folder else None):
        if candidate is not None and candidate.is_file():
            _merge(merged, _read(candidate), candidate, used)
    if path is not None:
        if not path.is_file():
            raise UsageError(f"{path}: no such configuration file")
        _merge(merged, _read(path), path, used)
    return _settings(merged, tuple(used))


def _merge(merged: dict[str, Any], data: dict[str, Any], path: Path, used: list[str]) -> None:
    for section, value in data.items():
        if isinstance(value, dict):
            merged.setdefault(section, {}).update(value)
        else:
            merged[section] = value
    used.append(str(path))


def _read(path: Path) -> dict[str, Any]:
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not valid TOML ({error})") from error
    known = {"experiment", "tools", "maturity_hours", "hook", "segments", "prices", "lake", "ingest", "nightly"}
    for key in data:
        if key not in known:
            raise UsageError(f"{path}: unknown key {key!r}; known are {', '.join(sorted(known))}")
    _root(data.get("ingest"), "paths", path.parent)
    for key in ("report", "log"):
        _root(data.get("nightly"), key, path.parent)
    return data


def _root(section: Any, key: str, folder: Path) -> None:
    """Make paths of a section absolute: a file names them as seen from its own folder, `~` is the user's home."""
    value = section.get(key) if isinstance(section, dict) else None
    if isinstance(value, str):
        section[key] = str(folder.resolve() / Path(value).expanduser())
    elif isinstance(value, list):
        section[key] = [
            str(folder.resolve() / Path(one).expanduser()) if isinstance(one, str) else one for one in value
        ]


def _settings(data: dict[str, Any], sources: tuple[str, ...]) -> Settings:
    experiments = {SAMPLE.name: SAMPLE}
    sections = data.get("experiment", {})
    if not isinstance(sections, dict):
        raise UsageError("experiment: write [experiment.NAME] with salt, share_bp and n_star")
    hook = data.get("hook", {})
    if not isinstance(hook, dict):
        raise UsageError("hook: write [hook] with experiment, salt, share_bp and n_star")
    if "experiment" in hook and "salt" in hook and hook["experiment"] not in sections:
        terms = {key: hook[key] for key in ("salt", "share_bp", "n_star") if key in hook}
        experiments[str(hook["experiment"])] = _experiment(str(hook["experiment"]), terms)
    for name, section in sections.items():
        experiments[name] = _experiment(name, section)
    hours = data.get("maturity_hours", DEFAULT_MATURITY_HOURS)
    if not isinstance(hours, (int, float)) or isinstance(hours, bool) or not 0 < hours <= 24 * 365:
        raise UsageError(f"maturity_hours: a number of hours from 0 to 8760 is needed, not {hours!r}")
    tools = data.get("tools", {})
    if not isinstance(tools, dict):
        raise UsageError('tools: write [tools] with lines such as my_tool = "execute"')
    for tool, kind in tools.items():
        if kind not in KINDS:
            raise UsageError(f"tools.{tool}: {kind!r} is no kind; use one of {', '.join(sorted(KINDS))}")
    paths, has_homes = _ingest(data.get("ingest", {}))
    return Settings(
        experiments,
        round(hours * HOUR_US),
        dict(tools),
        sources,
        _prices(data.get("prices", {})),
        paths,
        has_homes,
        _nightly(data.get("nightly", {})),
    )


def _ingest(section: Any) -> tuple[tuple[str, ...], bool]:
    """Paths that are read when none is named, and whether the homes of installed agents are read too."""
    if not isinstance(section, dict):
        raise UsageError('ingest: write [ingest] with paths = ["FOLDER"] and homes = true or false')
    for key in section:
        if key not in ("paths", "homes"):
            raise UsageError(f"ingest.{key}: unknown key; known are homes, paths")
    paths, homes = section.get("paths", []), section.get("homes", True)
    if not isinstance(paths, list) or not all(isinstance(path, str) and path for path in paths):
        raise UsageError(f'ingest.paths: a list of files and folders is needed, e.g. ["~/logs"], not {paths!r}')
    if not isinstance(homes, bool):
        raise UsageError(f"ingest.homes: true or false is needed, not {homes!r}")
    return tuple(paths), homes


def _nightly(section: Any) -> Nightly:
    known = list(Nightly.__dataclass_fields__)
    if not isinstance(section, dict):
        raise UsageError(f"nightly: write [nightly] with some of {', '.join(known)}")
    for key, value in section.items():
        if key not in known:
            raise UsageError(f"nightly.{key}: unknown key; known are {', '.join(sorted(known))}")
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if key == "max_rejects" and not (is_number and isinstance(value, int) and value >= 0):
            raise UsageError(f"nightly.max_rejects: a whole number from 0 on is needed, not {value!r}")
        if key in ("stale_days", "runs_days") and not (is_number and 0 <= value <= 3650):
            raise UsageError(f"nightly.{key}: a number of days from 0 (off) to 3650 is needed, not {value!r}")
        if key in ("report", "log", "on_fail") and not (isinstance(value, str) and value.strip()):
            raise UsageError(f"nightly.{key}: a text is needed, not {value!r}")
    return Nightly(**section)


def _experiment(name: str, section: Any) -> Experiment:
    if not isinstance(section, dict):
        raise UsageError(f"experiment.{name}: write [experiment.{name}] with salt, share_bp and n_star")
    for key in section:
        if key not in ("salt", "share_bp", "n_star"):
            raise UsageError(f"experiment.{name}.{key}: unknown key; known are salt, share_bp, n_star")
    salt, share, n_star = (
        section.get("salt"),
        section.get("share_bp", rule.SHARE_BP_DEFAULT),
        section.get("n_star", DEFAULT_N_STAR),
    )
    if not isinstance(salt, str) or "|" in salt:
        raise UsageError(f"experiment.{name}.salt: a text without '|' is needed")
    if not isinstance(share, int) or isinstance(share, bool) or not 0 < share < 10_000:
        raise UsageError(f"experiment.{name}.share_bp: a whole number from 1 to 9999 is needed, not {share!r}")
    if not isinstance(n_star, int) or isinstance(n_star, bool) or n_star < 10:
        raise UsageError(f"experiment.{name}.n_star: a whole number from 10 on is needed, not {n_star!r}")
    return Experiment(name, salt, share, n_star)


def _prices(sections: Any) -> dict[str, Rates]:
    """The user's own prices by model, as logged."""
    shape = "with input, output, cache_read and cache_write in dollars per million tokens"
    if not isinstance(sections, dict):
        raise UsageError(f'prices: write [prices."MODEL"] {shape}')
    prices = {}
    for model, section in sections.items():
        key = f'prices."{model}"'
        if not isinstance(section, dict):
            raise UsageError(f"{key}: write [{key}] {shape}")
        for name in section:
            if name not in Rates._fields:
                raise UsageError(f"{key}.{name}: unknown key; known are {', '.join(Rates._fields)}")
        for name in ("input", "output"):
            if name not in section:
                raise UsageError(f"{key}.{name}: missing; input and output are needed, in dollars per million tokens")
        # Cached input costs what other input costs, where nobody says otherwise.
        full = {"cache_read": section["input"], "cache_write": section["input"]} | section
        prices[model] = Rates(*[_micros(f"{key}.{name}", full[name]) for name in Rates._fields])
    return prices


def _micros(key: str, value: Any) -> int:
    """Dollars per million tokens as whole micro-dollars per million tokens."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= HIGHEST_PRICE:
        raise UsageError(f"{key}: dollars per million tokens are needed, from 0 to {HIGHEST_PRICE}, not {value!r}")
    micros = Decimal(str(value)) * 1_000_000
    if micros != int(micros):
        raise UsageError(f"{key}: at most six decimals are kept, not {value!r}")
    return int(micros)
