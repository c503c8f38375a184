//! Pure functions from layouts to plans: what to write, what to read, and proofs that nothing is missing.

mod box_tree;
mod coalesce;
mod contract;
mod copy;
mod cost;
mod declaration;
mod error;
mod load;
mod lookup;
mod manifest;
mod natural;
mod objects;
mod padding;
mod pattern;
mod save;
mod select;
mod shares;
mod slots;

pub use contract::{DTypeContract, DTypeRule};
pub use copy::{Copy, CopyAxis};
pub use cost::CostModel;
pub use declaration::{
    Declaration, DeclarationFault, check_declarations, decode_declarations, encode_declarations,
};
pub use error::PlanError;
pub(crate) use error::quoted;
pub use load::{
    Destination, LoadCost, LoadPlan, LoadPlanner, LoadRules, ObjectChoice, PlannedTensor, Request, ZeroFill,
};
pub use lookup::{SavedTies, TieWinners};
pub use manifest::manifest;
pub use objects::choose_objects;
pub use pattern::LocalPattern;
pub use save::{ChunkWrite, ObjectLengths, PlannedFile, SavePlan, SavePlanner, WriteSource};
pub use select::Select;
