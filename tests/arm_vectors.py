"""The 5,016 vectors of the assignment: seeded nasty texts and the basis points that plain `hashlib` gives for them.

Whoever replays an assignment in another language can check it with these. `python tests/arm_vectors.py` prints them as
JSON lines of salt, run, signature and basis points.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
import unicodedata
from typing import NamedTuple

COUNT = 5_016
SEED = 20_261_130
TEXTS = (
    "", "\x00", "a\x00b", " ", "\n", "\r\n", "\t", "|", "a|b", "\\", '"', "'", "é", "e\u0301", "ﬁ", "\u202eabc", "\u200b",
    "\ufeff", "👩\u200d🚀", "🇩🇪", "ß", "İ", "ı", "\u2028", "\x85", "\x7f", "\x1b[31m", "%00", "../../x", "0" * 16, "f" * 16,
    "９", "\U0010ffff", "\ue000", "𝔘𝔫𝔦", "x" * 100_000, "é" * 50_000, "NaN", "-0", "1e308", "null", "日本語", "עברית", "العربية",
)  # fmt: skip
SALTS = ("", "s", "loopstats-sample", "pepper\x00", "sälz", "🧂", " " * 9, "x" * 300)


class Vector(NamedTuple):
    salt: str
    run_id: str
    signature: str
    arm_bp: int


def key_of(salt: str, run_id: str, signature: str) -> str:
    """METHOD 8's text; without a salt the run comes first."""
    return "|".join([salt, run_id, signature] if salt else [run_id, signature])


def vectors() -> list[Vector]:
    """All vectors, the same on every machine: every text as run and as signature, then random texts of every plane."""
    pick = random.Random(SEED)
    keys = [(salt, text, f"{number:016x}") for number, text in enumerate(TEXTS) for salt in SALTS]
    keys += [("s", "run", text) for text in TEXTS]
    keys += [("s", unicodedata.normalize(form, text), "f" * 16) for text in TEXTS for form in ("NFC", "NFD")]
    while len(keys) < COUNT:
        keys.append((pick.choice(SALTS), _text(pick), pick.choice([f"{pick.getrandbits(64):016x}", _text(pick)])))
    return [Vector(*key, int(hashlib.sha256(key_of(*key).encode()).hexdigest()[:13], 16) % 10_000) for key in keys]


def _text(pick: random.Random) -> str:
    highest = pick.choice([0x7F, 0xFF, 0x7FF, 0xFFFF, 0x10FFFF])
    points = [pick.randint(0, highest) for _ in range(pick.choice([1, 3, 16, 36, 200]))]
    return "".join(chr(point) for point in points if not 0xD800 <= point <= 0xDFFF)


if __name__ == "__main__":
    sys.stdout.writelines(json.dumps(vector) + "\n" for vector in vectors())
