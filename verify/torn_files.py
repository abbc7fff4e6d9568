"""Damage to files, as a dying writer, a full disk or a bad one leaves it."""

from __future__ import annotations

from pathlib import Path

from kvproof.verify.connector_faults import Choose


class TornFiles:
    """Tears files below a folder; a hook of `FaultyConnector`."""

    def __init__(self, folder: Path, pattern: str = "*.safetensors") -> None:
        """Choose among the files whose names match `pattern`, in all subfolders."""
        self._folder, self._pattern = folder, pattern

    def __call__(self, choose: Choose) -> bool:
        """Cut one file off, or turn over some bits of one byte; return whether there was one."""
        files = sorted(path for path in self._folder.rglob(self._pattern) if path.is_file())
        if not files:
            return False
        path = files[choose(len(files))]
        try:
            self._tear(path, choose)
        except OSError:
            return False  # whoever owns the file was quicker
        return True

    def _tear(self, path: Path, choose: Choose) -> None:
        data = path.read_bytes()
        place = choose(max(1, len(data)))
        if choose(2) or not data:
            path.write_bytes(data[:place])
        else:
            flipped = bytes([data[place] ^ (1 + choose(255))])
            path.write_bytes(data[:place] + flipped + data[place + 1 :])
