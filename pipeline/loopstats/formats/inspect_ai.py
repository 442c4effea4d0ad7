"""Inspect AI evaluation logs: one JSON file, or a `.eval` archive with a member for every sample.

A room of its own because of the archive: newer ones pack with zstandard (method 93), which the standard library cannot
unpack before Python 3.14, so the raw member is read here, with a cap on what it may grow to. Of a sample the events
are preferred, since messages lose what a compaction drops and know no times; a call that only the messages hold is
taken from them.
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, ClassVar

import zstandard

from loopstats.decode import decode_document
from loopstats.errors import Reject
from loopstats.formats import Emit, Format, Head, Reader, Source, as_dict, as_int, as_list, as_str, text_of
from loopstats.formats.pairing import Pairing, each, parsed, without_cache

INFLATED_CAP = 1 << 30
INFLATED_RATIO = 1000
INFLATED_FREE = 1 << 20
MEMBERS_CAP = 100_000
ZSTANDARD = 93
LOCAL_HEADER = 30
ATTACHMENTS = ("attachment://", "tc://")
ATTACHMENT_DEPTH = 12
EVENT_DEPTH = 20
CORRECT, INCORRECT = frozenset({"C", "c", "correct"}), frozenset({"I", "i", "N", "n", "incorrect"})
ENDINGS = frozenset({"context", "time", "working", "message", "token", "cost", "custom", "turn", "operator"})


class Inspect(Format):
    """An evaluation log, as JSON or as an archive."""

    name: ClassVar[str] = "inspect"
    unit: ClassVar[str] = "container"

    def matches(self, head: Head) -> int:
        """Sure where an object has an `eval` with a run; an archive where its first members are those of a log."""
        if head.is_zip:
            return 90 if any(name in head.text for name in ("_journal/start.json", "header.json", "samples/")) else 0
        document = as_dict(head.document)
        return (
            95
            if "run_id" in as_dict(document.get("eval")) and {"samples", "status", "version"} & document.keys()
            else 0
        )

    def reader(self, source: Source, state: dict[str, Any] | None = None) -> Reader:
        """A reader of the whole log."""
        return InspectReader(source, state)

    def load(self, data: bytes) -> Any:
        """The archive as the JSON form has it: the header with its `samples`."""
        members = Archive(data)
        header = members.json("header.json")
        if header is None:
            header = members.json("_journal/start.json")
        if not isinstance(header, dict):
            raise Reject("archive_without_header")
        names = sorted(name for name in members.names if name.startswith("samples/") and name.endswith(".json"))
        return header | {"samples": Members(members, names)}


class Members:
    """The samples of an archive, unpacked one at a time."""

    def __init__(self, archive: Archive, names: list[str]) -> None:
        self._archive = archive
        self._names = names

    def __iter__(self) -> Iterator[Callable[[], Any]]:
        return (partial(self._archive.json, name) for name in self._names)


class Archive:
    """The members of a zip file in memory, stored, deflated or zstandard, none larger than the caps allow.

    Raises `Reject` with `not_a_zip`, `too_many_members`, `inflates_too_far`, `encrypted` or `unknown_compression`.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._left = INFLATED_CAP
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                infos = archive.infolist()
        except (zipfile.BadZipFile, ValueError, struct.error, NotImplementedError, EOFError):
            raise Reject("not_a_zip") from None
        if len(infos) > MEMBERS_CAP:
            raise Reject("too_many_members")
        self._infos = {info.filename: info for info in infos}
        self.names = list(self._infos)

    def json(self, name: str) -> Any:
        """The member parsed; None where there is none of that name."""
        info = self._infos.get(name)
        return None if info is None else decode_document(self.read(info))

    def read(self, info: zipfile.ZipInfo) -> bytes:
        """The member's bytes."""
        if info.flag_bits & 1:
            raise Reject("encrypted")
        start = info.header_offset
        if self._data[start : start + 4] != b"PK\x03\x04":
            raise Reject("not_a_zip")
        try:
            name_length, extra_length = struct.unpack_from("<HH", self._data, start + 26)
        except struct.error:
            raise Reject("not_a_zip") from None
        begin = start + LOCAL_HEADER + name_length + extra_length
        packed = self._data[begin : begin + info.compress_size]
        limit = min(self._left, max(len(packed) * INFLATED_RATIO, INFLATED_FREE))
        try:
            content = _unpack(packed, info.compress_type, limit)
        except (zlib.error, zstandard.ZstdError, EOFError):
            raise Reject("damaged_member") from None
        if len(content) > limit:
            raise Reject("inflates_too_far")
        self._left -= len(content)
        return content


def _unpack(packed: bytes, method: int, limit: int) -> bytes:
    if method == zipfile.ZIP_STORED:
        return packed
    if method == zipfile.ZIP_DEFLATED:
        return zlib.decompressobj(-15).decompress(packed, limit + 1)
    if method == ZSTANDARD:
        with zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(
            packed, read_across_frames=True
        ) as stream:
            return stream.read(limit + 1)
    raise Reject("unknown_compression")


class InspectReader(Reader):
    """One record of the container is one sample."""

    def read_document(self, document: Any, emit: Emit) -> None:
        """Hand on all samples; a damaged one is rejected, the others stay."""
        info = document["eval"]
        samples = document.get("samples")
        records = samples if isinstance(samples, Members) else as_list(samples)
        if not isinstance(info, dict):
            raise Reject("wrong_shape")

        def read(record: Any) -> None:
            sample = record() if callable(record) else record
            if not isinstance(sample, dict):
                raise Reject("wrong_shape")
            _Sample(info, sample, emit).read()

        each(records, emit, read)


class _Sample:
    """The walk over one sample."""

    def __init__(self, info: dict[str, Any], sample: dict[str, Any], emit: Emit) -> None:
        run, name, epoch = (as_str(value) for value in (info.get("run_id"), sample.get("id"), sample.get("epoch")))
        if not run or not name:
            raise Reject("no_session")
        self._session = f"{run}/{name}/{epoch or '1'}"
        self._info = info
        self._sample = sample
        self._emit = emit
        self._pairing: dict[str | None, Pairing] = {}
        self._decisions: dict[str, tuple[str, str | None]] = {}
        self._seen: set[str] = set()
        transcript = as_dict(sample.get("transcript"))
        self._attachments = as_dict(sample.get("attachments")) or as_dict(transcript.get("content"))
        self._events = as_list(sample.get("events")) or as_list(transcript.get("events"))

    def read(self) -> None:
        """Hand on the sample: what is known of it, its steps, its turns and how it ended."""
        model = as_str(self._info.get("model"))
        first = next(
            (as_dict(event).get("timestamp") for event in self._events if as_dict(event).get("timestamp")), None
        )
        packages = as_dict(self._info.get("packages"))
        self._emit.session(
            session=self._session,
            ts=self._sample.get("started_at") or first or self._info.get("created"),
            model=model,
            harness="inspect_ai",
            version=as_str(packages.get("inspect_ai")),
            task=as_str(self._sample.get("id")),
            project=as_str(self._info.get("task")),
        )
        self._walk(self._events, None, 0)
        self._messages()
        limit, error = as_dict(self._sample.get("limit")), as_dict(self._sample.get("error"))
        ending = "crash" if error else "cap" if as_str(limit.get("type")) in ENDINGS else None
        verdicts = (verdict(as_dict(score).get("value")) for score in as_dict(self._sample.get("scores")).values())
        solved = next((known for known in verdicts if known is not None), None)
        if solved is not None or ending is not None:
            self._emit.fact(
                session=self._session,
                identity="score",
                ts=self._sample.get("completed_at"),
                solved=solved,
                ending=ending,
            )

    def _walk(self, events: list[Any], agent: str | None, depth: int) -> None:
        spans: dict[str, str | None] = {}
        kinds: dict[str, str] = {}
        for event in events:
            if not isinstance(event, dict):
                continue
            kind = event.get("event")
            span = as_str(event.get("span_id"))
            if kind == "span_begin":
                own, parent = as_str(event.get("id")) or "", as_str(event.get("parent_id")) or ""
                kinds[own] = (
                    "agent"
                    if event.get("type") == "agent"
                    else "tool"
                    if event.get("type") == "tool"
                    else kinds.get(parent, "")
                )
                # an agent that was started by a tool call is a run of its own, an agent above all tools is the main one
                is_sub = event.get("type") == "agent" and kinds.get(parent) == "tool"
                spans[own] = own if is_sub else spans.get(parent, agent)
            elif kind == "model":
                self._model(event, spans.get(span or "", agent))
            elif kind == "tool":
                self._tool(event, spans.get(span or "", agent))
                if depth < EVENT_DEPTH and event.get("events"):
                    self._walk(as_list(event["events"]), as_str(event.get("id")) or agent, depth + 1)

    def _model(self, event: dict[str, Any], agent: str | None) -> None:
        output = as_dict(event.get("output"))
        message = as_dict(as_dict(next(iter(as_list(output.get("choices"))), None)).get("message"))
        usage = as_dict(output.get("usage"))
        if event.get("error") or event.get("pending") or not (message or usage):
            return
        decision = (
            as_str(event.get("uuid"))
            or as_str(message.get("id"))
            or f"model:{len(self._decisions)}:{event.get('timestamp')}"
        )
        model = as_str(event.get("model"))
        for call in as_list(message.get("tool_calls")):
            log_id = as_str(as_dict(call).get("id"))
            if log_id:
                self._decisions[log_id] = (decision, model)
        read, write = as_int(usage.get("input_tokens_cache_read")), as_int(usage.get("input_tokens_cache_write"))
        if usage:
            total = as_int(usage.get("input_tokens"))
            whole = as_int(usage.get("total_tokens"))
            out = as_int(usage.get("output_tokens"))
            # some providers count cached input apart: then the parts without it do not add up to the total
            is_apart = None not in (total, whole, out) and (whole or 0) > (total or 0) + (out or 0)
            self._emit.turn(
                session=self._session,
                agent=agent,
                decision=decision,
                model=model,
                tokens_output=out,
                tokens_cache_read=read,
                ts=event.get("completed") or event.get("timestamp"),
                tokens_cache_write=write,
                tokens_input=total if is_apart else without_cache(total, read, write),
            )

    def _tool(self, event: dict[str, Any], agent: str | None) -> None:
        tool = as_str(event.get("function"))
        if not tool:
            return
        log_id = as_str(event.get("id")) or as_str(event.get("uuid")) or f"tool:{event.get('timestamp')}"
        self._seen.add(log_id)
        call_id = self._call(log_id, tool, event.get("arguments"), agent, event.get("timestamp"))
        if not event.get("pending") and not event.get("failed"):
            seconds = event.get("working_time")
            self._result(
                call_id,
                event.get("result"),
                event.get("error"),
                agent,
                event.get("completed") or event.get("timestamp"),
                round(seconds * 1000) if isinstance(seconds, (int, float)) and 0 <= seconds < 1e9 else None,
            )

    def _call(self, log_id: str, tool: str, arguments: Any, agent: str | None, ts: Any) -> str:
        decision, model = self._decisions.get(log_id, (None, None))
        call_id = self._pairing.setdefault(agent, Pairing()).open(log_id)
        self._emit.call(
            session=self._session,
            agent=agent,
            call_id=call_id,
            tool=tool,
            ts=ts,
            decision=decision,
            model=model,
            arguments=self._resolved(parsed(arguments), 0),
        )
        return call_id

    def _result(
        self, call_id: str, result: Any, error: Any, agent: str | None, ts: Any, duration_ms: int | None
    ) -> None:
        failure = as_dict(error)
        kind = as_str(failure.get("type")) or ""
        facts: dict[str, Any] = {"is_error": bool(error)}
        if kind == "approval":
            facts = {"outcome": "vetoed", "reason": "permission"}
        elif kind == "timeout":
            facts["is_timeout"] = True
        said = text_of(self._resolved(result, 0))
        text = text_of(self._resolved(failure.get("message"), 0)) or said if error else said
        self._emit.result(
            session=self._session,
            agent=agent,
            call_id=call_id,
            text=text,
            ts=ts,
            duration_ms=duration_ms,
            is_truncated=True if kind == "output_limit" else None,
            **facts,
        )

    def _messages(self) -> None:
        """Calls and results that no event holds; with events there are none but those cut off at the end."""
        pairing = self._pairing.setdefault(None, Pairing())
        for number, message in enumerate(as_list(self._sample.get("messages"))):
            message = as_dict(message)
            if message.get("role") == "assistant":
                for call in as_list(message.get("tool_calls")):
                    call = as_dict(call)
                    log_id, tool = as_str(call.get("id")), as_str(call.get("function"))
                    if log_id and tool and log_id not in self._seen:
                        self._decisions.setdefault(
                            log_id, (as_str(message.get("id")) or f"message:{number}", as_str(message.get("model")))
                        )
                        self._call(log_id, tool, call.get("arguments"), None, None)
            elif message.get("role") == "tool":
                log_id = as_str(message.get("tool_call_id"))
                if log_id and log_id not in self._seen:
                    self._result(pairing.close(log_id), message.get("content"), message.get("error"), None, None, None)

    def _resolved(self, value: Any, depth: int) -> Any:
        if isinstance(value, str):
            for scheme in ATTACHMENTS:
                if value.startswith(scheme):
                    found = self._attachments.get(value[len(scheme) :])
                    return found if isinstance(found, str) else value
            return value
        if depth > ATTACHMENT_DEPTH:
            return value
        if isinstance(value, list):
            return [self._resolved(item, depth + 1) for item in value]
        if isinstance(value, dict):
            return {key: self._resolved(item, depth + 1) for key, item in value.items()}
        return value


def verdict(value: Any) -> bool | None:
    """A scorer's value as solved or not; None for partial credit and for values without a scale."""
    if isinstance(value, bool):
        return value
    if isinstance(value, (int, float)):
        return True if value >= 1 else False if value <= 0 else None
    if isinstance(value, str):
        return True if value in CORRECT else False if value in INCORRECT else None
    return None
