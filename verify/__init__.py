"""Who doubts: proofs, translation checks, simulation, search and fuzzing of the declaration."""
