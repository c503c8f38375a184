//! The JSON text of a data file's header, written entry by entry.

use super::layout::{Entry, FileHeader, RUN_ALIGNMENT};
use crate::format::names::{FORMAT, VERSION, header_fields, reserved_entries};
use std::fmt::Write;

/// Bytes of the length that stands before the header.
const LENGTH_BYTES: usize = 8;

/// What [`HeaderText::finish`] may still add: padding and the table, each with numbers of at most 20 digits, the
/// closing brace, and spaces up to the next multiple of 64.
const LONGEST_END: u64 = 2 * 160 + 1 + RUN_ALIGNMENT;

pub(super) struct HeaderText {
    text: String,
    paddings: u64,
}

/// A state of the text to go back to.
pub(super) struct Mark {
    length: usize,
    paddings: u64,
}

impl HeaderText {
    pub(super) fn new(header: &FileHeader<'_>) -> Self {
        let fields = [
            (header_fields::FORMAT, FORMAT.to_owned()),
            (header_fields::VERSION, VERSION.to_string()),
            (header_fields::ATTEMPT, header.attempt.to_string()),
            (header_fields::ITERATION, header.iteration.0.to_string()),
            (header_fields::RANK, header.rank.to_string()),
            (header_fields::WORLD_SIZE, header.world_size.to_string()),
        ];
        let mut text = format!("{{\"{}\":{{", reserved_entries::HEADER_METADATA);
        for (index, (name, value)) in fields.iter().enumerate() {
            // Names and values are digits and letters, so nothing needs an escape.
            let comma = if index == 0 { "" } else { "," };
            push(&mut text, format_args!("{comma}\"{name}\":\"{value}\""));
        }
        text.push('}');
        Self { text, paddings: 0 }
    }

    pub(super) fn mark(&self) -> Mark {
        Mark { length: self.text.len(), paddings: self.paddings }
    }

    pub(super) fn reset(&mut self, mark: Mark) {
        self.text.truncate(mark.length);
        self.paddings = mark.paddings;
    }

    /// The most bytes of JSON that the header can have if it ends here.
    pub(super) fn longest(&self) -> u64 {
        self.text.len() as u64 + LONGEST_END
    }

    /// An explicit entry for the bytes between two entries, because safetensors forbids holes.
    pub(super) fn padding(&mut self, start: u64, end: u64) {
        if start == end {
            return;
        }
        let (prefix, index) = (reserved_entries::PADDING_PREFIX, self.paddings);
        self.paddings += 1;
        push(&mut self.text, format_args!(",\"{prefix}{index}\":"));
        self.value("U8", &[end - start], start, end);
    }

    pub(super) fn entry(&mut self, entry: &Entry<'_>, start: u64, end: u64) {
        let name = format!("{}{}", entry.key, entry.slice);
        // A JSON string literal of any UTF-8 text.
        push(&mut self.text, format_args!(",{}:", serde_json::Value::String(name)));
        self.value(entry.dtype.safetensors_name(), entry.shape, start, end);
    }

    /// The table's entry, the closing brace, the spaces and the length before it all.
    pub(super) fn finish(mut self, table: u64, blocks: u64) -> Vec<u8> {
        push(&mut self.text, format_args!(",\"{}\":", reserved_entries::BLOCK_TABLE));
        self.value("U32", &[blocks], table, table + 4 * blocks);
        self.text.push('}');
        let length = (LENGTH_BYTES + self.text.len()).next_multiple_of(RUN_ALIGNMENT as usize);
        let mut header = Vec::with_capacity(length);
        header.extend_from_slice(&((length - LENGTH_BYTES) as u64).to_le_bytes());
        header.extend_from_slice(self.text.as_bytes());
        header.resize(length, b' ');
        header
    }

    fn value(&mut self, dtype: &str, shape: &[u64], start: u64, end: u64) {
        push(&mut self.text, format_args!("{{\"dtype\":\"{dtype}\",\"shape\":["));
        for (axis, size) in shape.iter().enumerate() {
            let comma = if axis == 0 { "" } else { "," };
            push(&mut self.text, format_args!("{comma}{size}"));
        }
        push(&mut self.text, format_args!("],\"data_offsets\":[{start},{end}]}}"));
    }
}

fn push(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    // Writing into a string can't fail.
    let _ = text.write_fmt(arguments);
}
