//! Pure functions from layouts to plans: what to write, what to read, and proofs that nothing is missing.
