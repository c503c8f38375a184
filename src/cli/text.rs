//! Text for people: tables, times, and keys that can't play tricks on a terminal.

use std::time::{SystemTime, UNIX_EPOCH};

/// Rows under headings. A column whose cells all are numbers (or `-` for none) stands at the right.
pub(super) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(super) fn new<const N: usize>(headings: [&str; N]) -> Self {
        Self { rows: vec![headings.map(str::to_owned).to_vec()] }
    }

    pub(super) fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.iter().map(|cell| brief(cell)).collect());
    }

    /// One line a row, each ended.
    pub(super) fn text(&self) -> String {
        let columns = self.rows.first().map_or(0, Vec::len);
        let cells = |column| self.rows.iter().filter_map(move |row| row.get(column));
        let shapes: Vec<(usize, bool)> = (0..columns)
            .map(|column| {
                let width = cells(column).map(|cell| cell.chars().count()).max().unwrap_or(0);
                let is_number = |cell: &String| cell == "-" || cell.starts_with(|c: char| c.is_ascii_digit());
                let right = cells(column).skip(1).all(is_number);
                (width, right)
            })
            .collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (cell, &(width, right)) in row.iter().zip(&shapes) {
                let gap = if line.is_empty() { "" } else { "  " };
                let padding = " ".repeat(width.saturating_sub(cell.chars().count()));
                line.push_str(gap);
                line.extend(if right { [padding.as_str(), cell] } else { [cell, padding.as_str()] });
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// Names and values below each other, each line ended.
pub(super) fn fields<'a>(fields: impl IntoIterator<Item = (&'a str, String)>) -> String {
    let fields: Vec<_> = fields.into_iter().collect();
    let width = fields.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    fields.iter().map(|(name, value)| format!("{name:width$}  {}\n", one_line(value))).collect()
}

/// With all but newlines spelled out that a terminal would act on: control characters, and those that turn the
/// direction of writing. Keys and paths come from storage and may hold any.
pub(super) fn visible(text: &str) -> String {
    text.split('\n').map(one_line).collect::<Vec<_>>().join("\n")
}

/// As `visible`, newlines spelled out as well: what comes from storage can't pretend to be another line.
pub(super) fn one_line(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => shown.extend(c.escape_unicode()),
            c if c.is_control() => shown.extend(c.escape_default()),
            c => shown.push(c),
        }
    }
    shown
}

/// Most characters of a cell: its head and its tail, as keys differ at both. JSON has the whole.
const BRIEF: usize = 120;

/// On one line, and no longer than a cell of a table may be.
pub(super) fn brief(text: &str) -> String {
    let shown = one_line(text);
    let long = shown.chars().count();
    if long <= BRIEF {
        return shown;
    }
    let head = (BRIEF - 1) / 2;
    let tail = BRIEF - 1 - head;
    shown.chars().take(head).chain(['…']).chain(shown.chars().skip(long - tail)).collect()
}

/// `2026-01-31T23:59:59Z`, in UTC; `-` before 1970.
pub(super) fn time(at: SystemTime) -> String {
    let Ok(since) = at.duration_since(UNIX_EPOCH) else { return "-".to_owned() };
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    // Days in the civil calendar: years begin in March, so that the leap day is a year's last, in eras of 400 years.
    let from_march = days + 719_468;
    let (era, day) = (from_march / 146_097, from_march % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = era * 400 + year + carry;
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// `1 file`, `3 files`.
pub(super) fn count(number: impl Into<u64>, what: &str) -> String {
    match number.into() {
        1 => format!("1 {what}"),
        number => format!("{number} {what}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn times_are_those_of_the_calendar() {
        // As `date -u -d @N` says.
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_709_251_200, "2024-03-01T00:00:00Z"),
            (1_767_225_599, "2025-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(time(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn tables_align_and_keys_stay_on_their_line() {
        let mut table = Table::new(["key", "bytes"]);
        table.row(["é\u{1b}[31m".to_owned(), "7".to_owned()]);
        table.row(["long key".to_owned(), "1234".to_owned()]);
        let expected = "key          bytes\né\\u{1b}[31m      7\nlong key      1234\n";
        assert_eq!(table.text(), expected);
    }
}
