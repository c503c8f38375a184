//! The moment by which a collective call has returned.

use std::time::{Duration, Instant};

/// A wait longer than this is as good as none; it keeps the arithmetic on instants in range.
const LONGEST: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

/// The moment by which a call has returned, with a result or an error.
///
/// It is a moment and not a length of time, so that one deadline bounds a sequence of calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Instant);

impl Deadline {
    /// The moment `wait` from now. Waits over 30 years count as 30 years.
    pub fn after(wait: Duration) -> Self {
        Self(Instant::now() + wait.min(LONGEST))
    }

    /// What is left of the wait; zero once the moment has passed.
    pub fn remaining(&self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_wait_is_too_long_and_none_is_negative() {
        assert!(Deadline::after(Duration::MAX).remaining() > LONGEST / 2);
        assert_eq!(Deadline::after(Duration::ZERO).remaining(), Duration::ZERO);
    }
}
