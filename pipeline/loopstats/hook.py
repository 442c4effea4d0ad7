"""The live hook's front door: what an editor starts for every event, and leaves at once where there is nothing to do.

A room of its own because an agent waits for it: this file is compiled anew at each start, so it holds only the two
questions that come before all others (is there an experiment, is it silenced) and loads the collector behind them.
It runs three ways: `python -I -S hook.py` (it finds the package beside itself), `python -m loopstats.hook`, and
`loopstats hook run`. It fails open: whatever happens it exits with 0 and says nothing that changes the agent.
"""

# pathlib takes longer to load than everything that is done here
# ruff: noqa: PTH100, PTH111, PTH113, PTH120, PTH123

from __future__ import annotations

import os
import sys

TOKEN = "LOOPSTATS_EXPERIMENT"
SILENCE = "LOOPSTATS_DISABLE"
PIECE = 1 << 16
PROJECT_FILE = "loopstats.toml"
LOCAL_FILE = "loopstats.local.toml"


def user_folder(kind: str, env: dict[str, str]) -> str:
    """The user's folder for `config` or `data`, as the whole program has it on each platform."""
    home = env.get("HOME") or os.path.expanduser("~")
    if sys.platform == "win32":
        local = env.get("LOCALAPPDATA") or f"{home}\\AppData\\Local"
        return f"{local}\\loopstats\\loopstats"
    if sys.platform == "darwin":
        return f"{home}/Library/Application Support/loopstats"
    default = {"config": ".config", "data": ".local/share"}[kind]
    return f"{env.get(f'XDG_{kind.upper()}_HOME') or f'{home}/{default}'}/loopstats"


def project_files(folder: str) -> list[str]:
    """The project's configuration and the local one beside it, where there is either; the local one last.

    Of `folder` and the folders above it, up to the root of the repository, the nearest that has one; outside a
    repository `folder` alone, since nobody vouches for what lies above it.
    """
    folder = start = os.path.abspath(folder)
    found: list[str] = []
    while True:
        if not found:
            beside = (f"{folder}{os.sep}{PROJECT_FILE}", f"{folder}{os.sep}{LOCAL_FILE}")
            found = [path for path in beside if os.path.lexists(path)]
            if found and folder == start:
                return found
        if os.path.lexists(f"{folder}{os.sep}.git"):
            return found
        above = os.path.dirname(folder)
        if above == folder:
            return []
        folder = above


def config_files(env: dict[str, str]) -> list[str]:
    """The configuration files that there are, the user's first; those of a project are relative paths."""
    project = map(os.path.relpath, project_files(os.curdir))
    return [path for path in (f"{user_folder('config', env)}/{PROJECT_FILE}", *project) if os.path.isfile(path)]


def is_dormant(env: dict[str, str]) -> bool:
    """Whether there is no experiment for this process, or it was silenced. Reads files, writes none."""
    if env.get(SILENCE, "") not in ("", "0"):
        return True
    if env.get(TOKEN):
        return False
    for path in config_files(env):
        try:
            with open(path, "rb") as file:
                if b"hook" in file.read(1 << 20):
                    return False
        except OSError:
            continue
    return True


def drain() -> None:
    """Take what the agent sends, so that its pipe does not break."""
    try:
        while os.read(0, PIECE):
            pass
    except OSError:
        return


def main(arguments: list[str] | None = None) -> int:
    """Answer one event on stdin; always 0."""
    try:
        env = dict(os.environ)
        if is_dormant(env):
            drain()
            return 0
        from loopstats import collector

        collector.serve(
            sys.argv[1:] if arguments is None else arguments,
            env,
            env.get(TOKEN),
            config_files(env),
            user_folder("data", env),
        )
    except BaseException:
        return 0
    return 0


def be_quick() -> None:
    """For a process of its own: no garbage collection, and the interpreter's own SHA-256 in place of all of `hashlib`.

    Nothing else of `hashlib` is used behind this door; OpenSSL and its kin take longer to load than the event takes.
    """
    import gc

    gc.disable()
    for name in ("_sha2", "_sha256"):
        try:
            found = __import__(name)
        except ImportError:
            continue
        small = type(sys)("hashlib")
        small.__dict__["sha256"] = found.sha256
        sys.modules["hashlib"] = small
        return


if __name__ == "__main__":
    be_quick()
    here = os.path.dirname(os.path.abspath(__file__))
    # The package's modules must not be taken for the standard library's.
    sys.path[:] = [folder for folder in sys.path if folder != here]
    sys.path.append(os.path.dirname(here))
    main()
    os._exit(0)
