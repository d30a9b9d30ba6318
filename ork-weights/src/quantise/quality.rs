//! How far codes are from the weights.

use std::ops::AddAssign;

/// Sums over a weight: of squared differences and of squares, weighted by importance if there is one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Quality {
    /// Σ importance × (weight − code's value)².
    pub error: f64,
    /// Σ importance × weight².
    pub energy: f64,
}

impl Quality {
    /// Relative root-mean-square error: 0 is exact, and 0 for a weight of zeros.
    ///
    /// ```
    /// use ork_weights::quantise::Quality;
    /// assert_eq!(Quality { error: 1.0, energy: 4.0 }.relative_rms(), 0.5);
    /// assert_eq!(Quality::default().relative_rms(), 0.0);
    /// ```
    pub fn relative_rms(&self) -> f64 {
        if self.energy > 0.0 { (self.error / self.energy).sqrt() } else { 0.0 }
    }
}

impl AddAssign for Quality {
    fn add_assign(&mut self, other: Quality) {
        self.error += other.error;
        self.energy += other.energy;
    }
}
