//! Backends around backends: each adds one thing and passes everything else on.

mod faulty;
mod limited;
mod metered;
mod retrying;
mod throttled;

pub use faulty::{Fault, Faulty, Rule, When};
pub use limited::{Limited, Limits};
pub use metered::{Meter, Metered, Record, Totals};
pub use retrying::{RetryPolicy, Retrying};
pub use throttled::{Pace, Throttled};

use crate::StorageBackend;
use std::fmt::{self, Debug};

/// `Debug` of a decorator: its name around the inner one.
fn debug_around(name: &str, inner: &dyn StorageBackend, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "{name}(")?;
    Debug::fmt(inner, f)?;
    f.write_str(")")
}
