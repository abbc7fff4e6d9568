"""One load from a folder: each file is read and checked first, then copied into its block."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from attrs import frozen
from torch import Tensor

from kvproof.runtime.connectors.block_file import UnusableFileError
from kvproof.runtime.connectors.block_folder import BlockFolder
from kvproof.runtime.connectors.block_memory import BlockMemory
from kvproof.runtime.connectors.transfer_tally import TransferTally
from kvproof.runtime.connectors.write_permit import WritePermit

LOADED, UNUSABLE = "blocks_loaded", "files_unusable"


@frozen(eq=False)
class FolderLoad:
    """The work of a thread.

    A read can hang with the file system. It goes into memory of its own, so that a load which was
    given up meanwhile has written nothing that it was not permitted to.
    """

    folder: BlockFolder
    memory: BlockMemory
    like: Tensor
    tally: TransferTally
    block_hashes: Sequence[bytes]
    block_ids: Sequence[int]
    mark: torch.cuda.Event | None

    def __call__(self, permit: WritePermit) -> Sequence[int]:
        """Fill the blocks, and return those from the first unusable file on.

        Raises LoadGivenUpError if the permit is withdrawn meanwhile.
        """
        for done, block in enumerate(self.block_ids):
            content = self._read(self.block_hashes[done])
            if content is None:
                return self.block_ids[done:]
            with permit.writing(), self.memory.after(self.mark):
                self.memory.blocks[block].copy_(content)
            self.tally.add(LOADED)
        self.folder.used(self.block_hashes)
        return ()

    def _read(self, block_hash: bytes) -> Tensor | None:
        try:
            return self.folder.read(block_hash, self.like)
        except (OSError, UnusableFileError) as error:
            self.tally.trouble(UNUSABLE, f"{self.folder.file(block_hash)} is not loaded: {error}")
            return None
