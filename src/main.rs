//! The `reshard` command.

fn main() -> std::process::ExitCode {
    reshard::cli::run(std::env::args_os())
}
