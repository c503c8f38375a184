//! What a verb says, and how it gets to standard output.

use super::exit::{Exit, Failure};
use serde::Serialize;
use std::io::{ErrorKind, Write};

/// What a verb says.
pub(super) struct Answer {
    pub(super) exit: Exit,
    json: serde_json::Value,
    text: String,
}

impl Answer {
    /// The same for programs and for people.
    pub(super) fn new(exit: Exit, json: &impl Serialize, text: String) -> Result<Self, Failure> {
        let json = serde_json::to_value(json);
        let json = json.map_err(|error| Failure::new(Exit::Defect, format!("no JSON: {error}")))?;
        Ok(Self { exit, json, text })
    }
}

/// Prints an answer. A reader that has seen enough (`| head`) is no failure.
pub(super) fn print(answer: &Answer, json: bool) -> Result<(), Failure> {
    let text = if json { format!("{:#}\n", answer.json) } else { answer.text.clone() };
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::new(Exit::Access, format!("can't write the answer to standard output: {error}")))
        }
        _ => Ok(()),
    }
}
