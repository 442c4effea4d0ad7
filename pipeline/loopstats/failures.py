"""What a result says when it failed: the text of a failed step becomes one line, one code and one masked message.

A room of its own because the class of a failure (tool, code, message) is the unit of everything that follows: two
failures of one cause must share it and two causes must not, in a live hook and in a batch, on every machine. So all
knowledge stands here as ordered tables of plain data (`RULES`), of which `tables()` gives a canonical text for the
rule digest, and the functions below only walk them. Standard library only, no pattern is compiled before it is
needed: a hook is started for every tool call.

How masking stays idempotent: a mask leaves one private-use character, not its printed name, until the end, and a
printed name in the input becomes that character again at the start. Every look-around treats those characters like
letters, so a second pass sees exactly the text that the first one left and finds nothing new.
"""

from __future__ import annotations

import re
from functools import lru_cache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

MESSAGE_SHOWN = 200  # characters of a message that callers keep for show; the signature hashes the whole
LINE_CAP = 16_384  # characters of a masked line, each mask counting as one; what lies beyond is not hashed
MATCH_CAP = 300  # characters of a line that the line patterns look at
TEXT_CAP = 65_536  # characters read from either end of a result; the middle of a longer one is not looked at
CANDIDATES = 400  # lines that may be tried for one pattern group, so that hostile text costs a bounded time
WORTH_COMPILING = 32  # texts after which the long pattern of `_may_hold_added` repays the time it takes to compile
CODE_SHOWN = 120  # characters of an error code that a log wrote itself
MEMO_SIZE = 4096  # answers kept by each function that is asked the same again: what fails once fails again
MEMO_TEXT = 300  # characters of a line or a label that is kept for it
MEMO_RESULT = 2048  # characters of a result that is kept for it

# --- the tables -----------------------------------------------------------------------------------------------

MASKS = ("secret", "url", "email", "uuid", "time", "path", "hex", "str", "ip", "qty", "n")
_MARK = {name: chr(0xE000 + index) for index, name in enumerate(MASKS)}
_S = "\ue000-\ue01f"  # masks and kept digits, as a piece of a character class
_W = "a-z0-9" + _S  # what blocks a mask like a letter does
# A character of a file name; punctuation of the scripts that write no spaces ends one.
_P = (
    r"[^\s\"'`<>()\[\]{},;|:=?!#/\\\u2018-\u201e\u00ab\u00bb\u3001-\u3003\u3008-\u3011\uff01-\uff0c\uff0f\uff1a-\uff20"
    r"\ue007]"
)
_PS = _P.replace(r"/\\", "")  # the same, slashes too
_END = r"(?!\.*" + _PS.replace("#", "#.") + ")"  # no such character follows, be it behind full stops
_AT = rf"(?:(?:(?::[0-9]+){{1,3}}(?:-[0-9]+)?|\([0-9]+(?:,[0-9]+){{0,3}}\)|#l?[0-9]+(?:-l?[0-9]+)?){_END})?"

EXTENSIONS = (
    "py|pyi|pyx|ipynb|js|jsx|mjs|cjs|ts|tsx|mts|cts|vue|svelte|json|jsonl|json5|yaml|yml|toml|ini|cfg|conf|lock"
    "|env|md|mdx"
    "|rst|txt|log|csv|tsv|xml|html|htm|css|scss|sass|less|sql|sh|bash|zsh|fish|ps1|bat|cmd|c|cc|cpp|cxx|h|hh"
    "|hpp|hxx|rs|go"
    "|java|kt|kts|scala|groovy|gradle|rb|erb|php|pl|pm|lua|swift|cs|fs|vb|csproj|sln|dart|ex|exs|erl|hs|ml|clj"
    "|cljs|elm|nim"
    "|zig|cob|cbl|cpy|dat|f90|jl|tf|hcl|proto|graphql|prisma|patch|diff|zip|tar|gz|bz2|xz|tgz|whl|jar|so|dll"
    "|exe|dylib|bin"
    "|iso|img|qcow2|png|jpg|jpeg|gif|svg|pdf|db|sqlite|parquet|arrow|pony|snap|map|wasm|pem|key|crt|sock|pid"
    "|tmp|bak|orig"
)
_CLOCK = r"[0-9]{1,2}:[0-5][0-9]:[0-5][0-9](?:[.,][0-9]{1,9})?"
_ZONE = rf"(?:(?: ?(?:utc|gmt)(?:[+-][0-9]{{1,2}})?|z| ?[+-][0-9]{{2}}:?[0-9]{{2}})(?![{_W}]))?"
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
HALVES = tuple(f"{digit}{space}{half}m" for digit in range(10) for space in ("", " ") for half in "ap")
_MONTH = "(?:" + "|".join(MONTHS) + ")[a-z]{0,6}"
_NUMBER = r"[0-9]+(?:[.,][0-9]+)*"
_UNIT = (
    r"(?: ?(?:ns|us|\u00b5s|\u03bcs|ms|s|secs?|seconds?|m|mins?|minutes?|hrs?|hours?|days?|weeks?"
    r"|[kmgt]i?b|kbit|bytes?|[kmgt]b/s|[kmgt]ib/s)|[hdbkg])"
)

QUOTES = "\"'`\u201c\u2018\u00ab\u00bb\u201e\u201a\u300c\u300e"  # what may open a quoted string
NOUNS = (
    "tests?|specs?|suites?|files?|checks?|examples?|assertions?|cases?|builds?|targets?|jobs?|validation|type"
    "|lint|compile|compilation"
    "|syntax|fatal|unexpected|other|more|new|previous|collection|scenarios?|hooks?|packages?|modules?|hunks?"
    "|test programs?|subtests?|subtest"
)

PATTERNS = {
    "placeholder": r"(?i:<(secret|url|email|uuid|time|path|hex|str|ip|qty|n)>)",
    # secrets
    "secret_prefix": (
        r"(?<![A-Za-z0-9])(?:(?i:sk-(?:ant|proj|or|svcacct|admin|lf|live|test)-[a-z0-9_-]{8,}"
        r"|sk-(?=[a-z_-]{0,40}[0-9])[a-z0-9_-]{16,}|[spr]k_(?:live|test)_[a-z0-9]{8,}|whsec_[a-z0-9+/=]{16,}"
        r"|gh[pousr]_[a-z0-9]{16,}|github_pat_[a-z0-9_]{20,}|gl(?:pat|ptt|dt|rt|cbt|soat)-[a-z0-9_-]{16,}"
        r"|xox[abeoprs]-[a-z0-9-]{8,}|xapp-[a-z0-9-]{16,}|npm_[a-z0-9]{30,}|pypi-[a-z0-9_-]{40,}|hf_[a-z0-9]{24,}"
        r"|gsk_[a-z0-9]{24,}|xai-[a-z0-9]{24,}|pplx-[a-z0-9]{24,}|nvapi-[a-z0-9_-]{24,}|tvly-[a-z0-9-]{16,}"
        r"|r8_[a-z0-9]{24,}"
        r"|fw_[a-z0-9]{20,}|dop_v1_[a-f0-9]{32,}|shp(?:at|ca|pa|ss)_[a-f0-9]{24,}|dapi[a-f0-9]{32}"
        r"|hv[sbr]\.[a-z0-9_-]{20,}"
        r"|lin_api_[a-z0-9]{20,}|figd_[a-z0-9_-]{20,}|sntrys_[a-z0-9_=+/-]{20,}|atatt3[a-z0-9_=-]{20,}"
        r"|glsa_[a-z0-9_]{20,}"
        r"|pmak-[a-f0-9-]{24,}|nrak-[a-z0-9]{20,}|sq0(?:atp|csp)-[a-z0-9_-]{20,}|age-secret-key-[a-z0-9]{20,}"
        r"|ya29\.[a-z0-9_-]{20,}|1//0[a-z0-9_-]{20,}|ops_[a-z0-9]{40,})"
        r"|(?:AKIA|ASIA|AROA|AIDA|ABIA|ACCA)[A-Z0-9]{12,}|AIza[A-Za-z0-9_-]{30,}"
        r"|SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}"
        r"|eyJ[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*){1,4})"
    ),
    # on lower-cased text; what stands in the first group stays
    "secret_pem": (
        r"-----begin [a-z0-9 ]{0,40}private key(?: block)?-----(?:[a-z0-9+/=\s\\]*)(?:-----end [a-z0-9 ]{0,40}key(?: block)?-----)?"
    ),
    "secret_bearer": r"(bearer )(?<![a-z]bearer )(?![a-z]{1,19}[.,;:]?(?: |$))[a-z0-9._~+/=-]{6,}",
    "secret_header": (
        r"(authorization[\"']?\s{0,2}[:=]\s{0,2}[\"']?"
        rf"(?!(?:(?:basic|bearer|token|digest|apikey|negotiate) )?(?:<secret>|[{_S}]))"
        r"(?:(?:basic|bearer|token|digest|apikey|negotiate) )?)[^\s\"',;]+"
    ),
    "secret_cookie": (
        rf"(cookie[\"']?\s{{0,2}}[:=]\s{{0,2}}[\"']?)(?!<secret>|[{_S}])[^\s\"';{_S}]+(?:; ?[^\s\"';=]+=[^\s\"';]*)*"
    ),
    "secret_keyed": (
        r"((?:passw(?:or)?d|passphrase|pass(?<![a-z]pass)(?==)|pwd(?:(?<=db_pwd)|(?<=user_pwd)|(?<=root_pwd)"
        r"|(?<=my_pwd)"
        r"|(?<![a-z]pwd)(?==[^/\\~.]))|secret"
        r"|token(?<!unexpected token)(?<!invalid token)(?<!illegal token)(?<!next token)"
        r"(?<!expected token)(?<!missing token)|credentials?"
        r"|(?:api|access|private|secret|auth|signing|encryption|account|client|master|service"
        r"|shared)[_-]?(?:access[_-]?)?key"
        r"|key(?<=[?&]key)|sig(?<=[?&]sig)|signature(?<=[?&]signature)|auth(?<=[?&]auth)|code(?<=[?&]code))"
        r"(?:_?(?:hash|value|base64|b64))?\\?[\"']?\]?\s{0,2}(?:=>|:=|[:=])\s{0,2}\\?)"
        rf"(?!\\?<secret>|\\?[{_S}]|(?<=: )[a-z]{{1,20}} [a-z<{_S}])(?:\"[^\"\n]*\"?|'[^'\n]*'?|[^\s\"',;&)}}\]>]+)"
    ),
    "secret_flag": (
        rf"(--(?<![a-z0-9{_S}-]--)[a-z0-9-]{{0,40}}(?:passw(?:or)?d|passphrase|secret|token|api-?key"
        rf"|access-?key|private-?key) )"
        rf"(?!<secret>|-|[{_S}]|[a-z]{{1,20}}(?: [a-z<{_S}]|[.,:;]|$))(?:\"[^\"\n]*\"?|'[^'\n]*'?|[^\s\"',;&)]+)"
    ),
    "secret_userinfo": rf"(://)(?!<secret>@)[^\s/@\"'<>{_S}]{{1,300}}(?=@)",
    "secret_webhook": (
        r"((?:hooks\.slack\.com/(?:services|workflows)|discord(?:app)?\.com/api/webhooks|api\.telegram\.org/bot)/?)"
        rf"(?!<secret>|[{_S}])[a-z0-9/_:-]+"
    ),
    "secret_long": r"(?<![A-Za-z0-9])[A-Za-z0-9][A-Za-z0-9_+=-]{23,}",
    "secret_base64": r"(?<![A-Za-z0-9+/])(?=[^+/]{0,38}[+/])[A-Za-z0-9+/]{40,}={0,2}(?![A-Za-z0-9+/])",
    "runs": r"[a-z]+|[A-Z]+|[0-9]+",
    # the other masks, on lower-cased text
    "url": r"(?<![a-z0-9])[a-z][a-z0-9+.-]{1,20}://[^\s\"'`<>(){}\[\]|\\,;]*[^\s\"'`<>(){}\[\]|\\,;.:!?]",
    "email": rf"(?<![{_W}._%+-])[a-z0-9._%+-]{{1,64}}@(?:[a-z0-9-]{{1,63}}\.){{1,8}}[a-z]{{2,24}}(?![{_W}])",
    "uuid": (
        rf"(?<![{_W}])(?:[0-9a-f]{{8}}-[0-9a-f]{{4}}-[0-9a-f]{{4}}-[0-9a-f]{{4}}-[0-9a-f]{{12}}"
        rf"|(?=[0-9-]*[a-f])[0-9a-f]{{8}}(?:-[0-9a-f]{{4}}){{2,3}}(?:-[0-9a-f]{{0,11}})?)(?![{_W}])"
    ),
    "month": (
        rf"(?<![{_W}])(?:(?:mon|tue|wed|thu|fri|sat|sun)[a-z]{{0,6}},? )?(?:{_MONTH} [0-9]{{1,2}}(?:st|nd|rd"
        rf"|th)?(?:,? (?:19|20)[0-9]{{2}})?"
        rf"|[0-9]{{1,2}}[ /-]{_MONTH},?[ /-](?:19|20)[0-9]{{2}})(?:,?[ :](?:at )?{_CLOCK}{_ZONE}(?: (?:19"
        rf"|20)[0-9]{{2}})?)?(?![{_W}])"
    ),
    "time": (
        rf"(?<![{_W}./\\])(?:(?:19|20)[0-9]{{2}}([-/])(?:0?[1-9]|1[0-2])\1(?:0?[1-9]|[12][0-9]|3[01])"
        rf"(?:[t _](?:{_CLOCK}|[0-9]{{2}}:[0-9]{{2}}){_ZONE}(?: ?[ap]m)?)?|(?:19|20)[0-9]{{2}}(?:0[1-9]"
        rf"|1[0-2])(?:0[1-9]|[12][0-9]|3[01])(?:[t_-]?[0-9]{{6}}z?)?"
        rf"|(?<![:-]){_CLOCK}(?: ?[ap]m)?{_ZONE}(?!:?[{_W}])|(?<![:-])[0-9]{{1,2}}:[0-5][0-9] ?[ap]m"
        rf"|[0-9]{{1,2}}/[0-9]{{1,2}}/(?:19|20)[0-9]{{2}})(?![{_W}]|-[0-9])"
    ),
    "path": rf"(?<!{_PS})(?:[a-z]:(?=[/\\]))?{_P}*[/\\](?:{_PS}|(?:\([^\s()]{{0,80}}\)|\[[^\s\[\]]{{0,80}}\])(?=/))*{_AT}",
    "file": rf"(?<!{_P}){_P}*\.(?:{EXTENSIONS}){_END}(?!\((?![0-9])){_AT}",
    "hex": (
        rf"(?<![{_W}])(?:0x[0-9a-f]+|(?:[0-9a-f]{{2}}:){{5}}[0-9a-f]{{2}}"
        rf"|(?=[0-9]*[a-f])(?=[a-f]*[0-9])[0-9a-f]{{7,}})(?![{_W}])"
    ),
    "clock": r"[0-9]{1,9}(?:\.[0-9]{1,9})?(?= ?(?:ms|s|secs?|seconds?|us|ns|min|minutes?)(?![a-z0-9_]))"
    r"|[0-9]{4}-[0-9]{2}-[0-9]{2}|[0-9]{1,2}:[0-9]{2}:[0-9]{2}(?:[.,][0-9]{1,9})?",
    "kept_key": r"[\"'](status(?:_?code)?|code|errno|http_?(?:status|code)|exit_?(?:code|status)?)[\"'](?= ?:)",
    "str": (
        rf"[{QUOTES}]"
        r"(?:(?<=\")[^\"]*\"|(?<=`)(?:[^`'\s]*'(?![%s])|[^`]*`|[^`']*'(?![%s]))"
        r"|(?<=')(?:(?<![%s]')|(?<=[^%s][bruf]'))[^']*'(?![%s])"
        r"|(?<=\u201c)[^\u201c\u201d]*\u201d|(?<=\u2018)[^\u2018\u2019]*\u2019|(?<=\u00ab)[^\u00ab\u00bb]*\u00bb"
        r"|(?<=\u00bb)[^\u00ab\u00bb]*\u00ab|(?<=\u201e)[^\u201c-\u201e]*[\u201c\u201d]|(?<=\u201a)[^\u2018-\u201a]*[\u2018\u2019]"
        r"|(?<=\u300c)[^\u300c\u300d]*\u300d|(?<=\u300e)[^\u300e\u300f]*\u300f)" % ((_W,) * 5)
    ),
    "ipv4": rf"(?<![{_W}._/@=-])(?<!version )(?:[0-9]{{1,3}}\.){{3}}[0-9]{{1,3}}(?::[0-9]{{1,5}})?(?!\.?[{_W}])",
    "ipv6": rf"(?<![{_W}:.])\[?(?:[0-9a-f]{{0,4}}:){{2,7}}[0-9a-f]{{0,4}}(?:%[a-z0-9]{{1,15}})?(?:\](?::[0-9]{{1,5}})?)?(?![{_W}:(.])",
    "qty": rf"[0-9](?<![{_W}._-][0-9])[0-9]*(?:[.,][0-9]+)*{_UNIT}(?: ?{_NUMBER}{_UNIT})*(?![{_W}])",
    "n": rf"{_NUMBER}(?:e[-+]?[0-9]+)?",
    # numbers that are kept
    "number": _NUMBER,
    "keep_before": (
        r"(?:exit(?:ed|s)?|code|status|errno|http|(error))[\"')]?"
        r"(?: (?:with|was|is|of|value|non-zero|response|number)){0,4}[\"']?[ =#:(\[]{1,3}-?$"
    ),
    "keep_count_before": (
        r"(?:^|[^a-z])(?:(?:fail(?:ed|ures?|ing|s)?|errors|problems|issues)[\"']?(?:[:=] ?| (?=$))"
        rf"|(?:fail(?:ed|ing) (?:{NOUNS})|(?:error|failure|fail)[ _-]?count)[\"']?[:=] ?)$"
    ),
    "keep_count_after": (
        rf"(?:(?:/| of (?:the )?| out of )(?:[0-9]+|[{_S}]))?(?: (?:{NOUNS})){{0,2}}"
        r" (?:fail(?:ed|ures?|ing|s)?|errors?|problems?|issues?)(?![a-z])"
    ),
    "keep_count_plural": rf"(?: (?:{NOUNS})){{0,2}} (?:errors|failures|problems|issues)(?![a-z])",
    "keep_status_after": r" (?:exit|status|http)(?![a-z])",
    "keep_hex": (
        r"(?<![a-z])(?:(?:error|exit|win|status|return|exception)?[ _-]?(?:exit|code|status|errno)|hresult)[\"')]?"
        r"(?: (?:with|was|is|of|value|number)){0,4}[\"']?[ =#:(\[]{1,3}0x[0-9a-f]{1,16}(?![a-z0-9])"
    ),
}
# What the lower-cased text must hold for a pattern of secrets to be tried.
SECRET_WORDS = (
    ("secret_pem", ("-----begin",)),
    ("secret_header", ("authorization",)),
    ("secret_bearer", ("bearer ",)),
    ("secret_cookie", ("cookie",)),
    (
        "secret_keyed",
        (
            "passw",
            "passphrase",
            "pass=",
            "pwd",
            "secret",
            "token",
            "credential",
            "key",
            "?sig",
            "&sig",
            "auth=",
            "code=",
        ),
    ),
    ("secret_flag", ("--",)),
    ("secret_userinfo", ("://",)),
    ("secret_webhook", ("hooks.slack", "webhooks", "api.telegram")),
)
ALL_SECRET_WORDS = tuple(sign for _, signs in SECRET_WORDS for sign in signs)
SECRET_PREFIXES = (
    "sk-", "k_live_", "k_test_", "whsec_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glp", "gldt-",
    "glrt-", "glcbt-", "glsoat-",
    "xox", "xapp-", "npm_", "pypi-", "hf_", "gsk_", "xai-", "pplx-", "nvapi-", "tvly-", "r8_", "fw_", "dop_v1_",
    "shp", "dapi", "hvs.", "hvb.",
    "hvr.", "lin_api_", "figd_", "sntrys_", "atatt3", "glsa_", "pmak-", "nrak-", "sq0", "age-secret", "ya29.",
    "1//0", "ops_", "akia", "asia",
    "aroa", "aida", "abia", "acca", "aiza", "sg.", "eyj",
)  # fmt: skip
# What may be written together with one of the next.
KEEP_STARTS = ("error", "return", "status", "exit", "win", "http", "response", "result", "ret", "err")
KEEP_SIGNS = ("exit", "code", "status", "errno", "http", "error")
COUNT_SIGNS = ("fail", "error", "problem", "issue", "broken")
# A number of failures may follow these; after any other word ("attempt 3 failed") it names one thing and is masked.
COUNT_AFTER = frozenset(
    [
        "found",
        "with",
        "and",
        "had",
        "has",
        "have",
        "total",
        "of",
        "got",
        "but",
        "or",
        "collected",
        "reported",
        "generated",
        "to",
        "detected",
        "contains",
        "these",
        "following",
        "ran",
        "showing",
        "encountered",
        "produced",
        "created",
        "is",
        "are",
        "were",
        "was",
        "the",
        "summary",
        "tests",
        "suites",
        "files",
        "executed",
        "completed",
        "examples",
        "in",
        "all",
        "any",
        "only",
        "still",
        "now",
    ]
)
# Signs that tie a number to what stands before it ("db:5432 failed", "job-7 failed", "test #5 failed"): a name.
NAMING = ("#", "@", "_", ":", "-", ".")
# Families of error codes, upper case, with the least and the greatest number of digits.
FAMILIES = {
    "TS": (4, 5), "CS": (4, 4), "BC": (5, 5), "FS": (4, 4), "MSB": (4, 4), "NETSDK": (4, 4), "NU": (4, 4),
    "CA": (4, 4), "IDE": (4, 4),
    "SA": (4, 4), "LNK": (4, 4), "E": (3, 5), "W": (3, 4), "F": (3, 4), "C": (3, 4), "B": (3, 3), "D": (3, 3),
    "N": (3, 3), "G": (3, 3),
    "S": (3, 4), "L": (3, 3), "R": (4, 4), "P": (4, 4), "UP": (3, 3), "RUF": (3, 3), "SIM": (3, 3), "PL": (4, 4),
    "PLR": (4, 4),
    "PLE": (4, 4), "PLW": (4, 4), "PLC": (4, 4), "ANN": (3, 3), "PT": (3, 3), "ARG": (3, 3), "SC": (4, 4),
    "DL": (4, 4), "MD": (3, 3),
    "ORA": (5, 5), "GHC": (5, 5), "CVE": (4, 4), "PGRST": (3, 3), "JSON": (4, 4), "YN": (4, 4), "AADSTS": (5, 7),
    "TNS": (5, 5), "PLS": (5, 5), "DPI": (4, 4), "ST": (4, 4), "QF": (4, 4), "NG": (4, 4), "SYSLIB": (4, 4),
    "YTT": (3, 3), "FBT": (3, 3), "COM": (3, 3), "DTZ": (3, 3), "EM": (3, 3), "EXE": (3, 3), "FURB": (3, 3),
    "ICN": (3, 3), "INP": (3, 3), "ISC": (3, 3), "LOG": (3, 3), "PERF": (3, 3), "PGH": (3, 3), "PIE": (3, 3),
    "PTH": (3, 3), "PYI": (3, 3), "RET": (3, 3), "RSE": (3, 3), "SLF": (3, 3), "SLOT": (3, 3), "TCH": (3, 3),
    "TID": (3, 3), "TRY": (3, 3), "ERA": (3, 3), "ASYNC": (3, 3), "BLE": (3, 3), "CPY": (3, 3), "DJ": (3, 3),
}  # fmt: skip
ERRNO = frozenset(
    [
        "E2BIG",
        "EACCES",
        "EADDRINUSE",
        "EADDRNOTAVAIL",
        "EAFNOSUPPORT",
        "EAGAIN",
        "EALREADY",
        "EBADF",
        "EBADMSG",
        "EBUSY",
        "ECANCELED",
        "ECHILD",
        "ECONNABORTED",
        "ECONNREFUSED",
        "ECONNRESET",
        "EDEADLK",
        "EDESTADDRREQ",
        "EDOM",
        "EDQUOT",
        "EEXIST",
        "EFAULT",
        "EFBIG",
        "EHOSTDOWN",
        "EHOSTUNREACH",
        "EIDRM",
        "EILSEQ",
        "EINPROGRESS",
        "EINTR",
        "EINVAL",
        "EIO",
        "EISCONN",
        "EISDIR",
        "ELOOP",
        "EMFILE",
        "EMLINK",
        "EMSGSIZE",
        "ENAMETOOLONG",
        "ENETDOWN",
        "ENETRESET",
        "ENETUNREACH",
        "ENFILE",
        "ENOBUFS",
        "ENODATA",
        "ENODEV",
        "ENOENT",
        "ENOEXEC",
        "ENOLCK",
        "ENOMEM",
        "ENOMSG",
        "ENOPROTOOPT",
        "ENOSPC",
        "ENOSR",
        "ENOSYS",
        "ENOTCONN",
        "ENOTDIR",
        "ENOTEMPTY",
        "ENOTSOCK",
        "ENOTSUP",
        "ENOTTY",
        "ENXIO",
        "EOPNOTSUPP",
        "EOVERFLOW",
        "EPERM",
        "EPIPE",
        "EPROTO",
        "EPROTONOSUPPORT",
        "EPROTOTYPE",
        "ERANGE",
        "EROFS",
        "ESHUTDOWN",
        "ESPIPE",
        "ESRCH",
        "ESTALE",
        "ETIME",
        "ETIMEDOUT",
        "ETXTBSY",
        "EWOULDBLOCK",
        "EXDEV",
        "ENOTFOUND",
        "EAI_AGAIN",
        "EAI_FAIL",
        "EAI_NONAME",
        "ESOCKETTIMEDOUT",
        "ERESOLVE",
        "ELIFECYCLE",
        "EJSONPARSE",
        "EUSAGE",
        "EBADENGINE",
        "EBADPLATFORM",
        "EINTEGRITY",
        "ETARGET",
        "ENEEDAUTH",
        "EOTP",
        "EPUBLISHCONFLICT",
        "ENOWORKSPACES",
        "EUNSUPPORTEDPROTOCOL",
        "EINVALIDTAGNAME",
        "ENOVERSIONS",
        "ENOLOCK",
    ]
)
# Identifiers that are an error code, in the order of their names; of several in a line the leftmost counts.
CODES = (
    (
        "exception_first",
        r"^(?:Uncaught |Unhandled exception\. |E   )?(?:[A-Za-z_][A-Za-z0-9_]*[.:]{1,2}(?=\S)){1,8}([A-Z][A-Za-z0-9_]*)(?=:|$)",
    ),
    (
        "exception",
        r"(?<![A-Za-z0-9_])([A-Z][A-Za-z0-9_]{0,80}"
        r"(?:Error|Exception|Warning|Fault|Interrupt|Exit|Timeout|NotFound|NotReady))(?![A-Za-z0-9_])",
    ),
    ("exception_lone", r"^([A-Z][a-z0-9]+(?:[A-Z][a-z0-9]*)+)(?=: |:?$)"),
    ("exception_plain", r"^(?:Uncaught )?(Exception)(?=:|$)"),
    ("errno", r"(?<![A-Za-z0-9_])(E[A-Z0-9_]{2,60})(?![A-Za-z0-9_])"),
    ("family", r"(?<![A-Za-z0-9_])([A-Z]{1,6}-?[0-9]{3,7}[a-z]?)(?![A-Za-z0-9_])"),
    ("http", r"\bHTTP(?:/[0-9.]{1,3})?[ :]{1,2}(?:status(?: code)?[ :]{1,2})?([45][0-9]{2})(?![0-9])"),
    ("sqlstate", r"SQLSTATE[\s:=\[(]{1,3}([0-9A-Z]{5})(?![A-Za-z0-9])"),
    ("sqlstate_mysql", r"ERROR [0-9]{4} \(([0-9A-Z]{5})\)"),
)

# Lines that a shell, a package script or a harness puts around what the program said.
WRAPPERS = (
    (
        "exit",
        "exit",
        r"\[?(?:Error: )?(?:Exit code:? ?-?[0-9]+|exit[ _]code[:\]] ?-?[0-9]+|exit status -?[0-9]+|(?:Command|Process"
        r") (?:exited|failed|finished|terminated) with (?:exit )?code:? ?-?[0-9]+)[\].]?",
    ),
    ("finished", "exit code", r"\[?(?:The )?[Cc]ommand (?:completed|finished|exited) with exit code -?[0-9]+\.?\]?"),
    ("aborted", "interrupted", r"\[Request interrupted by user(?: for tool use)?\]"),
    (
        "returncode",
        "<",
        r"</?(?:returncode|output|stdout|stderr|error|exit_code|output_head|output_tail|exception_info)>(?:-?[0-9]+</"
        r"(?:returncode|exit_code)>)?",
    ),
    (
        "stream",
        "std|[exit|output",
        r"\[(?:stderr|stdout|exit_code)\](?: -?[0-9]+)?|(?:stderr|stdout|STDERR|STDOUT|Output|output):",
    ),
    ("task", "task failed", r"(?:\[[A-Za-z0-9_:./-]{1,60}\] )?(?:ERROR )?[Tt]ask failed(?: with exit code [0-9]+)?\.?"),
    ("mise", "error task|error run|mise error", r"(?:mise )?ERROR (?:task failed|Run with --verbose).*|mise ERROR .*"),
    ("tool", "[error]", r"\[error\] tool reported failure"),
    (
        "npm",
        "npm ",
        r"npm (?:ERR!|error) ?(?:(?:code|errno|syscall|path|location|workspace|command|lifecycle|signal|A complete lo"
        r"g of this run)(?: .*)?|[A-Za-z0-9@/_.-]+@[0-9][^ ]* .*: `.*`|Exit status [0-9]+|Lifecycle script `.*` faile"
        r"d with error:?|Failed at the .* script\.?|This is probably not a problem with npm.*|.*_logs.*)?",
    ),
    (
        "yarn",
        "error command|info visit",
        r"error Command failed with exit code [0-9]+\.|info Visit https://yarnpkg\.com.*|error Command failed with si"
        r"gnal .*",
    ),
    ("pnpm", "elifecycle|recursive_run", r"\u2009?ELIFECYCLE\u2009? .*|.*ERR_PNPM_RECURSIVE_RUN_FIRST_FAIL.*"),
    ("bun", "error: script", r"error: script \".*\" (?:exited with code|was terminated by signal) .*"),
    ("poe", "aborted after|recipe", r"Error: Sequence aborted after failed subtask .*|error: Recipe `.*` failed.*"),
    (
        "make",
        "make|ninja: |failed: ",
        r"g?make(?:\[[0-9]+\])?: (?:\*\*\* .*|(?:Entering|Leaving) directory .*|Target .* not remade because of error"
        r"s\.)|ninja: build stopped: .*|FAILED: .*CMakeFiles/.*",
    ),
    (
        "cargo",
        "to rerun|target|caused by",
        r"(?:error: )?(?:test failed, to rerun pass .*|[0-9]+ targets? failed:|Caused by:)",
    ),
    (
        "set",
        "",
        r"ERROR:|Error:|ERRORS:|error:|Errors:|errors:|FAILURES!|FAIL|FAILED|\(no output\)|<no output>|Command aborte"
        r"d",
    ),
    ("prompt", "@", r"[A-Za-z0-9_.-]{1,32}@[A-Za-z0-9_.-]{1,64}:[^\s]{0,200} ?[#$] ?"),
    ("run", "$ |> ", r"\[[A-Za-z0-9_:./-]{1,40}\] \$ .*|> \S.*|\$ .*"),
)  # fmt: skip

CUT_WORDS = ("output", "result", "observation", "content", "text", "response")
CUT_OFF = "(?:was |were )?(?:truncated|clipped|omitted|elided|TRUNCATED)"  # what may follow one of them in ADDED

# The second column of a table are its signs, parted by bars: of a line's lower-case text one must be there to make the
# pattern worth trying. In this table they are how the line begins, in its own case.
# Whole lines that a harness, a guard or this project adds to a result: gone before anything is read.
ADDED = (
    ("loopstats", "[loopstats]", r"\[loopstats\].*"),
    (
        "hook",
        "PreToolUse|PostToolUse|Stop hook |SubagentStop hook |UserPromptSubmit hook |SessionStart hook |Notification "
        "hook ",
        r"(?:Pre|Post)ToolUse(?:Failure)?(?::[A-Za-z0-9_|*.-]{1,80})? hook .*|(?:Stop|SubagentStop|UserPromptSubmit|S"
        r"essionStart|Notification) hook (?:feedback|error|additional context|success|blocking error|stopped).*",
    ),
    (
        "truncated",
        "[|(|<|.|\u2026|- |--|Output |Result |Observation |Content |Text |Response |output |result |observation |cont"
        "ent |text |response |0|1|2|3|4|5|6|7|8|9",
        r"[\[(<.\u2026 -]{0,6}(?:[0-9,]+ (?:more )?(?:characters|chars|lines|bytes|tokens|words) )?(?:[Oo]utput |[Rr]"
        r"esult |[Oo]bservation |[Cc]ontent |[Tt]ext |[Rr]esponse )?"
        + CUT_OFF
        + r"[^\n]{0,200}[\])>.\u2026]+|\.\.\. ?\[[0-9,]+ [a-z ]{1,40}\] ?\.\.\.",
    ),
    (
        "omitted",
        "[...|\u2026 +|\u2026+|Total output lines|<elided_chars>|<warning>|</warning>|<persisted-output>|</persisted-"
        "output>|<response clipped>",
        r"\[\.\.\. .{0,120} \.\.\.\]|\[\.\.\. omitted [0-9]+ of [0-9]+ lines \.\.\.\]|\u2026 ?\+[0-9]+ lines.*|Total "
        r"output lines: [0-9]+|<elided_chars>.*|</?(?:warning|persisted-output|response clipped)>.*",
    ),
    (
        "overflow",
        "[Output|(Output|Output too|[Full|(Full|Full output|[Showing|(Showing|Showing l|[Read |(Read |Read more|Read "
        "the rest",
        r"[\[(]?(?:Output too large.*|Full output(?: saved)?(?: to|:) .*|Showing (?:lines|last) [0-9].*|Read (?:more|"
        r"the rest) .{0,80}offset.*)",
    ),
    (
        "counter",
        "(|[|File unchanged|[File unchanged|Duplicate |duplicate |Same |same ",
        r"[\[(](?:read|call|use|attempt) (?:#|no\.? ?|number )?[0-9]+(?: (?:of|time)s?.*)?[\])]|\[?(?:File unchanged "
        r"since last read|[Dd]uplicate (?:result|call|output)|[Ss]ame (?:result|output) as).*",
    ),
    (
        "guard",
        "[|(|<|\u26a0|Loop |Tool loop |loop |tool loop |You have ",
        r"[\[(<]?(?:\u26a0\ufe0f? ?)?(?:[Tt]ool )?[Ll]oop (?:warning|detected|note|guard)\b.*|(?:\u26a0\ufe0f? ?)?You"
        r" have (?:already )?(?:called|run|read|executed) this .{0,80}(?:times|identical).*",
    ),
    ("notice", "[notice]", r"\[notice\] .*"),
)  # fmt: skip
TAGS_DROPPED = ("system-reminder", "loopstats", "user-prompt-submit-hook", "local-command-caveat")
TAGS_UNWRAPPED = ("tool_use_error", "tool_error", "error_message")
# Inside a message: from the first text to the last second one (or the end) lies what the agent itself had written.
QUOTED_INPUT = (
    ("String to replace not found in file.\nString: ", ""),
    ("uniquely identify the instance.\nString: ", ""),
    ("old_str `", "` did not appear verbatim"),
    ("old_str `", "` in lines ["),
    ("Invalid `new_str` parameter: ", ". No replacement was performed."),
    ("Invalid `old_str` parameter: ", ". No replacement was performed."),
)
SANDBOX = (
    (
        "denied",
        r"failed in sandbox \S{1,40} with execution error: (?:sandbox denied exec error, exit code: -?[0-9]+, stdout:"
        r" ?)?",
    ),
)

# A runner's own last word. `count`: failed when a number of failures in it (its groups, else COUNTS) is above zero.
# Shown as the salient line: `last` the last such line, `first` the first, `no` only the verdict is used.
SUMMARIES = (
    (
        "pytest",
        "count",
        "last",
        " in ",
        r"(?:=+ )?(?:[0-9]+ (?:failed|passed|skipped|deselected|xfailed|xpassed|warnings?|errors?|rerun|subtests pass"
        r"ed)(?:, | (?=in ))){1,9}in [0-9.]+s(?: \([0-9:, a-z]+\))?(?: =+)?",
    ),
    ("pytest", "fail", "last", "no tests ran", r"(?:=+ )?no tests ran in [0-9.]+s(?: =+)?"),
    (
        "pytest",
        "fail",
        "no",
        "!!",
        r"!+ (?:Interrupted: [0-9]+ errors? during collection|stopping after [0-9]+ failures|_pytest\.outcomes\.Exit."
        r"*) !+",
    ),
    (
        "unittest",
        "fail",
        "last",
        "failed (",
        r"FAILED \((?:(?:failures|errors|skipped|expected failures|unexpected successes)=[0-9]+(?:, )?)+\)",
    ),
    ("unittest", "ran", "no", "ok", r"OK(?: \((?:(?:skipped|expected failures)=[0-9]+(?:, )?)+\))?"),
    (
        "jest",
        "count",
        "last",
        "total",
        r"(?:Tests|Test Suites): +(?:([0-9]+) failed, )?(?:[0-9]+ [a-z]+, )*[0-9]+ total",
    ),
    (
        "vitest",
        "count",
        "last",
        "test",
        r"(?:Test Files|Tests) +(?:([0-9]+) failed)?(?: ?\|? ?[0-9]+ (?:passed|skipped|todo))*(?: \([0-9]+\))?",
    ),
    ("vitest", "count", "no", "errors ", r"Errors +([0-9]+) errors?"),
    ("mocha", "count", "last", "failing", r"([0-9]+) failing"),
    ("mocha", "pass", "no", "passing", r"[0-9]+ passing(?: \([0-9]+m?s\))?"),
    ("playwright", "count", "last", " failed", r"([0-9]+) failed"),
    ("playwright", "pass", "no", " passed (", r"[0-9]+ passed \([0-9.]+m?s\)"),
    ("node-test", "count", "last", " fail ", r"(?:#|\u2139) fail ([0-9]+)"),
    ("tap", "fail", "no", "not ok", r"not ok [0-9]+(?! .*# (?:TODO|SKIP))(?: .*)?"),
    ("tap", "fail", "last", "# failed", r"# failed [0-9]+ (?:of|/) ?[0-9]+ tests"),
    ("tap", "fail", "last", "looks like", r"# Looks like you (?:failed [0-9]+ tests? of [0-9]+|planned .*)\.?"),
    ("prove", "fail", "last", "failed ", r"Failed [0-9]+/[0-9]+ (?:test programs|subtests).*"),
    ("prove", "fail", "no", "result: fail", r"Result: FAIL"),
    ("prove", "pass", "no", "result: pass", r"Result: PASS"),
    ("go", "fail", "first", "--- fail", r"--- FAIL: \S+.*"),
    ("go", "fail", "no", "fail", r"FAIL(?:\t\S+(?:[\t ].*)?)?"),
    ("go", "pass", "no", "ok ", r"ok  ?\t\S+\t.*"),
    ("go", "pass", "no", "pass", r"PASS"),
    ("cargo", "count", "last", "test result", r"test result: (?:FAILED|ok)\. [0-9]+ passed; ([0-9]+) failed;.*"),
    (
        "nextest",
        "count",
        "last",
        "summary [",
        r"Summary \[ *[0-9.]+s\] +[0-9]+(?:/[0-9]+)? tests? run: [0-9]+ passed(?: \([^)]*\))?(?:, ([0-9]+) (?:failed|"
        r"timed out))?.*",
    ),
    (
        "cargo",
        "fail",
        "last",
        "could not compile",
        r"error: could not compile `[^`]+`.* due to [0-9]+ previous errors?(?:; .*)?",
    ),
    ("cargo", "fail", "last", "aborting due to", r"error: aborting due to (?:[0-9]+ )?previous errors?(?:; .*)?"),
    (
        "rspec",
        "count",
        "last",
        "example",
        r"[0-9]+ examples?, ([0-9]+) failures?(?:, [0-9]+ pending)?(?:, ([0-9]+) errors? occurred outside of examples"
        r")?",
    ),
    (
        "minitest",
        "count",
        "last",
        "assertions",
        r"[0-9]+ (?:runs|tests), [0-9]+ assertions, ([0-9]+) failures?, ([0-9]+) errors?(?:, [0-9]+ skips?)?.*",
    ),
    (
        "exunit",
        "count",
        "last",
        "failure",
        r"(?:[0-9]+ doctests?, )?[0-9]+ tests?, ([0-9]+) failures?(?:, [0-9]+ (?:excluded|skipped|invalid))*",
    ),
    (
        "maven",
        "count",
        "last",
        "tests run:",
        r"(?:\[(?:ERROR|INFO|WARNING)\] +)?Tests run: [0-9]+, Failures: ([0-9]+), Errors: ([0-9]+)(?:, Skipped: [0-9]"
        r"+)?.*",
    ),
    ("maven", "fail", "no", "build failure", r"(?:\[(?:ERROR|INFO)\] +)?BUILD FAILURE"),
    ("maven", "pass", "no", "build success", r"(?:\[INFO\] +)?BUILD SUCCESS"),
    ("gradle", "count", "last", "completed,", r"[0-9]+ tests? completed, ([0-9]+) failed(?:, [0-9]+ skipped)?"),
    ("gradle", "fail", "no", "build failed", r"BUILD FAILED(?: in .*)?"),
    ("gradle", "pass", "no", "build successful", r"BUILD SUCCESSFUL(?: in .*)?"),
    ("dotnet", "count", "last", "failed:", r"(?:Failed|Passed)! +- Failed: +([0-9]+), Passed: +[0-9]+, .*"),
    ("dotnet", "count", "last", "test summary", r"Test summary: total: [0-9]+, failed: ([0-9]+), succeeded: [0-9]+.*"),
    ("dotnet", "count", "last", "error(s)", r"([0-9]+) Error\(s\)"),
    ("dotnet", "fail", "no", "build failed.", r"Build FAILED\."),
    ("dotnet", "pass", "no", "build succeeded", r"Build succeeded(?: in .*|\.)?"),
    (
        "phpunit",
        "count",
        "last",
        "assertions:",
        r"Tests: [0-9]+, Assertions: [0-9]+(?:, (?:Errors: ([0-9]+)|Failures: ([0-9]+)|[A-Za-z ]+: [0-9]+))*\.",
    ),
    ("phpunit", "pass", "no", "ok (", r"OK \([0-9]+ tests?, [0-9]+ assertions?\)"),
    ("ctest", "count", "last", "tests passed", r"[0-9]+% tests passed, ([0-9]+) tests? failed out of [0-9]+"),
    ("gtest", "fail", "last", "failed  ]", r"\[  FAILED  \] [0-9]+ tests?, listed below:"),
    ("gtest", "count", "no", "failed test", r"([0-9]+) FAILED TESTS?"),
    ("gtest", "pass", "no", "passed  ]", r"\[  PASSED  \] [0-9]+ tests?\."),
    ("catch2", "count", "last", "test cases:", r"test cases: +[0-9]+ \|(?: +[0-9]+ passed \|)? +([0-9]+) failed.*"),
    ("deno", "count", "last", "passed", r"(?:FAILED|ok) \| [0-9]+ passed(?: \([^)]*\))? \| ([0-9]+) failed(?: .*)?"),
    ("bun", "count", "last", " fail", r"([0-9]+) fail"),
    ("karma", "count", "last", "executed", r"(?:.*: )?Executed [0-9]+ of [0-9]+ \(([0-9]+) FAILED\).*"),
    ("swift", "count", "last", "executed", r"Executed [0-9]+ tests?, with ([0-9]+) failures? .*"),
    (
        "bazel",
        "count",
        "last",
        "out of",
        r"Executed [0-9]+ out of [0-9]+ tests?:(?: [0-9]+ tests? pass(?:es)?(?: and|,|\.))?(?: ([0-9]+) fails? .*)?",
    ),
    (
        "sbt",
        "count",
        "last",
        "failed: total",
        r"(?:\[error\] )?Failed: Total [0-9]+, Failed ([0-9]+), Errors ([0-9]+), .*",
    ),
    ("eslint", "count", "last", "problem", r"[\u2716\u00d7X] [0-9]+ problems? \(([0-9]+) errors?, [0-9]+ warnings?\)"),
    (
        "biome",
        "count",
        "last",
        "found ",
        r"Found ([0-9]+) (?:errors?|diagnostics|problems?|issues?)(?: in .*)?\.?(?: .*)?",
    ),
    ("golangci", "count", "last", "issue", r"([0-9]+) issues?[:.]?"),
    ("mypy", "pass", "no", "success: no issues", r"Success: no issues found in .*"),
    ("ruff", "pass", "no", "all checks passed", r"All checks passed!"),
    (
        "pyright",
        "count",
        "last",
        "warning",
        r"([0-9]+) errors?, [0-9]+ warnings?(?:, [0-9]+ (?:informations?|notes?))? ?",
    ),
    ("prettier", "fail", "last", "code style", r"(?:\[warn\] )?Code style issues (?:were )?found in .*"),
    (
        "black",
        "count",
        "last",
        "would ",
        r"(?:([0-9]+) files? would be reformatted(?:, )?)?(?:[0-9]+ files? (?:would be left unchanged|already formatte"
        r"d)(?:, )?)?(?:([0-9]+) files? would fail to reformat)?\.?",
    ),
    ("make", "fail", "no", "***", r"g?make(?:\[[0-9]+\])?: \*\*\* .*(?:\] Error [0-9]+.*|Stop\.)"),
    ("ninja", "fail", "no", "build stopped", r"ninja: build stopped: .*"),
    ("npm", "fail", "no", "npm err", r"npm (?:ERR!|error) (?:Test failed\..*|Lifecycle script `[^`]+` failed.*|code ELIFECYCLE)"),
    ("pnpm", "fail", "no", "elifecycle", r"ELIFECYCLE[\u2009 ]+(?:Command|Test) failed.*"),
    ("yarn", "fail", "no", "command failed", r"error Command failed with exit code [0-9]+\."),
    ("webpack", "count", "no", "compiled with", r"webpack [0-9.]+ compiled with ([0-9]+) errors?\b.*"),
    ("vite", "fail", "no", "build", r"error during build:|\u2717 Build failed in .*"),
    ("clang", "count", "no", "generated.", r"(?:[0-9]+ warnings? and )?([0-9]+) errors? generated\."),
    ("javac", "count", "no", " error", r"([0-9]+) errors?"),
    ("dotnet", "count", "no", "failed with", r"Build failed with ([0-9]+) error\(s\).*"),
    ("gradle", "fail", "no", "failure: build", r"FAILURE: Build failed with an exception\."),
    ("xcode", "fail", "no", "** ", r"\*\* (?:TEST|BUILD) FAILED \*\*"),
    ("scala", "fail", "no", "compilation failed", r"\[error\] \(.*\) Compilation failed"),
    ("tox", "fail", "no", "evaluation failed", r"evaluation failed :\( .*"),
    ("nox", "fail", "no", "session", r"nox > Session \S+ failed.*"),
    ("pre-commit", "fail", "no", "..failed", r"\S.*\.\.Failed"),
    ("phpstan", "count", "no", "found", r"\[ERROR\] Found ([0-9]+) errors?"),
    ("svelte-check", "count", "last", "svelte-check found", r"svelte-check found ([0-9]+) errors?\b.*"),
    ("rubocop", "count", "last", "inspected,", r"[0-9]+ files? inspected, (?:no|([0-9]+)) offenses? detected.*"),
    ("cucumber", "count", "last", "scenario", r"[0-9]+ scenarios? \((?:[0-9]+ [a-z]+, )*?(?:([0-9]+) failed)?(?:,? ?[0-9]+ [a-z]+)*\)"),
    ("behave", "count", "last", "scenario", r"[0-9]+ scenarios? passed, ([0-9]+) failed\b.*"),
    ("jasmine", "count", "last", "spec", r"[0-9]+ specs?, ([0-9]+) failures?(?:, .*)?"),
    ("ava", "count", "last", "failed", r"([0-9]+) tests? failed"),
    ("clojure", "count", "last", "failures,", r"([0-9]+) failures, ([0-9]+) errors\."),
    ("busted", "count", "last", "success", r"[0-9]+ success(?:es)? / ([0-9]+) failures? / ([0-9]+) errors? .*"),
    ("flutter", "fail", "last", "some tests failed", r"[0-9:]+ \+[0-9]+(?: ~[0-9]+)? -[0-9]+: Some tests failed\."),
    ("flutter", "pass", "no", "all tests passed", r"[0-9:]+ \+[0-9]+(?: ~[0-9]+)?: All tests passed!"),
    ("gotestsum", "count", "last", "done ", r"DONE [0-9]+ tests?(?:, [0-9]+ skipped)?(?:, ([0-9]+) failures?)?(?:, ([0-9]+) errors?)?(?: in .*)?"),
    ("ginkgo", "count", "last", "passed |", r"(?:FAIL|SUCCESS)! -- [0-9]+ Passed \| ([0-9]+) Failed .*"),
)  # fmt: skip
# What the lower-cased text must hold for its lines to be looked at: for failures alone, and for passes too.
FAILED_SIGNS = (
    "fail",
    "error",
    " issue",
    "problem",
    "not ok",
    "no tests ran",
    "would be",
    "looks like you",
    "aborting due to",
    "build stopped",
    "*** no rule",
    "offense",
    "elifecycle",
)
PASSED_SIGNS = ("pass", "\nok", "success", "succe", " total", "tests", "executed", "left unchanged", " in 0", "skipped")
COUNTS = (
    ("after", r"([0-9]+) (?:failed|failing|failures?|errors?|fails?|fail)(?![a-z])"),
    ("before", r"(?:failed|failures|errors|fail)[=: ]+([0-9]+)"),
)
# Lines that speak of an error, strongest first; within a row group the first line of the text wins. Signs are what
# the lower-cased text must hold for the pattern to be worth trying.
STEMS = (
    "error",
    "fail",
    "xception",
)  # signs that are looked for inside words; the first word of others must stand alone
ERROR_SIGNS = (
    *STEMS, "fatal", "panic", "panicked", "not found", "no such file", "denied", "err!", "\ne: ", "\n- f", "abort", "aborted", "fault",
    "conflict", "cannot ", "not recognized", "not permitted", "not a directory", "exists", "killed", "terminated",
    "rejected", "merge failed",
    "\u2717", "\u2716", "\u274c",
)  # fmt: skip
ERROR_LINES = (
    ("lint", "- ", r"- [A-Z][0-9]{3,4} \S.*"),
    (
        "exception",
        "error|exception|exit|interrupt",
        r"(?:Uncaught |Caused by: |Exception in thread \"[^\"]*\" |E +|PHP |Unhandled exception\. |\*\* \()?(?:[A-Za-"
        r"z_][A-Za-z0-9_]*[.:]{1,2}){0,8}[A-Za-z_][A-Za-z0-9_]*(?:Error|Exception|Exit|Interrupt)(?::? .*|[:)].*|)",
    ),
    (
        "marked",
        ":|!",
        r"(?i:(?:\[?(?:error|fatal|critical|failure|panic)\]?|err!|npm (?:err!|error)|failed|fail|conflict|php fatal "
        r"error|e|uncaught|unhandled)(?:\[[a-z0-9]+\])?[:!] ?\S.*)",
    ),
    (
        "bracketed",
        "error|fatal|fail|critical|conflict",
        r"(?:\[(?:ERROR|FATAL|FAIL|FAILED|error|fail)\]|ERROR|FATAL|CRITICAL|CONFLICT|Error) \S.*",
    ),
    ("crossed", "\u2717|\u2716|\u274c|\u00d7", r"[\u2717\u2716\u274c\u00d7] \S.*"),
    ("placed", "error", r".*(?:: |\) ?:? ?|[0-9]:? | - )(?i:(?:fatal )?error)(?:: |\[| [A-Z]{1,6}[0-9]{3,5}\b).*"),
    (
        "shell",
        "not found|no such|denied|directory|recognized|cannot|permitted|exists",
        r".*(?:: (?:command )?not found|: No such file or directory|No such file or directory: .*|: Permission denied"
        r"|: Is a directory|: Not a directory|no such file or directory: .*|command not found: .*|not recognized as ."
        r"*|: cannot .*|: Operation not permitted|: File exists)\.?(?: \(os error [0-9]+\))?",
    ),
    (
        "crash",
        "fault|abort|killed|error|illegal|exception|terminated",
        r"(?:.*: )?(?:Segmentation fault|Aborted|Killed|Bus error|Illegal instruction|Floating point exception|Termin"
        r"ated)(?: .*|\.)?(?:\(core dumped\))?",
    ),
    ("git", "rejected|merge failed", r"! \[(?:remote )?rejected\] .*|.* merge failed; .*"),
    ("panicked", "panicked", r"thread '[^']*'(?: \([0-9]+\))? panicked at .*"),
)  # fmt: skip
DIAGNOSTIC = (
    ("place", r"\.[A-Za-z]{1,6}[:(][0-9]"),
    ("diagnostic", r"(?:\./)?[^\s:()]{1,200}\.[A-Za-z]{1,6}(?::[0-9]+|\([0-9]+(?:,[0-9]+)?\))(?::[0-9]+)?:? \S[^\n]*"),
)
WEAK_SIGNS = (
    *STEMS, "fatal", "not ", "can't", "couldn't", "doesn't", "didn't", "isn't", "aren't", "won't", "wasn't", "hasn't", "don't", "cannot",
    "unable", "no such", "no module", "no match", "no change", "no replacement", "no go", "denied", "invalid",
    "illegal", "unknown",
    "unrecognized", "undefined", "unexpected", "unsupported", "unauthorized", "forbidden", "missing", "must ",
    "required", "requires",
    "refused", "rejected", "timed out", "timeout", "exist", "exists", "mismatch", "conflict", "too many",
    "too large", "too long",
    "too short", "exceeds", "exceeded", "ambiguous", "bad ", "broken", "unparsable", "unmatched", "vacuous",
    "needed", "malformed", "ineffectual",
)  # fmt: skip
NO_ERROR = (
    ("mild", "hint|note|info|debug|warn", r"(?i:\[?(?:hint|note|info|debug|warning|warn)\b.*)"),
    (
        "none",
        "no |0 |without |zero ",
        r"(?i:.*\b(?:0|no|without|zero) (?:(?:type|test|lint) )?(?:errors?|failures?|failed|failing|problems?|issues?"
        r")\b.*)",
    ),
    ("zero", "0", r"(?i:.*\b(?:errors?|failures?|failed)[:=] ?0\b.*)"),
    ("warned", "warning: |note: ", r".*(?:Warning: |: warning: |: note: ).*"),
)
PASSING = (
    (
        "passed",
        "pass|skip|=== |ok|\u2713|\u2714",
        r"(?:--- (?:PASS|SKIP)|=== (?:RUN|PAUSE|CONT|NAME)|ok  ?\t|\u2713|\u2714|test .* \.\.\. ok\b).*|PASS",
    ),
)
DECORATION = (
    ("rule", "", r"[^A-Za-z0-9\u00c0-\uffff]*"),
    ("heading", "=|-|#", r"(?:=+|-+|#+) ?[^=]{0,80}? ?(?:=+|-+|#+)"),
)
PROGRAMS = (
    r"(?:/\S{1,80}/)?(?:[efz]?grep|rg|ag|ack|git|diff[0-9]?|cmp|comm|test|\[|find|ls|cat|head|tail|sed|awk|sort"
    r"|xargs|bash|sh|zsh|dash|which|wc)"
    r"|/\S{1,80}|\(eval\)(?::[a-z]+)?"
)
OWN_ERRORS = (
    ("program", ":", rf"(?:{PROGRAMS}):(?: (?:line )?[0-9]+:|[0-9]+:)? (?!.*: binary file matches)\S.*"),
    ("fatal", ":", r"(?:fatal|error): \S.*"),
    ("usage", "sage|try", r"[Uu]sage: (?:\S*/)?(?:[efz]?grep|rg|diff|git .*)\b.*|Try '[a-z]+ --help' .*"),
    ("regex", "rror", r"regex parse error:.*|error parsing .*"),
)
INFRA_CODES = (
    "429|5[0-9]{2}|timeout|ECONNREFUSED|ECONNRESET|ECONNABORTED|ETIMEDOUT|ESOCKETTIMEDOUT|ENOTFOUND|EAI_AGAIN"
    "|ENETUNREACH|EHOSTUNREACH|EDQUOT"
    "|ERR_SOCKET_TIMEOUT|Connection[A-Za-z]*Error|API(?:Connection|Timeout)Error|[A-Za-z]*Timeout(?:Error"
    "|Exception|Expired)?|RateLimit[A-Za-z]*"
    "|Overloaded[A-Za-z]*|ServiceUnavailable[A-Za-z]*|TooManyRequests[A-Za-z]*|MaxRetryError|NewConnectionError"
    "|gaierror|NameResolutionError"
)
INFRA_TEXT = (
    (
        "connection",
        "connect|hang up|econnre|err_internet|err_network|max retries|broken pipe",
        r"connection (?:was |has been )?(?:refused|reset|aborted|timed out|closed)|connection error|could not connect"
        r" to|failed to connect|econnre|socket hang up|connection lost|(?:lost|closed|dropped) (?:the )?connection"
        r"|err_(?:connection|internet|network)|upstream connect error|max retries exceeded|broken pipe",
    ),
    (
        "rate",
        "limit|quota|overload|too many|capacity|throttl|rate exceeded|exhausted",
        r"rate.?limit|too many requests|quota|overloaded|usage limit|capacity exceeded|throttl(?:ed|ing)"
        r"|rate exceeded|resource.?exhausted",
    ),
    (
        "timeout",
        "time|deadline",
        r"timed? ?-?out (?:error|expired|exceeded|reached|after|while|waiting|connecting)|timed.?out|(?:request|read|"
        r"connect|connection|gateway|operation|socket|network|execution) time-?out|deadline exceeded|timeouterror|eti"
        r"medout|handshake timeout|: <path> timeout|connect_timeout"
        r"|^time-?out\b(?! (?:must|should|is|has|value|needs|cannot|option|argument))",
    ),
    (
        "dns",
        "resol|name or|getaddr|notfound|eai_|dns|no such host|name_not_resolved",
        r"could(?: not|n't) resolve (?:the )?(?:host|proxy|address)|temporary failure (?:in name resolution|resolving)|name or service not k"
        r"nown|name resolution|getaddrinfo|(?<![a-z])enotfound|eai_again|\bdns\b|no such host"
        r"|name_not_resolved",
    ),
    (
        "network",
        "host|network|service|gateway|server",
        r"no route to host|network is unreachable|host is unreachable|service unavailable|bad gateway|internal server"
        r" error",
    ),
    (
        "status",
        "429|50|51|52|53",
        r"(?:http|status|code|error)[^0-9a-z]{0,3}(?:code|status|error)?[^0-9a-z]{0,3}(?:429|5[0-9]{2})(?![0-9])",
    ),
    ("errno", "errno", r"errno (?:104|110|111|113)\b"),
)  # fmt: skip
CLEAN = {
    "osc": r"\x1b\][^\x07\x1b\n]{0,4096}(?:\x07|\x1b\\)?|\x1b[P^_X][^\x1b\n]{0,4096}(?:\x1b\\)?",
    "csi": r"(?:\x1b|\x9b|\\u001b|\\x1b|\\033)\[?[0-?]{0,64}[ -/]{0,8}[@-~]",
    "bare_csi": r"\[(?:[0-9]{1,3};){0,4}[0-9]{1,3}m(?![A-Za-z0-9\]])",
    "struck": r"[^\x08\n]\x08",
    "control": r"[\x00-\x08\x0b-\x1f\x7f-\x84\x86-\x9f]",
    "private": r"[\ud800-\udfff\ue000-\ue01f]",
    "interpreter": r"\[(?:Python Interpreter|Current working directory|Jupyter current working directory|Jupyter Python interpreter): [^\]\n]{0,300}\]",
    "traceback": r"[^\n]{0,40}Traceback \(most recent call last\):",
    "exception_line": r"[A-Za-z_][A-Za-z0-9_]{0,100}(?:\.[A-Za-z_<][A-Za-z0-9_>]{0,100}){0,12}(?:: .*|:|)",
    "tags": r"</?(?:stdout|stderr|output|error|tool_use_error)>",
    "ran": r"(?m)^Ran [0-9]+ tests? in [0-9.]+s",
    "equals": r"^=+ | =+$",
}
CONTROLS = "".join(map(chr, (*range(9), *range(11, 32), *range(127, 133), *range(134, 160))))
ESCAPES = ("\\u001b", "\\x1b", "\\033")
INTERPRETER_SIGNS = ("[Python Interpreter: ", "[Current working ", "[Jupyter ")
CONTROLS_OF_ASCII = "".join(filter(str.isascii, CONTROLS))
CONTROL_BYTES = tuple((control, control.encode()) for control in CONTROLS_OF_ASCII)
RULES: dict[str, object] = {
    "clean": CLEAN, "tags_dropped": TAGS_DROPPED, "tags_unwrapped": TAGS_UNWRAPPED, "added": ADDED,
    "sandbox": SANDBOX, "quoted_input": QUOTED_INPUT, "wrappers": WRAPPERS, "summaries": SUMMARIES, "failed_signs": FAILED_SIGNS, "passed_signs": PASSED_SIGNS,
    "counts": COUNTS, "error_lines": ERROR_LINES, "stems": STEMS, "error_signs": ERROR_SIGNS, "diagnostic": DIAGNOSTIC, "weak_signs": WEAK_SIGNS,
    "no_error": NO_ERROR, "passing": PASSING, "decoration": DECORATION, "own_errors": OWN_ERRORS, "codes": CODES, "errno": tuple(sorted(ERRNO)), "masks": MASKS, "months": MONTHS, "keep_signs": (KEEP_STARTS, KEEP_SIGNS, COUNT_SIGNS, NAMING), "patterns": PATTERNS,
    "secret_prefixes": SECRET_PREFIXES, "secret_words": SECRET_WORDS, "count_after": tuple(sorted(COUNT_AFTER)), "families": FAMILIES, "infra_codes": INFRA_CODES, "infra_text": INFRA_TEXT,
    "caps": (LINE_CAP, MATCH_CAP, TEXT_CAP, CANDIDATES, CODE_SHOWN),
}  # fmt: skip


def tables() -> str:
    """The canonical text of all tables, one `table<TAB>row` per line, ASCII: what the rule digest is taken of."""
    lines = []
    for name, table in RULES.items():
        rows: list[object] = (
            list(table.items()) if isinstance(table, dict) else list(table) if isinstance(table, tuple) else [table]
        )
        lines += [f"{name}\t{row!a}" for row in rows]
    return "\n".join(lines) + "\n"


# --- patterns, compiled when first used -------------------------------------------------------------------------

_compiled: dict[str, re.Pattern[str]] = {}


def _rx(name: str) -> re.Pattern[str]:
    found = _compiled.get(name)
    if found is None:
        found = _compiled[name] = re.compile(PATTERNS.get(name) or CLEAN[name], re.ASCII)
    return found


def _row(name: str, pattern: str) -> re.Pattern[str]:
    found = _compiled.get(name)
    if found is None:
        found = _compiled[name] = re.compile(pattern, re.ASCII)
    return found


_compiled_bytes: dict[str, re.Pattern[bytes]] = {}


def _bytes(name: str, pattern: bytes) -> re.Pattern[bytes]:
    found = _compiled_bytes.get(name)
    if found is None:
        found = _compiled_bytes[name] = re.compile(pattern)
    return found


_parted: dict[str, list[tuple[str, tuple[str, ...], str, str]]] = {}


def _fits(table: str, rows: tuple[tuple[str, str, str], ...], line: str) -> str:
    """The name of the first row of a (name, signs, pattern) table that is the whole line, else ''.

    The signs, parted by bars, are lower-case texts of which a line must hold one to be worth the pattern.
    """
    parted = _parted.get(table)
    if parted is None:
        parted = [(name, tuple(signs.split("|")), f"{table}.{name}", pattern) for name, signs, pattern in rows]
        _parted[table] = parted
    low = line.lower()
    for name, signs, key, pattern in parted:
        for sign in signs:
            if sign in low:
                if _row(key, pattern).fullmatch(line):
                    return name
                break
    return ""


# --- cleaning -----------------------------------------------------------------------------------------------------


def _plain(text: str) -> str:
    """Without lone surrogates and private-use marks; a capital dotted I is the one letter that grows when lowered."""
    if text.isascii():
        return text
    # A byte is found several times as fast as a wide character: those of U+E000 and U+0130 begin with these.
    try:
        data = text.encode()
    except UnicodeEncodeError:
        data = b"\xee\xc4"
    if b"\xee" in data:
        text = _rx("private").sub("\ufffd", text)
    return text.replace("\u0130", "I") if b"\xc4" in data else text


def _without_controls(text: str) -> str:
    if text.isascii():
        there = [control for control in CONTROLS_OF_ASCII if control in text]
    else:
        data = text.encode()
        there = [control for control, byte in CONTROL_BYTES if byte in data]
        if b"\xc2" in data:  # begins what stands above them, as in UTF-8
            there += [control for control in CONTROLS if not control.isascii()]
    for control in there:
        text = text.replace(control, "")
    return text


def _without_tag(text: str, tag: str) -> str:
    opening, closing, parts, at = "<" + tag, "</" + tag + ">", [], 0
    while (start := text.find(opening, at)) >= 0:
        if text[start + len(opening) : start + len(opening) + 1] not in ("", ">", " "):
            parts.append(text[at : start + len(opening)])
            at = start + len(opening)
            continue
        parts.append(text[at:start])
        end = text.find(closing, start)
        at = len(text) if end < 0 else end + len(closing)
    parts.append(text[at:])
    return "".join(parts)


def _last_shown(line: str) -> str:
    """What carriage returns leave of a line, and every part on it that speaks of an error."""
    parts = [part for part in line.split("\r") if part.strip()]
    kept = [part for part in parts[:-1][:CANDIDATES] if any(sign in part.lower() for sign in WEAK_SIGNS)]
    return "\n".join(dict.fromkeys(kept + parts[-1:]))


_openings: dict[str, list[tuple[str, str, str]]] = {}


def _added_kind(line: str) -> str:
    """The row of ADDED that this stripped line is, else ''."""
    if not _openings:
        for name, signs, pattern in ADDED:
            for sign in signs.split("|"):
                _openings.setdefault(sign[0], []).append((sign, name, pattern))
    for sign, name, pattern in _openings.get(line[0], ()):
        if line.startswith(sign) and _row("added." + name, pattern).fullmatch(line[: 2 * MATCH_CAP]):
            return name
    return ""


_looked_at = [0]


def _may_hold_added(text: str) -> bool:
    """Whether a line of the text begins like a row of ADDED: one look that spares most texts the look at each line."""
    opened, found = _compiled.get("added_opening"), _compiled.get("any_added")
    if opened is None or found is None:
        signs = [sign for _, row, _ in ADDED for sign in row.split("|")]
        # What `strip` would take from a line's beginning is none of the signs of the first class.
        start = r"\n[^\n!-~\u2026\u26a0]*+"
        # Numbered lines are many, and so are lines of code that begin with `result `: of those, only a number that
        # counts something cut off and a word that is said to be cut off are worth the long pattern.
        by_letter = {"0": [r"[0-9,]*+ (?:more |characters|chars|lines|bytes|tokens|words)"]}
        for sign in signs:
            if not sign.isdecimal():
                said = CUT_OFF if sign.strip().lower() in CUT_WORDS else ""
                by_letter.setdefault(sign[0], []).append(re.escape(sign[1:]) + said)
        openings = "|".join(f"{re.escape(first)}(?:{'|'.join(rest)})" for first, rest in by_letter.items())
        openings = openings.replace("0(?:", "[0-9](?:", 1)
        opened = _compiled["added_opening"] = re.compile(f"{start}(?:{openings})", re.ASCII)
        signed, rows = "|".join(map(re.escape, signs)), "|".join(pattern for _, _, pattern in ADDED)
        found = _compiled["any_added"] = re.compile(f"{start}(?={signed})(?:{rows})", re.ASCII)
    text = "\n" + text
    first = opened.search(text)
    return first is not None and found.search(text, first.start()) is not None


def _without_added(text: str) -> str:
    _looked_at[0] += 1
    if _looked_at[0] > WORTH_COMPILING and not _may_hold_added(text):
        return text
    kept, was, any_added = [], "", False
    for line in text.split("\n"):
        short = line.strip()
        if not short:
            kept.append(line)
            continue
        was = "hook" if was == "hook" and short.startswith("- [") else _added_kind(short)
        if was:
            any_added = True
        else:
            kept.append(line)
    return "\n".join(kept) if any_added else text


_cleaned = ["", ""]


def clean(text: str) -> str:
    """What the program itself said: no colours, cursor moves, links, overwritten progress or harness additions.

    Of a text longer than twice TEXT_CAP the middle is left out. Lines stay lines; their white space is kept.
    """
    if len(text) > 2 * TEXT_CAP:
        return _clean(text)
    # Summary, class and hash of one result all ask for it.
    if text != _cleaned[0]:
        _cleaned[:] = text, _clean(text)
    return _cleaned[1]


def _clean(text: str) -> str:
    if "<" in text:
        for tag in TAGS_DROPPED:
            if "<" + tag in text:
                text = _without_tag(text, tag)
        for tag in TAGS_UNWRAPPED:
            text = text.replace(f"<{tag}>", "").replace(f"</{tag}>", "")
    if len(text) > 2 * TEXT_CAP:
        text = text[:TEXT_CAP] + "\n" + text[-TEXT_CAP:]
    text = _plain(text)
    if "\x1b" in text:
        text = _rx("osc").sub("", text)
    if "\x1b" in text or "\x9b" in text or ("\\" in text and [sign for sign in ESCAPES if sign in text]):
        text = _rx("csi").sub("", text)
    is_bracketed = "[" in text
    if is_bracketed and "[0m" in text:
        text = _rx("bare_csi").sub("", text)
    if "\r" in text:
        text = text.replace("\r\n", "\n")
        if "\r" in text:
            text = "\n".join(_last_shown(line) if "\r" in line else line for line in text.split("\n"))
    if "\x08" in text:
        text = _rx("struck").sub("", text)
    text = _without_controls(text)
    if is_bracketed and [sign for sign in INTERPRETER_SIGNS if sign in text]:
        text = _rx("interpreter").sub("", text)
    if text.startswith("failed in sandbox "):
        text = _row("sandbox", SANDBOX[0][1]).sub("", text, count=1)
        text = "\n".join(text.rsplit(", stderr: ", 1))
    text = _without_added(text)
    for start, end in QUOTED_INPUT if "`" in text or "\nString: " in text else ():
        if start in text and (at := text.find(start) + len(start)) <= (to := text.rfind(end)):
            text = text[:at] + "\u2026" + text[to:]
    return text


# --- the salient line ---------------------------------------------------------------------------------------------


_SPACED = {ord(char): " " for char in '!"#$%&()*+,./:;<=>?@[\\]^_`{|}~'}


def _tidy(line: str) -> str:
    line = line.strip()
    if line.startswith("E   "):
        line = line[1:].lstrip()  # pytest's mark on the lines of an exception
    return _rx("tags").sub("", line).strip() if "<" in line else line


def _is_wrapper(line: str) -> bool:
    return not line or _fits("wrapper", WRAPPERS, line[:MATCH_CAP]) != ""


def _starts(text: str, low: str, signs: tuple[str, ...]) -> list[int]:
    """Where the lines begin that hold a sign, at most CANDIDATES of a sign from either end of the text."""
    starts = set()
    for sign in signs:
        at, tried = low.find(sign), 0
        while at >= 0 and tried < CANDIDATES:
            start, end = _line_at(text, at + (sign[0] == "\n"))
            starts.add(start)
            at, tried = low.find(sign, end), tried + 1
        at = low.rfind(sign) if at >= 0 else -1
        while at >= 0 and tried < 2 * CANDIDATES:
            start, _ = _line_at(text, at + (sign[0] == "\n"))
            starts.add(start)
            at, tried = low.rfind(sign, 0, start), tried + 1
    return sorted(starts)


def _summaries(text: str, low: str, signs: tuple[str, ...]) -> list[tuple[int, str, str, bool]]:
    """Every summary line of a runner: its offset, the line, how it is shown, whether it says failed."""
    found = []
    rows = [(index, row) for index, row in enumerate(SUMMARIES) if row[3] in low]
    for start in _starts(text, low, signs):
        line = text[start : _line_at(text, start)[1]]
        if len(line) > MATCH_CAP:
            continue
        line = line.strip()
        low_line = line.lower()
        for index, (_, verdict, shown, sign, pattern) in rows:
            if sign not in low_line:
                continue
            match = _row(f"summary{index}", pattern).fullmatch(line)
            if match is None:
                continue
            if verdict == "count":
                found.append((start, line, shown, _counts_failures(match)))
            elif verdict != "ran" or _rx("ran").search(text):
                found.append((start, line, shown, verdict == "fail"))
            break
    return found


def _counts_failures(match: re.Match[str]) -> bool:
    if match.re.groups:
        return any(group and group.strip("0") for group in match.groups())
    return any(
        count.strip("0") for name, row in COUNTS for count in _row("count_" + name, row).findall(match[0].lower())
    )


def summary_says_failed(text: str) -> bool | None:
    """What the runner's own summary line says: True failed, False passed, None there is none.

    Only whole lines in the shape of a known runner count, so that words in printed source never do. Of several
    summaries one that says failed is enough.
    """
    text = "\n" + clean(text)
    said = [failed for _, _, _, failed in _summaries(text, text.lower(), FAILED_SIGNS + PASSED_SIGNS)]
    return any(said) if said else None


def _traceback(text: str) -> tuple[int, str] | None:
    """Offset and text of the exception line of the last Python traceback, else of the last Java cause."""
    at = text.rfind("Traceback (most recent call last):")
    if at >= 0:
        start = text.rfind("\n", 0, at) + 1
        prefix = text[start:at]
        place, seen_frame = start, False
        for line in text[start : start + TEXT_CAP].split("\n"):
            body = line[len(prefix) :] if line.startswith(prefix) else line
            if body.startswith((" ", "\t")):
                seen_frame = True
            elif (
                place > start
                and body
                and _rx("exception_line").fullmatch(body[:MATCH_CAP].rstrip())
                and (seen_frame or body.partition(":")[0].endswith(("Error", "Exception")))
            ):
                return place, body.strip()
            place += len(line) + 1
    at = text.rfind("\nCaused by: ")
    if at >= 0 and "\n\tat " in text:
        end = text.find("\n", at + 1)
        return at + 1, text[at + 1 : end if end >= 0 else len(text)].strip()
    return None


def _line_at(text: str, at: int) -> tuple[int, int]:
    end = text.find("\n", at)
    return text.rfind("\n", 0, at) + 1, end if end >= 0 else len(text)


def _first_line(text: str, low: str, signs: tuple[str, ...], speaks: Callable[[str], bool]) -> tuple[int, str] | None:
    """The first line that holds one of the signs and speaks."""
    best, found, words = len(text), None, None
    judged: dict[int, str] = {}
    for sign in signs:
        if sign not in STEMS:
            if words is None:
                words = set(low[:best].translate(_SPACED).split())
            if sign.split()[0].rstrip("!:") not in words:
                continue
        at, tried = 0, 0
        while tried < CANDIDATES and (at := low.find(sign, at, best)) >= 0:
            start, end = _line_at(text, at + (sign[0] == "\n"))
            line = judged.get(start)
            if line is None:
                line = _tidy(text[start:end])
                line = judged[start] = line if not _is_wrapper(line) and speaks(line[:MATCH_CAP]) else ""
            if line:
                best, found = start, (start, line)
                break
            at, tried = end, tried + 1
    return found


def _speaks_loudly(line: str) -> bool:
    return _fits("error", ERROR_LINES, line) != "" and not _is_mild(line)


_UNSHOWN = [(f"summary{index}", row[3], row[4]) for index, row in enumerate(SUMMARIES) if row[2] == "no"]


def _is_mild(line: str) -> bool:
    if _fits("mild", NO_ERROR, line) or _fits("passing", PASSING, line):
        return True
    low = line.lower()
    return any(sign in low and _row(name, pattern).fullmatch(line) for name, sign, pattern in _UNSHOWN)


def _diagnostic(text: str, before: int) -> tuple[int, str] | None:
    """The first `file:line: message` of a compiler before an offset."""
    place, pattern = (_row("diagnostic." + name, row) for name, row in DIAGNOSTIC)
    at = 0
    for _ in range(CANDIDATES):
        match = place.search(text, at, before)
        if match is None:
            break
        start, at = _line_at(text, match.start())
        line = _tidy(text[start:at])
        if pattern.fullmatch(line[:MATCH_CAP]) and not _is_mild(line[:MATCH_CAP]) and not _is_wrapper(line):
            return start, line
    return None


def _next_line(text: str, start: int) -> str:
    _, end = _line_at(text, start)
    return _tidy(text[end + 1 : _line_at(text, end + 1)[1]]) if end < len(text) else ""


def _salient(text: str) -> str:
    low = text.lower()
    shown = [entry for entry in _summaries(text, low, FAILED_SIGNS) if entry[3] and not _is_wrapper(entry[1])]
    told = _traceback(text)
    last = [entry for entry in shown if entry[2] == "last"][-1:] or [entry for entry in shown if entry[2] == "first"][
        :1
    ]
    if last and (told is None or shown[-1][0] > told[0]):
        return _rx("equals").sub("", last[0][1]).strip()
    if told is not None:
        return told[1]
    loud = _first_line(text, low, ERROR_SIGNS, _speaks_loudly)
    placed = _diagnostic(text, loud[0] if loud else len(text)) or loud
    if placed is not None:
        if placed[1].startswith("thread '") and placed[1].endswith(":"):
            return _next_line(text, placed[0]) or placed[1]
        return placed[1]
    weak = _first_line(text, low, WEAK_SIGNS, lambda line: not _is_mild(line))
    if weak is not None:
        return weak[1]
    if shown:
        return shown[0][1]
    for line in text.split("\n", CANDIDATES)[:CANDIDATES]:
        short = _tidy(line)
        if not (_is_wrapper(short) or _fits("rule", DECORATION, short[:MATCH_CAP]) or _fits("passing", PASSING, short)):
            return short
    return ""


def salient_line(text: str) -> str:
    """The one line of a result that tells what went wrong (METHOD 6), unmasked; empty where nothing is said.

    A runner's summary speaks for its output, a traceback for a program that died; where a text holds both, the later
    one does, for a runner prints the tracebacks that it caught above its summary.
    """
    if "-----BEGIN" in text:  # a key has many lines, of which none may be taken alone
        text = _cut_out(_rx("secret_pem"), text, _lowered(text), "<secret>")
    return _salient_again(text) if len(text) <= MEMO_RESULT else _salient("\n" + clean(text))


@lru_cache(MEMO_SIZE)
def _salient_again(text: str) -> str:
    return _salient("\n" + clean(text))


# --- the error code -----------------------------------------------------------------------------------------------


def _is_errno(name: str) -> bool:
    return name in ERRNO or name.startswith("ERR_")


def _is_family(token: str) -> bool:
    token = token.rstrip("abcdefghijklmnopqrstuvwxyz").replace("-", "")
    letters = token.rstrip("0123456789")
    low, high = FAMILIES.get(letters, (1, 0))
    return low <= len(token) - len(letters) <= high


def error_code(line: str, exit_code: int | None = None, structured: str | int | None = None) -> str:
    """A structured code that says more than 1, else the line's leftmost identifier, else the exit code, else ''."""
    told = "" if structured is None or isinstance(structured, bool) else " ".join(_plain(str(structured)).split())
    if told not in ("", "0", "1"):
        return mask_secrets(told)[:CODE_SHOWN]
    if exit_code is not None and exit_code not in (0, 1):
        return str(int(exit_code))
    best: tuple[int, str] | None = None
    for name, pattern in CODES:
        for match in _row("code." + name, pattern).finditer(line[:MATCH_CAP]):
            if (name == "errno" and not _is_errno(match[1])) or (name == "family" and not _is_family(match[1])):
                continue
            if best is None or match.start(1) < best[0]:
                best = match.start(1), match[1]
            break
    if best is not None:
        return best[1]
    return str(int(exit_code)) if exit_code is not None else told


# --- secrets ------------------------------------------------------------------------------------------------------


def _is_mixed(token: str) -> bool:
    """Whether a long token looks random: many changes between capitals, small letters and digits inside its pieces."""
    if len(token) > 4096:
        token = token[:4096]
    digits = sum(map(token.count, "0123456789"))
    if digits < 3:
        return False
    pieces = [piece for piece in re.split("[^A-Za-z0-9]+", token) if piece]
    size = sum(map(len, pieces))
    changes = sum(len(_rx("runs").findall(piece)) - 1 for piece in pieces)
    if token != token.lower() and token != token.upper() and changes >= 0.4 * size:
        return True
    low = token.lower()
    single = len(pieces) == 1 and size >= 28 and digits >= 5 and any("g" <= char <= "z" for char in low)
    return single and len(_rx("runs").findall(low)) - 1 >= 0.3 * size


def _lowered(text: str) -> str:
    """Lower-cased and of equal length: the capital dotted I is the one letter that grows."""
    low = text.lower()
    return low if len(low) == len(text) else text.replace("\u0130", "i").lower()


def _cut_out(pattern: re.Pattern[str], text: str, low: str, mark: str) -> str:
    parts, at = [], 0
    for match in pattern.finditer(low):
        start = match.end(1) if pattern.groups else match.start()
        parts.append(text[at:start])
        parts.append(mark)
        at = match.end()
    parts.append(text[at:])
    return "".join(parts)


def _masked_secrets(text: str, mark: str) -> str:
    low = _lowered(text)
    if [sign for sign in ALL_SECRET_WORDS if sign in low]:
        for name, signs in SECRET_WORDS:
            if [sign for sign in signs if sign in low]:
                text = _cut_out(_rx(name), text, low, mark)
                low = _lowered(text)
    if [sign for sign in SECRET_PREFIXES if sign in low]:
        text = _rx("secret_prefix").sub(mark, text)
    longest = max(map(len, text.split()), default=0) if len(text) >= 24 else 0
    if longest >= 24:
        text = _rx("secret_long").sub(lambda match: mark if _is_mixed(match[0]) else match[0], text)
        if longest >= 40 and ("/" in text or "+" in text):
            text = _rx("secret_base64").sub(lambda match: mark if _is_mixed(match[0]) else match[0], text)
    return text


_masked: dict[str, str] = {}


def mask_secrets(text: str) -> str:
    """The text with `<secret>` in place of everything secret-shaped; nothing else is changed."""
    found = _masked.get(text)
    if found is None:
        found = _masked_secrets(text, "<secret>")
        if len(text) <= MEMO_TEXT:
            if len(_masked) >= MEMO_SIZE:
                _masked.clear()
            _masked[text] = found
    return found


# In every match of the pattern `clock`; begins with one class of characters, which a search can skip to.
CLOCK_SIGN = r"[0-9](?: ?(?:ms|s|secs?|seconds?|us|ns|min|minutes?)(?![a-z0-9_])|[0-9]-[0-9]|:[0-9])"


# Lower case and one kind of white space, byte by byte.
_LOWERED = bytes(32 if byte in b"\t\n\v\f\r" else byte + 32 if 65 <= byte <= 90 else byte for byte in range(256))
_SPACES = rb"  (?: *)"
# The classes of characters in CLOCK_SIGN, and what a text that it fits looks like in them. A search for one letter
# skips to it; a search for a class of letters would try them all, which takes four times as long.
_CLOCK_CLASSES = bytes(
    ord("d" if 48 <= byte <= 57 else "u" if byte in b"smun" else "p" if byte in b":-" else "_" if byte == 32 else ".")
    for byte in range(256)
)
_CLOCK_SHAPE = rb"d(?:_?u|pd)"
_ASCII = bytes(range(128))
_caseless: dict[str, bool] = {}


def _is_caseless(char: str) -> bool:
    found = _caseless.get(char)
    if found is None:
        if len(_caseless) >= MEMO_SIZE:
            _caseless.clear()
        found = _caseless[char] = char.lower() == char and not char.isspace()
    return found


def without_looks(text: str) -> bytes:
    """A cleaned text without what differs between two runs of one check: case, white space, durations, times, dates.

    Goes by bytes where it may: lowering and splitting characters takes three times as long.
    """
    data = text.encode("utf-8", "replace")
    if text.isascii() or all(map(_is_caseless, set(data.translate(None, _ASCII).decode()))):
        data = data.translate(_LOWERED).strip(b" ")
        if b"  " in data:
            data = _bytes("spaces", _SPACES).sub(b" ", data)
    else:
        data = " ".join(text.lower().split()).encode("utf-8", "replace")
    if _bytes("clock_shape", _CLOCK_SHAPE).search(data.translate(_CLOCK_CLASSES)):
        normal = data.decode()
        if _row("clock_sign", CLOCK_SIGN).search(normal):
            return _rx("clock").sub("0", normal).encode()
    return data


def is_known_secret(text: str) -> bool:
    """Whether the text holds a key of a known provider: what even an id may not carry, though ids look random."""
    gate = _compiled.get("any_prefix")
    if gate is None:
        by_letter: dict[str, list[str]] = {}
        for sign in SECRET_PREFIXES:
            by_letter.setdefault(sign[0], []).append(re.escape(sign[1:]))
        signs = "|".join(f"{re.escape(first)}(?:{'|'.join(rest)})" for first, rest in by_letter.items())
        # As `secret_prefix` begins: nowhere inside a word, and behind a letter of sk_live_ and its like.
        gate = _compiled["any_prefix"] = re.compile(f"(?<![a-z0-9])[spr]?(?:{signs})")
    return gate.search(_lowered(text)) is not None and _rx("secret_prefix").search(text) is not None


# --- masks --------------------------------------------------------------------------------------------------------

_KEPT = {ord("0") + digit: 0xE010 + digit for digit in range(10)}


def _prepared(line: str) -> str:
    line = _plain(line[: 8 * LINE_CAP])
    if not line.isprintable():
        line = _rx("control").sub("", line)
    if "<" in line:
        line = _rx("placeholder").sub(lambda match: _MARK[match[1].lower()], line)
    return " ".join(line.split())[:LINE_CAP]


def _restored(text: str) -> str:
    if text.isascii():
        return text
    for name, mark in _MARK.items():
        if mark in text:
            text = text.replace(mark, f"<{name}>")
    for digit in range(10):
        text = text.replace(chr(0xE010 + digit), str(digit))
    return text


def _has_digit(text: str) -> bool:
    return bool([digit for digit in "0123456789" if digit in text])


def _secret(text: str) -> str:
    return _masked_secrets(text, _MARK["secret"]).lower()[:LINE_CAP].rstrip()


def _url(text: str) -> str:
    return _rx("url").sub(_MARK["url"], text) if "://" in text else text


def _email(text: str) -> str:
    return _rx("email").sub(_MARK["email"], text) if "@" in text else text


def _uuid(text: str) -> str:
    return _rx("uuid").sub(_MARK["uuid"], text) if text.count("-") >= 2 and _has_digit(text) else text


def _merged(text: str, mark: str) -> str:
    while f"{mark} {mark}" in text:
        text = text.replace(f"{mark} {mark}", mark)
    return text


def _time(text: str) -> str:
    if not _has_digit(text):
        return text
    mark = _MARK["time"]
    if [month for month in MONTHS if month in text]:
        text = _rx("month").sub(mark, text)
    if (
        "19" in text
        or "20" in text
        or text.count(":") >= 2
        or (":" in text and [sign for sign in HALVES if sign in text])
    ):
        text = _rx("time").sub(mark, text)
    return _merged(text, mark)


def _path_mark(match: re.Match[str]) -> str:
    token = match[0]
    if not any("a" <= char <= "z" or (char > "\x7f" and not "\ue006" <= char <= "\ue01f") for char in token):
        return token  # a ratio
    if token.startswith("http/") and not token[5:].strip("0123456789."):
        return "http"
    return _MARK["path"] + token[len(token.rstrip(".")) :]


def _path(text: str) -> str:
    if "/" in text or "\\" in text or "." in text:
        words = text.split(" ")
        for index, word in enumerate(words):
            if "/" in word or "\\" in word:
                word = words[index] = _rx("path").sub(_path_mark, word)
            if "." in word:
                words[index] = _rx("file").sub(_MARK["path"], word)
        text = " ".join(words)
    return _merged(text, _MARK["path"])


def _hex(text: str) -> str:
    if not _has_digit(text):
        return text
    if "0x" in text:
        text = _rx("keep_hex").sub(lambda match: match[0].translate(_KEPT), text)
    words = text.split(" ")
    for index, word in enumerate(words):
        if (len(word) >= 7 or "0x" in word) and not word.isalpha():
            words[index] = _rx("hex").sub(_MARK["hex"], word)
    return " ".join(words)


def _str(text: str) -> str:
    if text.isascii() and not ('"' in text or "'" in text or "`" in text):
        return text
    if '":' in text or "':" in text or '" :' in text:
        # The key of a JSON body keeps the number beside it ({"status":503}), as the bare word does.
        text = _rx("kept_key").sub(r"\1", text)
    # A quotation may hide the end of another one, so look again until nothing is left to find.
    for _ in range(16):
        before, text = text, _rx("str").sub(_MARK["str"], text)
        if text == before or not [quote for quote in QUOTES if quote in text]:
            break
    return text


def _ipv4_mark(match: re.Match[str]) -> str:
    host, _, port = match[0].partition(":")
    octets = host.split(".")
    if any(int(octet) > 255 for octet in octets):
        return match[0]
    is_version = not port and octets[1:] == ["0", "0", "0"] and octets[0] not in ("0", "10", "127")
    return match[0] if is_version else _MARK["ip"]


def _ipv6_mark(match: re.Match[str]) -> str:
    host = match[0].strip("[").partition("]")[0]
    is_address = host.count("::") == 1 if "::" in host else host.count(":") == 7 and not host.startswith(":")
    return _MARK["ip"] if is_address and _has_digit(host) else match[0]


def _ip(text: str) -> str:
    if text.count(".") < 3 and text.count(":") < 2:
        return text
    text = _rx("ipv4").sub(_ipv4_mark, text) if text.count(".") >= 3 else text
    return _rx("ipv6").sub(_ipv6_mark, text) if text.count(":") >= 2 else text


def _kept_number(match: re.Match[str]) -> str:
    text, start, end = match.string, match.start(), match.end()
    return match[0].translate(_KEPT) if _is_kept(text, start, end) else match[0]


def _is_kept(text: str, start: int, end: int) -> bool:
    following, before = text[end : end + 1], text[max(0, start - 48) : start]
    if before and ("a" <= before[-1] <= "z" or before[-1] == "-"):
        letters = before.rstrip("-")
        at = len(letters)
        while at and "a" <= letters[at - 1] <= "z":
            at -= 1
        bounds = FAMILIES.get(letters[at:].upper())
        alone = at == 0 or not (letters[at - 1].isalnum() or letters[at - 1] == "_" or letters[at - 1] >= "\ue000")
        is_over = not (following.isalnum() or following == "_" or "\ue000" <= following <= "\ue01f")
        if bounds and alone and bounds[0] <= end - start <= bounds[1] and is_over:
            return True
    if "a" <= following <= "z" or following == "_":
        return False
    at = max([before.rfind(sign) for sign in KEEP_SIGNS])
    if at >= 0 and (found := _rx("keep_before").match(before, at)):
        number = text[start:end]
        is_word = at == 0 or not "a" <= before[at - 1] <= "z" or before.endswith(KEEP_STARTS, 0, at)
        if is_word and (not found[1] or ":" not in found[0] or (len(number) == 3 and number[0] in "45")):
            return True
    if following in (" ", "/"):
        after = text[end : end + 64]
        if not any(sign in after for sign in (*KEEP_SIGNS, *COUNT_SIGNS)):
            after = ""
        if _rx("keep_status_after").match(after):
            return True
        if _rx("keep_count_after").match(after):
            is_tied = before.endswith(NAMING)
            if not is_tied and _rx("keep_count_plural").match(after):
                return True
            word = before[:-1] if is_tied else before.rstrip(" ")
            at = len(word)
            while at and "a" <= word[at - 1] <= "z":
                at -= 1
            if is_tied:
                return before[-1] == ":" and word[at:] in COUNT_AFTER
            return at == len(word) or word[at:] in COUNT_AFTER
    if any(sign in before for sign in COUNT_SIGNS) and _rx("keep_count_before").search(before):
        return not text[end:].startswith((" time", " attempt", " retr"))
    return False


def _qty(text: str) -> str:
    if not _has_digit(text):
        return text
    text = _rx("number").sub(_kept_number, text)
    return _rx("qty").sub(_MARK["qty"], text)


def _n(text: str) -> str:
    if not _has_digit(text):
        return text
    mark = _MARK["n"]
    text = _rx("n").sub(mark, text)
    if "-" + mark in text or "+" + mark in text:
        for before in (" ", "(", "[", "="):
            text = text.replace(f"{before}-{mark}", before + mark).replace(f"{before}+{mark}", before + mark)
    return text


# METHOD's order. The step of quantities first marks the numbers that are kept, once all other masks stand.
_STEPS: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("secret", _secret), ("url", _url), ("email", _email), ("uuid", _uuid), ("time", _time), ("path", _path),
    ("hex", _hex), ("str", _str), ("ip", _ip), ("qty", _qty), ("n", _n),
)  # fmt: skip


def normalise(line: str) -> str:
    """The line with METHOD 6's masks, white space collapsed, lower-cased; whole up to LINE_CAP. Idempotent."""
    return _normalised_again(line) if len(line) <= MEMO_TEXT else _normalised(line)


@lru_cache(MEMO_SIZE)
def _normalised_again(line: str) -> str:
    return _normalised(line)


def _normalised(line: str) -> str:
    for _ in range(8):
        text = _prepared(line)
        for _, step in _STEPS:
            text = step(text)
        text = _restored(text)
        # A slash outlives the masks only beside bare numbers, where masking them may have made a path of the token.
        if text == line or not ("/" in text or "\\" in text):
            break
        line = text
    return text


def masks_used(line: str) -> list[str]:
    """The names of the masks that changed this line, in their order."""
    text, used = _prepared(line), []
    for name, step in _STEPS:
        had, text = text.count(_MARK[name]), step(text)
        if text.count(_MARK[name]) != had:
            used.append(name)
    return used


# --- the class of a failure ---------------------------------------------------------------------------------------


class Failure:
    """The salient line as it stood, the error code, and the normalised message in whole."""

    __slots__ = ("code", "line", "message")

    def __init__(self, line: str, code: str, message: str) -> None:
        self.line = line
        self.code = code
        self.message = message


def read_failure(
    text: str, exit_code: int | None = None, structured_code: str | int | None = None, is_timeout: bool = False
) -> Failure:
    """Line, code and message of a failed step; a time-out has the code `timeout` whatever else is known."""
    line = salient_line(text)
    code = "timeout" if is_timeout else error_code(line, exit_code, structured_code)
    return Failure(line, code, normalise(line))


def signature(tool: str, code: str, message: str) -> str:
    """First 16 hex digits of SHA-256 over `tool \\x1f code \\x1f message` in UTF-8, lone surrogates as U+FFFD."""
    from hashlib import sha256

    key = "\x1f".join((tool, code, message))
    try:
        data = key.encode()
    except UnicodeEncodeError:
        data = _row("surrogate", "[\ud800-\udfff]").sub("\ufffd", key).encode()
    return sha256(data).hexdigest()[:16]


def is_infra(code: str, message: str) -> bool:
    """Whether the failure lies with the machinery: 429, 5xx, connection, quota, overload, time-out, DNS."""
    if _row("infra_codes", INFRA_CODES).fullmatch(code):
        return True
    low = message[:LINE_CAP].lower()
    return any(
        any(sign in low for sign in signs.split("|")) and _row("infra." + name, pattern).search(low)
        for name, signs, pattern in INFRA_TEXT
    )


def has_error_text(text: str) -> bool:
    """Whether a program that exits with 1 for "nothing found" or "differs" (grep, rg, diff) also names an error."""
    lines = clean(text).split("\n")
    return any(_fits("own", OWN_ERRORS, short[:MATCH_CAP]) for line in lines if (short := line.strip()))
