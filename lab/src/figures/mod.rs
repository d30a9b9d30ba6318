//! The figures that plans, policies and prefetching are judged by, each beside its target. Times are
//! printed, never asserted.

mod dense;
mod mixtures;
mod plans;
mod scans;

use crate::Result;

/// How much is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// As much as it takes to see something.
    Full,
    /// As little as shows that it works.
    Small,
}

/// Prints all figures.
///
/// # Errors
/// None but the code's own: plans and shapes are those that come with it.
pub fn run(size: Size) -> Result<()> {
    let full = size == Size::Full;
    scans::loads();
    plans::experts()?;
    dense::in_virtual_time()?;
    dense::on_threads(if full { 5 } else { 1 })?;
    mixtures::prefill()?;
    mixtures::decode(if full { 400 } else { 40 })?;
    plans::large_models()
}

fn figure(name: &str, target: &str, value: impl std::fmt::Display) {
    println!("{name:<72} target {target:<16} {value}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_can_be_taken() {
        run(Size::Small).unwrap();
    }
}
