"""The nightly under a real cron daemon, with a spool of its own: no crontab of this machine is touched.

`unshare -m` gives the daemon and `crontab` private folders in place of the machine's, so root is needed. The lake's path
holds what cron and the shell take for special.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from loopstats.store import Lake

pytestmark = pytest.mark.cron

ROOT = Path(__file__).resolve().parents[1]
CODEX = ROOT / "data" / "sample" / "codex"
PROGRAM = Path(sys.executable).parent / "loopstats"
OTHERS = "# mine, 100 %\nMAILTO=\"\"\n7 7 7 7 * echo '\\% mine'\n"
LONGEST_S = 130


def private(folder: Path, script: str) -> list[str]:
    """A command that runs `script` with the spool, the system's tables and /run in `folder`."""
    binds = {"spool": "/var/spool/cron/crontabs", "cron.d": "/etc/cron.d", "crontab": "/etc/crontab", "run": "/run"}
    for name in binds:
        place = folder / name
        if name == "crontab":
            place.touch()
        else:
            place.mkdir(exist_ok=True)
    (folder / "spool").chmod(0o1730)
    shutil.chown(folder / "spool", "root", "crontab")
    mounts = [f"mount --bind {shlex.quote(str(folder / name))} {place}" for name, place in binds.items()]
    return ["unshare", "-m", "--propagation", "private", "sh", "-ec", "\n".join([*mounts, script])]


def test_cron_starts_the_night_and_the_crontab_comes_back(tmp_path: Path) -> None:
    for name in ("cron", "crontab"):
        if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None:
            pytest.fail(f"{name} is missing: apt-get install cron")
    if os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode:
        pytest.skip("a spool of its own needs root and unshare -m")
    began = time.monotonic()
    env = {name: str(tmp_path / name.lower()) for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME")}
    env |= {"PATH": os.environ["PATH"] + ":/usr/sbin", "HOME": str(tmp_path / "home")}
    lake = tmp_path / "50% of 'it' $HOME \\%"
    (tmp_path / "others").write_text(OTHERS)
    told = tmp_path / "told %.json"
    on_fail = f"/bin/sh -c 'cat > \"$0\"' '{told}'"
    # Cron reads its tables at the beginning of each minute: some seconds are left for it to start.
    at = datetime.now().astimezone() + timedelta(seconds=75 if datetime.now().astimezone().second > 45 else 60)
    options = [str(CODEX), "--stale-days", "0.5", "--on-fail", on_fail]
    program = f"{shlex.quote(str(PROGRAM))} --lake {shlex.quote(str(lake))} schedule"
    install = f"{program} --install cron --at {at:%H:%M} -- {shlex.join(options)}"
    script = f"crontab others\ncrontab -l > before\n{install}\ncrontab -l > during\nexec cron -f"
    daemon = subprocess.Popen(
        private(tmp_path, script), cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    log = lake / "nightly.jsonl"
    try:
        while not told.exists() or not told.read_text().endswith("\n"):
            assert daemon.poll() is None, daemon.communicate()
            assert time.monotonic() - began < LONGEST_S, (tmp_path / "during").read_text()
            time.sleep(0.2)
    finally:
        daemon.terminate()
        daemon.communicate()
    line = json.loads(log.read_text())
    assert (line["exit_code"], line["steps"]["ingest"]["files_new"]) == (5, 6)
    assert json.loads(told.read_text()) == line
    assert line["started"][11:16] == at.astimezone(UTC).strftime("%H:%M")
    assert Lake(lake).snapshot().read("steps").height == line["steps"]["derive"]["steps"] == 41
    assert (tmp_path / "during").read_bytes().startswith((tmp_path / "before").read_bytes())
    out = private(tmp_path, f"{program} --uninstall cron\ncrontab -l > after")
    subprocess.run(out, cwd=tmp_path, env=env, check=True, capture_output=True)
    assert (tmp_path / "after").read_bytes() == (tmp_path / "before").read_bytes() == OTHERS.encode()
    print(f"cron night took {time.monotonic() - began:.0f} s")
