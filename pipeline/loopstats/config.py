"""Settings: what a person may choose, read from files and the environment and validated; rules are not among it.

A room of its own because a wrong key must be an error that names the file, the key and the mend, and because every
result is reproducible only with the settings that made it (`Settings.derived_digest`). `KEYS` is the one list of what
there is: reading, `loopstats config`, and docs/configuration.md take everything from it. Each place overrides the one
before: built in, the user's `loopstats.toml`, the project's `loopstats.toml`, `loopstats.local.toml` beside it,
`--config FILE`, environment, flags. An experiment and a model's prices are overridden whole.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from loopstats import rule
from loopstats.errors import UsageError
from loopstats.hook import LOCAL_FILE, PROJECT_FILE, TOKEN, project_files

__all__ = [
    "KEYS",
    "LOCAL_FILE",
    "PROJECT_FILE",
    "SAMPLE",
    "Experiment",
    "Given",
    "Key",
    "Rates",
    "Settings",
    "gather",
    "load",
    "project_files",
    "unknown_variables",
]

HOUR_US = 3_600_000_000
DERIVED_VERSION = 1  # raised with every change of what the stages make of the same records
KINDS = frozenset({"edit", "verify", "execute", "communicate", "operate", "research", "read", "plan", "wait"})
DEFAULT_N_STAR = 200
DEFAULT_MATURITY_HOURS = 24
PRICE_LIBRARY = "genai-prices"
HIGHEST_PRICE = 1000
MOST_BYTES = 1 << 20
MOST_LINES_SEARCHED = 2_000
NAME = "NAME"
HIDDEN = "hidden"
DEFAULT = "default"
PREFIX = "LOOPSTATS_"
# What the program reads from the environment beside the keys.
OTHER_VARIABLES = {
    "LOOPSTATS_CONFIG": "as `--config FILE`",
    "LOOPSTATS_DEBUG": "1: an error tells its whole traceback and text, which may be text of a log; secrets are masked",
    "LOOPSTATS_DISABLE": "1: the live hook does nothing",
    "LOOPSTATS_EXPERIMENT": "the keys of `[hook]` as a JSON object, for one session of an agent",
    "LOOPSTATS_NIGHTLY_EXIT_CODE": "set for the command of `--on-fail`: how the night ended",
    "LOOPSTATS_NIGHTLY_GATES": "set for it: the gates that failed, with commas",
    "LOOPSTATS_NIGHTLY_LOG": "set for it: the log of nights",
    "LOOPSTATS_NIGHTLY_STARTED": "set for it: when the night began",
}


class Kind(NamedTuple):
    """A sort of value: its name, what is needed in words, whether a value of TOML is right, and how a text reads."""

    name: str
    needs: str
    is_right: Callable[[Any], bool]
    from_text: Callable[[str], Any]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_price(value: Any) -> bool:
    return _is_number(value) and 0 <= value <= HIGHEST_PRICE and _micros(value) == int(_micros(value))


def _micros(value: Any) -> Decimal:
    return Decimal(str(value)) * 1_000_000


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) and _is_text(item) for item in value)


def _is_text(value: str) -> bool:
    """Not empty, and without the character that ends a path or an argument for the system."""
    return bool(value) and "\0" not in value


def number(needs: str, is_right: Callable[[Any], bool]) -> Kind:
    """A whole or broken number that meets `is_right`."""
    return Kind("number", needs, lambda v: _is_number(v) and is_right(v), float)


def whole(needs: str, low: int, high: int | None = None) -> Kind:
    """A whole number from `low` to `high`, both included."""
    return Kind("whole number", needs, lambda v: type(v) is int and low <= v and (high is None or v <= high), int)


def text(needs: str = "a text", is_right: Callable[[str], bool] = _is_text) -> Kind:
    """A text that meets `is_right`."""
    return Kind("text", needs, lambda v: isinstance(v, str) and is_right(v), str)


def one_of(words: tuple[str, ...]) -> Kind:
    """One of some words."""
    return Kind("text", f"one of {', '.join(words)}", lambda v: v in words, str)


def texts(needs: str = "a list of texts") -> Kind:
    """A list of texts that are not empty; in the environment parted like a search path."""
    return Kind("list", needs, _is_list, lambda raw: [part for part in raw.split(os.pathsep) if part])


FLAG = Kind("true or false", "true or false", lambda v: isinstance(v, bool), lambda raw: raw != "0")
SALT = text("a text without '|'", lambda v: "|" not in v)
SHARE = whole("a whole number from 1 to 9999", 1, 9999)
PLANNED = whole("a whole number from 10 on", 10)
HOURS = number("a number of hours from 0 to 8760", lambda v: 0 < v <= 24 * 365)
DAYS = number("a number of days from 0 (off) to 3650", lambda v: 0 <= v <= 3650)
PRICE = Kind(
    "number",
    f"a price in dollars per million tokens, from 0 to {HIGHEST_PRICE} with at most six decimals,",
    _is_price,
    float,
)


@dataclass(frozen=True)
class Key:
    """One key. `name` is dotted, with NAME where the user names something; `default` None is none.

    `example` is a value in TOML; `environment` and `flag` say the same from elsewhere; `is_own` keys are taken from
    the user's own file, `--config` and the environment only, since a checked-out folder is not to be trusted with them.
    `is_path`: a file names it as seen from its own folder, `~` is the user's home.
    """

    name: str
    kind: Kind
    default: Any
    about: str
    example: str
    environment: str = ""
    flag: str = ""
    is_secret: bool = False
    is_own: bool = False
    is_path: bool = False

    @property
    def parts(self) -> tuple[str, ...]:
        """The name at its dots."""
        return tuple(self.name.split("."))


KEYS: tuple[Key, ...] = (
    Key("lake", text("a folder"), None, "Folder of the lake; in a project's file below that file's own folder. By "
        "default in the user's data folder", '"lake"', "LOOPSTATS_LAKE", "--lake"),
    Key("tz", text("a zone such as Europe/Berlin"), "UTC", "Zone in which dates of the command line are read",
        '"Europe/Berlin"', "LOOPSTATS_TZ", "--tz"),
    Key("color", one_of(("auto", "always", "never")), "auto", "Colours on stdout; `auto` obeys NO_COLOR", '"never"',
        "LOOPSTATS_COLOR", "--color"),
    Key("maturity_hours", HOURS, DEFAULT_MATURITY_HOURS, "Hours in which an outcome of a loop counts", "48",
        "LOOPSTATS_MATURITY_HOURS"),
    Key("experiment.NAME.salt", SALT, None, "Secret from which the arms are drawn; needed", '"kept secret"',
        is_secret=True),
    Key("experiment.NAME.share_bp", SHARE, rule.SHARE_BP_DEFAULT, "Treated share in basis points", "5000"),
    Key("experiment.NAME.n_star", PLANNED, DEFAULT_N_STAR, "Planned number of loops in both arms together", "400"),
    Key("tools.NAME", one_of(tuple(sorted(KINDS))), None, "Kind of a tool that nothing else classifies", '"execute"'),
    Key("prices.NAME.input", PRICE, None, "Price of a model's input, in dollars per million tokens; needed", "3.0"),
    Key("prices.NAME.output", PRICE, None, "Price of its output; needed", "15.0"),
    Key("prices.NAME.cache_read", PRICE, None, "Price of input read from the cache; else that of input", "0.3"),
    Key("prices.NAME.cache_write", PRICE, None, "Price of input written to the cache; else that of input", "3.75"),
    Key("hook.experiment", text("the name of an experiment"), None, "Experiment that the live hook enrols sessions in",
        '"hint-1"'),
    Key("hook.salt", SALT, None, "Secret from which its arms are drawn; needed with it", '"kept secret"',
        is_secret=True),
    Key("hook.share_bp", SHARE, rule.SHARE_BP_DEFAULT, "Treated share of that experiment in basis points", "5000"),
    Key("hook.n_star", PLANNED, DEFAULT_N_STAR, "Planned number of loops of that experiment", "400"),
    Key("hook.epoch", text(), None, "Allocation epoch that the hook logs", '"2"'),
    Key("hook.spool", text("a folder"), None, "Folder that the hook writes to; by default in the user's data folder",
        '"/home/me/spool"', "LOOPSTATS_SPOOL", is_own=True),
    Key("hook.texts", text("a file"), None, "File with other texts than the packaged ones", '"/home/me/texts.json"',
        "LOOPSTATS_TEXTS", is_own=True),
    Key("hook.fsync", FLAG, False, "Write each event through to the disk", "true", "LOOPSTATS_FSYNC", is_own=True),
    Key("ingest.paths", texts("a list of files and folders"), (), "What `ingest` and `nightly` read where no path is "
        "named, beside the homes; a path is seen from the file's own folder", '["~/logs"]', is_path=True),
    Key("ingest.homes", FLAG, True, "Whether the homes of the installed agents are read too", "false"),
    Key("nightly.max_rejects", whole("a whole number from 0 on", 0), None, "More rejects fail the night", "100"),
    Key("nightly.stale_days", DAYS, 7, "The night fails when nothing new came for so many days; 0 is off", "14"),
    Key("nightly.runs_days", DAYS, 0, "Days over which runs are compared with the days before; 0 is off", "7"),
    Key("nightly.report", text("a file"), None, "The HTML page that each night writes", '"~/loopstats.html"',
        is_own=True, is_path=True),
    Key("nightly.log", text("a file"), None, "The log that gets a line a night", '"~/loopstats.jsonl"', is_own=True,
        is_path=True),
    Key("nightly.on_fail", text("a command"), None, "Command that is run when a night fails", '"notify-me"',
        is_own=True),
)  # fmt: skip
HOOK_KEYS = tuple(key.parts[1] for key in KEYS if key.parts[0] == "hook")
# Prices and experiments hold together: a file that names one says all of it.
WHOLE = ("experiment", "prices")


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


class Value(NamedTuple):
    """One value that somebody gave; `source` is a file, an environment variable or a flag."""

    value: Any
    source: str


@dataclass(frozen=True)
class Given:
    """What files, environment and flags say: values by their path, for instance `("experiment", "a", "salt")`."""

    values: Mapping[tuple[str, ...], Value]
    files: tuple[str, ...] = ()

    def get(self, name: str) -> Any:
        """The value of a key that has no NAME in it, or its default."""
        (key,) = (key for key in KEYS if key.name == name)
        found = self.values.get(key.parts)
        return key.default if found is None else found.value

    def named(self, section: str) -> list[str]:
        """The user's names in `[section]`, in their order."""
        return list(dict.fromkeys(path[1] for path in self.values if path[0] == section))

    def section(self, *path: str) -> dict[str, Any]:
        """The values directly under a path, by the last part of their key."""
        return {at[-1]: found.value for at, found in self.values.items() if at[:-1] == path}

    def settings(self) -> Settings:
        """What results depend on."""
        experiments = {SAMPLE.name: SAMPLE}
        hook, named = self.section("hook"), self.named("experiment")
        if "experiment" in hook and "salt" in hook and hook["experiment"] not in named:
            terms = {key: hook[key] for key in ("salt", "share_bp", "n_star") if key in hook}
            experiments[hook["experiment"]] = Experiment(hook["experiment"], **terms)
        for name in named:
            experiments[name] = Experiment(name, **self.section("experiment", name))
        prices = {}
        for model in self.named("prices"):
            # Cached input costs what other input costs, where nobody says otherwise.
            told = self.section("prices", model)
            full = {"cache_read": told["input"], "cache_write": told["input"]} | told
            prices[model] = Rates(*[int(_micros(full[name])) for name in Rates._fields])
        maturity_us = round(self.get("maturity_hours") * HOUR_US)
        paths, nightly = tuple(self.get("ingest.paths")), Nightly(**self.section("nightly"))
        homes = bool(self.get("ingest.homes"))
        return Settings(experiments, maturity_us, self.section("tools"), self.files, prices, paths, homes, nightly)

    def rows(self) -> Iterator[tuple[str, str | None, str]]:
        """Every key with its value (a text as it is, else JSON) and its source; of a secret only the id is told."""
        for key in KEYS:
            if NAME not in key.parts:
                found = self.values.get(key.parts, Value(key.default, DEFAULT))
                yield key.name, _told(key, found.value), found.source
        for section in dict.fromkeys(key.parts[0] for key in KEYS if NAME in key.parts):
            names = self.named(section)
            for name in names if section != "experiment" or SAMPLE.name in names else [SAMPLE.name, *names]:
                for key in KEYS:
                    if key.parts[0] == section:
                        path = (section, name, *key.parts[2:])
                        is_built_in = section == "experiment" and name not in names
                        value = getattr(SAMPLE, path[-1]) if is_built_in else key.default
                        found = self.values.get(path, Value(value, DEFAULT))
                        yield dotted(path), _told(key, found.value), found.source


def _told(key: Key, value: Any) -> str | None:
    if value is None:
        return None
    if key.is_secret:
        return f"{HIDDEN}, its id is {rule.salt_id(value)}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def load(path: Path | None = None, user_path: Path | None = None, folder: Path | None = None) -> Settings:
    """Settings of the given files; a named `path` must exist, the others may. The environment is not asked."""
    return gather(path, user_path, folder).settings()


def gather(
    path: Path | None = None,
    user_path: Path | None = None,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, str] | None = None,
) -> Given:
    """What all places say, the later over the earlier; UsageError names the place, the key and the mend.

    `folder` is where the search for the project's files begins, `flags` are values by option, for instance `--lake`.
    """
    values: dict[tuple[str, ...], Value] = {}
    files: list[str] = []
    projects = [Path(name) for name in project_files(str(folder))] if folder else []
    for file in [*([user_path] if user_path else []), *projects, *([path] if path else [])]:
        # A link that leads nowhere was meant to be a file.
        if not os.path.lexists(file) and file != path:
            continue
        told = _values(file, is_foreign=file in projects)
        for whole_path in {at[:2] for at in told if at[0] in WHOLE}:
            values = {at: found for at, found in values.items() if at[:2] != whole_path}
        values |= told
        files.append(str(file))
    values |= _from_environment(environment or {})
    for option, raw in (flags or {}).items():
        (key,) = (key for key in KEYS if key.flag == option)
        values[key.parts] = Value(_read_text(key, raw, option), option)
    return Given(values, tuple(files))


def _from_environment(environment: Mapping[str, str]) -> dict[tuple[str, ...], Value]:
    values = {}
    if token := environment.get(TOKEN):
        try:
            told = json.loads(token)
        except ValueError as error:
            raise UsageError(f"{TOKEN}: not valid JSON ({error}); see `loopstats hook --help`") from error
        if not isinstance(told, dict):
            raise UsageError(f"{TOKEN}: a JSON object with experiment, salt, share_bp and n_star is needed")
        for path, value in _walk({"hook": told}, (), TOKEN, is_foreign=False):
            values[path] = Value(value, TOKEN)
    for key in KEYS:
        if key.environment and (raw := environment.get(key.environment)):
            values[key.parts] = Value(_read_text(key, raw, key.environment), key.environment)
    return values


def _read_text(key: Key, raw: str, where: str) -> Any:
    try:
        value = key.kind.from_text(raw)
    except ValueError:
        value = raw
    if not key.kind.is_right(value):
        raise UsageError(f"{where}: {key.kind.needs} is needed, not {raw!r}")
    return value


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """A line for each variable with the program's prefix that it does not know."""
    known = {*OTHER_VARIABLES, *(key.environment for key in KEYS)}
    names = sorted(name for name in environment if name.startswith(PREFIX) and name not in known)
    return [f"{name}: unknown variable{_meant(name, sorted(known))}" for name in names]


class _Wrong(Exception):
    """A key that cannot be used: its path, and what to say."""

    def __init__(self, path: tuple[str, ...], says: str) -> None:
        super().__init__(says)
        self.path = path


def _values(file: Path, is_foreign: bool) -> dict[tuple[str, ...], Value]:
    written, data = _read(file)
    try:
        found = dict(_walk(data, (), str(file), is_foreign))
        _check_whole(data)
    except _Wrong as error:
        line = _line_of(written, error.path)
        raise UsageError(f"{file}{f':{line}' if line else ''}: {error}") from error
    if ("lake",) in found:
        found["lake",] = _lake_of(file, found["lake",], is_foreign)
    return {path: Value(value, str(file)) for path, value in found.items()}


def _lake_of(file: Path, value: str, is_foreign: bool) -> str:
    """The lake that a file names; a project's file must not send what is written to any other place."""
    folder = file.resolve().parent
    lake = (folder / Path(value).expanduser()).resolve()
    if is_foreign and not (lake != folder and lake.is_relative_to(folder)):
        raise UsageError(
            f"{file}: lake: a project's file may only name a folder below its own, not {value!r}; "
            "say it in the user's file, with --lake or in LOOPSTATS_LAKE"
        )
    return str(lake)


def _read(file: Path) -> tuple[str, dict[str, Any]]:
    """Text and content of a file; UsageError where it is none that can be a configuration."""
    if not file.exists():
        raise UsageError(f"{file}: no such configuration file")
    if not file.is_file():
        raise UsageError(f"{file}: {'a folder' if file.is_dir() else 'no plain file'}; a file in TOML is needed")
    try:
        with file.open("rb") as stream:
            data = stream.read(MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{file}: cannot be read ({error.strerror or error}); mend its rights or move it") from error
    if len(data) > MOST_BYTES:
        raise UsageError(f"{file}: larger than {MOST_BYTES >> 20} MB, so it is no configuration; move it away")
    try:
        written = data.decode("utf-8-sig")
        return written, tomllib.loads(written)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{file}:{line}: not UTF-8; save the file as UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file}: not valid TOML ({error})") from error


def _walk(
    data: Mapping[str, Any], above: tuple[str, ...], where: str, is_foreign: bool
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Path and value of every key of a table, checked; _Wrong names the first that cannot be used."""
    for name, value in data.items():
        path = (*above, name)
        keys = [key for key in KEYS if _fits(key.parts, path)]
        if not keys:
            raise _fault(path, f"unknown key{_nearest(path)}; `loopstats config` lists all", where)
        if keys[0].parts[: len(path)] != keys[0].parts:
            if not isinstance(value, dict):
                names = ", ".join(_below(keys, len(path)))
                raise _fault(path, f"a table is needed: write [{dotted(path)}] with {names}", where)
            yield from _walk(value, path, where, is_foreign)
            continue
        (key,) = keys
        if not key.kind.is_right(value):
            shown = HIDDEN if key.is_secret else f"{value!r}"
            raise _fault(path, f"{key.kind.needs} is needed, not {shown[:60]}", where)
        if is_foreign and key.is_own:
            raise _fault(path, "a project's file may not say this; write it in the user's own file", where)
        if key.is_path and where != TOKEN:
            value = _rooted(value, Path(where).resolve().parent)
        yield path, value


def _rooted(value: Any, folder: Path) -> Any:
    if isinstance(value, str):
        return str(folder / Path(value).expanduser())
    return [_rooted(one, folder) for one in value]


def _fault(path: tuple[str, ...], says: str, where: str) -> Exception:
    message = f"{dotted(path)}: {says}"
    return UsageError(f"{where}: {message}") if where == TOKEN else _Wrong(path, message)


def _fits(parts: tuple[str, ...], path: tuple[str, ...]) -> bool:
    return len(path) <= len(parts) and all(a in (NAME, b) for a, b in zip(parts[: len(path)], path, strict=True))


def _below(keys: list[Key], depth: int) -> list[str]:
    return list(dict.fromkeys(key.parts[depth] for key in keys))


def _check_whole(data: Mapping[str, Any]) -> None:
    """What must not be missing in an experiment and in a model's prices."""
    for section, needed, about in (
        ("experiment", ("salt",), f"missing; {SALT.needs} is needed"),
        ("prices", ("input", "output"), "missing; input and output are needed, in dollars per million tokens"),
    ):
        for name, told in data.get(section, {}).items():
            for key in needed:
                if key not in told:
                    raise _Wrong((section, name), f"{dotted((section, name, key))}: {about}")


def dotted(path: tuple[str, ...]) -> str:
    """A key as TOML writes it."""
    return ".".join(part if re.fullmatch(r"[A-Za-z0-9_-]+", part) else json.dumps(part) for part in path)


def _nearest(path: tuple[str, ...]) -> str:
    """Which known key was probably meant, in words."""
    beside = [key.parts for key in KEYS if len(key.parts) >= len(path) and _fits(key.parts[: len(path) - 1], path[:-1])]
    near = _meant(path[-1], sorted({parts[len(path) - 1] for parts in beside} - {NAME}), ".".join(path[:-1]))
    if near:
        return near
    elsewhere = [key.name for key in KEYS if key.parts[-1] == path[-1]]
    return f"; did you mean {elsewhere[0]}?" if elsewhere else ""


def _meant(word: str, known: list[str], above: str = "") -> str:
    import difflib

    near = difflib.get_close_matches(word.replace("-", "_"), known, 1)
    return f"; did you mean {above}{'.' if above else ''}{near[0]}?" if near else ""


def _line_of(written: str, path: tuple[str, ...]) -> int | None:
    """The line on which the key stands: the first after which the file, read so far, has it. None for a long file."""
    lines = written.splitlines(keepends=True)
    for number in range(1, min(len(lines), MOST_LINES_SEARCHED) + 1):
        try:
            value: Any = tomllib.loads("".join(lines[:number]))
        except tomllib.TOMLDecodeError:
            continue
        for part in path:
            value = value.get(part) if isinstance(value, dict) else None
        if value is not None:
            return number
    return None
