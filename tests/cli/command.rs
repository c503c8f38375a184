//! Running the command.

use serde_json::Value;
use std::process::{Command, Output};

/// How a run of the command ended.
pub struct Ended {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

/// Runs `reshard` with these arguments. Nothing of a store comes from the environment.
pub fn reshard<S: AsRef<std::ffi::OsStr>>(arguments: impl IntoIterator<Item = S>) -> Ended {
    let mut command = Command::new(env!("CARGO_BIN_EXE_reshard"));
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("AWS_")) {
            command.env_remove(&name);
        }
    }
    let Output { status, stdout, stderr } = command.args(arguments).output().unwrap();
    let code = status.code().expect("an exit code, not a signal");
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let ended = Ended { code, stdout: text(stdout), stderr: text(stderr) };
    assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
    ended
}

/// The text form; it must succeed.
pub fn text(arguments: &[&str]) -> String {
    let ended = reshard(arguments);
    assert_eq!(ended.code, 0, "{arguments:?}: {}{}", ended.stdout, ended.stderr);
    assert_eq!(ended.stderr, "", "{arguments:?}: nothing goes to standard error where it is no terminal");
    ended.stdout
}

/// The JSON form: exactly one value on standard output, and the exit code.
pub fn json(arguments: &[&str]) -> (i32, Value) {
    let ended = reshard(arguments.iter().chain(&["--json"]));
    let value = serde_json::from_str(&ended.stdout)
        .unwrap_or_else(|error| panic!("{arguments:?}: {error}: {}{}", ended.stdout, ended.stderr));
    (ended.code, value)
}

/// A failure: nothing on standard output in either form, and the same code. Gives the message.
pub fn fails(code: i32, arguments: &[&str]) -> String {
    let with_json = reshard(arguments.iter().chain(&["--json"]));
    let ended = reshard(arguments);
    for ended in [&with_json, &ended] {
        assert_eq!((ended.code, ended.stdout.as_str()), (code, ""), "{arguments:?}: {}", ended.stderr);
    }
    assert_eq!(with_json.stderr, ended.stderr);
    ended.stderr
}

/// Runs `reshard` as a user whom permissions of files bind: root they don't. `directory` gets a copy that this user may
/// run, and must let it in.
pub fn reshard_unprivileged(directory: &std::path::Path, arguments: &[&str]) -> Ended {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::os::unix::process::CommandExt;
    let binary = directory.join("reshard-copy");
    std::fs::copy(env!("CARGO_BIN_EXE_reshard"), &binary).unwrap();
    std::fs::set_permissions(directory, PermissionsExt::from_mode(0o755)).unwrap();
    let mut command = Command::new(&binary);
    if std::fs::metadata(&binary).unwrap().uid() == 0 {
        command.uid(65_534).gid(65_534).current_dir("/");
    }
    let Output { status, stdout, stderr } = command.args(arguments).output().unwrap();
    std::fs::remove_file(&binary).unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ended { code: status.code().unwrap(), stdout: text(stdout), stderr: text(stderr) }
}
