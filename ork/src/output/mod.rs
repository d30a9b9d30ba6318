//! What a person or a script sees.

pub mod html;
mod plain;
mod progress;
mod report;
mod table;

pub use plain::{plain, plain_lines};
pub use progress::Progress;
pub use report::Report;
pub use table::{Table, as_seconds, counted, recovered, seconds, share};
