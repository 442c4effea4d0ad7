"""Tests of what a call does: kinds of tools and of shell commands, the part that speaks for a command, targets, prints.

A room of its own because the tables decide which steps are attempts at all; a wrong row makes loops appear or vanish.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopstats import actions, rule, shell
from loopstats.actions import ATTEMPTS, KINDS, TOOLS, place, read_call

W = "/w"


def bash(command: str, cwd: str | None = W) -> actions.Call:
    return read_call("Bash", {"command": command}, cwd)


# command, kind, program of the action, target (the working directory is /w)
COMMANDS = [
    # METHOD 3, edit
    ("sed -i 's/a/b/' src/a.py", "edit", "sed", "/w/src/a.py"),
    ("sed -i.bak -e 's/a/b/' src/a.py", "edit", "sed", "/w/src/a.py"),
    ("sed -n '1,20p' src/a.py", "read", "sed", "/w/src/a.py"),
    ("mv a.py b.py", "edit", "mv", "/w/a.py"),
    ("rm -rf build", "edit", "rm", "/w/build"),
    ("cp -r src dst", "edit", "cp", "/w/src"),
    ("mkdir -p a/b", "edit", "mkdir", "/w/a/b"),
    ("touch x", "edit", "touch", "/w/x"),
    ("git checkout -- src/a.py", "edit", "git", "/w/src/a.py"),
    ("git checkout main", "edit", "git", "git checkout"),
    ("git checkout feature/x", "edit", "git", "git checkout"),
    ("git apply fix.patch", "edit", "git", "/w/fix.patch"),
    ("git restore --source HEAD~1 a.py", "edit", "git", "/w/a.py"),
    ("cat > a.txt <<'EOF'\nx\nEOF", "edit", "cat", "/w/a.txt"),
    ("echo x >> notes/a.md", "edit", "echo", "/w/notes/a.md"),
    ("printf '%s' x > a", "edit", "printf", "/w/a"),
    ("echo x | tee -a a.txt", "edit", "tee", "/w/a.txt"),
    ("echo x | sudo tee /etc/hosts", "edit", "tee", "/etc/hosts"),
    ("> a.log", "edit", None, "/w/a.log"),
    ("echo aGk= | base64 -d > a.bin", "edit", "base64", "/w/a.bin"),
    ("perl -pi -e 's/a/b/' a.py", "edit", "perl", None),
    ("find . -name '*.pyc' -delete", "edit", "find", "/w"),
    ("find src -name x -exec rm {} +", "edit", "find", "/w/src"),
    ("gofmt -w a.go", "edit", "gofmt", "/w/a.go"),
    ("black src", "edit", "black", "/w/src"),
    ("npx prettier --write src/a.ts", "edit", "prettier", "/w/src/a.ts"),
    ("cargo fmt", "edit", "cargo", "cargo fmt"),
    ("patch -p1 <<'EOF'\n--- a/x.py\n+++ b/x.py\n@@\nEOF", "edit", "patch", "/w/x.py"),
    ("apply_patch <<'P'\n*** Update File: a.py\n*** Add File: b/c.py\nP", "edit", "apply_patch", "/w/a.py"),
    # verify
    ("pytest", "verify", "pytest", "pytest"),
    ("pytest -k 'a or b' --maxfail 3 tests/test_a.py::test_b", "verify", "pytest", "/w/tests/test_a.py::test_b"),
    ("python -m pytest tests/test_a.py -q", "verify", "pytest", "/w/tests/test_a.py"),
    ("python -m unittest tests.test_x.Case", "verify", "unittest", "tests.test_x.Case"),
    ("python manage.py test app", "verify", "python", "/w/manage.py"),
    ("python tests/runtests.py admin", "verify", "python", "/w/tests/runtests.py"),
    ("./tests/runtests.py admin", "verify", "runtests.py", None),
    ("bin/test x.py", "verify", "test", "/w/x.py"),
    ("npm test", "verify", "npm", "npm test"),
    ("npm test -- test/a.test.ts", "verify", "npm", "/w/test/a.test.ts"),
    ("npm run build", "verify", "npm", "npm run build"),
    ("npm run lint:fix", "edit", "npm", "npm run lint:fix"),
    ("npm run typecheck", "verify", "npm", "npm run typecheck"),
    ("pnpm build", "verify", "pnpm", "pnpm build"),
    ("yarn test", "verify", "yarn", "yarn test"),
    ("go test ./pkg/... -run TestX", "verify", "go", "/w/pkg/..."),
    ("go build ./cmd/x", "verify", "go", "/w/cmd/x"),
    ("go vet ./...", "verify", "go", "/w/..."),
    ("cargo build", "verify", "cargo", "cargo build"),
    ("cargo +nightly clippy -- -D warnings", "verify", "cargo", "cargo clippy"),
    ("cargo test parser::tests::empty", "verify", "cargo", "/w/parser::tests::empty"),
    ("make", "verify", "make", "make"),
    ("make test", "verify", "make", "make test"),
    ("make -C sub -j4 all", "verify", "make", "make all"),
    ("tsc --noEmit -p tsconfig.json", "verify", "tsc", "tsc"),
    ("ruff check .", "verify", "ruff", None),
    ("ruff format --check .", "verify", "ruff", None),
    ("ruff format .", "edit", "ruff", None),
    ("black --check .", "verify", "black", "/w"),
    ("mypy src/a.py", "verify", "mypy", "/w/src/a.py"),
    ("npx eslint src --ext .ts", "verify", "eslint", "/w/src"),
    ("gcc -O2 -o out main.c -lm", "verify", "gcc", "/w/main.c"),
    ("./gradlew test", "verify", "gradlew", "gradlew test"),
    ("mvn -q verify", "verify", "mvn", "mvn verify"),
    ("docker build -t x .", "verify", "docker", None),
    ("mise run test:ci", "verify", "mise", "mise run test:ci"),
    ("just lint", "verify", "just", "just lint"),
    ("bash run_tests.sh", "verify", "bash", "/w/run_tests.sh"),
    ("bash -n a.sh", "verify", "bash", "/w/a.sh"),
    ("node --test", "verify", "node", "node"),
    ("tox -e py311", "verify", "tox", None),
    # execute
    ("python script.py --x 1", "execute", "python", "/w/script.py"),
    ("./run.sh --fast", "execute", "run.sh", "/w/run.sh"),
    ("python -c 'print(1)'", "execute", "python", "python"),
    ("python -m mytool.cli go", "execute", "mytool.cli", "mytool.cli"),
    ("node a.js", "execute", "node", "/w/a.js"),
    ("pip install -r requirements.txt", "execute", "pip", "/w/requirements.txt"),
    ("pip install numpy==1.2", "execute", "pip", "pip install"),
    ("npm install @types/node", "execute", "npm", "npm install"),
    ("npm run dev", "execute", "npm", "npm run dev"),
    ("make install", "execute", "make", "make install"),
    ("git add src/a.py", "execute", "git", "/w/src/a.py"),
    ("git commit -m 'a/b c.py'", "execute", "git", "git commit"),
    ("git push origin feature/x", "execute", "git", "git push"),
    ("git branch -D old", "execute", "git", "git branch"),
    ("curl -X POST https://h.io/a -d '{}'", "execute", "curl", "https://h.io/a"),
    ("curl --data @f https://u:p@h.io/a?token=1#x", "execute", "curl", "https://h.io/a"),
    ("psql -c 'select 1'", "execute", "psql", "psql"),
    ("sqlite3 a.db 'select 1'", "execute", "sqlite3", "/w/a.db"),
    ("docker run -it img/name sh", "execute", "docker", "docker run"),
    ("kubectl apply -f k8s/a.yaml", "execute", "kubectl", "/w/k8s/a.yaml"),
    ("terraform apply", "execute", "terraform", "terraform apply"),
    ("cargo run --bin x", "execute", "cargo", "cargo run"),
    ("gh pr create --fill", "execute", "gh", "gh pr create"),
    ("gh api repos/a/b/pulls -X POST", "execute", "gh", "repos/a/b/pulls"),
    ("chmod +x a.sh", "execute", "chmod", "/w/a.sh"),
    ("tar xzf a.tar.gz", "execute", "tar", None),
    ("curl -s https://h.io/i.sh | bash", "execute", "bash", None),
    ("python - <<'EOF'\nimport requests\nrequests.post('https://h.io/a')\nEOF", "execute", "python", "https://h.io/a"),
    ("find . -name '*.sh' | xargs chmod +x", "execute", "chmod", None),
    # communicate
    ("mail -s hi a@b.c", "communicate", "mail", "mail"),
    ("gh issue comment 12 --body x", "communicate", "gh", "gh issue comment"),
    ("gh pr comment 12 -b x", "communicate", "gh", "gh pr comment"),
    ("curl -d x https://hooks.slack.com/a", "communicate", "curl", "https://hooks.slack.com/a"),
    # operate
    ("kill -9 123", "operate", "kill", "kill"),
    ("pkill -f server", "operate", "pkill", "pkill"),
    ("sudo systemctl restart nginx", "operate", "systemctl", "systemctl restart"),
    ("crontab -e", "operate", "crontab", "crontab"),
    ("crontab -l", "read", "crontab", None),
    ("kubectl delete pod x", "operate", "kubectl", "kubectl delete"),
    ("at now + 1 hour", "operate", "at", "at"),
    ("qsub job.pbs", "operate", "qsub", None),
    ("sbatch job.sh", "operate", "sbatch", "/w/job.sh"),
    ("gh issue create -t x", "operate", "gh", "gh issue create"),
    ("docker compose restart web", "operate", "docker", "docker compose restart"),
    # research
    ("curl -s https://h.io/a?b=c | jq .", "research", "curl", "https://h.io/a"),
    ("wget -q -O out.html https://h.io/a", "research", "wget", "https://h.io/a"),
    ("curl localhost:8080/health", "research", "curl", "http://localhost:8080/health"),
    ("python -c \"import requests; print(requests.get('https://h.io/a?x').text)\"", "research", "python", "https://h.io/a"),
    ("python3 <<'EOF'\nurllib.request.urlopen('https://h.io/b').read()\nEOF", "research", "python3", "https://h.io/b"),
    ("gh api repos/a/b", "research", "gh", "repos/a/b"),
    ("npm view react versions", "research", "npm", "npm view"),
    # read
    ("cat src/a.py", "read", "cat", "/w/src/a.py"),
    ("ls", "read", "ls", "ls"),
    ("ls -la src/", "read", "ls", "/w/src"),
    ("grep -rn 'a/b' src", "read", "grep", "/w/src"),
    ("rg -g '*.py' foo src", "read", "rg", "/w/src"),
    ("find src -name '*.py' | head", "read", "find", "/w/src"),
    ("git status", "read", "git", "git status"),
    ("git log --oneline -5", "read", "git", "git log"),
    ("git diff HEAD~1 -- a.py", "read", "git", "/w/a.py"),
    ("git show HEAD:src/a.py", "read", "git", "/w/src/a.py"),
    ("git -C sub diff a.py", "read", "git", "/w/sub/a.py"),
    ("git branch -a", "read", "git", "git branch"),
    ("git stash list", "read", "git", "git stash"),
    ("head -n 20 a.py", "read", "head", "/w/a.py"),
    ("grep x a.py > out.txt", "read", "grep", "/w/a.py"),
    ("pip show numpy", "read", "pip", "pip show"),
    ("docker ps", "read", "docker", "docker ps"),
    ("go version", "read", "go", "go version"),
    ("gcc --version", "read", "gcc", None),
    ("command -v git", "read", "command", None),
    ("cd src", "read", "cd", None),
    ("echo hello", "read", "echo", "echo"),
    ("find . -type f | xargs grep foo", "read", "grep", None),
    # wait
    ("sleep 30", "wait", "sleep", "sleep"),
    ("kubectl get pods", "wait", "kubectl", "kubectl get"),
    ("oc get pods", "wait", "oc", "oc"),
    ("gh run watch 12", "wait", "gh", "gh run watch"),
    ("tail -f a.log", "wait", "tail", "/w/a.log"),
    ("squeue -u me", "wait", "squeue", "squeue"),
    ("docker logs x", "wait", "docker", "docker logs"),
    ("sleep 5; echo done", "wait", "sleep", "sleep"),
    # nothing fits
    ("frobnicate deploy --x", "other", "frobnicate", "frobnicate deploy"),
    # wrappers
    ("sudo -E env A=1 timeout 60 pytest a.py", "verify", "pytest", "/w/a.py"),
    ("bash -lc 'cd sub && pytest a.py'", "verify", "pytest", "/w/sub/a.py"),
    ("uv run pytest", "verify", "pytest", "pytest"),
    ("npx vitest run", "verify", "vitest", None),
    ("poetry run pytest", "verify", "pytest", "pytest"),
    ("docker compose exec web pytest", "verify", "pytest", "pytest"),
    # the part that speaks for a compound command
    ("cd sub && npm test", "verify", "npm", "npm test"),
    ("cd /x && pytest tests/a.py 2>&1 | tail -20; echo $?", "verify", "pytest", "/x/tests/a.py"),
    ("export A=1; source .venv/bin/activate; pytest; echo done", "verify", "pytest", "pytest"),
    ("git add -A && git commit -m x && git push", "execute", "git", "git push"),
    ("cat a.py; ls", "read", "ls", "ls"),
    ("cat > t.py <<'EOF'\nx\nEOF\npython t.py", "execute", "python", "/w/t.py"),
    ("cat > t.awk <<'EOF'\nx\nEOF\nawk -f t.awk d.csv", "read", "awk", None),
    ("cat > a.py <<'EOF'\nx\nEOF\ncat a.py", "edit", "cat", "/w/a.py"),
    ("cat > a.sh <<'E'\nx\nE\nchmod +x a.sh && ./a.sh", "execute", "a.sh", "/w/a.sh"),
    ("pytest > out.txt 2>&1; cat out.txt", "verify", "pytest", "pytest"),
    ("pytest | tee log.txt", "verify", "pytest", "pytest"),
    ("cat d.json | python -c 'import sys,json; json.load(sys.stdin)'", "read", "cat", "/w/d.json"),
    ("for f in a b; do python gen.py $f; done; ls out", "execute", "python", "/w/gen.py"),
    ("if make; then echo ok; else exit 1; fi", "verify", "make", "make"),
    ("t() { pytest \"$1\"; }; t a; t b; echo x", "verify", "pytest", None),
    ("out=$(npm run build 2>&1); echo \"$out\" | tail", "verify", "npm", "npm run build"),
    ("ssh host 'cd /srv && make deploy'", "execute", "make", "make deploy"),
    ("mkdir -p out && pytest && ls out", "verify", "pytest", "pytest"),
    ("python server.py & sleep 2; curl -s localhost:1/x", "execute", "python", "/w/server.py"),
    ("pytest || true", "verify", "pytest", "pytest"),
    # a task named `test` is no test of the shell's, which only reads
    ("hatch run test", "verify", "hatch", "hatch run test"),
    ("pdm run test", "verify", "pdm", "pdm run test"),
    ("poetry run test", "verify", "poetry", None),
    ("uv run test", "verify", "uv", None),
    ("pipenv run test", "verify", "pipenv", "pipenv run test"),
    # the launcher of an installed program behind its interpreter
    ("php vendor/bin/phpunit tests/A.php", "verify", "phpunit", "/w/tests/A.php"),
    ("node node_modules/.bin/jest a.test.js", "verify", "jest", "/w/a.test.js"),
    ("node ./node_modules/eslint/bin/eslint.js src", "verify", "eslint", "/w/src"),
    ("python .venv/bin/pytest a.py", "verify", "pytest", "/w/a.py"),
    ("node bin/server.js", "execute", "node", "/w/bin/server.js"),
    # the shells and names of Windows
    ("cmd /c npm test", "verify", "npm", "npm test"),
    ("powershell.exe -NoProfile -Command \"npm test\"", "verify", "npm", "npm test"),
    ("pwsh -c 'Get-Content a.txt'", "read", "Get-Content", "/w/a.txt"),
    ("Set-Content -Path a.txt -Value x", "edit", "Set-Content", "/w/a.txt"),
    ("Get-ChildItem -Recurse | Select-String foo", "read", "Get-ChildItem", "Get-ChildItem"),
    ("npm test | Out-File log.txt", "verify", "npm", "npm test"),
    ("npm test | Select-Object -Last 5", "verify", "npm", "npm test"),
    ("Invoke-WebRequest http://h.io/a?b", "research", "Invoke-WebRequest", "http://h.io/a"),
    ("Invoke-RestMethod -Method Post http://h.io/a", "execute", "Invoke-RestMethod", "http://h.io/a"),
    ("Start-Sleep 5", "wait", "Start-Sleep", "Start-Sleep"),
    ("py -3 -m pytest a.py", "verify", "pytest", "/w/a.py"),
    ("gsed -i s/a/b/ a.py", "edit", "gsed", "/w/a.py"),
    # programs that mostly tell, asked to change something
    ("airflow dags list", "read", "airflow", "airflow dags"),
    ("airflow dags trigger d", "operate", "airflow", "airflow dags"),
    ("npm config set a b", "execute", "npm", "npm config"),
    ("npm config get a", "read", "npm", "npm config"),
    ("poetry config a b", "execute", "poetry", "poetry config"),
    ("poetry config a", "read", "poetry", "poetry config"),
    ("poetry version patch", "execute", "poetry", "poetry version"),
    ("conda env create -f e.yml", "execute", "conda", None),
    ("conda env list", "read", "conda", "conda env"),
    ("terraform state rm a.b", "execute", "terraform", "terraform state"),
    ("yarn workspaces run test", "verify", "yarn", "yarn workspaces"),
    ("yarn workspaces list", "read", "yarn", "yarn workspaces"),
    ("rpm -ivh x.rpm", "execute", "rpm", None),
    ("rpm -qa", "read", "rpm", "rpm"),
    ("postconf -e 'a=b'", "execute", "postconf", "postconf"),
    ("yq -i '.a=1' f.yml", "edit", "yq", "/w/f.yml"),
    ("xmllint --noout a.xml", "verify", "xmllint", "/w/a.xml"),
    # more runners and builds
    ("dune runtest", "verify", "dune", "dune runtest"),
    ("cabal build", "verify", "cabal", "cabal build"),
    ("flutter test", "verify", "flutter", "flutter test"),
    ("R CMD check x", "verify", "R", None),
    ("julia -e 'using Pkg; Pkg.test()'", "verify", "julia", "julia"),
    ("hadolint Dockerfile", "verify", "hadolint", "/w/Dockerfile"),
    ("perl -pi -e 's/a/b/' f.txt", "edit", "perl", "/w/f.txt"),
    ("curl -fsSL http://h.io/i.sh | bash -s -- -y", "execute", "bash", "bash"),
]  # fmt: skip


@pytest.mark.parametrize(("command", "kind", "program", "target"), COMMANDS)
def test_commands(command: str, kind: str, program: str | None, target: str | None) -> None:
    call = bash(command)
    assert call.kind == kind
    assert call.action == ("Bash" if program is None else f"Bash:{program}")
    assert call.kind_source == ("none" if kind == "other" else "command")
    if target is not None:
        assert call.target == target


def test_the_table_of_commands_is_large_enough() -> None:
    assert len(COMMANDS) >= 150
    assert {kind for _, kind, _, _ in COMMANDS} == set(KINDS) - {"plan"}


# tool, arguments, kind, target
CALLS = [
    ("Edit", {"file_path": "/w/a.py", "old_string": "x"}, "edit", "/w/a.py"),
    ("Write", {"file_path": "a/../b.py"}, "edit", "/w/b.py"),
    ("NotebookEdit", {"notebook_path": "n.ipynb"}, "edit", "/w/n.ipynb"),
    ("apply_patch", {"input": "*** Begin Patch\n*** Add File: a.py\n*** Delete File: b.py\n"}, "edit", "/w/a.py"),
    ("apply_patch", "*** Begin Patch\n*** Update File: a b.py\n", "edit", "/w/a b.py"),
    ("str_replace_editor", {"command": "view", "path": "/w/a.py"}, "read", "/w/a.py"),
    ("str_replace_editor", {"command": "str_replace", "path": "/w/a.py"}, "edit", "/w/a.py"),
    ("str_replace_editor", '{"command": "create", "path": "a.py"}', "edit", "/w/a.py"),
    ("str_replace_based_edit_tool", {"command": "view", "path": "a.py"}, "read", "/w/a.py"),
    ("str_replace_editor", None, "edit", ""),
    ("apply_edits", {"edits": [{"path": "a.py"}, {"path": "b.py"}]}, "edit", "/w/a.py"),
    ("apply_diff", {"args": {"file": [{"path": "a.py"}, {"path": "b.py"}]}}, "edit", "/w/a.py"),
    ("verify_done", {"test_cmd": "cd /app && pytest tests/t.py", "test_files": ["x.py"]}, "verify", "/app/tests/t.py"),
    ("Read", {"file_path": "/w/a.py", "offset": 10}, "read", "/w/a.py"),
    ("Grep", {"pattern": "a b", "path": "src"}, "read", "/w/src"),
    ("Grep", {"pattern": "a b"}, "read", "a b"),
    ("Glob", {"pattern": "**/*.py"}, "read", "**/*.py"),
    ("LS", {"path": "."}, "read", "/w"),
    ("read_many_files", {"paths": ["a.py", "b.py"]}, "read", "/w/a.py"),
    ("search_file", '"needle" a.py', "read", "/w/a.py"),
    ("open", "src/a.py 45", "read", "/w/src/a.py"),
    ("edit", "1:85\nimport os", "edit", ""),
    ("WebFetch", {"url": "https://me:pw@H.io/a?k=1#f", "prompt": "x"}, "research", "https://h.io/a"),
    ("WebSearch", {"query": "a  b"}, "research", "a b"),
    ("web_browser_click", {"element_id": 151}, "execute", "151"),
    ("browser_click", {"ref": "e5"}, "execute", "e5"),
    ("mcp__playwright__browser_click", {"ref": "e5"}, "execute", "e5"),
    ("mcp__playwright__browser_navigate", {"url": "http://a.io"}, "research", "http://a.io"),
    ("Task", {"subagent_type": "general", "description": "x"}, "execute", "general"),
    ("Agent", {"prompt": "x"}, "execute", ""),
    ("TodoWrite", {"todos": []}, "plan", ""),
    ("TaskUpdate", {"taskId": "4", "status": "x"}, "plan", "4"),
    ("think", {"thought": "x"}, "plan", ""),
    ("ExitPlanMode", {"plan": "x"}, "plan", ""),
    ("Skill", {"skill": "s"}, "plan", "s"),
    ("AskUserQuestion", {"question": "x"}, "plan", ""),
    ("submit", "", "plan", ""),
    ("finish", {}, "plan", ""),
    ("save_memory", {"memory": "x"}, "plan", ""),
    ("BashOutput", {"bash_id": "b1"}, "wait", "b1"),
    ("TaskOutput", {"task_id": "t1"}, "wait", "t1"),
    ("read_output", {"handle": "p1"}, "wait", "p1"),
    ("process", {"action": "poll", "sessionId": "s1"}, "wait", "s1"),
    ("process", {"action": "kill", "sessionId": "s1"}, "operate", "s1"),
    ("write_stdin", {"session_id": 3, "chars": ""}, "wait", "3"),
    ("write_stdin", {"session_id": 3, "chars": "y\n"}, "execute", "3"),
    ("send_stdin", {"handle": "p", "text": "root\n"}, "execute", "p"),
    ("subagents", {"action": "list"}, "wait", ""),
    ("sessions_yield", {"message": "x"}, "wait", ""),
    ("KillShell", {"shell_id": "s"}, "operate", "s"),
    ("stop_process", {"handle": "p"}, "operate", "p"),
    ("send_email", {"to": "a@b.c"}, "communicate", "a@b.c"),
    ("mcp__slack__send_message", {"channel": "c"}, "communicate", "c"),
    ("send_certificate", {"user_id": "u", "amount": 1}, "execute", "u"),
    ("book_reservation", {"user_id": "u", "flight_id": "f"}, "execute", "f"),
    ("get_reservation_details", {"reservation_id": "R"}, "read", "R"),
    ("update_reservation_flights", {"reservation_id": "R"}, "execute", "R"),
    ("transfer_to_human_agents", {"summary": "x"}, "execute", ""),
    ("calculate", {"expression": "1 + 1"}, "read", "1 + 1"),
    ("search_direct_flight", {"origin": "A"}, "read", ""),
    ("mcp__tracker__list_issues", {"project_id": 7}, "read", "7"),
    ("mcp__tracker__delete_issue", {"issue_id": 7}, "execute", "7"),
    ("mcp__fs__write_file", {"path": "a.txt"}, "edit", "/w/a.txt"),
    ("getUser", {"id": 5}, "read", "5"),
    ("get", {"id": 41}, "read", "41"),
    ("use_mcp_tool", {"server_name": "s", "tool_name": "get_issue", "arguments": {}}, "read", "get_issue"),
    ("deploy", {"id": "a"}, "execute", "a"),
    ("frobnicate", {"id": "a"}, "other", "a"),
    ("mcp__x__frobnicate", {}, "other", ""),
    ("run_ipython", {"code": "edit_file_by_replace('a.py', to_replace='x')"}, "edit", "/w/a.py"),
    ("run_ipython", {"code": "import requests\nrequests.get('https://h.io/a?b')"}, "research", "https://h.io/a"),
    ("run_ipython", {"code": "print(1)"}, "execute", ""),
    ("shell", {"command": ["bash", "-lc", "pytest a.py"]}, "verify", "/w/a.py"),
    ("shell", {"command": ["git", "commit", "-m", "a b; c"]}, "execute", "git commit"),
    ("shell", ["bash", "-lc", "ls src"], "read", "/w/src"),
    ("exec_command", {"cmd": "ls src", "workdir": "sub"}, "read", "/w/sub/src"),
    ("execute_bash", {"command": ""}, "wait", ""),
    ("execute_bash", {}, "other", ""),
    ("Bash", None, "other", ""),
    ("Bash", {"description": "say nothing"}, "other", ""),
    ("execute_bash", {"command": "C-c", "is_input": "true"}, "operate", None),
    ("bash", "npm test", "verify", "npm test"),
    ("bash", {"restart": True}, "operate", None),
    ("shell", {"command": ["powershell.exe", "-Command", "npm test"]}, "verify", "npm test"),
    ("acme_frob", {"note": "see https://h.io", "where": "https://u:p@h.io/a?b#c"}, "other", "https://h.io/a"),
    ("post_comment", {"id": 7}, "communicate", "7"),
    ("mcp__jira__jira_get_issue", {"id": 7}, "read", "7"),
    ("mcp__jira__jira_delete_issue", {"id": 7}, "execute", "7"),
    ("mcp__jira__jirafy", {"id": 7}, "other", "7"),
    ("mcp__sequential-thinking__sequentialthinking", {}, "plan", ""),
    ("mcp__filesystem__directory_tree", {"path": "/w/a"}, "read", "/w/a"),
    ("mcp__brave-search__brave_web_search", {"query": "a"}, "research", None),
    ("mcp__serena__replace_symbol_body", {"relative_path": "a.py"}, "edit", "/w/a.py"),
    ("fsWrite", {"path": "a.py"}, "edit", "/w/a.py"),
    ("test", {}, "verify", ""),
]  # fmt: skip


@pytest.mark.parametrize(("tool", "arguments", "kind", "target"), CALLS)
def test_tools(tool: str, arguments: object, kind: str, target: str | None) -> None:
    call = read_call(tool, arguments, W)
    assert call.kind == kind
    if target is not None:
        assert call.target == target
        assert call.targets == ([target] if len(call.targets) < 2 and target else call.targets)


@pytest.mark.parametrize(
    ("prompt", "targets"),
    [
        ("Read https://me:pw@H.io/a?k=1#f", ["https://h.io/a"]),
        ("Sum up https://a.io/x. Then (http://b.io/y), https://a.io/x!", ["https://a.io/x", "http://b.io/y"]),
        ("word " * 100 + "https://a.io/far", ["https://a.io/far"]),
        ("private", ["#715dc8493c36"]),
        ("private words of more than forty characters in all", ["#b607e3967378"]),
    ],
)
def test_of_a_prompt_only_its_urls_are_targets(prompt: str, targets: list[str]) -> None:
    assert read_call("web_fetch", {"prompt": prompt}, W).targets == targets


def test_all_files_of_a_patch_are_targets() -> None:
    text = "*** Begin Patch\n*** Add File: a.py\n+x\n*** Update File: b.py\n*** Move to: c.py\n*** Delete File: d.py\n"
    assert read_call("apply_patch", {"input": text}, W).targets == ["/w/a.py", "/w/b.py", "/w/c.py", "/w/d.py"]
    assert bash(f"cd x && apply_patch <<'P'\n{text}P").targets[0] == "/w/x/a.py"
    assert read_call("apply_edits", {"edits": [{"path": "a.py"}, {"path": "a.py"}, {"path": "b.py"}]}, W).targets == [
        "/w/a.py",
        "/w/b.py",
    ]


@pytest.mark.parametrize(
    ("tool", "source"),
    [
        ("Edit", "table"),
        ("edit-file", "table"),
        ("Bash", "command"),
        ("get_weather", "name"),
        ("mcp__srv__query_db", "name"),
        ("update_record", "name"),
        ("update_reservation_flights", "table"),
        ("frobnicate", "none"),
        ("mcp__jira__jira_get_issue", "name"),
    ],
)
def test_source_of_the_kind(tool: str, source: str) -> None:
    assert read_call(tool, {"command": "ls"}).kind_source == source


def test_every_row_of_the_tables_is_a_kind() -> None:
    assert set(TOOLS.values()) <= {*KINDS, "shell", "code"}
    assert set(actions.program_table().values()) <= {*KINDS, "setup"}
    assert set(ATTEMPTS) == {"edit", "verify", "execute", "communicate", "operate", "other"}
    assert actions.program_table()["git status"] == "read"


@pytest.mark.parametrize("command", ["git grep x", "git diff --exit-code", "grep x a.py", "diff a b"])
def test_nothing_found_and_something_differs_are_no_errors(command: str) -> None:
    def came_to(exit_code: int, has_error_text: bool) -> str:
        call = bash(command)
        return rule.outcome(
            call.kind, call.program, False, False, True, True, exit_code, None, None, False, None, has_error_text
        )[0]

    assert (came_to(1, False), came_to(1, True), came_to(128, False)) == ("success", "failure", "failure")


def test_tables_text_is_stable_and_complete() -> None:
    text = actions.tables()
    assert text == actions.tables() and text.isascii() and text.endswith("\n")
    assert "tool\t('Edit', 'edit')" in text and "wrapper\t" in text and "program\t('git status', 'read')" in text


# --- what the log says --------------------------------------------------------------------------------------------


def test_kind_of_the_log() -> None:
    call = read_call("frobnicate", {}, kind="execute")
    assert (call.kind, call.kind_source, call.kind_differs) == ("execute", "log", False)
    call = read_call("Bash", {"command": "ls"}, kind="verify")
    assert (call.kind, call.kind_source, call.kind_differs) == ("verify", "log", False)
    call = read_call("Edit", {}, kind="read")
    assert (call.kind, call.kind_source, call.kind_differs) == ("edit", "table", True)
    call = read_call("Edit", {}, kind="edit")
    assert (call.kind, call.kind_differs) == ("edit", False)
    call = read_call("get", {"id": 41}, kind="execute")
    assert (call.kind, call.kind_source) == ("execute", "log")
    call = read_call("Edit", {}, kind="nonsense")
    assert (call.kind, call.kind_source, call.kind_differs) == ("edit", "table", False)


def test_action_and_target_of_the_log_win() -> None:
    call = read_call("Edit", {"file_path": "x"}, W, action="Edit:big", target="src/./a.py")
    assert (call.action, call.target, call.targets) == ("Edit:big", "/w/src/a.py", ["/w/src/a.py"])
    assert read_call("X", {}, W, target="npm run build").target == "npm run build"
    assert read_call("X", {}, W, target="https://u:p@h.io/a?b").target == "https://h.io/a"
    assert read_call("X", {"id": 1}, W, target="").target == ""


def test_user_rows_classify_only_what_would_be_other() -> None:
    rows = {
        "frobnicate": "read",
        "Edit": "read",
        "get_x": "execute",
        "Bash:mytool": "verify",
        "Bash:pytest": "read",
        "odd": "nonsense",
    }
    assert read_call("frobnicate", {}, rows=rows).kind == "read"
    assert read_call("frobnicate", {}, rows=rows).kind_source == "table"
    assert read_call("Edit", {}, rows=rows).kind == "edit"
    assert read_call("get_x", {}, rows=rows).kind == "read"
    assert read_call("Bash", {"command": "mytool x"}, rows=rows).kind == "verify"
    assert read_call("Bash", {"command": "pytest"}, rows=rows).kind == "verify"
    assert read_call("odd", {}, rows=rows).kind == "other"
    assert read_call("Bash", {"command": "mytool x"}, rows={"Bash": "read"}).kind == "other"
    assert read_call("frobnicate", {}, kind="execute", rows=rows).kind == "execute"


# --- exit status --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "program", "is_masked", "is_piped"),
    [
        ("pytest", "pytest", False, False),
        ("pytest 2>&1 | tail -5", "tail", True, True),
        ("set -o pipefail; pytest | tail", "tail", False, True),
        ("pytest || true", "true", True, False),
        ("pytest; echo done", "echo", True, False),
        ("pytest; exit 0", "exit", True, False),
        ("pytest; exit $?", "pytest", False, False),
        ("cd x && pytest && echo ok", "echo", False, False),
        ("grep -c x a.py", "grep", False, False),
        ("/usr/bin/GREP x", "GREP", False, False),
        ("git grep x", "git grep", False, False),
        ("git --no-pager diff --exit-code", "git diff", False, False),
        ("git status", "git", False, False),
        ("find . | head", "head", True, True),
        ("bash -lc 'pytest | tail'", "tail", True, True),
    ],
)
def test_exit_facts(command: str, program: str, is_masked: bool, is_piped: bool) -> None:
    call = bash(command)
    assert (call.program, call.is_exit_masked, call.is_piped) == (program, is_masked, is_piped)


def test_background_and_tools_without_a_shell() -> None:
    assert bash("npm start &").is_background and bash("npm start &").is_exit_masked
    assert read_call("Bash", {"command": "npm start", "run_in_background": True}).is_background
    assert not bash("npm start").is_background
    call = read_call("Edit", {"file_path": "a"})
    assert (call.program, call.is_exit_masked, call.is_piped, call.is_background) == ("", False, False, False)


# --- targets ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "base", "expected"),
    [
        ("/home/me/p/src/a.py", "/home/me/p", "src/a.py"),
        ("/home/me/p", "/home/me/p/", "."),
        ("/home/me/p2/a.py", "/home/me/p", "<home>/p2/a.py"),
        ("/tmp/x/a.py", "/home/me/p", "<tmp>/x/a.py"),
        ("/tmp", None, "<tmp>"),
        ("/tmpx/a", None, "/tmpx/a"),
        ("/private/tmp/a", None, "<tmp>/a"),
        ("/var/tmp/a", None, "<tmp>/a"),
        ("/var/folders/5b/xyz/T/a", None, "<tmp>/a"),
        ("/private/var/folders/5b/xyz/T/a", None, "<tmp>/a"),
        ("C:\\Users\\me\\AppData\\Local\\Temp\\a", None, "<tmp>/a"),
        ("C:\\Users\\me\\p\\a.py", "C:\\Users\\me\\p", "a.py"),
        ("C:/Users/me/q/a.py", None, "<home>/q/a.py"),
        ("/home/me/p/.claude/worktrees/w1/src/a.py", "/srv", "<worktree>/src/a.py"),
        ("/tmp/worktrees/w1/a.py", None, "<tmp>/worktrees/w1/a.py"),
        ("/Users/me/a", None, "<home>/a"),
        ("/root/a", None, "<home>/a"),
        ("~/a", None, "<home>/a"),
        ("/opt/Tool/A.py", None, "/opt/Tool/A.py"),
        ("src/a.py", "/w", "src/a.py"),
        ("https://h.io/tmp/a", "/w", "https://h.io/tmp/a"),
        ("npm run build", "/w", "npm run build"),
        ("", "/w", ""),
        ("/tmp/p/a.py", "/tmp/p", "a.py"),
        ("/a.py", "/", "a.py"),
    ],
)
def test_place(target: str, base: str | None, expected: str) -> None:
    assert place(target, base) == expected
    assert place(expected, base) == expected


PATHS = st.lists(
    st.sampled_from(
        [
            "/",
            "tmp",
            "home",
            "me",
            "worktrees",
            "Users",
            "C:",
            "~",
            ".",
            "..",
            "a.py",
            "\\",
            "var",
            "folders",
            "T",
            "root",
            "w",
            "é",
            " ",
        ]
    ),
    max_size=10,
)


@settings(max_examples=400, deadline=None)
@given(PATHS.map("".join), st.one_of(st.none(), PATHS.map("/".join)))
def test_place_is_idempotent(target: str, base: str | None) -> None:
    once = place(actions.resolve(target, None), base)
    assert place(once, base) == once


@settings(max_examples=200, deadline=None)
@given(PATHS.map("/".join), st.sampled_from([None, "/w", "/w/x/..", "C:\\p"]))
def test_resolve_is_idempotent(path: str, cwd: str | None) -> None:
    once = actions.resolve(path, cwd)
    if cwd is not None or once[:1] == "/":
        assert actions.resolve(once, cwd) == once
    assert "/./" not in once and "\\" not in once


@pytest.mark.parametrize(
    ("path", "cwd", "expected"),
    [
        ("a.py", "/w", "/w/a.py"),
        ("./a/../b.py", "/w", "/w/b.py"),
        ("../a.py", "/w/x", "/w/a.py"),
        ("../../../a.py", "/w", "/a.py"),
        ("../a.py", None, "../a.py"),
        ("/a//b/./c/", "/w", "/a/b/c"),
        ("a\\b.py", "C:\\p", "C:/p/a/b.py"),
        ("t/a.py::C::m[a/../b]", "/w", "/w/t/a.py::C::m[a/../b]"),
        ("~/a", "/w", "~/a"),
        ("$HOME/a", "/w", "$HOME/a"),
        ("A/B.py", "/W", "/W/A/B.py"),
        ("", "/w", ""),
    ],
)
def test_resolve(path: str, cwd: str | None, expected: str) -> None:
    assert actions.resolve(path, cwd) == expected


def test_one_file_is_one_target_however_it_is_named() -> None:
    named = [
        "cat a.py",
        "cat ./a.py",
        "cat /w/a.py",
        "cd /w && cat a.py",
        "cd sub && cat ../a.py",
        "bash -c 'cat a.py'",
    ]
    assert {place(bash(command).target, "/w") for command in named} == {"a.py"}


# --- fingerprints -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "commands",
    [
        ["grep discount", "grep -i discount", 'grep "discount"', "rg discount", "grep -rn 'discount' ."],
        ["pytest -q", "cd /w && pytest -q", "A=1 pytest -q", "pytest -q 2>&1", "pytest -q | tail -20",
         "pytest -q | head -n 5", "pytest -q; echo $?", "timeout 60 pytest -q", "  PYTEST   -q ", "uv run pytest -q",
         "cd /w && pytest -q 2>&1 | tail -3; echo $?"],
        ["cat 'a b'", 'cat "a b"', "cat a\\ b"],
    ],
)  # fmt: skip
def test_commands_with_one_print(commands: list[str]) -> None:
    assert len({bash(command).fingerprint for command in commands}) == 1


@pytest.mark.parametrize(
    ("tool", "inputs"),
    [
        ("LS", [{"path": "/w/a"}, {"path": "/w/a/"}]),
        ("WebSearch", [{"query": "foo bar"}, {"query": ' "Foo bar" '}, {"query": "foo bar", "max_results": 5}]),
        ("Grep", [{"pattern": "foo"}, {"pattern": '"FOO"', "-i": True}, {"pattern": "foo", "-n": True}]),
    ],
)
def test_calls_with_one_print(tool: str, inputs: list[dict[str, object]]) -> None:
    assert len({read_call(tool, given, W).fingerprint for given in inputs}) == 1


@pytest.mark.parametrize(
    ("tool", "inputs"),
    [
        ("LS", [{"path": "/"}, {"path": "/w"}]),
        ("WebSearch", [{"query": "a"}, {"query": "a", "page": 2}, {"query": "a", "allowed_domains": ["h.io"]}]),
        ("send_message", [{"text": "a/"}, {"text": "a"}]),
    ],
)
def test_calls_with_prints_of_their_own(tool: str, inputs: list[dict[str, object]]) -> None:
    assert len({read_call(tool, given, W).fingerprint for given in inputs}) == len(inputs)


@pytest.mark.parametrize(
    "commands",
    [
        ["sed -n '1,40p' a.py", "sed -n '41,80p' a.py"],
        ["head -20 a.py", "head -40 a.py"],
        ["pytest a.py", "pytest b.py", "pytest"],
        ["echo x > p", "echo x > q"],
        ["ssh h1 uptime", "ssh h2 uptime"],
        ["docker exec a ls", "docker exec b ls"],
        ["cat > a <<'E'\n1\nE", "cat > a <<'E'\n2\nE"],
        ["grep a x", "grep b x"],
        ["a " + "x" * 200_000 + "1", "a " + "x" * 200_000 + "2"],
        ["a 'x y'", "a x y"],
    ],
)
def test_commands_with_different_prints(commands: list[str]) -> None:
    assert len({bash(command).fingerprint for command in commands}) == len(commands)


def test_prints_of_arguments() -> None:
    def prints(tool: str, *arguments: object) -> int:
        return len({read_call(tool, a).fingerprint for a in arguments})

    assert (
        prints(
            "Read", {"file_path": "a", "offset": 1}, {"offset": 1.0, "file_path": " A "}, '{"file_path":"a","offset":1}'
        )
        == 1
    )
    assert (
        prints("Read", {"file_path": "a"}, {"file_path": "a", "limit": None}, {"file_path": "a", "description": "why"})
        == 1
    )
    assert prints("Read", {"file_path": "a", "offset": 1}, {"file_path": "a", "offset": 41}, {"file_path": "a"}) == 3
    assert prints("X", {"a": 1, "reason": "x", "thought": "y", "explanation": "z"}, {"a": 1}) == 1
    assert prints("X", {"a": [1, 2]}, {"a": [2, 1]}) == 2
    assert prints("X", {"a": True}, {"a": 1}, {"a": "1"}, {"a": {"b": 1}}) == 4
    assert prints("Grep", {"pattern": "x", "-i": True}, {"pattern": '"x"', "head_limit": 5}, {"pattern": "X"}) == 1
    assert prints("Grep", {"pattern": "x"}, {"pattern": "y"}, {"pattern": "x", "path": "src"}) == 3
    assert (
        prints(
            "Bash", {"command": "ls", "description": "a", "timeout": 5}, {"command": "ls"}, "ls", ["bash", "-lc", "ls"]
        )
        == 1
    )
    assert read_call("A", {"x": 1}).fingerprint != read_call("B", {"x": 1}).fingerprint
    found = read_call("Edit", {"file_path": "a"}).fingerprint
    assert len(found) == 16 and set(found) <= set("0123456789abcdef")


# --- robustness ---------------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20),
              st.sampled_from(["\ud800\x00", "a.py", "https://x/?", "cd x && ls | cat"])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.sampled_from(["command", "path", "file_path", "edits", "url", "args", "id", "pattern", "cmd", "chars",
                             "code", "input", "cwd", "test_cmd", "tool_name"]),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=12,
)  # fmt: skip
NAMES = st.one_of(st.sampled_from([*TOOLS, "mcp__a__get_b", "mcp__", "__", ".", "x.y/z:", ""]), st.text(max_size=20))


@settings(max_examples=400, deadline=None)
@given(NAMES, JSON, st.sampled_from([None, "/w", "C:\\x", ""]))
def test_nothing_raises_and_equal_calls_are_equal(tool: str, arguments: object, cwd: str | None) -> None:
    def facts() -> list[object]:
        call = read_call(tool, arguments, cwd)
        return [getattr(call, name) for name in call.__slots__]

    first = facts()
    actions._COMMANDS.clear()
    shell._CACHE.clear()
    assert facts() == first
    call = read_call(tool, arguments, cwd)
    assert call.kind in KINDS and isinstance(call.target, str) and len(call.fingerprint) == 16
    assert call.targets == [] or call.target == call.targets[0]
    assert all(isinstance(target, str) for target in call.targets)


@settings(max_examples=200, deadline=None)
@given(
    st.one_of(
        st.text(max_size=120),
        st.lists(st.sampled_from([c for c, *_ in COMMANDS] + ["'", '"', "|", ";", "\n"]), max_size=5).map("; ".join),
    )
)
def test_any_command(command: str) -> None:
    call = bash(command)
    assert call.kind in KINDS
    assert place(place(call.target, W), W) == place(call.target, W)


def test_hostile_arguments_are_bounded() -> None:
    deep: object = "x"
    for _ in range(100_000):
        deep = [deep]
    wide = {f"k{n}": "v" * 10 for n in range(20_000)}
    texts = [
        "a;" * 500_000,
        "'" * 1_000_001,
        "xargs " * 160_000,
        "ls " + "../" * 300_000,
        "curl " + "http://a" * 120_000,
    ]
    calls: list[tuple[str, object]] = [
        ("X", {"a": deep}),
        ("X", wide),
        ("X", "[" * 1_000_000),
        ("X", '{"a":' * 200_000),
        ("X", {"n": 10**5_000}),
    ]
    calls += [("Bash", {"command": text}) for text in texts]
    calls += [
        ("apply_patch", {"input": "*** Update File: a\n" * 50_000}),
        ("run_ipython", {"code": "requests.get( method = " * 40_000}),
    ]
    for tool, arguments in calls:
        start = time.process_time()
        call = read_call(tool, arguments, W)
        assert call.kind in KINDS
        assert time.process_time() - start < 1.0, tool


def test_memory_is_bounded() -> None:
    for number in range(actions._MEMO_SIZE + 5):
        read_call(f"tool{number}", {"id": number})
        bash(f"cat f{number}")
    assert len(actions._TOOL_MEMO) <= actions._MEMO_SIZE and len(actions._COMMANDS) <= actions._MEMO_SIZE


# --- real logs ----------------------------------------------------------------------------------------------------


def _corpus() -> Path:
    given = os.environ.get("LOOPSTATS_CORPUS")
    folder = Path(given) if given else Path(__file__).resolve().parents[1].parent / "shared" / "corpus"
    if not folder.is_dir():
        pytest.skip("corpus folder missing: set LOOPSTATS_CORPUS")
    return folder


def _calls(value: object) -> list[tuple[str, object]]:
    out: list[tuple[str, object]] = []
    waiting = [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, list):
            waiting.extend(found)
        elif isinstance(found, dict):
            if found.get("type") in ("tool_use", "toolCall", "function_call") and isinstance(found.get("name"), str):
                out.append((found["name"], found.get("input", found.get("arguments"))))
            waiting.extend(found.values())
    return out


def test_real_calls_are_nearly_all_classified() -> None:
    calls: list[tuple[str, object]] = []
    for name in ("claude-code", "codex", "pi", "openclaw"):
        for path in sorted((_corpus() / name).rglob("*.jsonl")):
            for line in path.read_text("utf-8", "replace").split("\n"):
                try:
                    calls += _calls(json.loads(line))
                except ValueError:
                    continue
    assert len(calls) > 1_000
    unknown = [tool for tool, arguments in calls if read_call(tool, arguments).kind == "other"]
    assert len(unknown) <= len(calls) // 100
