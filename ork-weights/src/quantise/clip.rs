//! Choosing a scale below absmax where the inputs that matter gain by it.

/// Fractions of the absmax that are tried, the whole first.
pub(super) const RATIOS: [f32; 7] = [1.0, 0.92, 0.85, 0.78, 0.70, 0.62, 0.55];

/// The candidate with the least Σ importance × (value − reconstruction)²; of equals the first.
#[inline(always)]
pub(super) fn least_error(
    candidates: [f32; RATIOS.len()],
    values: &[f32],
    importance: &[f32],
    reconstruct: impl Fn(f32, f32) -> f32,
) -> f32 {
    let error = |scale: f32| -> f64 {
        let terms = values.iter().zip(importance).map(|(&value, &weight)| {
            let off = f64::from(value - reconstruct(value, scale));
            f64::from(weight) * off * off
        });
        terms.sum()
    };
    let mut best = (candidates[0], error(candidates[0]));
    for &scale in &candidates[1..] {
        let error = error(scale);
        if error < best.1 {
            best = (scale, error);
        }
    }
    best.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One outlier that does not matter: clipping it serves the rest.
    #[test]
    fn an_unimportant_outlier_is_clipped() {
        let mut values = [0.5f32; 64];
        values[0] = 1.0;
        let round = |v: f32, s: f32| (v / s).round_ties_even().clamp(-7.0, 7.0) * s;
        let candidates = RATIOS.map(|r| r / 7.0);
        let mut skewed = [1f32; 64];
        skewed[0] = 0.0;
        let off = |scale: &f32| (0.5 - round(0.5, *scale)).abs();
        let best = *candidates.iter().min_by(|a, b| off(a).total_cmp(&off(b))).unwrap();
        assert_ne!(best, candidates[0]);
        assert_eq!(least_error(candidates, &values, &skewed, round), best);
        let mut outlier_only = [0f32; 64];
        outlier_only[0] = 1.0;
        assert_eq!(least_error(candidates, &values, &outlier_only, round), candidates[0]);
    }
}
