//! Passes over the weights of models, through a budget of device memory.
//!
//! | part | what it does |
//! |---|---|
//! | [`source`] | weights out of a pack, or out of a model that is packed meanwhile |
//! | [`backend`] | device memory for the weight cache |
//! | [`activations`] | inputs, and digests of outputs |
//! | [`placement`] | what stays and what is streamed, by plan or by policy |
//! | [`columns`] | parts of weights that are larger than a slot |
//! | [`mod@reference`] | the same products on the CPU |
//! | [`pass`] | the matmuls of a pass, on resident and streamed weights |

pub mod activations;
pub mod backend;
pub mod columns;
pub mod pass;
pub mod placement;
pub mod reference;
pub mod source;
