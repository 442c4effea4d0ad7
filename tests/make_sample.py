"""The generator of `data/sample/`: logs of three kinds in which the lift is known because it was planted.

A room of its own because the sample is the one place where truth is known: what is planted here is written to
`tests/golden/sample-truth.json` and `README.md` as it is planted, never read back from what was written. Every byte follows from `SEED` and
the rule: draws are SHA-256 of a key, so that no library's random numbers, no clock and no locale enter.

A session's arm is the method's own hash of run and signature; only then is its outcome drawn, with the probability of
that arm. Run again after a change of the rule, because enrolment records carry its digest:
`python tests/make_sample.py [--out DIR]`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "pipeline"))

from loopstats import rule  # noqa: E402  (a script run by path finds the package only after the line above)

SEED = 1
EXPERIMENT = "sample"
SALT = "loopstats-sample"
SHARE_BP = 5000
N_STAR = 400
EPOCH = "1"
BREAK_RATE = {"treated": 0.65, "holdout": 0.40}
UNRESOLVED_RATE = 0.12
REPLAY_OUTCOMES = ("broke", "recurred", "broke", "recurred", "unresolved", "broke")

FIRST_DAY = int(datetime(2026, 10, 20, tzinfo=UTC).timestamp())
AS_OF = int(datetime(2026, 11, 20, tzinfo=UTC).timestamp())
DAY = 86_400
MATURITY = DAY
LAST_WEEK = AS_OF - 7 * DAY
ROTATION = 3 * DAY

COUNT_NATIVE = 354
COUNT_CLAUDE = 14
COUNT_PENDING = 6
COUNT_REPLAY = 28
COUNT_HEALTHY = 18
COUNT_REPEAT = 10

CWD = "/srv/harbor-shop"
HOME = "/home/dev/harbor-shop"
CLAUDE_FOLDER = "claude-code/-home-dev-harbor-shop"


def draw(*key: object) -> float:
    """A number in [0, 1) that depends on `key` alone."""
    text = "|".join(map(str, key))
    return int(hashlib.sha256(text.encode()).hexdigest()[:13], 16) / 16**13


def hex_id(length: int, *key: object) -> str:
    """`length` hexadecimal digits that depend on `key` alone."""
    return hashlib.sha256("|".join(map(str, key)).encode()).hexdigest()[:length]


def uuid_of(*key: object) -> str:
    """An id in the form of a random UUID."""
    h = hex_id(32, "uuid", *key)
    return f"{h[:8]}-{h[8:12]}-4{h[13:16]}-a{h[17:20]}-{h[20:]}"


@cache
def rule_digest() -> str:
    """The rule's digest, as a collector of this version records it."""
    return rule.digest()


class Dice:
    """Draws in a row under one key."""

    def __init__(self, *key: object) -> None:
        self._key = key
        self._count = 0

    def roll(self) -> float:
        """The next number in [0, 1)."""
        self._count += 1
        return draw(*self._key, self._count)

    def between(self, low: int, high: int) -> int:
        """A whole number from `low` to `high`, both included."""
        return low + int(self.roll() * (high - low + 1))

    def pick(self, items: Sequence[Any]) -> Any:
        """One of `items`."""
        return items[int(self.roll() * len(items))]

    def some(self, items: Sequence[Any], count: int) -> list[Any]:
        """`count` different items."""
        left = list(items)
        return [left.pop(int(self.roll() * len(left))) for _ in range(count)]


# --- the shop's repository: what can be worked on and how it fails ---------------------------------------------------

SOURCES = (
    "src/cart/total.ts",
    "src/cart/discount.ts",
    "src/checkout/address.ts",
    "src/checkout/payment.ts",
    "src/catalog/search.ts",
    "src/catalog/facets.ts",
    "src/orders/refund.ts",
    "src/orders/invoice.ts",
)
MODULES = ("shop/pricing.py", "shop/stock.py", "shop/shipping.py", "shop/vouchers.py", "shop/tax.py", "shop/mailer.py")
TESTS = (
    "tests/test_cart.py",
    "tests/test_checkout.py",
    "tests/test_refund.py",
    "tests/test_stock.py",
    "tests/test_vouchers.py",
    "tests/test_invoice.py",
)
SCRIPTS = ("scripts/import_orders.py", "scripts/rebuild_index.py", "scripts/export_bills.py", "scripts/sync_stock.py")
TOOLS = ("tools/seed.js", "tools/warm-cache.js", "tools/resize-images.js", "tools/check-links.js")
MIGRATIONS = ("db/0041_order_lines.sql", "db/0042_vouchers.sql", "db/0043_refunds.sql", "db/0044_stock_index.sql")
CALLS = (
    "http://shop.test/api/orders/import",
    "http://shop.test/api/refunds/open",
    "http://shop.test/api/stock/sync",
    "http://shop.test/api/vouchers/issue",
)
CONTENTS = frozenset({"old_string", "new_string", "content", "body"})
NOTES = ("docs/checkout.md", "docs/refunds.md", "docs/stock.md", "docs/release-notes.md")


@dataclass(frozen=True)
class Fault:
    """One way to fail: a tool, the call it is given for a target, and what comes back.

    `{t}` in `args`, `text` and `ok` is the target; `{a}`, `{b}` are numbers that differ at every failure.
    """

    name: str
    tool: str
    program: str
    args: dict[str, str]
    targets: tuple[str, ...]
    text: str
    exit_code: int | None = None
    code: str | None = None
    kind: str | None = None
    is_infra: bool = False
    ok: str = ""


def _shell(
    name: str, program: str, command: str, targets: tuple[str, ...], exit_code: int, text: str, ok: str = ""
) -> Fault:
    return Fault(name, "Bash", program, {"command": command}, targets, text, exit_code, ok=ok)


FAULTS = (
    Fault(
        "edit-miss",
        "Edit",
        "",
        {"file_path": "{t}", "old_string": "return total;", "new_string": "return sum;"},
        SOURCES,
        "String to replace not found in file.",
        ok="The file {t} has been updated.",
    ),
    Fault(
        "edit-stale",
        "Edit",
        "",
        {"file_path": "{t}", "old_string": "rate = 0", "new_string": "rate = base_rate()"},
        MODULES,
        "File has been modified since read, either by the user or by a linter. Read it again first.",
        ok="The file {t} has been updated.",
    ),
    Fault(
        "write-denied",
        "Write",
        "",
        {"file_path": "{t}", "content": "placeholder\n"},
        MIGRATIONS,
        "EACCES: permission denied, open '{t}'",
        ok="File created successfully at: {t}",
    ),
    _shell(
        "pytest-import",
        "pytest",
        "pytest {t}",
        TESTS,
        2,
        "ImportError while importing test module '{t}'.\nE   ModuleNotFoundError: No module named 'shop.currency'\n"
        "ERROR {t}\n1 error in 0.{a}s",
        "4 passed in 0.{a}s",
    ),
    _shell(
        "pytest-fixture",
        "pytest",
        "pytest -q {t}",
        TESTS,
        1,
        "E       fixture 'db_session' not found\n{t}:{a}\nERROR {t}\n1 error in 0.{b}s",
        "6 passed in 1.{a}s",
    ),
    _shell(
        "tsc-name", "tsc", "npx tsc --noEmit {t}", SOURCES, 2, "{t}({a},{b}): error TS2304: Cannot find name 'TaxRate'."
    ),
    _shell(
        "eslint-undef",
        "eslint",
        "npx eslint {t}",
        SOURCES,
        1,
        "{t}\n  {a}:{b}  error  'formatMoney' is not defined  no-undef\n\n✖ 1 problem (1 error, 0 warnings)",
    ),
    _shell(
        "node-module",
        "node",
        "node {t}",
        TOOLS,
        1,
        "node:internal/modules/cjs/loader:{a}\n  throw err;\n  ^\n\nError: Cannot find module './rates'\n"
        "Require stack:\n- {t}",
        "done in {a} ms",
    ),
    _shell(
        "python-key",
        "python",
        "python {t}",
        SCRIPTS,
        1,
        'Traceback (most recent call last):\n  File "{t}", line {a}, in <module>\n    main()\n'
        "  File \"{t}\", line {b}, in main\n    row['currency']\nKeyError: 'currency'",
        "{a} rows written",
    ),
    _shell(
        "psql-relation",
        "psql",
        "psql shop -f {t}",
        MIGRATIONS,
        3,
        'psql:{t}:{a}: ERROR:  relation "order_lines" does not exist',
        "CREATE TABLE",
    ),
    _shell(
        "mypy-assign",
        "mypy",
        "mypy {t}",
        MODULES,
        1,
        '{t}:{a}: error: Incompatible types in assignment (expression has type "str", variable has type "int")  '
        "[assignment]\nFound 1 error in 1 file (checked 1 source file)",
        "Success: no issues found in 1 source file",
    ),
    _shell(
        "ruff-name",
        "ruff",
        "ruff check {t}",
        MODULES,
        1,
        "{t}:{a}:{b}: F821 Undefined name `basket`\nFound 1 error.",
        "All checks passed!",
    ),
    Fault(
        "api-422",
        "http_request",
        "",
        {"method": "POST", "url": "{t}"},
        CALLS,
        "422 Unprocessable Entity: field 'vat_id' is required",
        code="422",
        kind="execute",
        ok="200 OK",
    ),
    Fault(
        "comment-403",
        "post_comment",
        "",
        {"issue_id": "{t}", "body": "Fixed in the last commit."},
        ("shop-118", "shop-131", "shop-140"),
        "403 Forbidden: the token may not comment on this issue",
        code="403",
        kind="communicate",
        ok="comment added",
    ),
    Fault(
        "api-429",
        "http_request",
        "",
        {"method": "POST", "url": "{t}"},
        CALLS,
        "429 Too Many Requests: retry after {a} s",
        code="429",
        kind="execute",
        is_infra=True,
        ok="200 OK",
    ),
    Fault(
        "api-503",
        "http_request",
        "",
        {"method": "POST", "url": "{t}"},
        CALLS,
        "503 Service Unavailable: {a} requests are waiting",
        code="503",
        kind="execute",
        is_infra=True,
        ok="200 OK",
    ),
)
BUILD = _shell(
    "build-entry",
    "npm",
    "npm run build",
    ("npm run build",),
    1,
    "> harbor-shop@4.2.0 build\n> vite build\n\nerror during build:\n"
    'RollupError: "formatMoney" is not exported by "src/cart/total.ts".',
    "built in 2.{a}s",
)
PATCH = Fault(
    "patch-lines",
    "apply_patch",
    "",
    {"input": "*** Begin Patch\n*** Update File: {t}\n@@\n-const rate = 0;\n+const rate = 1;\n*** End Patch"},
    SOURCES,
    "error: Failed to find expected lines in {t}",
    ok="Success. Updated the following files:\nM {t}",
)
BY_NAME = {fault.name: fault for fault in (*FAULTS, BUILD, PATCH)}
CLAUDE_FAULTS = tuple(
    BY_NAME[name]
    for name in (
        "edit-miss",
        "edit-stale",
        "pytest-import",
        "tsc-name",
        "python-key",
        "mypy-assign",
        "node-module",
        "ruff-name",
    )
)
CODEX_FAULTS = tuple(BY_NAME[name] for name in ("pytest-fixture", "python-key", "ruff-name"))


# --- sessions --------------------------------------------------------------------------------------------------------


@dataclass
class Step:
    """One call with what came back; `outcome` None means that nothing came back yet."""

    call_id: str
    ts_ms: int
    turn: int
    tool: str
    args: dict[str, Any]
    outcome: str | None
    text: str = ""
    exit_code: int | None = None
    code: str | None = None
    reason: str | None = None
    kind: str | None = None
    actor: str | None = None


@dataclass
class Note:
    """A record that is no step, as the native log writes it, without `v`, `session`, `agent` and `ts`."""

    ts_ms: int
    record: dict[str, Any]


@dataclass
class Plan:
    """A strategy loop to be planted: everything about it that is decided before its steps are written."""

    fault: Fault
    signature: str
    arm: str
    arm_bp: int
    outcome: str
    pattern: str
    is_interrupted: bool = False
    is_relapsed: bool = False
    is_sidestepped: bool = False
    is_late_decision: bool = False
    undelivered: str | None = None


@dataclass
class Session:
    """A run being written: its clock, its entries in order, and the loops that were planted in it."""

    name: str
    form: str
    start: int
    seed: int
    experiment: str | None = EXPERIMENT
    agent: str | None = None
    project: str = "harbor-shop"
    is_timed: bool = True
    entries: list[Step | Note] = field(default_factory=list)
    loops: list[dict[str, Any]] = field(default_factory=list)
    plans: list[Plan] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.dice = Dice(self.seed, "session", self.name, self.agent)
        self.now_ms = self.start * 1000 + self.dice.between(0, 999)
        self.turn = 0
        self._calls = 0

    @property
    def run_id(self) -> str:
        """METHOD 2: the session, with the agent where it is a subagent's."""
        return f"{self.name}/{self.agent}" if self.agent else self.name

    @property
    def model(self) -> str:
        """The model of the session."""
        if self.form != "native":
            return {"claude-code": "claude-sonnet-4-5", "codex": "gpt-5-codex"}[self.form]
        return "m-small" if draw("model", self.name) < 0.35 else "m-large"

    @property
    def group(self) -> str:
        """The prompt version, which changed on one day."""
        return "prompt-7" if self.start < FIRST_DAY + 17 * DAY else "prompt-8"

    def step(
        self,
        tool: str,
        args: dict[str, Any],
        outcome: str | None,
        text: str = "",
        *,
        same_turn: bool = False,
        wait: int | None = None,
        **more: Any,
    ) -> Step:
        """Add a step; `wait` seconds pass before it (drawn where not given)."""
        if not same_turn:
            self.turn += 1
        self._calls += 1
        seconds = wait if wait is not None else self.dice.between(1, 2) if same_turn else self.dice.between(5, 48)
        self.now_ms += seconds * 1000 + self.dice.between(0, 999)
        key = (self.name, self.agent, self._calls)
        call_id = {
            "native": f"c{self._calls}",
            "claude-code": "toolu_01" + hex_id(22, "toolu", *key),
            "codex": "call_" + hex_id(24, "call", *key),
        }[self.form]
        made = Step(call_id, self.now_ms, self.turn, tool, args, outcome, text, **more)
        self.entries.append(made)
        return made

    def note(self, **record: Any) -> None:
        """Add a record that is no step, a moment later."""
        self.now_ms += self.dice.between(20, 400)
        self.entries.append(Note(self.now_ms, record))

    def fail(
        self,
        fault: Fault,
        target: str,
        *,
        same_turn: bool = False,
        wait: int | None = None,
        outcome: str = "failure",
        reason: str | None = None,
    ) -> Step:
        """A failed step of `fault`, with numbers of its own in the text."""
        text = fault.text.format(t=target, a=self.dice.between(11, 98), b=self.dice.between(3, 79))
        return self.step(
            fault.tool,
            _args(fault, target),
            outcome,
            text,
            same_turn=same_turn,
            wait=wait,
            exit_code=fault.exit_code if outcome == "failure" else None,
            code=fault.code,
            kind=fault.kind,
            reason=reason,
        )

    def succeed(self, fault: Fault, target: str, wait: int | None = None) -> Step:
        """A step of `fault`'s call that works."""
        text = fault.ok.format(t=target, a=self.dice.between(11, 98))
        return self.step(
            fault.tool,
            _args(fault, target),
            "success",
            text,
            wait=wait,
            kind=fault.kind,
            exit_code=None if fault.exit_code is None else 0,
        )

    def look(self) -> None:
        """A read-only step: never an attempt."""
        path = self.dice.pick((*SOURCES, *MODULES, *TESTS))
        if self.form == "codex":
            command = self.dice.pick((f"sed -n '1,80p' {path}", f"cat {path}", "git status --short"))
            self.step("Bash", {"command": command}, "success", "export const rate = 0.19;", exit_code=0)
            return
        tool, args, text = self.dice.pick(
            (
                ("Read", {"file_path": path}, "     1\texport const rate = 0.19;"),
                ("Grep", {"pattern": "formatMoney", "path": path.split("/")[0]}, f"Found 1 file\n{path}"),
                ("Bash", {"command": f"git diff {path}"}, ""),
                ("Bash", {"command": f"ls {path.rsplit('/', 1)[0]}"}, path.rsplit("/", 1)[1]),
            )
        )
        self.step(tool, args, "success", text, exit_code=0 if tool == "Bash" else None)

    def work(self, beside: Fault | None) -> None:
        """A successful attempt that shares no action and no target with `beside`."""
        note = self.dice.pick(NOTES)
        if beside is not None and beside.tool in ("Edit", "Write"):
            self.step("Bash", {"command": f"git add {note}"}, "success", "", exit_code=0)
        elif self.form == "codex":
            self.step("Bash", {"command": f"touch {note}"}, "success", "", exit_code=0)
        else:
            self.step(
                "Edit",
                {"file_path": note, "old_string": "TBD", "new_string": "done"},
                "success",
                f"The file {note} has been updated.",
            )

    def enrol(self) -> None:
        """The collector's record that the session is in the experiment."""
        self.note(
            type="session",
            experiment=EXPERIMENT,
            salt_id=rule.salt_id(SALT),
            share_bp=SHARE_BP,
            epoch=EPOCH,
            rule_digest=rule_digest(),
            **self._facts(),
        )

    def introduce(self) -> None:
        """The session record of a session that is in no experiment."""
        self.note(type="session", **self._facts())

    def _facts(self) -> dict[str, str]:
        harness = {"native": "acme-agent 2.1", "claude-code": "claude-code 2.1.42", "codex": "codex"}[self.form]
        return {
            "project": self.project,
            "harness": harness,
            "model": self.model,
            "group": self.group,
            "cwd": CWD if self.form == "native" else HOME,
        }


def _args(fault: Fault, target: str) -> dict[str, str]:
    return {key: value.replace("{t}", target) for key, value in fault.args.items()}


def shown(step: Step, form: str) -> str:
    """The text of a result as the log of this kind holds it."""
    if form == "claude-code" and step.outcome == "failure":
        if step.exit_code is not None:
            return f"Exit code {step.exit_code}\n{step.text}"
        return f"<tool_use_error>{step.text}</tool_use_error>"
    return step.text


def logged_tool(step: Step, form: str) -> str:
    """The tool's name in the log of this kind."""
    return "shell" if form == "codex" and step.tool == "Bash" else step.tool


def signature_of(step: Step, form: str) -> str:
    """METHOD 6, of the text that the log holds."""
    failure = rule.read_failure(shown(step, form), step.exit_code, None, False)
    code = step.code if step.code is not None else failure.code
    return rule.signature(logged_tool(step, form), code or "", failure.message)


@cache
def fault_signature(name: str, form: str) -> str:
    """The signature of a fault, which must not depend on target and numbers."""
    fault = BY_NAME[name]
    found = set()
    for n, target in enumerate(fault.targets[:4]):
        step = Step(
            "",
            0,
            0,
            fault.tool,
            {},
            "failure",
            fault.text.format(t=target, a=12 + 31 * n, b=5 + 17 * n),
            fault.exit_code,
            fault.code,
        )
        found.add(signature_of(step, form))
    if len(found) != 1:
        raise SystemExit(f"{fault.name}: {len(found)} signatures in {form}; its texts must fall into one class")
    return found.pop()


# --- planting --------------------------------------------------------------------------------------------------------


class Planner:
    """Assigns and draws: the arm by the method's hash, then the outcome with that arm's probability."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.replayed = {"treated": 0, "holdout": 0}

    def plan(self, session: Session, fault: Fault) -> Plan:
        """A loop of `fault` in `session`."""
        signature = fault_signature(fault.name, session.form)
        is_replay = session.experiment is None
        arm_bp = rule.arm_bp("" if is_replay else SALT, session.run_id, signature)
        arm = rule.arm_of(arm_bp, SHARE_BP)
        if is_replay:
            # One sequence in both arms: with so few loops a draw would often show a difference where none can be.
            outcome = REPLAY_OUTCOMES[self.replayed[arm] % len(REPLAY_OUTCOMES)]
            self.replayed[arm] += 1
        else:
            chance, rate = draw(self.seed, "outcome", session.run_id, signature), BREAK_RATE[arm]
            outcome = "broke" if chance < rate else "unresolved" if chance < rate + UNRESOLVED_RATE else "recurred"
        shape = draw(self.seed, "shape", session.run_id, signature)
        pattern = next(
            word
            for limit, word in ((0.34, "ABA"), (0.54, "AAB"), (0.85, "ABC"), (0.93, "AAAB"), (1.0, "parallel"))
            if shape < limit
        )
        if pattern == "parallel" and session.form != "native":
            pattern = "ABC"
        is_interrupted = (
            pattern in ("ABA", "ABC")
            and len(fault.targets) > 3
            and draw(self.seed, "interrupted", session.run_id, signature) < 0.15
        )
        return Plan(fault, signature, arm, arm_bp, outcome, pattern, is_interrupted)


def plant(session: Session, plan: Plan) -> None:
    """Write the steps of one loop, its detection and delivery records, and its outcome."""
    fault, dice = plan.fault, session.dice
    targets = dice.some(fault.targets, 3)
    order = "ABC" if plan.pattern == "parallel" else plan.pattern
    used: list[str] = []
    for n, letter in enumerate(order):
        is_parallel = plan.pattern == "parallel" and n > 0
        if n and not is_parallel and dice.roll() < 0.3:
            session.look()
        if plan.is_interrupted and n == 2:
            session.succeed(fault, dice.pick([t for t in fault.targets if t not in targets]))
        used.append(targets["ABC".index(letter)])
        step = session.fail(fault, used[-1], same_turn=is_parallel)
        if plan.pattern == "AAAB" and n == 2:
            session.loops.append(
                _row(session, plan, step, rule.REPEAT, count_events=3, count_targets=1, count_decisions=3)
            )
    row = _row(
        session,
        plan,
        step,
        rule.STRATEGY_LOOP,
        count_events=len(order),
        count_targets=len(set(used)),
        count_decisions=1 if plan.pattern == "parallel" else len(order),
    )
    session.loops.append(row)
    if session.experiment:
        _announce(session, plan, step)
    failing = list(dict.fromkeys(used))
    if plan.outcome == "recurred":
        for _ in range(3):
            if dice.roll() < 0.25:
                session.look()
            session.fail(fault, dice.pick(failing))
        if dice.roll() < 0.3:
            session.succeed(fault, dice.pick(failing))
        return
    for _ in range(dice.between(0, 2)):
        session.fail(fault, dice.pick(failing))
        if dice.roll() < 0.4:
            session.look()
    if plan.outcome == "broke":
        if dice.roll() < 0.5:
            session.work(fault)
        fixed = dice.pick(failing)
        session.succeed(fault, fixed)
        if plan.is_relapsed:
            for _ in range(3):
                session.look()
                session.fail(fault, fixed)
    elif plan.is_late_decision:
        session.succeed(fault, failing[0], wait=MATURITY + 7200)
        row["outcome_final"] = "broke"
    elif plan.is_sidestepped:
        session.step(
            "Write",
            {"file_path": failing[0], "content": "rewritten\n"},
            "success",
            f"The file {failing[0]} has been updated.",
        )


def _row(session: Session, plan: Plan, step: Step, rule_name: str, **counts: int) -> dict[str, Any]:
    is_strategy = rule_name == rule.STRATEGY_LOOP
    is_enrolled = session.experiment is not None
    row: dict[str, Any] = {
        "run_id": session.run_id,
        "signature": plan.signature,
        "rule": rule_name,
        "is_enrolled": is_enrolled,
        "source": session.form,
        "tool": logged_tool(step, session.form),
        "detecting_call_id": step.call_id,
        "detected_at": iso(step.ts_ms) if session.is_timed else None,
        "state": "pending" if session.is_timed and step.ts_ms + MATURITY * 1000 > AS_OF * 1000 else "mature",
        **counts,
        "facts": ["infra"] * plan.fault.is_infra + ["interrupted"] * plan.is_interrupted,
    }
    if is_strategy:
        row |= {"arm": plan.arm, "outcome": plan.outcome}
        row["facts"] += ["relapsed"] * plan.is_relapsed + ["sidestepped"] * plan.is_sidestepped
    if is_strategy and is_enrolled:
        row["is_delivered"] = plan.arm == "treated" and plan.undelivered is None
    return row


def _announce(session: Session, plan: Plan, step: Step) -> None:
    """The hook's own detection and delivery records."""
    common = {"experiment": EXPERIMENT, "signature": plan.signature, "arm": plan.arm}
    session.note(
        type="loop",
        id=f"loop-{plan.signature}",
        **common,
        rule=rule.STRATEGY_LOOP,
        rule_digest=rule_digest(),
        arm_bp=plan.arm_bp,
        share_bp=SHARE_BP,
        epoch=EPOCH,
        step=step.call_id,
    )
    is_delivered = plan.arm == "treated" and plan.undelivered is None
    record: dict[str, Any] = {
        "type": "delivery",
        "id": f"delivery-{plan.signature}",
        **common,
        "delivered": is_delivered,
        "tier": 1,
    }
    if is_delivered:
        record["text_sha256"] = hashlib.sha256(b"The same failure keeps coming back. Try another way.").hexdigest()
    else:
        record["reason"] = plan.undelivered or "holdout"
    session.note(**record)


def open_up(session: Session) -> None:
    """What a session does before it gets into trouble."""
    session.look()
    if session.dice.roll() < 0.25:
        session.work(session.plans[0].fault if session.plans else None)


def odd_step(session: Session) -> None:
    """A step that is neither success nor failure, or whose tool no table knows."""
    kind = session.dice.pick(("veto", "unknown", "unclassified"))
    if kind == "veto":
        session.step(
            "Bash",
            {"command": "git push --force origin main"},
            "vetoed",
            "Permission denied by rule: push",
            reason=session.dice.pick(("user", "permission", "hook")),
        )
    elif kind == "unknown":
        session.step(
            "Bash",
            {"command": "docker compose up -d search"},
            "unknown",
            "",
            reason=session.dice.pick(("interrupt", "sibling", "missing")),
        )
    else:
        session.step("palette_sync", {"theme": session.dice.pick(("harbor", "night", "paper"))}, "success", "in sync")


def wind_down(session: Session, is_solved: bool) -> None:
    """What a native session does at its end: sometimes a commit, a guard's record, a grader's verdict."""
    if session.dice.roll() < 0.25:
        session.look()
    if session.form != "native":
        return
    if session.dice.roll() < 0.12:
        event = session.dice.pick(("raise", "reset", "block"))
        session.note(
            type="guard",
            id="g1",
            name="step-budget",
            event=event,
            tier=session.dice.between(1, 3),
            counter=0 if event == "reset" else session.dice.between(3, 9),
            by="harness",
            ttl_s=600,
        )
    if session.dice.roll() < 0.35:
        ending = "commit" if is_solved else session.dice.pick(("ask", "give-up", "cap"))
        bait = session.dice.pick((None, None, None, "already-fixed", "underspecified", "impossible"))
        expected = {None: "commit", "underspecified": "ask"}.get(bait, "give-up")
        record = {
            "type": "result",
            "id": "r1",
            "solved": is_solved,
            "ending": ending,
            "expected_ending": expected,
            "claimed": is_solved or session.dice.roll() < 0.4,
        }
        session.note(**record, **({"bait": bait} if bait else {}))


# --- the whole -------------------------------------------------------------------------------------------------------


def start_time(seed: int, name: str, last_day: int = 29) -> int:
    """A start in working hours; weekends are quieter, the last week is busier."""
    weights = [
        (0.5 if datetime.fromtimestamp(FIRST_DAY + day * DAY, UTC).weekday() >= 5 else 1.0)
        * (1.55 if FIRST_DAY + day * DAY >= LAST_WEEK else 1.0)
        for day in range(last_day + 1)
    ]
    left = draw(seed, "day", name) * sum(weights)
    day = 0
    while left >= weights[day] and day < last_day:
        left -= weights[day]
        day += 1
    return FIRST_DAY + day * DAY + 7 * 3600 + int(draw(seed, "hour", name) * 12 * 3600)


def enrolled_sessions(seed: int) -> list[Session]:
    """All sessions with enrolled strategy loops, planned but not written."""
    planner = Planner(seed)
    out: list[Session] = []
    for n in range(COUNT_NATIVE + COUNT_CLAUDE):
        form = "native" if n < COUNT_NATIVE else "claude-code"
        name = f"acme-{n + 1:04d}" if form == "native" else uuid_of("claude", n)
        start = start_time(seed, name)
        if form == "native" and n < 9:
            # These begin shortly before a file is rotated, so that they lie in two files.
            start = FIRST_DAY + (n + 1) * ROTATION + 12 * 3600 - 100
        session = Session(name, form, start, seed)
        faults = Dice(seed, "faults", name).some(FAULTS if form == "native" else CLAUDE_FAULTS, 2)
        session.plans.append(planner.plan(session, faults[0]))
        # A second loop on the first one's targets could end or sidestep it.
        is_apart = (faults[0].tool, faults[0].program) != (faults[1].tool, faults[1].program) and not set(
            faults[0].targets
        ) & set(faults[1].targets)
        if is_apart and draw(seed, "two", name) < 0.14:
            session.plans.append(planner.plan(session, faults[1]))
        out.append(session)
    helper = out[-1]
    agent = Session(helper.name, "claude-code", helper.start + 240, seed, agent="a" + hex_id(16, "agent", helper.name))
    agent.plans.append(planner.plan(agent, BY_NAME["pytest-import"]))
    out.append(agent)
    _spread_variants(out)
    return out


def _spread_variants(sessions: list[Session]) -> None:
    """Give relapses, sidesteps, one late decision and two missed deliveries to loops whose outcome and arm fit."""
    plans = [(session, plan) for session in sessions for plan in session.plans]
    for _, plan in [pair for pair in plans if pair[1].outcome == "broke"][4::9]:
        plan.is_relapsed = True
    unresolved = [pair for pair in plans if pair[1].outcome == "unresolved" and pair[0].form == "native"]
    for session, plan in unresolved:
        if len(session.plans) == 1 and session.start < LAST_WEEK:
            plan.is_late_decision = True
            break
    for _, plan in [
        pair
        for pair in unresolved
        if not pair[1].is_late_decision
        and "/" in pair[1].fault.targets[0]
        and "://" not in pair[1].fault.targets[0]
        and pair[1].fault.tool != "Write"
    ][::3]:
        plan.is_sidestepped = True
    reasons = ("the turn had ended before the hint was ready", "hook timed out after 2 s")
    treated = [pair for pair in plans if pair[1].arm == "treated" and pair[0].form == "native"]
    for (_, plan), reason in zip(treated[20::60], reasons, strict=False):
        plan.undelivered = reason


def holds(sessions: list[Session]) -> bool:
    """Whether the draws of this seed are a fair picture of what was planted: both arms large, rates near the truth."""
    count: Counter[tuple[str, str]] = Counter()
    recent: Counter[str] = Counter()
    clusters: dict[str, set[str]] = {"treated": set(), "holdout": set()}
    for session in sessions:
        for plan in session.plans:
            count[plan.arm, plan.outcome] += 1
            recent[plan.arm] += session.start >= LAST_WEEK
            clusters[plan.arm].add(session.name)
    n = {arm: sum(v for key, v in count.items() if key[0] == arm) for arm in clusters}
    rates = {arm: count[arm, "broke"] / n[arm] for arm in n}
    return (
        min(n.values()) >= 190
        and min(len(names) for names in clusters.values()) >= 160
        and min(recent.values()) >= 43
        and abs(rates["treated"] - rates["holdout"] - 0.25) <= 0.015
        and abs(rates["treated"] - BREAK_RATE["treated"]) <= 0.025
        and all(0.10 <= count[arm, "unresolved"] / n[arm] <= 0.14 for arm in n)
    )


def choose_seed() -> tuple[int, list[Session]]:
    """The first seed from `SEED` on whose draws `holds` accepts."""
    for seed in range(SEED, SEED + 2000):
        sessions = enrolled_sessions(seed)
        if holds(sessions):
            return seed, sessions
    raise SystemExit("no seed gives the planted picture; look at the faults and at the counts of sessions")


def write_enrolled(sessions: list[Session]) -> None:
    """Write the steps of the planned sessions."""
    delegating = {session.name for session in sessions if session.agent}
    for session in sessions:
        if not session.agent:
            session.enrol()
        open_up(session)
        for plan in session.plans:
            if session.dice.roll() < 0.16 and session.form == "native":
                odd_step(session)
            plant(session, plan)
        if session.name in delegating and not session.agent:
            session.step(
                "Task",
                {"subagent_type": "tester", "description": "tests", "prompt": "Run the tests."},
                "success",
                "One module cannot be imported.",
            )
        wind_down(session, all(plan.outcome == "broke" for plan in session.plans))


def other_sessions(seed: int) -> list[Session]:
    """Everything beside the headline: pending, replay-only, healthy, repeating and odd sessions, written."""
    planner = Planner(seed)
    out: list[Session] = []

    def native(name: str, *, is_enrolled: bool, start: int | None = None) -> Session:
        session = Session(
            name,
            "native",
            start_time(seed, name) if start is None else start,
            seed,
            experiment=EXPERIMENT if is_enrolled else None,
        )
        session.enrol() if is_enrolled else session.introduce()
        out.append(session)
        return session

    def loop(session: Session, fault: Fault) -> Plan:
        session.plans.append(planner.plan(session, fault))
        return session.plans[-1]

    for n in range(COUNT_PENDING):
        session = native(f"acme-fresh-{n + 1}", is_enrolled=True, start=AS_OF - DAY + 3600 * (2 + 3 * n))
        plan = loop(session, FAULTS[(3 * n) % 12])
        open_up(session)
        plant(session, plan)
    for n in range(COUNT_REPLAY):
        session = native(f"acme-plain-{n + 1:02d}", is_enrolled=False)
        session.look()
        if n % 2:
            plant(session, loop(session, session.dice.pick(FAULTS)))
        else:
            healthy(session)
        wind_down(session, True)
    for n in range(COUNT_HEALTHY):
        session = native(f"acme-calm-{n + 1:02d}", is_enrolled=True)
        session.look()
        healthy(session)
        if n % 4 == 0:
            odd_step(session)
        wind_down(session, True)
    for n in range(COUNT_REPEAT):
        session = native(f"acme-retry-{n + 1:02d}", is_enrolled=True)
        repeat(session, is_broken=n % 3 > 0)
    traps(native, loop)
    out.extend(claude_extras(seed, planner))
    out.extend(codex_sessions(seed, planner))
    return out


def healthy(session: Session) -> None:
    """Edit and test with fewer failures each time: the shape of a loop, and none."""
    test = session.dice.pick(TESTS)
    for failures in (5, 3, 1):
        session.step(
            "Edit",
            {"file_path": session.dice.pick(MODULES), "old_string": "rate", "new_string": "base_rate"},
            "success",
            "The file has been updated.",
        )
        text = f"FAILED {test}::test_total - AssertionError\n{failures} failed, {12 - failures} passed in 0.{failures}s"
        session.step("Bash", {"command": f"pytest {test}"}, "failure", text, exit_code=1)
    session.step("Bash", {"command": f"pytest {test}"}, "success", "12 passed in 0.44s", exit_code=0)


def repeat(session: Session, is_broken: bool) -> None:
    """The retry that does not help: one target, so never a strategy loop."""
    plan = Plan(BUILD, fault_signature(BUILD.name, session.form), "", 0, "broke" if is_broken else "unresolved", "AAA")
    session.look()
    for n in range(3):
        step = session.fail(BUILD, BUILD.targets[0])
        if n < 2 and session.dice.roll() < 0.6:
            session.work(BUILD)
    row = _row(session, plan, step, rule.REPEAT, count_events=3, count_targets=1, count_decisions=3)
    session.loops.append({**row, "outcome": plan.outcome})
    if is_broken:
        session.work(BUILD)
        session.succeed(BUILD, BUILD.targets[0])


def traps(native: Callable[..., Session], loop: Callable[[Session, Fault], Plan]) -> None:
    """One session each for what a careless reader would get wrong."""
    edit, key = BY_NAME["edit-miss"], BY_NAME["python-key"]
    session = native("acme-late-enrolment", is_enrolled=False)
    plan = loop(session, edit)
    plan.pattern, plan.outcome = "ABA", "unresolved"
    plant(session, plan)
    session.enrol()
    session.look()

    session = native("acme-mid-enrolment", is_enrolled=False)
    for target in key.targets[:2]:
        session.fail(key, target)
    session.enrol()
    for target in key.targets[:2]:
        session.fail(key, target)

    session = native("acme-user-typing", is_enrolled=True)
    for target in key.targets[:3]:
        session.fail(key, target).actor = "user"

    session = native("acme-refused", is_enrolled=True)
    for reason, target in zip(("user", "permission", "hook"), edit.targets, strict=False):
        session.fail(edit, target, outcome="vetoed", reason=reason)
    for reason, target in zip(("interrupt", "sibling", "missing"), edit.targets, strict=False):
        session.fail(edit, target, outcome="unknown", reason=reason)

    session = native("acme-untimed", is_enrolled=False)
    session.is_timed = False
    plan = loop(session, BY_NAME["mypy-assign"])
    plan.pattern = "ABA"
    plant(session, plan)


def claude_extras(seed: int, planner: Planner) -> list[Session]:
    """Transcripts outside the headline: two without a hook, a fork pair, and one still going at the as-of time."""
    out = []
    for n, fault in enumerate((BY_NAME["edit-miss"], None)):
        session = Session(uuid_of("claude-plain", n), "claude-code", start_time(seed, f"claude-plain-{n}"), seed, None)
        session.look()
        if fault is None:
            healthy(session)
            session.step("Bash", {"command": "git push origin main"}, "vetoed", reason="user")
        else:
            session.plans.append(planner.plan(session, fault))
            plant(session, session.plans[0])
        out.append(session)

    parent = Session(uuid_of("claude-parent"), "claude-code", start_time(seed, "claude-parent"), seed, None)
    plan = planner.plan(parent, BY_NAME["tsc-name"])
    plan.pattern, plan.outcome = "ABA", "recurred"
    parent.plans.append(plan)
    plant(parent, plan)
    fork = Session(uuid_of("claude-fork"), "claude-code", parent.now_ms // 1000 + 3600, seed, None)
    for target in plan.fault.targets[:2]:
        fork.fail(plan.fault, target)
    fork.look()
    out += [parent, fork]

    going = Session(uuid_of("claude-going"), "claude-code", AS_OF - 1500, seed)
    going.enrol()
    plan = planner.plan(going, BY_NAME["pytest-import"])
    plan.pattern, plan.outcome = "ABA", "unresolved"
    going.plans.append(plan)
    going.look()
    plant(going, plan)
    going.step("Bash", {"command": "pytest tests/test_smoke.py"}, None)
    out.append(going)
    return out


def codex_sessions(seed: int, planner: Planner) -> list[Session]:
    """Rollouts, never enrolled: some with a loop, one with failing patches, one without trouble."""
    out = []
    for n in range(6):
        start = FIRST_DAY + (13 + 2 * n) * DAY + 9 * 3600 + 600 * n
        session = Session(uuid_of("codex", n), "codex", start, seed, None)
        session.look()
        if n < 4:
            fault = PATCH if n == 3 else CODEX_FAULTS[n]
            plan = planner.plan(session, fault)
            plan.pattern = "ABC"
            session.plans.append(plan)
            plant(session, plan)
        else:
            session.work(None)
            session.step("Bash", {"command": "pytest tests/test_smoke.py"}, "success", "3 passed in 0.12s", exit_code=0)
        session.look()
        out.append(session)
    return out


# --- writing ---------------------------------------------------------------------------------------------------------


def iso(ts_ms: int) -> str:
    """RFC 3339 in UTC with milliseconds."""
    text = datetime.fromtimestamp(ts_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{ts_ms % 1000:03d}Z"


def line(record: Any) -> str:
    """One line of JSON, without its newline."""
    return json.dumps(record, ensure_ascii=False, separators=(",", ":"))


def native_records(session: Session) -> Iterable[tuple[int, str]]:
    """Time and line of each record of a session in the native log."""
    for entry in session.entries:
        ts = iso(entry.ts_ms) if session.is_timed else None
        common: dict[str, Any] = {"session": session.name, "ts": ts}
        if isinstance(entry, Note):
            yield entry.ts_ms, line({"v": 1, "type": entry.record["type"], **common, **entry.record})
            continue
        record: dict[str, Any] = {
            "v": 1,
            "type": "step",
            "session": session.name,
            "id": entry.call_id,
            "ts": ts,
            "decision": f"d{entry.turn}",
            "tool": entry.tool,
            "input": {key: value for key, value in entry.args.items() if key not in CONTENTS},
            "outcome": entry.outcome,
        }
        for key, value in (
            ("outcome_reason", entry.reason),
            ("exit_code", entry.exit_code),
            ("error_code", entry.code),
            ("kind", entry.kind),
            ("actor", entry.actor),
        ):
            if value is not None:
                record[key] = value
        if entry.outcome != "success" and entry.text:
            record["message"] = entry.text
        record["tokens"] = _tokens(session, entry)
        yield entry.ts_ms, line(record)


def _tokens(session: Session, step: Step) -> dict[str, int]:
    key = (session.seed, session.run_id, step.turn)
    return {"input": 300 + int(draw("in", *key) * 2500), "output": 40 + int(draw("out", *key) * 500)}


def spool_records(session: Session) -> Iterable[tuple[int, str]]:
    """What the hook writes beside a transcript: enrolment, steps as the ruler reads them, detections, deliveries."""
    who: dict[str, Any] = {"session": session.name}
    if session.agent:
        who["agent"] = session.agent
    for entry in session.entries:
        ts = iso(entry.ts_ms)
        if isinstance(entry, Note):
            yield entry.ts_ms, line({"v": 1, "type": entry.record["type"], **who, "ts": ts, **entry.record})
            continue
        if entry.outcome is None:
            continue
        facts = rule.read_call(entry.tool, claude_args(entry), HOME)
        record = {
            "v": 1,
            "type": "step",
            **who,
            "id": entry.call_id,
            "ts": ts,
            "tool": entry.tool,
            "kind": facts.kind,
            "action": facts.action,
            "target": rule.place(facts.target, HOME),
            "outcome": entry.outcome,
            "fingerprint": facts.fingerprint,
        }
        if entry.outcome == "failure":
            failure = rule.read_failure(shown(entry, session.form), entry.exit_code, None, False)
            record |= {
                "error_code": failure.code or "",
                "message": failure.message[: rule.MESSAGE_SHOWN],
                "signature": signature_of(entry, session.form),
            }
            if entry.exit_code is not None:
                record["exit_code"] = entry.exit_code
        yield entry.ts_ms, line(record)


REJECTED = (
    "The user doesn't want to proceed with this tool use. The tool use was rejected "
    "(eg. if it was a file edit, the new_string was NOT written to the file)."
)


def claude_args(step: Step) -> dict[str, Any]:
    """Arguments as Claude Code logs them: absolute paths."""
    return {key: f"{HOME}/{value}" if key in ("file_path", "path") else value for key, value in step.args.items()}


def claude_lines(session: Session, copied: Sequence[dict[str, Any]] = ()) -> list[dict[str, Any]]:
    """The transcript of a session; `copied` records of a parent come first, under the new session id."""
    out = [{**record, "sessionId": session.name} for record in copied]
    common = {
        "isSidechain": session.agent is not None,
        "userType": "external",
        "cwd": HOME,
        "sessionId": session.name,
        "version": "2.1.42",
        "gitBranch": "main",
    }
    if session.agent:
        common["agentId"] = session.agent
    parent: str | None = out[-1]["uuid"] if out else None

    def add(kind: str, ts_ms: int, **rest: Any) -> str:
        nonlocal parent
        uuid = uuid_of("record", session.run_id, len(out))
        out.append({"parentUuid": parent, **common, "type": kind, **rest, "uuid": uuid, "timestamp": iso(ts_ms)})
        parent = uuid
        return uuid

    add("user", session.start * 1000, message={"role": "user", "content": "Please mend the voucher tax."})
    steps = [entry for entry in session.entries if isinstance(entry, Step)]
    for n, step in enumerate(steps):
        began = step.ts_ms - 900
        tokens = _tokens(session, step)
        message_id = "msg_01" + hex_id(22, "msg", session.run_id, step.turn)
        usage = {
            "input_tokens": tokens["input"],
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 12_000 + 350 * n,
        }

        def assistant(
            ts_ms: int,
            block: dict[str, Any],
            count_output: int,
            message_id: str = message_id,
            usage: dict[str, int] = usage,
        ) -> str:
            return add(
                "assistant",
                ts_ms,
                requestId="req_" + message_id[6:],
                message={
                    "model": session.model,
                    "id": message_id,
                    "type": "message",
                    "role": "assistant",
                    "content": [block],
                    "stop_reason": None,
                    "usage": {**usage, "output_tokens": count_output},
                },
            )

        if draw("says", session.run_id, n) < 0.3:
            assistant(began - 700, {"type": "text", "text": "Let me look at this."}, 3)
        call = {"type": "tool_use", "id": step.call_id, "name": step.tool, "input": claude_args(step)}
        asked = assistant(began, call, tokens["output"])
        if step.outcome is None:
            continue
        block: dict[str, Any] = {"tool_use_id": step.call_id, "type": "tool_result"}
        block["content"] = shown(step, session.form)
        result: Any = {"stdout": step.text, "stderr": "", "interrupted": False} if step.tool == "Bash" else {}
        if step.outcome == "failure":
            block["is_error"] = True
            result = f"Error: {step.text}"
        elif step.outcome == "vetoed":
            block |= {"is_error": True, "content": REJECTED}
            result = "User rejected tool use"
        elif step.tool == "Bash":
            block["is_error"] = False
        add(
            "user",
            step.ts_ms,
            message={"role": "user", "content": [block]},
            toolUseResult=result,
            sourceToolAssistantUUID=asked,
        )
    return out


def codex_lines(session: Session) -> list[dict[str, Any]]:
    """The rollout of a session."""
    start = iso(session.start * 1000)
    out: list[dict[str, Any]] = [
        {
            "timestamp": start,
            "type": "session_meta",
            "payload": {
                "id": session.name,
                "timestamp": start,
                "cwd": HOME,
                "originator": "codex_cli_rs",
                "cli_version": "0.106.0",
                "instructions": None,
                "git": {"branch": "main"},
            },
        },
        {
            "timestamp": start,
            "type": "turn_context",
            "payload": {"cwd": HOME, "model": session.model, "approval_policy": "never"},
        },
        {
            "timestamp": start,
            "type": "response_item",
            "payload": {
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": "Mend the voucher tax."}],
            },
        },
    ]
    total = {"input_tokens": 0, "cached_input_tokens": 0, "output_tokens": 0, "total_tokens": 0}
    for step in session.entries:
        if not isinstance(step, Step):
            continue
        tokens = _tokens(session, step)
        last = {
            "input_tokens": tokens["input"],
            "cached_input_tokens": 0,
            "output_tokens": tokens["output"],
            "total_tokens": tokens["input"] + tokens["output"],
        }
        total = {key: total[key] + last[key] for key in total}
        tool = logged_tool(step, "codex")
        args = {"command": ["bash", "-lc", step.args["command"]]} if tool == "shell" else step.args
        output = step.text
        if step.exit_code is not None or step.outcome == "success":
            facts = {"exit_code": step.exit_code or 0, "duration_seconds": 0.8}
            output = line({"output": step.text, "metadata": facts})
        usage = {"total_token_usage": total, "last_token_usage": last}
        for ts_ms, kind, payload in (
            (
                step.ts_ms - 800,
                "response_item",
                {"type": "function_call", "name": tool, "arguments": line(args), "call_id": step.call_id},
            ),
            (step.ts_ms, "response_item", {"type": "function_call_output", "call_id": step.call_id, "output": output}),
            (step.ts_ms + 5, "event_msg", {"type": "token_count", "info": usage}),
        ):
            out.append({"timestamp": iso(ts_ms), "type": kind, "payload": payload})
    return out


@dataclass
class File:
    """One file to be written: its lines, and how many of them are broken on purpose."""

    lines: list[bytes] = field(default_factory=list)
    rejected: list[str] = field(default_factory=list)
    tail: bytes = b""

    def data(self) -> bytes:
        """The bytes; every line but a torn last one ends in a newline."""
        return b"".join(text + b"\n" for text in self.lines) + self.tail

    def spoil(self, at: int, reason: str, text: bytes) -> None:
        """Put a line that no reader can use at position `at`."""
        self.lines.insert(at, text)
        self.rejected.append(reason)


def build_files(sessions: list[Session]) -> dict[str, File]:
    """All log files by their path below the sample folder."""
    files: dict[str, File] = {}
    shared: list[tuple[int, str, int, str]] = []
    for session in sessions:
        if session.form == "native" and session.is_timed:
            shared += [(ts, session.name, n, text) for n, (ts, text) in enumerate(native_records(session))]
        elif session.form == "native":
            files["native/untimed.jsonl"] = File([text.encode() for _, text in native_records(session)])
    for ts_ms, _, _, text in sorted(shared):
        part = (ts_ms // 1000 - FIRST_DAY - DAY // 2) // ROTATION
        day = datetime.fromtimestamp(FIRST_DAY + part * ROTATION, UTC).strftime("%Y-%m-%d")
        files.setdefault(f"native/acme-{day}.jsonl", File()).lines.append(text.encode())
    spoil_native(files)

    spools: dict[str, list[tuple[int, str]]] = {}
    by_name = {session.run_id: session for session in sessions if session.form == "claude-code"}
    copied = claude_lines(by_name[uuid_of("claude-parent")])[:-2]
    for session in by_name.values():
        is_fork = session.name == uuid_of("claude-fork")
        records = claude_lines(session, copied if is_fork else ())
        inner = f"{session.name}/subagents/agent-{session.agent}" if session.agent else session.name
        files[f"{CLAUDE_FOLDER}/{inner}.jsonl"] = File([line(record).encode() for record in records])
        if session.experiment:
            spools.setdefault(session.name, []).extend(spool_records(session))
    for name, rows in spools.items():
        files[f"spool/{name}.jsonl"] = File([text.encode() for _, text in sorted(rows, key=lambda row: row[0])])
    torn = files[f"{CLAUDE_FOLDER}/{uuid_of('claude-plain', 0)}.jsonl"]
    torn.spoil(4, "truncated", torn.lines[3][:180])

    for session in sessions:
        if session.form == "codex":
            when = datetime.fromtimestamp(session.start, UTC)
            path = f"codex/{when:%Y/%m/%d}/rollout-{when:%Y-%m-%dT%H-%M-%S}-{session.name}.jsonl"
            files[path] = File([line(record).encode() for record in codex_lines(session)])
    return dict(sorted(files.items()))


def spoil_native(files: dict[str, File]) -> None:
    """Broken lines, a snapshot copy of the first lines of one file, and a last line that is still being written."""
    names = sorted(name for name in files if name.startswith("native/acme-"))
    lost = line(
        {
            "v": 1,
            "type": "step",
            "session": "acme-0001",
            "id": "lost",
            "tool": "Read",
            "input": {"file_path": "docs/stock.md"},
            "outcome": "success",
        }
    ).encode()
    files[names[1]].spoil(40, "truncated", lost[:70])
    files[names[2]].spoil(25, "nul", b"\0" * 256)
    files[names[4]].spoil(60, "not_an_object", b'["a list","is","no record"]')
    files[names[5]].spoil(60, "not_an_object", b'"a bare string"')
    files["native/copy-of-" + names[3].removeprefix("native/")] = File(files[names[3]].lines[:120])
    files[names[-1]].tail = lost[:95]


def truth_of(seed: int, sessions: list[Session], files: dict[str, File]) -> dict[str, Any]:
    """What was planted: one row a loop, counts, and what is broken in which file."""
    rows = sorted(
        (row for session in sessions for row in session.loops),
        key=lambda row: (row["run_id"], row["signature"], row["rule"]),
    )
    headline = [row for row in rows if _is_headline(row)]
    arms = {}
    for arm in ("treated", "holdout"):
        mine = [row for row in headline if row["arm"] == arm]
        recent = [row for row in mine if row["detected_at"] >= iso(LAST_WEEK * 1000)]
        arms[arm] = {
            "planted_break_rate": BREAK_RATE[arm],
            "n": len(mine),
            "sessions": len({row["run_id"].split("/")[0] for row in mine}),
            **{word: sum(row["outcome"] == word for row in mine) for word in ("broke", "recurred", "unresolved")},
            "n_last_7d": len(recent),
            "delivered": sum(row["is_delivered"] for row in mine),
        }
    return {
        "experiment": EXPERIMENT,
        "salt_id": rule.salt_id(SALT),
        "share_bp": SHARE_BP,
        "n_star": N_STAR,
        "seed": seed,
        "rule_digest": rule_digest(),
        "as_of": "2026-11-20T00:00:00Z",
        "maturity_hours": MATURITY // 3600,
        "planted_lift": 0.25,
        "arms": arms,
        "count": {
            "sessions": len({session.name for session in sessions}),
            "runs": len(sessions),
            "loops": len(rows),
            "strategy_enrolled_mature": len(headline),
            "strategy_enrolled_pending": sum(
                _is_strategy(r) and r["is_enrolled"] and r["state"] == "pending" for r in rows
            ),
            "strategy_replay": sum(_is_strategy(r) and not r["is_enrolled"] for r in rows),
            "repeat": sum(not _is_strategy(r) for r in rows),
            **{
                word: sum(_is_strategy(r) and word in r["facts"] for r in rows)
                for word in ("infra", "interrupted", "relapsed", "sidestepped")
            },
            "in_one_turn": sum(r["count_decisions"] == 1 for r in rows),
        },
        "files": {
            name: {"lines": len(file.lines), "rejected": file.rejected, "waiting": int(bool(file.tail))}
            for name, file in files.items()
        },
        "loops": rows,
    }


def _is_strategy(row: dict[str, Any]) -> bool:
    return bool(row["rule"] == rule.STRATEGY_LOOP)


def _is_headline(row: dict[str, Any]) -> bool:
    return _is_strategy(row) and bool(row["is_enrolled"]) and row["state"] == "mature"


def truth_text(truth: dict[str, Any]) -> str:
    """The truth file: one line a file and a loop, so that a change can be read."""
    head = {key: value for key, value in truth.items() if key not in ("files", "loops")}
    text = json.dumps(head, indent=1)[:-2]
    files = ",\n".join(f"  {line(name)}: {line(value)}" for name, value in truth["files"].items())
    loops = ",\n".join("  " + line(row) for row in truth["loops"])
    return f'{text},\n "files": {{\n{files}\n }},\n "loops": [\n{loops}\n ]\n}}\n'


CONFIG = f"""# The experiment of the sample logs: loopstats --config data/sample/loopstats.toml lift
[experiment.{EXPERIMENT}]
salt = "{SALT}"
share_bp = {SHARE_BP}
n_star = {N_STAR}
"""


def readme_text(truth: dict[str, Any]) -> str:
    """`README.md`, with the counts of this very sample."""
    count, arms = truth["count"], truth["arms"]
    folders = Counter(name.split("/")[0] for name in truth["files"])
    broken = sum(len(value["rejected"]) for value in truth["files"].values())
    words = ("n", "sessions", "broke", "recurred", "unresolved")
    table = "\n".join(
        f"| {arm} | {row['planted_break_rate']:.2f} | {' | '.join(str(row[word]) for word in words)} "
        f"| {row['broke'] / row['n']:.3f} | {row['n_last_7d']} |"
        for arm, row in arms.items()
    )
    treated, holdout = arms["treated"], arms["holdout"]
    observed = treated["broke"] / treated["n"] - holdout["broke"] / holdout["n"]
    return f"""# Sample logs with a known truth

Made by `tests/make_sample.py` (seed {truth["seed"]}), byte for byte the same on every machine; invented from end to
end: a small web shop's repository, agents that get stuck in it, and a hint that helps.
`tests/golden/sample-truth.json` holds one row for every planted loop, and for every file its lines and what is broken
in it.

## The experiment

`loopstats.toml` holds the salt of experiment `{EXPERIMENT}`: treated share {SHARE_BP} basis points, planned total
{N_STAR}. A loop's arm is the method's hash; its outcome was drawn with the probability of that arm. **The planted lift
is {truth["planted_lift"]:.2f}.** As of {truth["as_of"]}, enrolled mature strategy loops:

| arm | planted break rate | n | sessions | broke | recurred | unresolved | observed break rate | n of the last 7 days |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
{table}

Observed lift {observed:.3f}. The seed is the first one whose draws lie near the planted rates, so the sample shows
what it should; it is no evidence about the method's coverage.
{treated["n"] - treated["delivered"]} treated loops were not delivered (the log has the reason), and
{holdout["delivered"]} holdout loops were.
{count["strategy_enrolled_pending"]} enrolled loops are younger than {truth["maturity_hours"]} h and pending, one of
them in a session that still goes on.

## The files

- `native/` ({folders["native"]} files): event log of a harness `acme-agent 2.1`. A new file begins every three days at
  noon, so some sessions lie in two files; one file is a copy of another's beginning; one session has no times.
- `claude-code/` ({folders["claude-code"]}): transcripts, among them a subagent's, a fork that repeats its parent's
  records, and one without its last result.
- `spool/` ({folders["spool"]}): what the hook wrote beside the enrolled transcripts.
- `codex/` ({folders["codex"]}): rollouts, in no experiment.

{count["sessions"]} sessions, {count["runs"]} runs, {count["loops"]} loops:

- {count["strategy_enrolled_mature"]} strategy loops in the experiment and mature, {count["strategy_replay"]} outside it
  (replay only);
- {count["repeat"]} of `repeat/1` (one target), some of which become strategy loops when a second target fails;
- among the strategy loops {count["infra"]} of rate limits and server errors, {count["interrupted"]} interrupted by a
  success of the same action, {count["in_one_turn"]} from one parallel turn, {count["relapsed"]} that broke and came
  back, {count["sidestepped"]} unresolved and sidestepped, one decided only after its maturity.

Also in it: vetoed and unknown steps, a tool that no table knows (`palette_sync`), calls of a user, guard and result
records, a session enrolled only after its loop, one enrolled between two failures and two more, {broken} broken lines,
and one last line that is still being written.
"""


def generate(out: Path, truth_path: Path) -> dict[str, Any]:
    """Write the whole sample below `out`, its truth to `truth_path`, and give the truth back."""
    seed, enrolled = choose_seed()
    write_enrolled(enrolled)
    sessions = [*enrolled, *other_sessions(seed)]
    files = build_files(sessions)
    truth = truth_of(seed, sessions, files)
    _remove_former(out, truth_path, files)
    texts = {"README.md": readme_text(truth), "loopstats.toml": CONFIG}
    for name, data in {**{k: f.data() for k, f in files.items()}, **{k: t.encode() for k, t in texts.items()}}.items():
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    truth_path.write_text(truth_text(truth), encoding="utf-8")
    return truth


def _remove_former(out: Path, former: Path, files: dict[str, File]) -> None:
    """Remove the log files of a former sample below `out` that are no longer part of it: those its truth names."""
    if former.exists():
        for name in set(json.loads(former.read_text(encoding="utf-8"))["files"]) - set(files):
            (out / name).unlink(missing_ok=True)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Write the sample logs.")
    parser.add_argument("--out", type=Path, default=ROOT / "data" / "sample", help="folder (default: data/sample)")
    parser.add_argument("--truth", type=Path, default=ROOT / "tests" / "golden" / "sample-truth.json", help="file")
    arguments = parser.parse_args()
    truth = generate(arguments.out, arguments.truth)
    print(json.dumps({"seed": truth["seed"], "arms": truth["arms"], "count": truth["count"]}, indent=1))


if __name__ == "__main__":
    main()
