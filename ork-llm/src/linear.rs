//! Linear layers, whoever computes them: this is where an engine and the NPU meet.

use std::error::Error;

/// A weight, as whoever computes with it knows it.
///
/// ```
/// use ork_llm::Weight;
///
/// let weight = Weight { id: 7, k: 64, n: 32 };
/// assert_eq!((weight.k, weight.n), (64, 32)); // 64 inputs, 32 outputs
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Weight {
    /// Its number, which means something to the [`Linears`] that gave it.
    pub id: u32,
    /// Inputs.
    pub k: u32,
    /// Outputs.
    pub n: u32,
}

/// One of the products of a list: its weight, and where its rows go.
#[derive(Debug)]
pub struct Product<'a> {
    /// The weight.
    pub weight: Weight,
    /// `rows` × `n` values, row after row; every one is written.
    pub out: &'a mut [f32],
}

/// Why a linear layer could not be computed.
pub type LinearError = Box<dyn Error + Send + Sync>;

/// The linear layers of a model: rows of f32 in, rows of f32 out.
///
/// The products of a call share one input, because that is how the NPU wants them: the input is
/// converted once, and a list is one submit. A decoder asks for q, k and v together, for gate and up,
/// and for the two of an expert.
///
/// What a row gives must not depend on the rows beside it, nor on the other products of the list;
/// then text does not depend on how a prompt is cut into batches.
///
/// ```
/// use ork_llm::{LinearError, Linears, Product, Weight};
///
/// /// A model of one matrix, which doubles.
/// struct Double;
///
/// impl Linears for Double {
///     fn weight(&self, name: &str) -> Option<Weight> {
///         (name == "double").then_some(Weight { id: 0, k: 4, n: 4 })
///     }
///
///     fn multiply(
///         &mut self,
///         _rows: usize,
///         input: &[f32],
///         products: &mut [Product<'_>],
///     ) -> Result<(), LinearError> {
///         for product in products {
///             for (out, input) in product.out.iter_mut().zip(input) {
///                 *out = 2.0 * input;
///             }
///         }
///         Ok(())
///     }
/// }
///
/// let mut linears = Double;
/// let weight = linears.weight("double").ok_or("no such weight")?;
/// let mut out = [0.0; 4];
/// linears.multiply(1, &[1.0, 2.0, 3.0, 4.0], &mut [Product { weight, out: &mut out }])?;
/// assert_eq!(out, [2.0, 4.0, 6.0, 8.0]);
/// # Ok::<(), LinearError>(())
/// ```
pub trait Linears: Send {
    /// The weight of a tensor's name in a GGUF; that of an expert is `name#index`.
    fn weight(&self, name: &str) -> Option<Weight>;

    /// Multiplies `rows` rows of `input` (`rows` × `k` values, row after row) by each weight.
    ///
    /// # Errors
    /// Whatever kept it from doing so; outputs are then anything.
    fn multiply(
        &mut self,
        rows: usize,
        input: &[f32],
        products: &mut [Product<'_>],
    ) -> Result<(), LinearError>;

    /// Says which groups of weights the next calls will name, in any order: the experts that a router
    /// has chosen for `rows` rows. Whoever streams weights begins to load them.
    fn expect(&mut self, _rows: usize, _groups: &[&[Weight]]) {}

    /// Which of the groups that are still to be computed is best computed next, by its place in
    /// `waiting`; the results do not depend on it.
    fn next(&mut self, _waiting: &[&[Weight]]) -> usize {
        0
    }
}

impl<T: Linears + ?Sized> Linears for Box<T> {
    fn weight(&self, name: &str) -> Option<Weight> {
        (**self).weight(name)
    }

    fn multiply(
        &mut self,
        rows: usize,
        input: &[f32],
        products: &mut [Product<'_>],
    ) -> Result<(), LinearError> {
        (**self).multiply(rows, input, products)
    }

    fn expect(&mut self, rows: usize, groups: &[&[Weight]]) {
        (**self).expect(rows, groups);
    }

    fn next(&mut self, waiting: &[&[Weight]]) -> usize {
        (**self).next(waiting)
    }
}
