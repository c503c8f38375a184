//! The `reshard` command: what lies in a bucket, what a load would cost, whether it is whole, and why a bucket does not
//! work.
//!
//! Every verb gives an `Answer`: a value for programs, a text for people, and an exit code. Nothing but the answer
//! goes to standard output; progress and errors go to standard error.

mod alike;
mod answer;
mod doctor;
mod exit;
mod explain;
mod inspect;
mod ls;
mod place;
mod plan;
mod progress;
mod selection;
mod target;
mod text;
mod verify;

use answer::print;
use clap::{Args, Parser, Subcommand};
use std::ffi::OsString;
use std::process::ExitCode;

/// Save sharded training state to a bucket or a disk on one topology, resume it byte-exactly on another.
///
/// These verbs look at checkpoints; none of them changes one. A URI is a path, file:///path, s3://bucket/prefix,
/// gs://bucket/prefix or az://container/prefix, and names a run or one iteration of it (RUN/iter_0000100).
#[derive(Parser)]
#[command(
    name = "reshard",
    version,
    arg_required_else_help = true,
    max_term_width = 100,
    after_long_help = exit::HELP
)]
struct Command {
    #[command(subcommand)]
    verb: Verb,
    #[command(flatten)]
    global: Global,
}

/// What every verb takes.
#[derive(Args)]
#[command(next_help_heading = "Store and output")]
struct Global {
    /// Print one JSON value (docs/cli.md lists its fields) and nothing else
    #[arg(long, global = true)]
    json: bool,
    /// No progress bars
    #[arg(long, short, global = true)]
    quiet: bool,
    /// An option of the store, such as aws_endpoint=http://host:9000 or allow_http=true; repeat it for more
    ///
    /// Keys are the environment's in lower case (aws_region, google_service_account, azure_storage_account_name, ...) and
    /// win over it. Other users of this machine can see a command line: keep secrets in the environment.
    #[arg(long = "set", value_name = "KEY=VALUE", global = true)]
    settings: Vec<String>,
}

#[derive(Subcommand)]
enum Verb {
    Ls(ls::Ls),
    Inspect(inspect::Inspect),
    Plan(plan::Plan),
    Explain(explain::Explain),
    Verify(verify::Verify),
    Doctor(doctor::Doctor),
}

/// Runs the command with these arguments, the program's name first.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let Command { verb, global } = match Command::try_parse_from(arguments) {
        Ok(command) => command,
        Err(error) => {
            // Help that nobody reads to its end is no failure.
            let _ = error.print();
            return if error.use_stderr() { exit::Exit::Usage.into() } else { ExitCode::SUCCESS };
        }
    };
    let answer = match verb {
        Verb::Ls(verb) => verb.run(&global),
        Verb::Inspect(verb) => verb.run(&global),
        Verb::Plan(verb) => verb.run(&global),
        Verb::Explain(verb) => verb.run(&global),
        Verb::Verify(verb) => verb.run(&global),
        Verb::Doctor(verb) => verb.run(&global),
    };
    match answer.and_then(|answer| print(&answer, global.json).map(|()| answer.exit)) {
        Ok(exit) => exit.into(),
        Err(failure) => {
            failure.print();
            failure.exit.into()
        }
    }
}
