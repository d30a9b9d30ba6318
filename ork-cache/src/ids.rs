//! Names of things in a cache: small numbers, so that a lookup is an index.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty), $label:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl $name {
            /// The number as an index.
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($label, " {}"), self.0)
            }
        }
    };
}

id! {
    /// A weight known to a cache, numbered in the order in which weights were attached.
    WeightId(u32), "weight"
}
id! {
    /// An IOMMU domain of the device, by its place among the domains given to the cache.
    DomainId(u8), "domain"
}
id! {
    /// A piece of device memory that holds at most one weight at a time.
    SlotId(u32), "slot"
}
id! {
    /// A set of slots of one size, created once and refilled for ever.
    ClassId(u32), "slot class"
}
