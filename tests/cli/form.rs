//! What all verbs have in common: help, exit codes, and a reader that goes away.

use crate::command::reshard;
use crate::run::Run;
use std::io::Read;
use std::process::{Command, Stdio};

const VERBS: [&str; 6] = ["ls", "inspect", "plan", "explain", "verify", "doctor"];

#[test]
fn every_verb_teaches_by_example() {
    let help = reshard(["--help"]);
    assert_eq!((help.code, help.stderr.as_str()), (0, ""));
    for verb in VERBS {
        assert!(help.stdout.contains(&format!("\n  {verb} ")), "{verb}");
        let own = reshard([verb, "--help"]);
        assert_eq!((own.code, own.stderr.as_str()), (0, ""));
        let examples = own.stdout.split_once("Examples:").expect(verb).1;
        assert!(examples.contains(&format!("  reshard {verb} ")), "{verb}");
        assert!(own.stdout.contains("--json") && own.stdout.contains("--set"), "{verb}");
    }
    for code in 0..=9 {
        assert!(help.stdout.contains(&format!("\n  {code}  ")), "exit code {code}");
    }
}

/// docs/cli.md has every verb, every option of every verb, and every exit code that the help has.
#[test]
fn the_page_is_complete() {
    let page = include_str!("../../docs/cli.md");
    for verb in VERBS {
        let heading = format!("\n## `reshard {verb}`\n");
        let section = page.split_once(&heading).unwrap_or_else(|| panic!("no section on {verb}")).1;
        let section = section.split_once("\n## ").map_or(section, |(section, _)| section);
        assert!(section.contains(&format!("$ reshard {verb} ")), "no example of {verb}");
        let help = reshard([verb, "--help"]).stdout;
        let options = help.split_whitespace().filter(|word| word.starts_with("--") && word.len() > 2);
        for option in options.map(|word| word.trim_end_matches(|c: char| !c.is_alphanumeric())) {
            let shared = ["--json", "--quiet", "--set", "--help"].contains(&option);
            assert!(shared || section.contains(option), "{verb}: {option}");
        }
    }
    let help = reshard(["--help"]).stdout;
    let codes =
        help.split_once("Exit codes:").unwrap().1.lines().filter_map(|line| line.trim().split_once("  "));
    for (code, meaning) in codes.take(10) {
        assert!(page.contains(&format!("| {code} | {meaning} |")), "{code} {meaning}");
    }
}

#[test]
fn a_wrong_command_line_is_told_so() {
    for arguments in [&["no-such-verb"][..], &[], &["ls"], &["ls", "uri", "--no-such-option"], &["ls", ""]] {
        let ended = reshard(arguments);
        assert_eq!((ended.code, ended.stdout.as_str()), (2, ""), "{arguments:?}");
        assert!(!ended.stderr.is_empty());
    }
    assert_eq!(reshard(["--version"]).stdout, format!("reshard {}\n", env!("CARGO_PKG_VERSION")));
}

/// A reader that stops, such as `head`, is no failure and no panic.
#[test]
fn a_reader_may_go_away() {
    let run = Run::with(&[1]);
    for form in [&["inspect", run.uri(), "*"][..], &["inspect", run.uri(), "*", "--json"], &["--help"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_reshard"));
        let mut child = command.args(form).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let mut stderr = String::new();
        child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        assert_eq!((child.wait().unwrap().code(), stderr.as_str()), (Some(0), ""), "{form:?}");
    }
}

/// An answer that can't be written is no defect of the command.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_said() {
    let run = Run::with(&[1]);
    for form in [&["inspect", run.uri()][..], &["ls", run.uri(), "--json"]] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_reshard"));
        let ended = command.args(form).stdout(full).stderr(Stdio::piped()).output().unwrap();
        let message = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(4), "{message}");
        assert!(message.contains("standard output") && message.contains("No space left"), "{message}");
    }
}
