//! The `reshard` command.
fn main() {}
