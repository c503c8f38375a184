//! Where tensors live, how bytes reach them, and the bounded memory that they pass through.
//!
//! - A [`Device`] allocates tensors and the host memory that stages copies to them; [`Host`] is the one
//!   that every machine has.
//! - A [`StagingPool`] is all the host memory that a transfer uses beside the tensors: slots of one size,
//!   waited for when all are in use.
//! - A [`StridedCopy`] says how the bytes of a region lie in a stream and in a tensor, and copies any piece
//!   of the stream between the two.
//! - [`with_destinations`] and [`with_sources`] lend a caller's tensors to tasks that want `'static`
//!   handles, for as long as a closure runs and not an instruction longer.

mod destination;
mod device;
mod error;
mod host;
mod rows;
mod scope;
mod source;
mod staging;
mod strided;
mod stripes;
mod window;

pub use destination::{DestinationHandle, with_destinations};
pub use device::{Device, StagingMemory};
pub use error::DeviceError;
pub use host::{Buffer, Host};
pub use source::{SourceHandle, SourceWindow, with_sources};
pub use staging::{Slot, StagingPool};
pub use strided::{Axis, StridedCopy};
pub use window::Window;
