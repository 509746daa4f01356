"""How many exact answers a site has given about its rows, in the life of a data file.

Scores and information matrices at many points add up to the rows: n rows of d features are n d numbers, and an answer
holds (d + 1) (d + 2) / 2. A site therefore counts its answers on disk and gives no more than its policy allows. The
file is found by the digest of the rows, so that a copy or another name of the data starts no new count; rows that
change do. An answer that is given again counts once: the same sum at the same model, in a run with the same settings,
since other settings choose, weigh or scale the rows in another way.
"""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..disk import LockableFile, sync_folder
from ..errors import WithheldError

_PATIENCE = 5.0  # seconds to wait for another process


@dataclass(frozen=True)
class ExactRounds:
    """The answers counted in a file, a line for each, of which at most `most` may be given. settings: a digest of the
    run's settings."""

    path: Path
    most: int
    settings: str

    @property
    def given(self) -> int:
        """How many answers were given."""
        return len(self.path.read_bytes().split()) if self.path.exists() else 0

    def count(self, session: str, asked: Sequence[bytes]) -> None:
        """Count the answers to a request before they are computed; WithheldError if not all of them may be given.
        asked: for each of them, all in the request on which it depends."""
        key = f"{self.settings} {session} ".encode()
        lines = dict.fromkeys(hashlib.sha256(key + own).hexdigest().encode() for own in asked)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with LockableFile(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600), "r+") as file:
            self._lock(file)
            content = file.readall() or b""
            given = content.split()  # one that was cut off counts, too
            new = lines.keys() - set(given)
            if not new:
                return
            if not len(given) + len(new) <= self.most:
                raise WithheldError(self._spent(len(given), len(new)))
            torn = b"\n" if content and not content.endswith(b"\n") else b""
            file.write(torn + b"".join(line + b"\n" for line in lines if line in new))
            os.fsync(file.fileno())
        sync_folder(self.path.parent)

    @staticmethod
    def _lock(file: LockableFile) -> None:
        try:
            file.wait(_PATIENCE)
        except BlockingIOError:
            raise WithheldError("this site's count of its answers is locked by another process") from None

    def _spent(self, given: int, new: int) -> str:
        return (
            f"this site sends no score and information matrix: it has given {given} of newton-rounds = {self.most} "
            f"answers about these rows, and this request asks for {new} more; its node config may allow them"
        )
