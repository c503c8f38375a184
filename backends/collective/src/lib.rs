//! Collectives over ranks: one process, threads of one process.
