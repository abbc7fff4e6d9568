"""What the proofs are worth: the score of small faults, planted one at a time, that they notice."""
