//! How far codes are from the weights.

use std::ops::AddAssign;

/// Sums over a weight: of squared differences and of squares, weighted by importance if there is one.
///
/// ```
/// use ork_weights::quantise::Quality;
///
/// // Of a weight in two pieces.
/// let mut quality = Quality { error: 1.0, energy: 50.0 };
/// quality += Quality { error: 3.0, energy: 50.0 };
/// assert_eq!(quality.relative_rms(), 0.2);
/// ```
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
