"""How many exact answers a site has given about its rows, in the life of a data file.

Scores and information matrices at many points add up to the rows: n rows of d features are n d numbers, and an answer
holds (d + 1) (d + 2) / 2. A site therefore counts its answers on disk and gives no more than its policy allows. The
file is found by the digest of the rows, so that a copy or another name of the data starts no new count; rows that
change do. A repeated request counts once: the same model in the same round, of a run with the same settings, since
other settings choose, weigh or scale the rows in another way.
"""

import hashlib
import os
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

    def count(self, session: str, round_: int, asked: bytes) -> None:
        """Count the answer to a request before it is computed; WithheldError if it may not be given. asked: all in the
        request on which the answer depends."""
        line = hashlib.sha256(f"{self.settings} {session} {round_} ".encode() + asked).hexdigest().encode()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with LockableFile(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600), "r+") as file:
            self._lock(file)
            content = file.readall() or b""
            lines = content.split()  # one that was cut off counts, too
            if line in lines:
                return
            if not len(lines) < self.most:
                raise WithheldError(self._spent())
            torn = b"\n" if content and not content.endswith(b"\n") else b""
            file.write(torn + line + b"\n")
            os.fsync(file.fileno())
        sync_folder(self.path.parent)

    @staticmethod
    def _lock(file: LockableFile) -> None:
        try:
            file.wait(_PATIENCE)
        except BlockingIOError:
            raise WithheldError("this site's count of its answers is locked by another process") from None

    def _spent(self) -> str:
        return (
            f"this site sends no score and information matrix: it has answered newton-rounds = {self.most} requests "
            "about these rows; its node config may allow more"
        )
