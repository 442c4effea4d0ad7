"""What a shell may complete: commands, options, and the values that have names.

A room of its own because it answers at every press of the key: it walks the tree of commands that `--help` walks, so
that nothing can be missing, and loads the tables only for a value that stands in them. A shell's script calls
`loopstats` with the words up to the cursor and `_LOOPSTATS_COMPLETE` set; what it gets is one word a line, with its
help behind a tab. No word means that the shell completes file names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

VARIABLE = "_LOOPSTATS_COMPLETE"
HELP_SHOWN = 60

BASH = """\
_loopstats() {
    local line
    COMPREPLY=()
    while IFS= read -r line; do
        COMPREPLY+=("${line%%$'\\t'*}")
    done < <(_LOOPSTATS_COMPLETE=bash "$1" "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -o default -F _loopstats loopstats
"""
ZSH = """\
#compdef loopstats
_loopstats() {
    local -a words_found shown
    local line
    while IFS= read -r line; do
        words_found+=("${line%%$'\\t'*}")
        shown+=("${line//$'\\t'/  -- }")
    done < <(_LOOPSTATS_COMPLETE=zsh "${words[1]}" "${(@)words[2,CURRENT]}" 2>/dev/null)
    if (( $#words_found )); then
        compadd -l -d shown -a words_found
    else
        _files
    fi
}
if [[ $funcstack[1] == _loopstats ]]; then
    _loopstats "$@"
else
    compdef _loopstats loopstats
fi
"""
FISH = """\
function __loopstats_complete
    set -l words (commandline -opc)
    set -l found (_LOOPSTATS_COMPLETE=fish $words[1] $words[2..-1] (commandline -ct) 2>/dev/null)
    if test (count $found) -gt 0
        printf '%s\\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c loopstats -f -a '(__loopstats_complete)'
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}

Values = Callable[[], Sequence[str]]


def _formats() -> Sequence[str]:
    from loopstats.output import FORMATS

    return FORMATS


def _lift_columns() -> Sequence[str]:
    from loopstats.estimate import early_columns

    return early_columns()


def _waste_columns() -> Sequence[str]:
    from loopstats.waste import WASTE_BY

    return WASTE_BY


def _run_columns() -> Sequence[str]:
    from loopstats.compare import GROUPS

    return GROUPS


def _questions() -> Sequence[str]:
    from loopstats.resources import resource

    return sorted(path.stem for path in (resource("sql") / "queries").glob("*.sql"))


def _relations() -> Sequence[str]:
    from loopstats.query import schema_tables

    return schema_tables()["name"].to_list()


def _schemas() -> Sequence[str]:
    from loopstats.cli.base import SCHEMAS

    return sorted(path.stem for path in SCHEMAS.glob("*.json"))


def _agents() -> Sequence[str]:
    from loopstats.hooks import AGENTS

    return tuple(AGENTS)


def _scopes() -> Sequence[str]:
    from loopstats.hooks import SCOPES

    return SCOPES


def _policies() -> Sequence[str]:
    from loopstats.ladder import POLICIES

    return tuple(POLICIES)


def _zones() -> Sequence[str]:
    import zoneinfo

    return sorted(zoneinfo.available_timezones())


# By the option, or the metavar of an argument; with the command before it where commands differ.
VALUES: dict[str, Values] = {
    "--format": _formats,
    "--color": lambda: ("auto", "always", "never"),
    "--tz": _zones,
    "--agent": _agents,
    "--scope": _scopes,
    "--json-schema": _schemas,
    "lift --by": _lift_columns,
    "waste --by": _waste_columns,
    "runs --by": _run_columns,
    "sql [QUERY]": _questions,
    "schema [TABLE]": _relations,
    "ladder POLICY.toml": _policies,
    "completion SHELL": lambda: tuple(SCRIPTS),
}
LISTS = ("--by",)


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command below a group with the words that call it, groups included, in the order of `--help`."""
    for name, command in group.commands.items():
        if not command.hidden:
            yield (*path, name), command
            if hasattr(command, "commands"):
                yield from commands(command, (*path, name))


def complete(root: Any, words: Sequence[str], is_split: bool = False) -> list[tuple[str, str]]:
    """Words that may stand in place of the last of `words`, each with its help; empty where a file name fits.

    `is_split`: the shell takes what follows a `=` for a word of its own, as bash does.
    """
    *before, current = _joined(words) or [""]
    command, path, positions, waiting = _where(root, before)
    front = ""
    if waiting is None and current.startswith("--") and "=" in current:
        name, _, current = current.partition("=")
        waiting, front = _options(root, command).get(name), "" if is_split else f"{name}="
    if waiting is not None:
        return [(front + word, "") for word in _values(_named(path, waiting), current)]
    if current.startswith("-") and "--" not in before:
        found = _options(root, command)
        return [(name, _brief(param.help)) for name, param in found.items() if name.startswith(current)]
    if hasattr(command, "commands"):
        below = command.commands.items()
        return [(name, _brief(sub.help)) for name, sub in below if name.startswith(current) and not sub.hidden]
    arguments = [param for param in command.params if not hasattr(param, "is_flag")]
    if positions < len(arguments):
        key = f"{path[-1]} {arguments[positions].metavar}"
        return [(word, "") for word in _values([key], current)]
    return []


def _joined(words: Sequence[str]) -> list[str]:
    """The words as typed: bash parts `--format=json` at the sign."""
    joined: list[str] = []
    for word in words:
        if joined and (word == "=" or (joined[-1].endswith("=") and joined[-1].startswith("--"))):
            joined[-1] += word
        else:
            joined.append(word)
    return joined


def _where(root: Any, before: Sequence[str]) -> tuple[Any, tuple[str, ...], int, Any]:
    """The command that the words lead to, its path, how many arguments it has, and the option that waits."""
    path: tuple[str, ...] = ("loopstats",)
    command, positions, waiting, left = root, 0, None, 0
    for word in before:
        if left:
            left -= 1
            waiting = waiting if left else None
        elif word.startswith("-") and word != "--":
            param = _options(root, command).get(word)
            if param is not None and not param.is_flag:
                waiting, left = param, param.nargs
        elif word in getattr(command, "commands", {}):
            command, path = command.commands[word], (*path, word)
        else:
            positions += 1
    return command, path, positions, waiting


def _options(root: Any, command: Any) -> dict[str, Any]:
    """Options by their names: the command's own, then the global ones, which may stand anywhere."""
    params = [*command.params, *(root.params if command is not root else ())]
    return {name: param for param in params if hasattr(param, "is_flag") for name in reversed(param.opts)}


def _named(path: tuple[str, ...], param: Any) -> list[str]:
    return [f"{path[-1]} {name}" for name in param.opts] + list(param.opts)


def _values(keys: Sequence[str], current: str) -> list[str]:
    for key in keys:
        if key in VALUES:
            head, comma, last = current.rpartition(",") if key.endswith(LISTS) else ("", "", current)
            taken = set(head.split(","))
            return [f"{head}{comma}{v}" for v in VALUES[key]() if v.startswith(last) and v not in taken]
    return []


def _brief(text: str | None) -> str:
    line = " ".join((text or "").split("\n\n")[0].split())
    return line if len(line) <= HELP_SHOWN else line[: HELP_SHOWN - 1].rstrip() + "…"
