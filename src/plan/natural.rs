use std::cmp::Ordering;

/// Compares keys as people order them: runs of digits by their number, so that layer 2 comes before layer 10.
/// Equal numbers of different length (`1`, `01`) are told apart by byte order, so that the order is total.
pub(crate) fn natural_order(a: &str, b: &str) -> Ordering {
    let (mut rest_a, mut rest_b) = (a.as_bytes(), b.as_bytes());
    while let (Some(&byte_a), Some(&byte_b)) = (rest_a.first(), rest_b.first()) {
        if byte_a.is_ascii_digit() && byte_b.is_ascii_digit() {
            let (number_a, after_a) = split_digits(rest_a);
            let (number_b, after_b) = split_digits(rest_b);
            match number_a.len().cmp(&number_b.len()).then_with(|| number_a.cmp(number_b)) {
                Ordering::Equal => (rest_a, rest_b) = (after_a, after_b),
                unequal => return unequal,
            }
        } else if byte_a == byte_b {
            (rest_a, rest_b) = (&rest_a[1..], &rest_b[1..]);
        } else {
            return byte_a.cmp(&byte_b);
        }
    }
    rest_a.len().cmp(&rest_b.len()).then_with(|| a.cmp(b))
}

/// The leading digits without leading zeros, and what follows them.
fn split_digits(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    let start = text[..end].iter().position(|&byte| byte != b'0').unwrap_or(end);
    (&text[start..end], &text[end..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_compare_as_numbers() {
        let mut keys = vec!["h.10.w", "h.2.w", "h.2.b", "h", "h.010.w", "a99999999999999999999999", "a7"];
        keys.sort_by(|a, b| natural_order(a, b));
        assert_eq!(keys, ["a7", "a99999999999999999999999", "h", "h.2.b", "h.2.w", "h.010.w", "h.10.w"]);
    }
}
