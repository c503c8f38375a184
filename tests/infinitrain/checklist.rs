//! The tables in docs/ that name tests: every test that they name exists, and no line is left out.

use std::fs;
use std::path::Path;

fn read(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The cells of the lines of a document's tables, without their heads.
fn rows(document: &str) -> Vec<Vec<String>> {
    let cells = |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect();
    let lines: Vec<&str> = document.lines().collect();
    let is_body = |index: usize| {
        let line = lines[index];
        line.starts_with('|')
            && !line.starts_with("|--")
            && !lines.get(index + 1).is_some_and(|next| next.starts_with("|--"))
    };
    (0..lines.len()).filter(|&index| is_body(index)).map(|index| cells(lines[index])).collect()
}

/// Checks every `path::test` of a cell; how many there were.
fn check_tests(cell: &str) -> usize {
    let named: Vec<&str> = cell.split('`').filter(|text| text.contains(".rs::")).collect();
    for name in &named {
        let (path, test) = name.split_once("::").unwrap();
        let source = read(path);
        let found = source.match_indices(&format!("fn {test}(")).next();
        assert!(found.is_some(), "{path} has no test `{test}`");
    }
    named.len()
}

#[test]
fn every_requirement_has_its_line_and_the_tests_that_it_names_exist() {
    let rows = rows(&read("docs/infinitrain.md"));
    let requirements: Vec<&Vec<String>> = rows.iter().filter(|row| row[0].starts_with('R')).collect();
    let numbers: Vec<&str> = requirements.iter().map(|row| row[0].as_str()).collect();
    assert_eq!(numbers, (1..56).map(|number| format!("R{number}")).collect::<Vec<_>>());
    for row in requirements {
        let [_, requirement, shown] = &row[..] else { panic!("{row:?}") };
        assert!(!requirement.is_empty());
        assert!(check_tests(shown) > 0 || shown.starts_with("Different: "), "{}: {shown}", row[0]);
    }
}

#[test]
fn every_field_fault_has_its_line_and_the_tests_that_it_names_exist() {
    let rows = rows(&read("docs/field-faults.md"));
    assert!(rows.len() >= 39, "{}", rows.len());
    for row in rows {
        let [kind, shown] = &row[..] else { panic!("{row:?}") };
        assert!(
            check_tests(shown) > 0 || shown.starts_with("Cannot happen: ") || shown.starts_with("Later: "),
            "{kind}: {shown}"
        );
    }
}
