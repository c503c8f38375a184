//! Save sharded training state on one topology, resume it byte-exactly on another.
