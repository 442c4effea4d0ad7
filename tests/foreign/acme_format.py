from loopstats.formats import Emit, Format, Head, Reader, Source, as_str


class Acme(Format):
    name = "acme"

    def matches(self, head: Head) -> int:  # by content; 0 not at all, 100 without doubt
        return 90 if any(r.get("acme") == 1 for r in head.records) else 0

    def reader(self, source: Source, state=None) -> Reader:
        return AcmeReader(source, state)


class AcmeReader(Reader):
    def read(self, record, emit: Emit) -> None:  # one JSON line
        if record.get("kind") == "call":
            emit.call(session=record["run"], call_id=record["id"], tool=record["tool"], arguments=record.get("args"),
                      ts=record.get("at"))
        elif record.get("kind") == "result":
            emit.result(session=record["run"], call_id=record["id"], text=record.get("text"),
                        is_error=record.get("failed"), ts=record.get("at"))
        else:
            emit.nothing(as_str(record.get("kind")) or "no kind")
