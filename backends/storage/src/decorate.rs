//! Backends around backends: each adds one thing and passes everything else on.

/// A decorator is shown as the store inside it; to a developer, with its name around.
macro_rules! shown_as_inner {
    ($decorator:ident) => {
        impl std::fmt::Display for $decorator {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(&self.inner, f)
            }
        }

        impl std::fmt::Debug for $decorator {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_tuple(stringify!($decorator)).field(&self.inner).finish()
            }
        }
    };
}

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
