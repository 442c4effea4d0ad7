"""What came back for a call, in the words of the agents that can be hooked: Claude Code and Codex.

A room of its own because the live hook and the log formats must understand an answer in the very same way, and the
hook may load nothing but the standard library: what both need of `formats/` stands here, and the formats take it from
here. It never raises on any JSON value, reads no clock and no file; patterns are compiled when first used.
"""

from __future__ import annotations

import json

from loopstats import rule

TYPE_CHECKING = False
if TYPE_CHECKING:
    import re
    from typing import Any

INT64 = 1 << 63

# --- Claude Code -------------------------------------------------------------------------------------------------

ERROR_TAG, ERROR_TAG_END = "<tool_use_error>", "</tool_use_error>"
EXIT = "Exit code "
TIMED_OUT = "Command timed out after "
NOT_RUN = (
    ("The user doesn't want to ", "vetoed", "user"),
    ("User rejected tool use", "vetoed", "user"),
    ("[Request interrupted by user", "unknown", "interrupt"),
    ("Sibling tool call errored", "unknown", "sibling"),
    ("Cancelled: parallel tool call", "unknown", "sibling"),
    ("[Tool result missing", "unknown", "missing"),
    ("Permission for this action has been denied", "vetoed", "permission"),
    ("Claude requested permissions", "vetoed", "permission"),
    ("This command requires approval", "vetoed", "permission"),
    ("Execution stopped by PreToolUse hook", "vetoed", "hook"),
    ("Hook PreToolUse:", "vetoed", "hook"),
)

# --- Codex -------------------------------------------------------------------------------------------------------

PATTERNS = {
    "sandbox": r"failed in sandbox [^\n]{0,60}? with execution error: ",
    "sandbox_exit": r"sandbox denied exec error, exit code: (-?[0-9]{1,9}), stdout: ",
    "exit_line": r"(?:Exit code:|Process exited with code) (-?[0-9]{1,9})[ \t]*\Z",
    "running_line": r"Process running with session ID [^\n]{1,80}\Z",
    "wall_line": r"Wall time: ([0-9]{1,7}(?:\.[0-9]{1,9})?) seconds\Z",
    "header_line": r"(?:Chunk ID|Original token count|Total output lines|Warning): ?[^\n]{0,200}\Z",
    "cut": r"\[\.\.\. omitted [0-9]{1,9} of [0-9]{1,9} lines \.\.\.\]|…[0-9]{1,9} (?:tokens|chars) truncated…",
}
HEADER_LINES = 12
OUT_OF_TIME = ("command timed out", "exec_command timed out")
REFUSED_BY_USER = ("exec command rejected by user", "patch rejected by user", "rejected by user", "user rejected")
REFUSED_BY_RULE = ("patch rejected", "exec command rejected", "approval policy is")
INTERRUPTED = ("aborted by user", "aborted")
FAILED = (
    "error:",
    "execution error",
    "failed in sandbox",
    "failed to parse",
    "failed to ",
    "unsupported call:",
    "unsupported custom tool",
    "unknown tool",
    "apply_patch verification failed",
    "apply_patch failed",
    "exec_command failed",
    "write_stdin failed",
    "tool call error:",
    "err: ",
    "unable to ",
    "invalid patch",
    "invalid hunk",
)
SUCCEEDED = ("success.", "plan updated", "attached local image path")

_compiled: dict[str, re.Pattern[str]] = {}


def _rx(name: str) -> re.Pattern[str]:
    found = _compiled.get(name)
    if found is None:
        import re

        found = _compiled[name] = re.compile(PATTERNS[name], re.ASCII)
    return found


# --- values ------------------------------------------------------------------------------------------------------


def as_str(value: Any) -> str | None:
    """`value` as an id or a short text: numbers are written out, empty text and everything else is None."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode() if not value.isascii() else value or None
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value) if abs(value) < INT64 else None
    return None


def as_int(value: Any) -> int | None:
    """`value` as a 64-bit integer where that is exact, else None."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str) and len(value) < 20:
        try:
            value = int(value)
        except ValueError:
            return None
    if isinstance(value, float) and value == value and abs(value) < INT64 and value == int(value):
        value = int(value)
    return value if isinstance(value, int) and -INT64 <= value < INT64 else None


def as_bool(value: Any) -> bool | None:
    """`value` where it is a truth value, else None."""
    return value if isinstance(value, bool) else None


def as_dict(value: Any) -> dict[str, Any]:
    """`value` where it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    """`value` where it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def text_of(value: Any, depth: int = 0) -> str:
    """The text of a result in any of its usual forms: a string, a list of parts, an object with a text in it."""
    if isinstance(value, str):
        return value
    if value is None or depth > 6:
        return ""
    if isinstance(value, list):
        return "\n".join(part for part in (text_of(item, depth + 1) for item in value) if part)
    if isinstance(value, dict):
        for key in ("text", "content", "output", "stdout", "error", "message", "result"):
            if isinstance(value.get(key), (str, list, dict)) and value[key]:
                return text_of(value[key], depth + 1)
        return ""
    return str(value)


def canonical_id(value: Any) -> str:
    """First 12 hex digits of SHA-256 of `value` as canonical JSON: METHOD 2, for logs without a session id."""
    from hashlib import sha256

    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return sha256(text.encode("utf-8", "replace")).hexdigest()[:12]


# --- the class of an answer --------------------------------------------------------------------------------------


class Reading:
    """What the ruler makes of an answer: `code` and `message` (whole) of one that may be a failure, else None.

    `is_summary_failed`: a runner's own summary in a text whose status is masked or not told. `has_error_text`: a
    program that answers 1 for "nothing found" also named an error. Both None where nobody has to ask.
    """

    __slots__ = ("code", "has_error_text", "is_summary_failed", "message")

    code: str | None
    message: str | None
    is_summary_failed: bool | None
    has_error_text: bool | None


def read_answer(
    text: str,
    kind: str | None,
    is_exit_masked: bool,
    *,
    is_error: bool | None = None,
    exit_code: int | None = None,
    outcome: str | None = None,
    is_timeout: bool = False,
    structured_code: str | None = None,
    error_code: str | None = None,
) -> Reading:
    """Read the text of an answer beside its facts (as `Emit.result` takes them); `kind` None: the call is not known."""
    reading = Reading()
    reading.code = reading.message = reading.is_summary_failed = reading.has_error_text = None
    is_bad = bool(is_error) or is_timeout or outcome == "failure" or (exit_code is not None and exit_code != 0)
    is_untold = is_error is None and exit_code is None
    if outcome is None and not is_bad and (kind is None or (kind == "verify" and (is_exit_masked or is_untold))):
        reading.is_summary_failed = rule.summary_says_failed(text)
    if is_bad or reading.is_summary_failed:
        failure = rule.read_failure(text, exit_code or None, structured_code, is_timeout)
        reading.code, reading.message = error_code if error_code is not None else failure.code, failure.message
        reading.has_error_text = rule.has_error_text(text) if exit_code else None
    return reading


# --- Claude Code -------------------------------------------------------------------------------------------------


def verdict(text: str, is_error: bool, used: Any, denial: str | None = None) -> tuple[str, dict[str, Any]]:
    """What a result means: its text without the program's wrapper, and the keywords for `Emit.result`.

    `used` is the structured result beside the text (`toolUseResult`, a hook's `tool_response`), `denial` the
    program's own word for why the call did not run. Texts are looked at only where the flag says error, so that a page
    or a file that quotes them changes nothing; a time-out is the exception, since it may come back as a plain result.
    """
    facts: dict[str, Any] = {"is_error": is_error}
    structure = used if isinstance(used, dict) else {}
    if is_error:
        if text.startswith(ERROR_TAG):
            text = text[len(ERROR_TAG) :].removesuffix(ERROR_TAG_END)
        rest = text
        if text.startswith(EXIT):
            number, _, rest = text[len(EXIT) :].partition("\n")
            facts["exit_code"] = as_int(number.strip())
        if rest.startswith(TIMED_OUT):
            facts["is_timeout"] = True
        else:
            outcome, reason = _denied(denial) if denial else _not_run(rest)
            if outcome:
                facts["outcome"], facts["reason"] = outcome, reason
    elif _is_timed_out(text, structure, is_plain=not structure):
        facts["is_timeout"] = True
    elif structure.get("interrupted") is True:
        facts["outcome"], facts["reason"] = "unknown", "interrupt"
    if structure:
        _details(structure, facts)
    return text, facts


def _is_timed_out(text: str, structure: dict[str, Any], is_plain: bool) -> bool:
    stderr = structure.get("stderr")
    if isinstance(stderr, str) and stderr.startswith(TIMED_OUT):
        return True
    return (is_plain or "stdout" in structure) and text.startswith(TIMED_OUT)


def _denied(denial: str) -> tuple[str, str]:
    if "interrupt" in denial:
        return "unknown", "interrupt"
    if "cancel" in denial:
        return "unknown", "sibling"
    return "vetoed", "user" if "user" in denial else "hook" if "hook" in denial else "permission"


def _not_run(text: str) -> tuple[str | None, str | None]:
    for prefix, outcome, reason in NOT_RUN:
        if text.startswith(prefix):
            return outcome, reason
    start = text[:400]
    if start.startswith("PreToolUse:") and " hook" in start:
        return "vetoed", "hook"
    if "PreToolUse operation blocked by hook" in start:
        return "vetoed", "hook"
    if start.startswith("Permission to use ") and " denied" in start:
        return "vetoed", "permission"
    if "was blocked. For security, Claude Code may only" in start:
        return "vetoed", "permission"
    return None, None


def _details(structure: dict[str, Any], facts: dict[str, Any]) -> None:
    path = structure.get("persistedOutputPath")
    if isinstance(path, str) and path:
        facts["is_truncated"], facts["overflow_path"] = True, as_str(path)
    else:
        facts["is_truncated"] = as_bool(structure.get("truncated"))
    facts["duration_ms"] = as_int(structure.get("durationMs", structure.get("totalDurationMs")))
    status = structure.get("code")
    if "url" in structure and isinstance(status, int) and status >= 400 and "outcome" not in facts:
        facts["outcome"], facts["structured_code"], facts["source"] = "failure", str(status), "flag"


# --- Codex -------------------------------------------------------------------------------------------------------


class Outcome:
    """What an output says: text, exit code, flag, stated outcome with reason, time-out, duration."""

    def __init__(self) -> None:
        self.text = ""
        self.exit_code: int | None = None
        self.is_error: bool | None = None
        self.outcome: str | None = None
        self.reason: str | None = None
        self.source: str | None = None
        self.is_timeout = False
        self.is_truncated: bool | None = None
        self.duration_ms: int | None = None

    @property
    def has_fact(self) -> bool:
        """Whether the output alone decides."""
        return self.exit_code is not None or self.is_error is not None or self.outcome is not None or self.is_timeout


def read_output(value: Any, success: bool | None = None) -> Outcome:
    """What a call's output says, in any of its forms; `success` is the flag that stood beside it."""
    outcome = Outcome()
    outcome.is_error = None if success is None else not success
    if isinstance(value, dict) and isinstance(value.get("success"), bool):
        outcome.is_error = not value["success"]
    text = text_of(value)
    wrapped = value if isinstance(value, dict) and isinstance(value.get("metadata"), dict) else json_object(text)
    if wrapped is not None and isinstance(wrapped.get("metadata"), dict) and "output" in wrapped:
        outcome.exit_code = as_int(wrapped["metadata"].get("exit_code"))
        outcome.duration_ms = seconds_to_ms(wrapped["metadata"].get("duration_seconds"))
        outcome.text = text_of(wrapped["output"])
    else:
        _read_text(text, outcome)
    if outcome.text.startswith(OUT_OF_TIME):
        outcome.is_timeout = True
        outcome.source = "text"
    if _rx("cut").search(outcome.text):
        outcome.is_truncated = True
    return outcome


def _read_text(text: str, outcome: Outcome) -> None:
    """Text forms: a block of header lines, the sandbox's sentence, or a sentence with a known beginning."""
    outcome.text = text
    if _read_block(text, outcome):
        if outcome.exit_code is None and outcome.outcome is None and outcome.is_error is None:
            _read_sentence(outcome.text, outcome)
        return
    found = _rx("sandbox").match(text)
    if found:
        rest = text[found.end() :]
        denied = _rx("sandbox_exit").match(rest)
        if denied:
            outcome.exit_code = int(denied.group(1))
            stdout, _, stderr = rest[denied.end() :].rpartition(", stderr: ")
            rest = "\n".join(part for part in (stdout, stderr) if part)
        outcome.text, outcome.is_error, outcome.source = rest, True, "text"
        return
    _read_sentence(text, outcome)


def _read_block(text: str, outcome: Outcome) -> bool:
    """Whether `text` begins with header lines (exit code, wall time, session) up to `Output:`; they are taken off."""
    is_block = False
    rest = text
    for _ in range(HEADER_LINES):
        line, _, following = rest.partition("\n")
        line = line.rstrip("\r")
        if len(line) > 300:
            break
        if found := _rx("exit_line").match(line):
            outcome.exit_code = int(found.group(1))
        elif _rx("running_line").match(line):
            outcome.outcome, outcome.source = "unknown", "log"
        elif found := _rx("wall_line").match(line):
            outcome.duration_ms = seconds_to_ms(float(found.group(1)))
        elif line == "Output:":
            outcome.text = following
            return is_block
        elif not _rx("header_line").match(line):
            break
        is_block = True
        rest = following
        if not following:
            break
    if is_block:
        outcome.text = rest
    return is_block


def _read_sentence(text: str, outcome: Outcome) -> None:
    lowered = text[:80].lstrip().lower()
    if lowered.startswith(REFUSED_BY_USER):
        outcome.outcome, outcome.reason, outcome.source = "vetoed", "user", "text"
    elif lowered.startswith(REFUSED_BY_RULE):
        reason = "user" if "rejected by user" in text[:400] and "approval settings" not in text[:400] else "permission"
        outcome.outcome, outcome.reason, outcome.source = "vetoed", reason, "text"
    elif lowered.startswith(INTERRUPTED):
        outcome.outcome, outcome.reason, outcome.source = "unknown", "interrupt", "text"
    elif outcome.is_error is not None or lowered.startswith(OUT_OF_TIME):
        return
    elif lowered.startswith(FAILED):
        outcome.is_error, outcome.source = True, "text"
    elif lowered.startswith(SUCCEEDED):
        outcome.is_error, outcome.source = False, "text"


def json_object(text: Any) -> dict[str, Any] | None:
    """The object that `text` is the JSON of, else None."""
    if not isinstance(text, str) or not text[:64].lstrip().startswith("{"):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def in_folder(cwd: str | None, workdir: str | None) -> str | None:
    """The working directory of a call that names one of its own."""
    if not workdir or workdir == ".":
        return cwd
    if cwd is None or workdir.startswith(("/", "~", "\\")) or workdir[1:2] == ":":
        return workdir
    return f"{cwd.rstrip('/')}/{workdir}"


def seconds_to_ms(value: Any) -> int | None:
    """A duration in seconds as whole milliseconds, where it is one."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e9:
        return None
    return round(value * 1000)


# --- hooks -------------------------------------------------------------------------------------------------------

AFTER_CALL = frozenset({"PostToolUse", "PostToolUseFailure", "PermissionDenied"})
AFTER_BATCH = "PostToolBatch"


def is_codex(record: dict[str, Any]) -> bool:
    """Whether a hook input is Codex's: of the same shape as Claude Code's, with the id of its turn."""
    return "turn_id" in record


def asked(record: dict[str, Any]) -> tuple[Any, str | None]:
    """Arguments and working directory of the call that a hook input tells of.

    Codex names a command's own folder among the arguments, and hands a patch on as a command.
    """
    arguments, cwd = record.get("tool_input"), as_str(record.get("cwd"))
    if is_codex(record):
        named = as_dict(arguments)
        cwd = in_folder(cwd, as_str(named.get("workdir")) or as_str(named.get("cwd")))
        if record.get("tool_name") == "apply_patch" and isinstance(named.get("command"), str):
            arguments = {"input": named["command"]}
    return arguments, cwd


def after_call(event: str, record: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Text and facts (keywords of `Emit.result`) of the hook input that follows a call.

    Claude Code has one event for success and one for failure. Codex has one for both, and for a command only the
    output without its exit code: what the text does not tell stays unknown.
    """
    if event == "PermissionDenied":
        return text_of(record.get("reason")), {"is_error": None, "outcome": "vetoed", "reason": "permission"}
    response = record.get("tool_response", record.get("tool_result"))
    if event == "PostToolUseFailure":
        text, facts = verdict(text_of(record.get("error")) or text_of(response), True, response)
        if record.get("is_interrupt") is True:
            facts["outcome"], facts["reason"] = "unknown", "interrupt"
        return text, facts
    structure = as_dict(response)
    flags = [structure[key] for key in ("is_error", "isError") if isinstance(structure.get(key), bool)]
    if is_codex(record):
        answer = read_output(response, not any(flags) if flags else None)
        return answer.text, {
            name: getattr(answer, name)
            for name in (
                "is_error",
                "exit_code",
                "outcome",
                "reason",
                "source",
                "is_timeout",
                "is_truncated",
                "duration_ms",
            )
        }
    is_error = any(flags) or structure.get("success") is False
    return verdict(_streams(structure) if structure else text_of(response), is_error, response)


def _streams(structure: dict[str, Any]) -> str:
    """The text of a structured response; without any, the structure itself, so that two of them are told apart."""
    streams = [text for text in (structure.get("stdout"), structure.get("stderr")) if isinstance(text, str) and text]
    if streams or "stdout" in structure:
        return "\n".join(streams)
    return text_of(structure) or json.dumps(structure, sort_keys=True)


def rejections(record: dict[str, Any]) -> list[dict[str, Any]]:
    """The calls of a `PostToolBatch` input that were turned down before they ran, each as an input of its own.

    Claude Code checks a call before its hooks run: an edit whose text is not in the file, a file that was not read, a
    tool that does not exist. Such a call fires neither event of its own; the batch is the only place that tells of it.
    """
    out = []
    for call in as_list(record.get("tool_calls")):
        answer = text_of(as_dict(call).get("tool_response"))
        if answer.startswith(ERROR_TAG) or _not_run(answer)[0] is not None:
            told = {key: call.get(key) for key in ("tool_name", "tool_input", "tool_use_id")}
            out.append({**record, **told, "tool_calls": None, "hook_event_name": "PostToolUseFailure", "error": answer})
    return out
